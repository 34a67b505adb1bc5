"""Copies between two stores: locked, recorded for undo, resumed, followed, verified."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import KW_ONLY, dataclass, field, replace

from msgspec import Struct

from memctl.dialects.registry import ALL
from memctl.encryption import read_recipients
from memctl.errors import Different, Loss, MemctlError, Unavailable, Uninitialised, UsageError
from memctl.location import Location, is_one_file
from memctl.model import MemoryKey, OnConflict
from memctl.ops.copy.compare import Fingerprint, compare
from memctl.ops.copy.copy import CopyOptions, copy, same_store
from memctl.ops.copy.losses import refuse_losses, refuse_missing_summaries
from memctl.ops.copy.mirror import Mirror
from memctl.ops.holds import HoldSource
from memctl.ops.lock import lock
from memctl.ops.names import note_absent_values, refuse_absent, refuse_absent_in
from memctl.ops.observer import Observer, Unobserved, opened, warn_of_other_contents
from memctl.ops.recording import Recording
from memctl.ops.report import CopyReport, Total
from memctl.ops.retry import Retries, Transfer
from memctl.ops.select import most_deletions
from memctl.ops.stop import Stop
from memctl.registry import make_store, refuse_unknown_extension
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Features, OpenMode, Store
from memctl.storekit.locks import FileLock, lock_owner
from memctl.text.numbers import count
from memctl.wrappers.all_messages import AllMessages
from memctl.wrappers.answered import answered
from memctl.wrappers.converted import in_one_dialect
from memctl.wrappers.dry_run import DryRun
from memctl.wrappers.embedded import embedded
from memctl.wrappers.rate_limit import RateLimit
from memctl.wrappers.timeout import Timeout


class Lag(Struct, frozen=True):
    """The lag of the target: the amount that the last copy wrote, and its duration in seconds.

    ``memories`` and ``messages`` are the numbers of written memories and messages.
    """

    memories: int
    messages: int
    seconds: float


def refuse_to_follow(
    where: Selection, on_conflict: OnConflict, *, dry_run: bool, limited: bool
) -> None:
    """Refuse options of a copy that do not make sense with ``--follow``.

    ``limited`` is True if ``--max-delete`` is given.

    Raises:
        UsageError: the copy is a dry run, selects only some messages of a memory, merges, or is
            limited.
    """
    if limited:
        raise UsageError(
            "--follow and --max-delete cannot be combined",
            "migrate with --max-delete first, then with --follow",
        )
    if dry_run:
        raise UsageError("--follow and --dry-run cannot be combined", "leave one of them out")
    if not where.whole:
        raise UsageError(
            "--follow copies whole memories", "select by --user and --session, or not at all"
        )
    if on_conflict is OnConflict.MERGE:
        raise UsageError("--follow cannot merge", "merge first, then follow the source")


class NewTarget:
    """A file or folder that a copy may create as its target, and remove if the copy fails."""

    def __init__(self, location: Location, shard: Shard | None = None) -> None:
        """Note whether the path of ``location`` exists, before the copy opens the target.

        A folder stays if the copy has a ``shard``: other parts of the run may write to it.
        """
        self._location = location
        self._shard = shard
        path = location.path
        self._is_new = bool(path.name) and not os.path.lexists(path)

    async def withdraw(self, report: CopyReport) -> None:
        """Remove the target if the copy created it and wrote no memory, as ``report`` says.

        The target stays if another run has locked the file since, or the folder has contents.  The
        store of the target must be closed.
        """
        path = self._location.path
        if not self._is_new or report.memories.written or not path.exists():
            return
        with suppress(MemctlError, OSError):  # the error of the copy matters more
            if path.is_dir():
                if self._shard is not None:
                    return
                # A folder with contents, such as the lock of a run, stays.
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
    """Return whether two locations name the same SQL database; their layouts may differ."""
    if not all(each.kind.startswith(_DATABASES) for each in (one, other)):
        return False
    if one.path.name and other.path.name:
        return is_one_file(one.path, other.path)
    return bool(one.url) and one.url == other.url


def _refuse_retired(target: Store) -> None:
    if target.features.retired:
        target.refuse_changes()


@dataclass
class CopyRun:
    """A copy that can be attempted again after a lost connection.

    A copy calls the methods in this order.  A later attempt repeats ``begin`` and ``copy`` with
    newly opened stores::

        run = CopyRun(where, options, recording)
        with run.recorded():
            await run.examine(source, target)  # before the target is opened
            async with target:
                await run.begin(source, target)
                await run.copy(source, target)
    """

    where: Selection
    options: CopyOptions
    recording: Recording | None = None
    """None if the copy is not recorded for undo."""
    _: KW_ONLY
    dry_run: bool = False
    observer: Observer = field(default_factory=Unobserved)
    report: CopyReport = field(default_factory=CopyReport)
    """It is filled in, even if an error ends the copy."""
    stop: Stop = field(default_factory=Stop)
    """It ends the copy early."""
    examined: bool = field(default=False, init=False)
    """True if ``examine`` has succeeded; later attempts do not call it again."""
    taken: dict[MemoryKey, Fingerprint] | None = field(default=None, init=False)
    """The fingerprints of the memories that were written whole, as the copy read them.

    None if they are not needed.
    """

    def __post_init__(self) -> None:
        self._copied = False
        self._most: float | None = None
        """The largest number of messages to remove from the target; None before it is known."""
        self._fitted: Store | None = None
        """The target, wrapped if new facts need vectors; None before ``begin``."""
        self._expected: tuple[str, Features] | None = None
        """The name of the dialect and the features of the target at the last check for losses."""
        self._mirror = Mirror()

    @property
    def id(self) -> str | None:
        """The id of the run for ``memctl undo``; None if nothing can be undone."""
        return (self.recording.run.id or None) if self.recording is not None else None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Complete the undo record at the end of the block; do nothing without a recording.

        Raises:
            Unavailable: the journal cannot be written.
        """
        if self.recording is None:
            yield
            return
        try:
            with self.recording.ended(self.report):
                yield
        finally:
            if self._recorder is not None:
                self.report.run = self.id or ""

    async def examine(self, source: Store, target: Store) -> None:
        """Refuse a damaged source, and data of the source that the target has no place for.

        The source must be open.  The target may be closed.

        Raises:
            UsageError: source and target are the same database, or no program reads the format of
                the target any more.
            BadData: the source is damaged.
            Loss: the target has no place for some data, and the option ``lossy`` is not set.
        """
        if _is_one_database(source.location, target.location):
            # To open the database as a target would create the tables of the other layout.
            raise same_store(source)
        _refuse_retired(target)
        await source.check_integrity(self.where)
        target.adopt(source.dialect, source.embedding)
        converts = source.dialect.name != target.dialect.name
        if converts and source.dialect.leaves_out and not self.where.whole:
            # A conversion of some messages cannot know what others say of them.
            every = source.dialect.all_messages
            self.where = self.where if every else replace(self.where, live=True)
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
        """Lock the open target, and begin the undo record.

        A dry run does neither.

        Raises:
            Busy: another run writes to the target.
            Loss: as ``examine``, if the layout of the target became known only when it was opened;
                the summary of compressed messages is in neither store; or facts need vectors, and
                no embedder is given.
        """
        _refuse_retired(target)
        target.adopt(source.dialect, source.embedding)
        if self._expected not in (None, (target.dialect.name, target.features)):
            await self._refuse_losses(source, target)
        await refuse_missing_summaries(source, target, self.where, self.report, self.options)
        made = self.report.embedding
        made.warnings.clear()
        self._fitted = await embedded(source, target, self.where, made, dry_run=self.dry_run)
        if self.dry_run:
            return
        await lock(target)
        if self.recording is None or target.features.added_only:
            return
        if not self.recording.begun:  # by an earlier attempt
            recorded = in_one_dialect(source, target)[0].dialect
            all_messages = ALL if recorded.all_messages else ""
            self.recording.run.dialect = recorded.full_name + all_messages
        self.recording.begin(target, self.observer.warn)

    async def copy(
        self, source: Store, target: Store, phase: str = "copying", *, following: bool = False
    ) -> None:
        """Copy the selected memories that no earlier attempt has finished.

        After a complete copy, do nothing.  ``phase`` names the phase in the progress.
        ``following`` is True if the copy will be repeated.

        Raises:
            Loss: ``replace`` would remove more messages from the target than ``options.limit``.
            MemctlError: as ``Store.read`` and ``Store.write``.
        """
        if self._copied:
            return
        rest = self.where.without(frozenset(self.report.settled))
        if self.options.limit is not None and self.options.on_conflict is OnConflict.REPLACE:
            await self._refuse_many(source, target, rest, self.options.limit)
        with self.observer.progress(phase, lambda: self.report.total) as progress:
            await copy(
                *(source, self._fitted or target, rest, self.options, self.report),
                *(progress, self.stop),
                # REPLACE compares contents at first, which gives no outlines to start from.
                mirror=None if not following or self.options.on_conflict.rewrites else self._mirror,
                recorder=self._recorder,
                taken=self.taken,
                dry_run=self.dry_run,
            )
        self._copied = True
        self.report.uneven |= self.report.embedding.mixed
        self.report.warnings += self.report.embedding.warnings

    async def _refuse_many(
        self, source: Store, target: Store, rest: Selection, limit: tuple[float, bool]
    ) -> None:
        """Count by a dry run the messages to remove; raise Loss if they exceed ``limit``.

        ``rest`` selects the memories that no earlier attempt has finished.
        """
        if self._most is None:
            self._most = await most_deletions(target, self.where.around, limit)
        counted = CopyReport()
        with self.observer.progress("counting") as progress:
            preview = DryRun(target, is_open=True)
            await copy(source, preview, rest, self.options, counted, progress, self.stop)
        number = self.report.messages.deleted + counted.messages.deleted
        if number > self._most:
            text = f"{limit[0]:g}" + ("%" if limit[1] else "")
            raise Loss(
                f"{count(number, counted.noun)} of {target.label} would be removed, more than "
                f"--max-delete {text}",
                "nothing was removed; preview with --dry-run",
            )

    @property
    def _recorder(self) -> Recording | None:
        return self.recording if self.recording is not None and self.recording.begun else None


