"""Changing an archive: one pass from the old one to a new one, with the changes on the way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path

from memctl.errors import BadData, Failure
from memctl.location import same_file, visible
from memctl.model import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Edit,
    Memory,
    MemoryKey,
    StoredMessage,
    WriteResult,
)
from memctl.stores.archive import bulk
from memctl.stores.archive.format import (
    ArchiveWriter,
    Line,
    memory_line,
    message_lines,
    with_summary,
)
from memctl.stores.archive.lines import uncut
from memctl.stores.archive.read import Contents, Sections
from memctl.stores.edits import ChangeMatcher, Drop, Keep, Mark, Put, Step
from memctl.stores.files import system_errors

_PIECE = 1024 * 1024
_DONE = object()


class Revision:
    """One pass, in a thread: edits are added, then ``finish`` ends the new archive.

    Memories keep their order, those that are made anew come last.  A memory that is not edited is
    copied line by line, unread.  What an edited one will hold waits in a spool until it is sure
    that all changes fit, and so does what it held.
    """

    def __init__(
        self, writer: ArchiveWriter, contents: Contents, old: Sections | None, path: Path
    ) -> None:
        """``old`` is the archive that is there, and ``contents`` its own; ``path`` is its place."""
        self.tallies: list[WriteResult] = []
        self.after: dict[MemoryKey, int] = {}
        """How many messages each memory of the new archive has, once it is finished."""
        self.changed = False
        """Whether the new archive differs from the old one."""
        self._writer = writer
        self._before = contents.memories
        self._sections = old
        self._old = iter(old or ())
        self._path = path
        self._work: Generator[None] | None = None
        self._changes = ChangeMatcher()
        self._ended = False
        self._held = _Spool(path)
        self._holds = _Spool(path)

    def add(self, edits: list[Edit]) -> list[Edit]:
        """Takes edits up to that of a memory which has been passed; gives back those from there.

        Raises:
            BadData: a message is not a JSON object.
            Unavailable: there is no room for them.
        """
        with system_errors(self._path, "read"):
            for number, edit in enumerate(edits):
                if self._work is None:
                    if edit.memory.key in self.after:
                        return edits[number:]
                    self._changes = ChangeMatcher()
                    self._work = self._edited(edit)
                self._ended = edit.last
                self._changes.give(edit.changes, last=edit.last)
                try:
                    ended = next(self._work, _DONE) is _DONE
                except ValueError as error:
                    name = visible(str(self._path))
                    raise BadData(f"{name} holds a message that is not one: {error}") from error
                if ended:
                    self._work = None
        return []

    def finish(self) -> None:
        """Copies the other memories and ends the new archive."""
        with system_errors(self._path, "read"):
            self._seek(None)
        self._writer.finish()

    def close(self) -> None:
        """Removes what waits."""
        self._held.close()
        self._holds.close()

    def _edited(self, first: Edit) -> Generator[None]:
        """Edits a memory; stops where the next of its edits is needed."""
        memory = first.memory
        changes = self._changes
        is_empty = first.last and not first.changes
        failure: Failure | None = None
        exists = memory.key in self._before
        if exists or not is_empty or memory.summary:
            old = self._seek(memory.key) if exists else None
            there = (old.summary if old else None) or ""
            if first.summary is not None and first.summary != there:
                failure = Failure("changed", "the summary is another one")
            elif not is_empty:
                yield from self._fitted(changes)
                failure = changes.failure()
            self._end(old, memory, failure)
        while not self._ended:
            yield
        tally = WriteResult(memory.key, changes.written, changes.deleted)
        self.tallies.append(WriteResult(memory.key, failure=failure) if failure else tally)

    def _seek(self, key: MemoryKey | None) -> Memory | None:
        """Copies the memories before that one, which comes next, or all that are left."""
        for memory in self._old:
            if memory.key == key:
                return memory
            self._section(memory.key, self._line, self._held)
        return None

    @property
    def _line(self) -> bytes:
        """The line of the old memory that comes next."""
        return self._sections.line if self._sections else b""

    def _runs(self) -> Iterator[list[Line]]:
        """The messages of that memory, which can be had once; none where none comes next."""
        return self._sections.runs() if self._sections else iter(())

    def _fitted(self, changes: ChangeMatcher) -> Generator[None]:
        """Takes the messages of the memory into the spools, as they are and changed."""
        for run in self._runs():
            self._held.add(run)
            outlines = bulk.outlines(run)
            ids, marks = [one.id for one in outlines], [one.marks for one in outlines]
            del outlines
            at = 0
            while True:
                steps, at = changes.apply(ids, marks, at)
                _take(steps, run, self._holds)
                if not changes.hungry:
                    break
                yield
        while True:
            _take(changes.apply([], [])[0], [], self._holds)
            if not changes.hungry:
                return
            yield

    def _end(self, old: Memory | None, memory: Memory, failure: Failure | None) -> None:
        """Writes the memory that comes next: as it was, where that failed."""
        if old is None and failure is None:
            self._seek(None)
            self._section(memory.key, memory_line(memory), self._holds)
            self.changed = True
        elif old is not None and failure is None:
            line = self._line
            if memory.summary is not None and memory.summary != old.summary:
                line = with_summary(line, memory.summary)
            self.changed |= line != self._line or bool(
                self._changes.written + self._changes.deleted
            )
            self._section(memory.key, line, self._holds)
        elif old is not None:
            self._section(memory.key, self._line, self._held)
        self._held.clear()
        self._holds.clear()

    def _section(self, key: MemoryKey, line: bytes, spool: _Spool) -> None:
        """Writes a memory: what is in the spool, and what was not yet taken of its messages."""
        before = self._writer.messages
        self._writer.section(line)
        spool.copy_to(self._writer)
        for run in self._runs():
            self._writer.copy(uncut(run), len(run))
        self.after[key] = self._writer.messages - before


def _take(steps: list[Step], run: list[Line], spool: _Spool) -> None:
    """Takes the messages of a run into a spool as the steps say."""
    changed: list[StoredMessage] = []
    for step in steps:
        match step:
            case Keep(start, stop):
                spool.put(changed)
                changed = []
                spool.add(run[start:stop])
            case Mark(at, marks):
                [entry] = bulk.entries([run[at]])
                changed.append(entry._replace(marks=marks))
            case Put(entry):
                changed.append(entry)
            case Drop():
                pass
    spool.put(changed)


class _Spool:
    """Lines of messages that wait: in memory while they are few."""

    def __init__(self, path: Path) -> None:
        """``path`` is the archive: what is too much for memory waits beside it."""
        self._path = path
        self._messages = 0
        folder = os.path.dirname(same_file(path))
        self._file = tempfile.SpooledTemporaryFile(PAGE_BYTES, dir=folder)  # noqa: SIM115 - see close

    def add(self, run: list[Line]) -> None:
        """Takes lines."""
        self._write(uncut(run), len(run))

    def put(self, entries: list[StoredMessage]) -> None:
        """Takes messages.

        Raises:
            BadData: one is not a JSON object.
        """
        for lines, messages in message_lines(entries):
            self._write(lines, messages)

    def _write(self, lines: bytes | memoryview, messages: int) -> None:
        with system_errors(self._path, "write"):
            self._file.write(lines)
        self._messages += messages

    def copy_to(self, writer: ArchiveWriter) -> None:
        """Copies all of it."""
        if not self._messages:
            return
        with system_errors(self._path, "read"):
            self._file.seek(0)
            while piece := self._file.read(_PIECE):
                writer.copy(piece, 0)
        writer.copy(b"", self._messages)

    def clear(self) -> None:
        """Empties it."""
        if self._messages:
            with system_errors(self._path, "write"):
                self._file.seek(0)
                self._file.truncate()
            self._messages = 0

    def close(self) -> None:
        """Removes it."""
        self._file.close()


async def group_edits(edits: AsyncGenerator[Edit]) -> AsyncGenerator[list[Edit]]:
    """The edits of many small memories in lists of about a page."""
    some: list[Edit] = []
    size = count = 0
    async for edit in edits:
        some.append(edit)
        size += sum([len(change.message) for change in edit.changes])
        count += 1 + len(edit.changes)
        if size >= PAGE_BYTES or count >= PAGE_ENTRIES:
            yield some
            some, size, count = [], 0, 0
    if some:
        yield some
