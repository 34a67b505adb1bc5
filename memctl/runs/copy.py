"""A copy into a store, recorded for undo where the store already holds something."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress

from memctl.errors import Loss, MemctlError, Uninitialised, UsageError
from memctl.journal.changes import ChangesWriter
from memctl.journal.runs import REPLACED, Journal, Retention, Run, Runs, record_found
from memctl.location import Location, same_file
from memctl.model import Change, Edit, Memory, MemoryKey, Page, WriteResult
from memctl.ops.compare import Precision
from memctl.ops.copy import CopyOptions, copy, refuse_losses, same_store
from memctl.ops.follow import Lag, follow
from memctl.ops.report import CopyReport
from memctl.ops.stop import Stop
from memctl.registry import make_store
from memctl.runs.change import Observer, Unobserved, lock
from memctl.selection import Selection
from memctl.store import Features, OpenMode, Store
from memctl.storekit.locks import FileLock, lock_owner
from memctl.stores.archive.store import ArchiveStore
from memctl.wrappers.converted import in_one_dialect
from memctl.wrappers.embedded import embedded


class Recording:
    """The record of one copy: the messages it adds, and the memories before it replaces them."""

    def __init__(self, run: Run, keep: Retention | None) -> None:
        """``keep`` limits how long older runs are kept; None leaves them alone."""
        self.run = run
        self._keep = keep
        self._journal: Journal | None = None
        self._writer: ChangesWriter | None = None
        self._stack = ExitStack()
        self._count = 0
        self._open = False
        self._expected: tuple[MemoryKey, int]
        """The next page of an open memory: its key and offset."""

    @property
    def begun(self) -> bool:
        """Return whether changes are being recorded."""
        return self._journal is not None

    def begin(self, target: Store) -> None:
        """Create the folder of the run, once; the target is open.

        Raises:
            Unavailable: the system refuses.
        """
        if self._journal is None:
            record_found(self.run, target.location)
            kept = Runs()
            if self._keep is not None:
                kept.prune(self._keep, self.run.undoes)
            self._journal = kept.begin(self.run)
            self._writer = self._stack.enter_context(self._journal.writer(growing=True))

    def adds(self, page: Page, *, summary: bool) -> None:
        """See ``Recorder``."""
        assert self._writer is not None
        key = page.memory.key
        if self._open and (key, page.offset) != self._expected:  # its memory was given up
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
        """See ``Recorder``."""
        assert self._journal is not None
        self._journal.note(result)

    async def replaces(self, store: Store, keys: frozenset[MemoryKey]) -> None:
        """See ``Recorder``."""
        assert self._journal is not None
        path = self._journal.folder / REPLACED
        archive = ArchiveStore(Location("archive", str(path), path=path), OpenMode.CREATE)
        archive.keeps_lines = True
        archive.adopt(store.dialect, store.embedding)
        pages = store.read(Selection(keys=keys))
        async with archive, aclosing(archive.write(pages)) as results:
            async for _ in results:
                continue

    def end(self, report: CopyReport) -> None:
        """Complete the record; that of a run that changed nothing is discarded.

        Raises:
            Unavailable: the system refuses.
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
        self._journal.end("partial" if report.failures else "done")

    @contextmanager
    def ended(self, report: CopyReport) -> Iterator[None]:
        """Complete the record at the end of the block; an error of the block itself comes first.

        Raises:
            Unavailable: the system refuses.
        """
        try:
            yield
        except BaseException:
            with suppress(MemctlError):
                self.end(report)
            raise
        self.end(report)


class NewTarget:
    """A target that a copy makes, and that goes again where the copy fails with nothing in it."""

    def __init__(self, location: Location) -> None:
        """The place must not have been opened yet."""
        self._location = location
        path = location.path
        self._is_new = bool(path.name) and not os.path.lexists(path)

    async def withdraw(self, report: CopyReport) -> None:
        """Remove the target if it is new and empty, unless another run has locked it since.

        Its store is closed.
        """
        path = self._location.path
        if not self._is_new or report.memories.written or not path.exists():
            return
        with suppress(MemctlError, OSError):  # why the copy failed tells more
            if path.is_dir():
                # No folder goes that holds something, such as the lock of a run.
                for folder, _, _ in os.walk(path, topdown=False):
                    os.rmdir(folder)
                return
            with FileLock(path, self._location.label).held(lock_owner()):
                if await self._is_empty():
                    path.unlink()

    async def _is_empty(self) -> bool:
        with suppress(Uninitialised):
            async with make_store(self._location) as store:
                return await store.is_empty()
        return True


_DATABASES = ("sqlite", "postgresql", "mysql")


def _is_one_database(one: Location, other: Location) -> bool:
    """Return whether two locations name one SQL database, whatever the layout."""
    if not all(each.kind.startswith(_DATABASES) for each in (one, other)):
        return False
    if one.path.name and other.path.name:
        return same_file(one.path) == same_file(other.path)
    return bool(one.url) and one.url == other.url


