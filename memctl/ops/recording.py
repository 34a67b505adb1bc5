"""The record of a copy for undo."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import replace

from msgspec import Struct, structs

from memctl.errors import Different, MemctlError, NotFound, Unavailable
from memctl.journal.changes import ChangesWriter
from memctl.journal.retention import Retention
from memctl.journal.runs import Journal, Run, Runs, record_found
from memctl.location import Location
from memctl.model import Edit, Memory, MemoryKey, Page, WriteResult
from memctl.ops.report import CopyReport
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import OpenMode, Store


class _Written(Struct):
    """The record of a memory of the target in a followed copy."""

    kept: int
    """The number of first messages that the memory had before the run, not in an archive yet."""
    adds_summary: bool = False
    made: bool = False
    """True if the target has made a recorded change."""
    sent: int | None = None
    """The offset of messages that were sent, until the target answers."""


class Recording:
    """The undo record of one copy: the added messages, and the memories that the copy replaces.

    Each change in the target is recorded before it is made.
    """

    def __init__(self, run: Run, keep: Retention | None, *, follows: bool = False) -> None:
        """``keep`` says which records of older runs to keep; None keeps all.

        ``follows`` is True if the copy changes memories again and again.
        """
        self.run = run
        self._keep = keep
        self._follows = follows
        self._written: dict[MemoryKey, _Written] = {}
        self._refused: list[MemoryKey] = []
        """The memories whose last changes are not recorded as void yet."""
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
            self._writer = self._stack.enter_context(
                self._journal.writer(growing=True, repeats=self._follows)
            )
        self._stack.enter_context(target.foreseen(self._journal.foresee))

    def adds(self, page: Page, *, summary: bool, whole: bool) -> None:
        """Record that the messages of a page will be written to the target.

        ``summary`` is True if the summary of the memory will be written, too.  ``whole`` is True if
        the pages of the memory replace what the target has of it.

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
            self._note_refused()
            if self._follows:
                summary = self._begins(page, summary=summary, whole=whole)
        new = page.memory.summary if summary else None
        memory = Memory(key, new or None, place=page.memory.place, owner=page.memory.owner)
        edit = Edit(memory, [], self._count, page.last, "")
        self._writer.add(edit, page.messages, whole=whole and self._follows)
        self._count += len(page.messages)
        self._open = not page.last
        self._expected = key, page.offset + len(page.messages)

    def flush(self) -> None:
        """Make sure that the record survives a kill of the process, before the target is changed.

        Raises:
            Unavailable: as ``adds``.
        """
        assert self._writer is not None
        self._writer.flush()

    def _begins(self, page: Page, *, summary: bool, whole: bool) -> bool:
        """Note the first page of a memory; return whether the run adds the summary.

        Messages that were sent before to the same place have not arrived.
        """
        key = page.memory.key
        written = self._written.setdefault(key, _Written(0 if whole else page.offset))
        if written.sent == page.offset and not whole:
            self._refused.append(key)
            self._note_refused()
        written.sent = page.offset
        written.adds_summary |= summary and bool(page.memory.summary)
        return written.adds_summary

    def wrote(self, result: WriteResult) -> None:
        """Record the result of the write of one memory, with the note of the store.

        Raises:
            Unavailable: as ``adds``.
        """
        assert self._journal is not None
        written = self._written.get(result.key)
        if written is None or result.failure is None or not written.made:
            self._journal.note(result)
        if written is None:
            return
        if result.failure is not None and written.sent is not None:
            self._refused.append(result.key)
            if not self._open:
                self._note_refused()
        written.sent = None
        written.made |= result.failure is None

    def _note_refused(self) -> None:
        assert self._writer is not None
        while self._refused:
            self._writer.void(self._refused.pop())

    async def replaces(
        self, store: Store, keys: frozenset[MemoryKey], *, own: bool, counted: bool
    ) -> None:
        """Record the memories ``keys`` of the target as they are, before the copy replaces them.

        With ``own``, only the run has changed them: they are recorded once, and as they were before
        the run if ``counted``: if ``store`` has the number of messages that pages had.

        Raises:
            MemctlError: as ``Store.read``, or as ``adds``.
        """
        assert self._journal is not None
        found = {key: self._written.get(key) for key in keys}
        lost = {key for key, one in found.items() if not own or one is None or one.kept}
        if not lost:
            return
        path = self._journal.next_replaced()
        place = Location("archive", str(path), path=path, options={"lines": "kept"})
        pages = store.read(Selection(keys=frozenset(lost)))
        await write_archive(place, store, self._as_before(pages) if own and counted else pages)
        for key in lost if self._follows else ():
            self._written.setdefault(key, _Written(0)).kept = 0

    async def _as_before(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        """Yield pages of whole memories without what the run has added to them."""
        async with aclosing(pages):
            async for page in pages:
                written = self._written.get(page.memory.key)
                if written is not None and page.offset < written.kept:
                    left = written.kept - page.offset
                    last = page.last or left <= len(page.messages)
                    summary = "" if written.adds_summary else page.memory.summary
                    memory = replace(page.memory, summary=summary)
                    page = structs.replace(
                        page, memory=memory, messages=page.messages[:left], last=last
                    )
                elif written is not None:
                    continue
                yield page
                del page

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
        self._note_refused()
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
