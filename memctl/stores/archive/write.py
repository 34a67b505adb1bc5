"""Writing an archive: straight into a new one, or by a spool into one that is there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from memctl.errors import Failure
from memctl.model import Memory, MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.stores.archive.format import ArchiveWriter, message_lines
from memctl.stores.archive.lines import uncut
from memctl.stores.archive.read import Contents, Sections
from memctl.stores.files import system_errors

_PIECE = 1024 * 1024


class Incoming(ABC):
    """One ``write``, in a thread: pages are added, then ``finish`` ends the new archive."""

    def __init__(self, writer: ArchiveWriter, contents: Contents, mode: WriteMode) -> None:
        """``contents`` are those of the archive that is there."""
        self.tallies: list[WriteResult] = []
        self.after: dict[MemoryKey, int] = {}
        """How many messages each memory of the new archive has, once it is finished."""
        self._writer = writer
        self._before = contents.memories
        self._mode = mode
        self._begun: set[MemoryKey] = set()
        self._open = False

    @property
    def changes(self) -> bool:
        """Whether anything was written."""
        return any(tally.failure is None for tally in self.tallies)

    def add(self, pages: list[Page]) -> None:
        """Takes some pages.

        Raises:
            BadData: a message is not a JSON object.
            Unavailable: there is no room for them.
        """
        for page in pages:
            if not self._open:
                self._begin(page)
            tally = self.tallies[-1]
            if tally.failure is None:
                self.entries(page.messages)
                self.tallies[-1] = replace(tally, written=tally.written + len(page.messages))
            self._open = not page.last

    def _begin(self, page: Page) -> None:
        key = page.memory.key
        held = self._before.get(key, 0)
        why = ""
        if self._mode is WriteMode.ADD and held != page.offset:
            why = f"the archive holds {held} messages, not {page.offset}"
        elif key in self._begun:
            why = "it came before in the same run"
        if why:
            self.tallies.append(WriteResult(key, failure=Failure("changed", why)))
            return
        self._begun.add(key)
        deleted = held if self._mode is WriteMode.REPLACE else 0
        self.tallies.append(WriteResult(key, deleted=deleted))
        self.memory(page.memory)

    @abstractmethod
    def memory(self, memory: Memory) -> None:
        """A memory begins."""

    @abstractmethod
    def entries(self, entries: list[StoredMessage]) -> None:
        """Messages of the memory that began last."""

    @abstractmethod
    def finish(self) -> None:
        """Ends the new archive."""


class Fresh(Incoming):
    """A write where there are no memories yet: what comes is what the archive will hold."""

    def memory(self, memory: Memory) -> None:
        self._writer.memory(memory)

    def entries(self, entries: list[StoredMessage]) -> None:
        self._writer.entries(entries)

    def finish(self) -> None:
        self._writer.finish()
        self.after = {tally.key: tally.written for tally in self.tallies if not tally.failure}


@dataclass(slots=True)
class Spooled:
    """A memory in the spool."""

    memory: Memory
    start: int
    end: int
    messages: int = 0


class Merge(Incoming):
    """A write into an archive: the memories keep their order, new ones follow."""

    def __init__(
        self,
        writer: ArchiveWriter,
        contents: Contents,
        mode: WriteMode,
        old: Sections,
        spool: IO[bytes],
        path: Path,
    ) -> None:
        """``spool`` keeps what comes until all of it is known; ``path`` is for its errors."""
        super().__init__(writer, contents, mode)
        self._old = old
        self._spool = spool
        self._path = path
        self._spooled: dict[MemoryKey, Spooled] = {}
        self._size = 0

    def memory(self, memory: Memory) -> None:
        self._spooled[memory.key] = Spooled(memory, self._size, self._size)

    def entries(self, entries: list[StoredMessage]) -> None:
        spooled = self._spooled[self.tallies[-1].key]
        with system_errors(self._path, "write"):
            for lines, messages in message_lines(entries):
                self._size += self._spool.write(lines)
                spooled.messages += messages
        spooled.end = self._size

    def finish(self) -> None:
        with system_errors(self._path, "read"):
            for old in self._old:
                self._merge(old, self._spooled.pop(old.key, None))
            for new in self._spooled.values():
                self._writer.memory(new.memory)
                self._copy(new)
                self.after[new.memory.key] = new.messages
        self._writer.finish()

    def _merge(self, old: Memory, new: Spooled | None) -> None:
        kept = self._before[old.key]
        if new is None:
            self._writer.memory(old)
        else:
            summary = old.summary if new.memory.summary is None else new.memory.summary
            ttl = old.ttl if new.memory.ttl is None else new.memory.ttl
            self._writer.memory(replace(old, summary=summary, ttl=ttl))
        if new is None or self._mode is WriteMode.ADD:
            for run in self._old.runs():
                self._writer.copy(uncut(run), len(run))
        else:
            kept = 0
        if new is not None:
            self._copy(new)
        self.after[old.key] = kept + (new.messages if new else 0)

    def _copy(self, spooled: Spooled) -> None:
        self._spool.seek(spooled.start)
        left = spooled.end - spooled.start
        self._writer.copy(b"", spooled.messages)
        while left:
            piece = self._spool.read(min(left, _PIECE))
            self._writer.copy(piece, 0)
            left -= len(piece)
