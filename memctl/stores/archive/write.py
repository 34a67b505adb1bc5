"""Writing an archive: directly into a new archive, or through a spool into an existing archive."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import IO

from msgspec import Struct

from memctl.dialects.view import Dialect
from memctl.errors import BadData, Failure
from memctl.location import visible
from memctl.machine.temporary import end, scratch
from memctl.model import (
    PAGE_BYTES,
    Edit,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.storekit.edits import ChangeMatcher, Drop, Keep, Mark, Put, Step, is_same_text
from memctl.storekit.files import system_errors
from memctl.storekit.named_file import File
from memctl.storekit.texts import Rewriter, TextResult
from memctl.stores.archive.format import (
    MESSAGE,
    ArchiveWriter,
    Line,
    entry,
    memory_line,
    message_lines,
    outlines,
    read_memory,
    text_of,
    with_fields,
    with_names,
)
from memctl.stores.archive.read import ArchiveContents, MemorySections, uncut

_PIECE = 1024 * 1024
_MADE = "made"
"""The ``WriteResult.before`` of a memory that did not exist.

For an existing memory, ``before`` is the memory's old line, if undo could not restore the line
otherwise.
"""


class ArchiveUpdate(ABC):
    """A write to an archive: a new archive with added pages, which will replace the old archive.

    The methods run in a thread: ``add``, then ``finish``.
    """

    def __init__(self, writer: ArchiveWriter, contents: ArchiveContents, mode: WriteMode) -> None:
        """``writer`` writes the new archive; ``contents`` are the contents of the old archive."""
        self.results: list[WriteResult] = []
        self.after: dict[MemoryKey, int] = {}
        """The number of messages of each memory in the new archive, set by ``finish``."""
        self._writer = writer
        self._before = contents.memories
        self._mode = mode
        self._begun: set[MemoryKey] = set()
        self._open = False

    @property
    def changes(self) -> bool:
        """True if a memory was written without a failure."""
        return any(result.failure is None for result in self.results)

    def add(self, pages: list[Page]) -> None:
        """Write pages; the results are in ``results``.

        Raises:
            BadData: a message is not a JSON object, or is too large.
            Unavailable: the disk is full.
        """
        for page in pages:
            if not self._open:
                self._begin(page)
            result = self.results[-1]
            if result.failure is None:
                self.entries(page.messages)
                self.results[-1] = replace(result, written=result.written + len(page.messages))
            self._open = not page.last

    def _begin(self, page: Page) -> None:
        key = page.memory.key
        held = self._before.get(key, 0)
        why = ""
        if self._mode is WriteMode.ADD and held != page.offset:
            why = f"the archive holds {held} messages, not {page.offset}"
        elif key in self._begun:
            why = "it was written before in the same run"
        if why:
            self.results.append(WriteResult(key, failure=Failure("changed", why)))
            return
        self._begun.add(key)
        deleted = held if self._mode is WriteMode.REPLACE else 0
        before = "" if key in self._before else _MADE
        self.results.append(WriteResult(key, deleted=deleted, before=before))
        self.memory(page.memory)

    @abstractmethod
    def memory(self, memory: Memory) -> None:
        """Begin the new data of a memory."""

    @abstractmethod
    def entries(self, entries: list[StoredMessage]) -> None:
        """Write messages of the memory that was begun last."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the new archive."""


class NewArchive(ArchiveUpdate):
    """A write to an archive without memories.  Pages go directly into the new archive."""

    def memory(self, memory: Memory) -> None:
        self._writer.memory(memory)

    def entries(self, entries: list[StoredMessage]) -> None:
        self._writer.entries(entries)

    def finish(self) -> None:
        self._writer.finish()
        self.after = {result.key: result.written for result in self.results if not result.failure}


class SpooledMemory(Struct):
    """A memory with new messages, which are in the spool file from ``start`` to ``end``."""

    memory: Memory
    start: int
    end: int
    messages: int = 0


