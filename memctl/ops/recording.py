"""The record of a copy for undo."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress

from memctl.errors import Different, MemctlError, NotFound, Unavailable
from memctl.journal.changes import ChangesWriter
from memctl.journal.retention import Retention
from memctl.journal.runs import REPLACED, Journal, Run, Runs, record_found
from memctl.location import Location
from memctl.model import Change, Edit, Memory, MemoryKey, Page, WriteResult
from memctl.ops.report import CopyReport
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import OpenMode, Store


class Recording:
    """The undo record of one copy: the added messages, and the memories that the copy replaces.

    Each change in the target is recorded before it is made.
    """

    def __init__(self, run: Run, keep: Retention | None) -> None:
        """``keep`` says which records of older runs to keep; None keeps all."""
        self.run = run
        self._keep = keep
        self._journal: Journal | None = None
        self._writer: ChangesWriter | None = None
        self._stack = ExitStack()
        self._count = 0
        self._open = False
        self._expected: tuple[MemoryKey, int]
        """The key and offset of the next page of the memory whose last page was not added yet."""

    @property
    def begun(self) -> bool:
        """Return whether ``begin`` was called, so that changes are recorded."""
        return self._journal is not None

    def begin(self, target: Store, warn: Callable[[str], None]) -> None:
        """Begin the record of changes in the open target, or go on with it in a later attempt.

        ``warn`` gets the warnings of ``Runs.prune``.

        Raises:
            Unavailable: the operating system refuses to write the record.
        """
        if self._journal is None:
            record_found(self.run, target.location)
            kept = Runs()
            if self._keep is not None:
                kept.prune(self._keep, self.run, warn)
            self._journal = kept.begin(self.run)
            self._writer = self._stack.enter_context(self._journal.writer(growing=True))
        self._stack.enter_context(target.foreseen(self._journal.foresee))

    def adds(self, page: Page, *, summary: bool) -> None:
        """Record that the messages of a page will be written to the target.

        ``summary`` is True if the summary of the memory will be written, too.

        Raises:
            Unavailable: the disk has no room for the record.
        """
        assert self._writer is not None
        key = page.memory.key
        if self._open and (key, page.offset) != self._expected:  # the copy gave up the open memory
            self._writer.add(Edit(Memory(self._expected[0]), [], self._count))
            self._open = False
        if not self._open:
            self._count = 0
        changes = [
            Change(message.id, None, message.marks, b"", None, message.position)
            for message in page.messages
        ]
        new = page.memory.summary if summary else None
        memory = Memory(key, new or None, place=page.memory.place, owner=page.memory.owner)
        edit = Edit(memory, changes, self._count, page.last, "")
        self._writer.add(edit)
        self._writer.flush()
        self._count += len(changes)
        self._open = not page.last
        self._expected = key, page.offset + len(page.messages)

    def wrote(self, result: WriteResult) -> None:
        """Record the result of the write of one memory, with the note of the store.

        Raises:
            Unavailable: as ``adds``.
        """
        assert self._journal is not None
        self._journal.note(result)

    async def replaces(self, store: Store, keys: frozenset[MemoryKey]) -> None:
        """Record the memories ``keys`` of the target as they are, before the copy replaces them.

        Raises:
            MemctlError: as ``Store.read``, or as ``adds``.
        """
        assert self._journal is not None
        path = self._journal.folder / REPLACED
        place = Location("archive", str(path), path=path, options={"lines": "kept"})
        await write_archive(place, store, store.read(Selection(keys=keys)))

    def end(self, report: CopyReport, *, complete: bool = True) -> None:
        """Complete the record with the counts of ``report``; discard a record without changes.

        ``complete`` is False if an error ended the copy early.  Do nothing if ``begin`` was not
        called.

        Raises:
            Unavailable: the operating system refuses to write the record.
        """
        if self._journal is None or self._writer is None:
            return
        written = self._writer.memories
        if not written:
            self._stack.close()
            self._journal.discard()
            self.run.id = ""
            return
        self._writer.finish()
        self._stack.close()
        self.run.memories = report.memories.written
        self.run.counts = {"added": report.messages.written, "replaced": report.messages.deleted}
        self._journal.end("done" if complete and not report.failures else "partial")

    @contextmanager
    def ended(self, report: CopyReport) -> Iterator[None]:
        """Call ``end`` at the end of the block; an error of the block takes precedence.

        Raises:
            Unavailable: the operating system refuses to write the record.
        """
        try:
            yield
        except BaseException as error:
            with suppress(MemctlError):
                self.end(report, complete=isinstance(error, Different))
            raise
        self.end(report)


async def write_archive(place: Location, source: Store, pages: AsyncGenerator[Page]) -> None:
    """Write pages of an open store to a new archive; without a page, there is no archive.

    Raises:
        Unavailable: the archive cannot be written.
        MemctlError: as the generator ``pages``.
    """
    async with aclosing(pages):
        first = await anext(pages, None)
        if first is None:
            return
        archive = make_store(place, OpenMode.CREATE)
        archive.adopt(source.dialect, source.embedding)
        archive.origin = source.label
        try:
            async with archive, aclosing(archive.write(_followed(first, pages))) as results:
                async for result in results:
                    if result.failure is not None:
                        why = result.failure.message
                        raise Unavailable(f"{place.label} cannot be written: {why}")
        except NotFound as error:
            raise Unavailable(error.message, error.hint) from error


async def _followed(first: Page, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    yield first
    del first
    async for page in pages:
        yield page
        del page


def note_unrecorded(run: Run, warn: Callable[[str], None]) -> None:
    """Note that ``run`` has no undo record, for a later ``memctl undo`` that names no run."""
    try:
        Runs().note_unrecorded(run)
    except Unavailable as error:
        warn(f"cannot note that the run has no undo record: {error.message}")
