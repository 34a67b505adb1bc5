"""A copy into a store, recorded for undo where the store already holds something."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from memctl.errors import Loss, MemctlError, Uninitialised, UsageError
from memctl.location import Location, same_file
from memctl.model import MemoryKey
from memctl.ops.compare import Precision
from memctl.ops.copy import CopyOptions, copy, refuse_losses, same_store
from memctl.ops.follow import Lag, follow
from memctl.ops.lock import lock
from memctl.ops.observer import Observer, Unobserved
from memctl.ops.recording import Recording
from memctl.ops.report import CopyReport
from memctl.ops.stop import Stop
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Features, Store
from memctl.storekit.locks import FileLock, lock_owner
from memctl.wrappers.converted import in_one_dialect
from memctl.wrappers.embedded import embedded


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