class MergedArchive(ArchiveUpdate):
    """A write to an archive with memories.  Old memories keep their order; new memories follow."""

    def __init__(
        self,
        writer: ArchiveWriter,
        contents: ArchiveContents,
        mode: WriteMode,
        old: MemorySections,
        spool: IO[bytes],
        file: File,
    ) -> None:
        """``old`` is the old archive; ``spool`` is a file that holds all pages until ``finish``.

        ``file`` is the file of the archive.
        """
        super().__init__(writer, contents, mode)
        self._old = old
        self._spool = spool
        self._path = file.on_disk
        self._spooled: dict[MemoryKey, SpooledMemory] = {}
        self._replaced: dict[MemoryKey, str] = {}
        """The old lines that open memories, if the reverse of the write would not restore them."""
        self._size = 0

    def memory(self, memory: Memory) -> None:
        self._spooled[memory.key] = SpooledMemory(memory, self._size, self._size)

    def entries(self, entries: list[StoredMessage]) -> None:
        spooled = self._spooled[self.results[-1].key]
        with system_errors(self._path, "write"):
            for lines, messages in self._writer.lines(entries):
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
        self.results = [
            replace(one, before=one.before or self._replaced.get(one.key, ""))
            for one in self.results
        ]

    def _merge(self, old: Memory, new: SpooledMemory | None) -> None:
        kept = self._before[old.key]
        line = self._old.line
        if new is None:
            self._writer.section(line)
        else:
            summary = old.summary if new.memory.summary is None else new.memory.summary
            ttl = old.ttl if new.memory.ttl is None else new.memory.ttl
            extra = old.extra if self._mode is WriteMode.ADD else new.memory.extra
            waits = new.memory.waits
            merged = replace(old, summary=summary, ttl=ttl, extra=extra, waits=waits)
            if merged == old and waits == old.waits:
                self._writer.section(line)
            else:
                self._writer.memory(merged)
                # The reverse restores the text of a summary, but neither a ttl nor unknown fields.
                adds_summary = summary is not None and old.summary is None
                if adds_summary or ttl != old.ttl or line != memory_line(old):
                    self._replaced[old.key] = _as_text(line)
        if new is None or self._mode is WriteMode.ADD:
            # Check the messages now: the comparison after the write would fail too late.
            for run in self._old.proved():
                self._writer.copy(uncut(run), len(run))
        else:
            kept = 0
        if new is not None:
            self._copy(new)
        self.after[old.key] = kept + (new.messages if new else 0)

    def _copy(self, spooled: SpooledMemory) -> None:
        self._spool.seek(spooled.start)
        left = spooled.end - spooled.start
        self._writer.copy(b"", spooled.messages)
        while left:
            piece = self._spool.read(min(left, _PIECE))
            self._writer.copy(piece, 0)
            left -= len(piece)


_DONE = object()