def make_target(location: Location, *, dry_run: bool) -> Store:
    """Return the store at ``location`` as the target of a copy; the store is not opened yet.

    With ``dry_run``, the store only counts what the copy would write.
    """
    if dry_run:
        return DryRun(make_store(location))
    return make_store(location, OpenMode.CREATE)


_LAST_COPIES = 2
"""The largest number of copies after a stop: the last one shows whether more is coming."""
_NAMED_MEMORIES = 10
"""The largest number of memories of which ``--follow`` warns by name."""

FILES = ("state", "sessions", "archive", "openai", "atif")
"""The kinds of stores in files into which a state without user and session may be copied."""


@dataclass(kw_only=True)
class Migration(CopyRun):
    """A copy from a source to a target, with retries, optional following and verification.

    If both sides are locations, each attempt opens their stores, and a lost connection leads to a
    new attempt.  An open store is used as given and stays open; then a copy is not retried.
    """

    source: Location | Store
    target: Location | Store
    transfer: Transfer
    """The number of retries, the timeout and the rate limit."""
    must_exist: bool = False
    """True if it is an error that a named user or session does not exist in the source."""

    def __post_init__(self) -> None:
        """Refuse what does not fit together.

        Raises:
            UsageError: the target of a dry run is an open store; or only some messages are
                selected, and ``REPLACE`` would remove the unselected messages from the target.
        """
        super().__post_init__()
        if self.dry_run and isinstance(self.target, Store):
            raise UsageError("a dry run opens its target itself", "give the name of the target")
        if self.options.on_conflict.rewrites and not self.where.whole:
            raise UsageError(
                f"{self.options.on_conflict.value!r} writes whole memories, and this selection "
                "leaves out messages",
                "select by user or session alone, or choose 'append'",
            )
        named = isinstance(self.source, Location) and isinstance(self.target, Location)
        self._retries = Retries(self.transfer.retries if named else 0, self.observer.retry)
        self._passes = 0
        self._named: set[MemoryKey] = set()
        """The memories left unchanged of which the run has warned, and the first one more."""

    async def run(self, *, verify: bool = False, interval: float | None = None) -> None:
        """Copy once; with an ``interval`` in seconds, repeat the copy until a stop is asked for.

        With ``verify``, compare source and target afterwards.  A new target is removed if no memory
        could be written.

        Raises:
            MemctlError: as the methods of ``CopyRun``.
            Different: source and target differ after the copy.
            UsageError: the target will be encrypted, and there is no valid recipient.
            Unavailable: it will be encrypted, and there is no identity for the comparison.
        """
        new = None
        if verify and interval is None and not self.dry_run:
            self.taken = {}
        if isinstance(self.target, Location):
            refuse_unknown_extension(self.target)
            if self.target.encrypts:
                _refuse_keys(self.target, verify=verify and not self.dry_run)
            new = NewTarget(self.target, self.where.shard)
        try:
            with self.recorded():
                await self._run(verify=verify, interval=interval)
        except BaseException:
            await self._withdraw(new)
            raise
        if self.report.failures:
            await self._withdraw(new)

    async def _withdraw(self, new: NewTarget | None) -> None:
        if new is not None:  # in a separate task, which is not cancelled yet
            await asyncio.create_task(new.withdraw(self.report))

    async def _run(self, *, verify: bool, interval: float | None) -> None:
        report = self.report
        async with report.embedding.embedder or nullcontext():
            await self._retries.run(
                lambda: self._attempt(verify=verify, interval=interval),
                lambda: report.memories.written + len(report.settled) + self._passes,
            )
        for text in report.warnings:
            self.observer.warn(text)
        if self.must_exist:
            refuse_absent(self.where, report.memories.selected, _location(self.source))

    async def _attempt(self, *, verify: bool, interval: float | None) -> None:
        """Attempt the copy once, without the memories that are finished."""
        async with self._opened_source() as source:
            target = self._make_target()
            if not self.examined:
                await self._examine(source, target, follows=interval is not None)
            async with self._opened_target(target):
                options = self.options
                if options.on_conflict.rewrites:
                    (options.holds or HoldSource()).read(
                        target
                    )  # a damaged record is an error before any write
                await self.begin(source, target)
                source = answered(source, target)
                self._retries.reached = True
                await self.copy(source, target, following=interval is not None)
                if not self.report.memories.selected:
                    await warn_of_other_contents(source, self.observer)
                    if interval is None and self.must_exist:
                        await refuse_absent_in(self.where, 0, source)
                    await note_absent_values(self.where, 0, source, self.observer)
                lag, grown = None, 0
                if interval is not None:
                    self._warn_of_failures()
                    lag = await self._follow(source, target, interval)
                if verify and not self.dry_run and self.report.memories.written:
                    grown = await self._verify(source, target)
                if lag is not None:
                    self._tell_end(lag, grown)

    async def _examine(self, source: Store, target: Store, *, follows: bool) -> None:
        if source.location.kind == "state" and target.location.kind not in FILES:
            await _refuse_nameless(source, self.where)
        await self.examine(source, target)
        if source.dialect.facts and not self.dry_run:
            await self._refuse_vectors(source)
        if self.must_exist and not follows:
            await self._refuse_nothing(source)

    def _opened_source(self) -> AbstractAsyncContextManager[Store]:
        every = self.options.all_messages or self.where.live is False
        if isinstance(self.source, Store):
            return nullcontext(AllMessages(self.source) if every else self.source)
        store = self._timed(make_store(self.source))
        if self.transfer.rate is not None:
            store = RateLimit(store, self.transfer.rate)
        return opened(AllMessages(store) if every else store, self.observer)

    def _make_target(self) -> Store:
        if isinstance(self.target, Store):
            return self.target
        target = self._timed(make_target(self.target, dry_run=self.dry_run))
        target.shard = self.where.shard
        return target

    def _opened_target(self, target: Store) -> AbstractAsyncContextManager[Store]:
        given = target is self.target
        return nullcontext(target) if given else opened(target, self.observer)

    def _timed(self, store: Store) -> Store:
        return Timeout(store, self.transfer.timeout, self.observer.note)

    async def _refuse_vectors(self, source: Store) -> None:
        if isinstance(self.target, Store):
            return
        made = self.report.embedding
        async with self._timed(make_target(self.target, dry_run=True)) as target:
            if target.embedding is not None:
                await embedded(source, target, self.where, made)

    async def _refuse_nothing(self, source: Store) -> None:
        """Refuse a copy of named users or sessions that the source lacks."""
        if self.where.named:
            async with aclosing(source.headers(self.where)) as found:
                async for _ in found:
                    return
            await refuse_absent_in(self.where, 0, source)

    async def _follow(self, source: Store, target: Store, interval: float) -> Lag:
        """Copy every ``interval`` seconds until a stop is asked for; return the last lag.

        After the stop was asked for, a copy begins, and another one if that still found something.
        """
        about = source, self._fitted or target, self.where, self.options, self.report
        report, left = self.report, _LAST_COPIES
        async with aclosing(self.stop.rounds(interval)) as rounds:
            async for asked in rounds:
                left -= asked
                began = time.monotonic()
                memories, messages = report.memories.written, report.messages.written
                report.try_again()
                await copy(*about, mirror=self._mirror, recorder=self._recorder)
                lag = Lag(
                    report.memories.written - memories,
                    report.messages.written - messages,
                    time.monotonic() - began,
                )
                self._tell(lag)
                if asked and not (left and lag.memories):
                    break
        return lag

    def _tell(self, lag: Lag) -> None:
        self._passes += 1
        self.report.rounds = self._passes + 1  # with the first copy
        self._warn_of_failures()
        text = f"the target is {lag.seconds:.1f} s behind"
        if lag.messages or lag.memories:
            new = f"{count(lag.messages, 'message')} in {count(lag.memories, 'memory')}"
            self.observer.note(f"{text}; copied {new}")
        else:
            self.observer.detail(text)

    def _tell_end(self, last: Lag, grown: int) -> None:
        """Say whether source and target are in sync after ``last``, the lag of the last copy.

        ``grown`` is the number of messages that came to the source since.
        """
        differing = self.report.uneven | {key for key, _ in self.report.failures}
        lagging = last.memories + len(differing)
        if not (lagging or grown):
            self.observer.note("in sync: safe to switch")
            return
        new = f"{count(grown, 'message')} came to the source since the last copy"
        behind = f"{count(lagging, 'memory')} of the target may lag behind the source"
        self.observer.warn(f"not in sync: {behind if lagging else new}")

    def _warn_of_failures(self) -> None:
        """Warn of each memory that a copy leaves unchanged for the first time, up to a limit."""
        for key, failure in self.report.failures:
            if len(self._named) > _NAMED_MEMORIES:
                return
            if key in self._named:
                continue
            self._named.add(key)
            if len(self._named) <= _NAMED_MEMORIES:
                self.observer.warn(f"{key} is left unchanged: {failure.message}")
            else:
                self.observer.warn("more memories are left unchanged: the report names all")

    @asynccontextmanager
    async def _reread(self, source: Store, target: Store) -> AsyncGenerator[tuple[Store, Store]]:
        """Yield source and target for a comparison; a location is opened anew."""
        async with AsyncExitStack() as stack:
            if isinstance(self.source, Location):
                source = await stack.enter_async_context(self._opened_source())
            if isinstance(self.target, Location):
                again = self._timed(make_store(self.target))
                target = await stack.enter_async_context(opened(again, self.observer))
            yield answered(source, target), target

    async def _verify(self, source: Store, target: Store) -> int:
        """Compare source and target; return the number of messages that came to the source since.

        Raises:
            Different: source and target differ.
        """
        report = self.report
        known = report.uneven | {key for key, _ in report.failures}  # they differ
        copied = {key: size for key, size in report.settled.items() if key not in known}
        async with self._reread(source, target) as (one, other):
            total = Total(len(copied), sum(copied.values()))
            with self.observer.progress("verifying", lambda: total) as progress:
                found = await compare(
                    *(one, other, self.where.without(frozenset(known)), copied, progress),
                    taken=await self._taken(one, copied),
                    concurrent=report.ordinary,
                )
        # The target may hold other memories.
        found.differences = [one for one in found.differences if one.code != "memory-extra"]
        if report.uneven:
            self.observer.warn(
                f"not compared, because --on-conflict or --lossy leaves them different: "
                f"{count(len(report.uneven), 'memory')}"
            )
        if found.grown > 0:
            self.observer.note(
                f"{count(found.grown, 'message')} added to the source meanwhile: "
                "run again to copy them"
            )
        if found.kept:
            self.observer.note(
                f"{count(found.kept, 'summary')} of the target kept: the source has none"
            )
        report.verified = found.equal and not report.failures
        if not found.equal:
            first = found.differences[0]
            raise Different(
                f"the target differs after the copy: {first.key}: {first.message} "
                f"({len(found.differences)} differences)",
                "the source may have changed meanwhile; list every difference with: memctl verify",
            )
        return found.grown

    async def _taken(
        self, source: Store, copied: Mapping[MemoryKey, int]
    ) -> Mapping[MemoryKey, Fingerprint]:
        """Return the fingerprints of the memories ``copied``, as the copy read them.

        Empty if some of these memories were not written whole, or if the number of messages in the
        source is not that of the copy.
        """
        taken = self.taken
        if not taken or any(size and key not in taken for key, size in copied.items()):
            return {}
        counted = await source.count(self.where)
        is_same = counted is not None and counted[1] == sum(self.report.settled.values())
        return taken if is_same else {}


def _refuse_keys(target: Location, *, verify: bool) -> None:
    """Refuse an encrypted target without recipients, or one that ``verify`` could not read.

    Raises:
        UsageError: there is no valid recipient.
        Unavailable: no identity is configured.
    """
    read_recipients(target.encryption, target.label)
    if verify and target.encryption.identities is None:
        raise Unavailable(
            f"{target.label} will be encrypted, and without an identity it cannot be compared "
            "with its source",
            "set identity_file in [encryption] of the configuration, or add --no-verify",
        )


def _location(side: Location | Store) -> Location:
    return side.location if isinstance(side, Store) else side


async def _refuse_nameless(source: Store, where: Selection) -> None:
    """Refuse a session state whose memories have no user and session.

    The file of a ``state_dict`` has no such names, so the options of its location must give them.

    Raises:
        UsageError: the options of the location do not name user and session.
    """
    location = source.location
    async with aclosing(source.headers(where)) as memories:
        async for memory in memories:
            guessed = "session" not in location.options and memory.key.session == location.path.stem
            if guessed or ("user" not in location.options and not memory.key.user):
                raise UsageError(
                    f"{source.label} names no user and session", "add --user and --session"
                )