class CopyRun:
    """A copy that goes on where it was when a connection was lost; used once, in this order::

    run = CopyRun(where, options, recording)
    with run.recorded():
        await run.examine(source, target)  # before the target is opened
        async with target:
            await run.begin(source, target)
            await run.copy(source, target)
    """

    def __init__(
        self,
        where: Selection,
        options: CopyOptions,
        recording: Recording | None = None,
        *,
        dry_run: bool = False,
        observer: Observer | None = None,
        report: CopyReport | None = None,
    ) -> None:
        """``recording`` is None where nothing is to be recorded for undo."""
        self.where = where
        self.options = options
        self.report = report or CopyReport()
        self.stop = Stop()
        self.examined = False
        """True if the source was checked: an attempt after the first one does not do it again."""
        self._dry_run = dry_run
        self._recording = recording
        self._observer: Observer = observer or Unobserved()
        self._copied = False
        self._fitted: Store | None = None
        """The target as one that gives facts the vectors that they need."""
        self._expected: tuple[str, Features] | None = None
        """The dialect and the features of the target when losses were looked for."""
        self._mirror: dict[MemoryKey, bytes] = {}

    @property
    def id(self) -> str | None:
        """The id of the run for ``memctl undo``; None where there is nothing to undo."""
        return (self._recording.run.id or None) if self._recording is not None else None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Complete the record of the run at the end of the block.

        Raises:
            Unavailable: the journal cannot be written.
        """
        if self._recording is None:
            yield
            return
        with self._recording.ended(self.report):
            yield

    async def examine(self, source: Store, target: Store) -> None:
        """Check the source, and refuse what the target cannot hold; the target may be closed.

        Raises:
            UsageError: source and target are the same database.
            BadData: the source is damaged.
            Loss: the target has no place for something, and ``lossy`` is not set.
        """
        if _is_one_database(source.location, target.location):
            # Opened as a target, it would get the tables of the other layout.
            raise same_store(source)
        await source.check_integrity(self.where)
        target.adopt(source.dialect, source.embedding)
        try:
            await self._refuse_losses(source, target)
        except (Loss, UsageError):
            if not await target.settle_layout():
                raise
            await self._refuse_losses(source, target)
        self.examined = True

    async def _refuse_losses(self, source: Store, target: Store) -> None:
        self._expected = target.dialect.name, target.features
        lossy = self.options.lossy
        await refuse_losses(source, target, self.where, self.report, lossy=lossy)

    async def begin(self, source: Store, target: Store) -> None:
        """Lock the target, and begin to record unless it holds nothing that could be lost.

        Raises:
            Busy: another run writes to the target.
            Loss: as ``examine``, of a target whose layout is known only now that it is open;
            or facts need vectors, and there is no embedder.
        """
        target.adopt(source.dialect, source.embedding)
        if self._expected not in (None, (target.dialect.name, target.features)):
            await self._refuse_losses(source, target)
        made = self.report.embedding
        made.warnings.clear()
        self._fitted = await embedded(source, target, self.where, made, dry_run=self._dry_run)
        if self._dry_run:
            return
        await lock(target)
        if self._recording is None or self._recording.begun:
            return  # an attempt before this one began to
        if await target.is_empty():
            self._recording = None
        else:
            self._recording.run.dialect = in_one_dialect(source, target)[0].dialect.name
            self._recording.begin(target)

    async def copy(
        self, source: Store, target: Store, phase: str = "copying", *, following: bool = False
    ) -> None:
        """Copy what is not settled yet; once, as ``follow`` copies what comes after.

        Raises:
            MemctlError: as ``Store.read`` and ``Store.write``.
        """
        if self._copied:
            return
        rest = self.where.without(frozenset(self.report.settled))
        with self._observer.progress(phase, lambda: self.report.total) as progress:
            await copy(
                *(source, self._fitted or target, rest, self.options, self.report),
                *(progress, self.stop),
                # A comparison by content leaves no outlines for ``follow`` to start from.
                mirror=self._mirror
                if following and self.options.form is Precision.OUTLINE
                else None,
                recorder=self._recording if self._is_recording else None,
            )
        self._copied = True
        self.report.uneven |= self.report.embedding.mixed
        self.report.warnings += self.report.embedding.warnings

    async def follow(
        self, source: Store, target: Store, interval: float, tell: Callable[[Lag], None]
    ) -> None:
        """Copy what is new every ``interval`` seconds until ``stop`` is asked for."""
        await follow(
            *(source, self._fitted or target, self.where, self.options, self.report, self.stop),
            *(interval, tell, self._mirror),
        )

    @property
    def _is_recording(self) -> bool:
        return self._recording is not None and self._recording.begun