class EditedArchive:
    """One editing pass over an archive: a new archive with the edits will replace the old archive.

    The methods run in a thread: ``add``, then ``finish``.  Memories keep their order; new memories
    come last.  Unedited memories are copied line by line, without parsing.  Both the old and the
    new messages of an edited memory stay in spool files until all changes are known to fit.
    """

    def __init__(
        self,
        writer: ArchiveWriter,
        contents: ArchiveContents,
        old: MemorySections | None,
        file: File,
    ) -> None:
        """``writer`` writes the new archive; ``contents`` are the contents of the old archive.

        ``old`` is the old archive; None if there is none.  ``file`` is the file of both archives.
        """
        self._dialect = contents.dialect
        self.results: list[WriteResult] = []
        self.after: dict[MemoryKey, int] = {}
        """The number of messages of each memory that is in the new archive so far."""
        self.changed = False
        """True if the new archive differs from the old archive."""
        self._writer = writer
        self._before = contents.memories
        self._sections = old
        self._old = iter(old or ())
        self._path = file.on_disk
        self._label = file.label
        self._work: Generator[None] | None = None
        self._changes = ChangeMatcher()
        self._ended = False
        self._held = _LineSpool(file)
        self._holds = _LineSpool(file)

    def add(self, edits: list[Edit]) -> list[Edit]:
        """Carry out edits; return the edits that need another pass, empty if none does.

        These are the edits from the first memory on that the pass has already copied.

        Raises:
            BadData: a message is not a JSON object.
            Unavailable: the disk is full.
        """
        with system_errors(self._path, "read"):
            for number, edit in enumerate(edits):
                if self._work is None:
                    if edit.memory.key in self.after:
                        return edits[number:]
                    self._changes = ChangeMatcher(edit.shared_ids)
                    self._work = self._edited(edit)
                self._ended = edit.last
                self._changes.give(edit.changes, last=edit.last)
                try:
                    ended = next(self._work, _DONE) is _DONE
                except ValueError as error:
                    raise BadData(
                        f"{self._label} holds a message that is not valid: {error}"
                    ) from error
                if ended:
                    self._work = None
        return []

    def finish(self) -> None:
        """Copy all memories that follow the last edit, and complete the new archive."""
        with system_errors(self._path, "read"):
            self._seek(None)
        self._writer.finish()

    def close(self) -> None:
        """Remove the spool files."""
        self._held.close()
        self._holds.close()

    def _edited(self, first: Edit) -> Generator[None]:
        memory = first.memory
        changes = self._changes
        is_empty = first.last and not first.changes
        failure: Failure | None = None
        exists = memory.key in self._before
        before = "" if exists else _MADE
        if exists or not is_empty or memory.summary:
            old = self._seek(memory.key) if exists else None
            there = (old.summary if old else None) or ""
            if first.summary is not None and first.summary != there:
                failure = Failure("changed", "the summary differs")
            elif not is_empty:
                yield from self._fitted(changes)
                failure = changes.failure()
            if old and failure is None:
                extra = self._dialect.without(old.extra, changes.gone())
                adds_summary = memory.summary is not None and old.summary is None
                if adds_summary or extra != old.extra:
                    before = _as_text(self._line)
                old = replace(old, extra=extra)
            had = self._end(old, memory, failure, first.before, is_empty=is_empty)
            before = had or before
        while not self._ended:
            yield
        shared_ids = {} if failure else changes.shared_ids()
        counts = changes.written, changes.deleted
        result = WriteResult(memory.key, *counts, before=before, shared_ids=shared_ids)
        self.results.append(WriteResult(memory.key, failure=failure) if failure else result)

    def _seek(self, key: MemoryKey | None) -> Memory | None:
        """Copy the memories before the memory ``key`` to the new archive; return this memory.

        For the key None, copy all remaining memories, and return None.
        """
        for memory in self._old:
            if memory.key == key:
                return memory
            self._section(memory.key, self._line, self._held)
        return None

    @property
    def _line(self) -> bytes:
        return self._sections.line if self._sections else b""

    def _runs(self) -> Iterator[list[Line]]:
        return self._sections.runs() if self._sections else iter(())

    def _fitted(self, changes: ChangeMatcher) -> Generator[None]:
        """Write the current memory to two spools: unchanged, and changed by ``changes``.

        Yield whenever ``changes`` needs further changes.
        """
        for run in self._runs():
            self._held.add(run)
            found = outlines(run)
            ids, marks = [one.id for one in found], [one.marks for one in found]
            del found
            at = 0
            while True:
                steps, at = changes.apply(ids, marks, at, has_text=partial(_has_text, run))
                _take(steps, run, self._holds)
                if not changes.needs_changes:
                    break
                yield
        while True:
            _take(changes.apply([], [])[0], [], self._holds)
            if not changes.needs_changes:
                return
            yield

    def _end(
        self,
        old: Memory | None,
        memory: Memory,
        failure: Failure | None,
        before: str,
        *,
        is_empty: bool,
    ) -> str:
        """Write the current memory to the new archive: changed, or unchanged after a failure.

        ``old`` is the memory in the old archive, ``memory`` the memory of the edit, ``before`` is
        ``Edit.before``.  If ``before`` says that the undone run made the memory, and the memory is
        now empty, the memory is left out.

        Returns the old line of the memory if the memory is left out, or if its line is restored
        from ``before``; empty in all other cases.
        """
        made = before == _MADE
        had = ""
        if old is None and failure is None:
            self._seek(None)
            line = _line_before(before, memory_line(memory), as_it_is=False)
            self._section(memory.key, line, self._holds)
            self.changed = True
        elif old is not None and failure is None:
            line = self._line
            if memory.summary is not None and memory.summary != old.summary:
                line = with_fields(line, summary=memory.summary)
            if old.extra != read_memory(line).extra:
                line = with_fields(line, extra=old.extra)
            # An edit without changes undoes a copy, and a copy keeps the summary.
            line_before = _line_before(before, line, as_it_is=is_empty and memory.summary is None)
            if line_before != line:
                line, had = line_before, _as_text(self._line)
            self.changed |= line != self._line or bool(
                self._changes.written + self._changes.deleted
            )
            summary = old.summary if memory.summary is None else memory.summary
            left = self._before[memory.key] - self._changes.deleted
            if made and not left and self._holds.is_empty and not summary:
                self.changed = True
                had = _as_text(self._line)
            else:
                self._section(memory.key, line, self._holds)
        elif old is not None:
            self._section(memory.key, self._line, self._held)
        self._held.clear()
        self._holds.clear()
        return had

    def _section(self, key: MemoryKey, line: bytes, spool: _LineSpool) -> None:
        before = self._writer.messages
        self._writer.section(line)
        spool.copy_to(self._writer)
        for run in self._runs():
            self._writer.copy(uncut(run), len(run))
        self.after[key] = self._writer.messages - before


def copy_without(writer: ArchiveWriter, old: MemorySections, gone: Collection[MemoryKey]) -> None:
    """Copy an archive line by line, without the memories in ``gone``, and complete the copy."""
    for memory in old:
        if memory.key not in gone:
            writer.section(old.line)
            for run in old.runs():
                writer.copy(uncut(run), len(run))
    writer.finish()


def moved(memory: Memory, moves: Mapping[MemoryKey, MemoryKey], dialect: Dialect) -> Memory:
    """Return a memory after moves of sessions, whose keys have no part.

    Raises:
        BadData: the extra of the memory names its session, and is nested too deep.
    """
    session, owner, extra = memory.key._replace(part=""), memory.owner, memory.extra
    if owner is not None:  # of a session that users share
        names = (MemoryKey(owner, session.session), MemoryKey(owner, ""))
        owner = next((moves[one].user for one in names if one in moves), owner)
    new = moves.get(session, session)
    if extra and new.session != session.session:
        try:
            extra = dialect.renamed(extra, session.session, new.session)
        except ValueError as error:
            raise BadData(
                f"the memory {memory.key} has an extra that is damaged: {error}"
            ) from error
    return replace(memory, key=new._replace(part=memory.key.part), owner=owner, extra=extra)


def copy_renamed(
    writer: ArchiveWriter,
    old: MemorySections,
    moves: Mapping[MemoryKey, MemoryKey],
    dialect: Dialect,
) -> dict[MemoryKey, int]:
    """Copy an archive line by line, with other names of sessions, and complete the copy.

    Return the number of messages of each memory.

    Raises:
        BadData: as ``moved``.
    """
    found: dict[MemoryKey, int] = {}
    for memory in old:
        new, before = moved(memory, moves, dialect), writer.messages
        is_same = (new.key, new.owner) == (memory.key, memory.owner)
        writer.section(old.line if is_same else with_names(old.line, new))
        for run in old.runs():
            writer.copy(uncut(run), len(run))
        found[new.key] = writer.messages - before
    writer.finish()
    return found


def rewritten(
    writer: ArchiveWriter | None, old: MemorySections, rewriter: Rewriter, where: Selection
) -> Iterator[TextResult]:
    """Yield what a rewriter finds in selected memories; copy the archive to a given ``writer``."""
    for memory in old:
        is_selected = where.has_key(memory.key)
        place = f"memory {visible(str(memory.key))}"
        results: list[TextResult] = []
        fields: dict[str, str] = {}
        for name, text in (("summary", memory.summary), ("extra", memory.extra)):
            if is_selected and text and rewriter.is_suspect(text.encode()):
                found = rewriter.rewrite(text.encode())
                results.append(found.at(place))
                fields |= {name: found.text.decode()} if found.hits else {}
        if writer is not None:
            writer.section(with_fields(old.line, **fields) if fields else old.line)
        for run in old.runs():
            for at in rewriter.suspects([bytes(line) for line in run]) if is_selected else ():
                found = rewriter.rewrite(bytes(run[at]))
                results.append(found.at(place))
                run[at] = type(run[at])(found.text)  # a long line keeps its line end
            if writer is not None:
                writer.copy(uncut(run), len(run))
        yield from (one for one in results if one.changes)
    if writer is not None:
        writer.finish()


def _line_before(before: str, line: bytes, *, as_it_is: bool) -> bytes:
    """Return the line in ``before`` that opened a memory earlier; ``line`` if it does not fit.

    The earlier line fits if it has the same memory and the same summary as ``line``.  With
    ``as_it_is``, the summary may differ.
    """
    try:
        before_line = before.encode("utf-8", "surrogatepass")
        had, has = read_memory(before_line), read_memory(line)
    except ValueError:  # no earlier line, or the text of another store
        return line
    same = as_it_is or (had.summary or "") == (has.summary or "")
    return before_line if same and had.key == has.key else line


def _as_text(line: bytes) -> str:
    return line.decode("utf-8", "surrogatepass")


def _has_text(run: list[Line], at: int, text: bytes) -> bool:
    line = run[at]
    in_place = line.startswith(MESSAGE) and line.startswith(text, len(MESSAGE))
    return in_place or is_same_text(text_of(line), text)


def _take(steps: list[Step], run: list[Line], spool: _LineSpool) -> None:
    """Write the messages that the steps keep, mark or insert to a spool.

    ``run`` has the message lines to which the indexes in the steps belong.
    """
    changed: list[StoredMessage] = []
    for step in steps:
        match step:
            case Keep(start, stop):
                spool.put(changed)
                changed = []
                spool.add(run[start:stop])
            case Mark(at, marks, _):
                changed.append(entry(run[at])._replace(marks=marks))
            case Put(new):
                changed.append(new)
            case Drop():
                pass
    spool.put(changed)


class _LineSpool:
    """A temporary file of message lines, in RAM while it is small."""

    def __init__(self, file: File) -> None:
        """``file`` is the file of the archive; the temporary file is in its folder, if any."""
        self._path = file.on_disk
        self._messages = 0
        folder = str(file.spool_folder or scratch())
        self._file = tempfile.SpooledTemporaryFile(PAGE_BYTES, dir=folder)  # noqa: SIM115 - see close

    def add(self, run: list[Line]) -> None:
        """Add message lines, as ``MemorySections.runs`` yields them."""
        self._write(uncut(run), len(run))

    def put(self, entries: list[StoredMessage]) -> None:
        """Add the lines of messages.

        Raises:
            BadData: a message is not a JSON object, or is too large.
        """
        for lines, messages in message_lines(entries):
            self._write(lines, messages)

    def _write(self, lines: bytes | memoryview, messages: int) -> None:
        with system_errors(self._path, "write"):
            self._file.write(lines)
        self._messages += messages

    def copy_to(self, writer: ArchiveWriter) -> None:
        """Copy all lines to an archive."""
        if not self._messages:
            return
        with system_errors(self._path, "read"):
            self._file.seek(0)
            while piece := self._file.read(_PIECE):
                writer.copy(piece, 0)
        writer.copy(b"", self._messages)

    @property
    def is_empty(self) -> bool:
        """True if the spool has no lines."""
        return not self._messages

    def clear(self) -> None:
        """Remove all lines."""
        if self._messages:
            with system_errors(self._path, "write"):
                self._file.seek(0)
                self._file.truncate()
            self._messages = 0

    def close(self) -> None:
        """Remove the temporary file."""
        end(self._file)
