"""``memctl migrate``: copies memories between two stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Annotated

import typer

from memctl.commands._context import Run
from memctl.commands._options import (
    STORE_HELP,
    TRANSFER,
    BackupOption,
    ConflictOption,
    DryRunOption,
    EmbedderOption,
    JobsOption,
    LossyOption,
    PathOption,
    Transfer,
    guarding,
    takes_options,
)
from memctl.commands._reports import CopyOutcome, expected
from memctl.commands._run import (
    make_target,
    named_embedder,
    narrowed,
    opened,
    readable,
    recorded,
    wait_for,
    warn_of_other_contents,
    writable,
)
from memctl.errors import Different, UsageError
from memctl.location import Location
from memctl.model import OnConflict
from memctl.ops.compare import compare
from memctl.ops.copy import CopyOptions
from memctl.ops.follow import Lag
from memctl.ops.migration import CopyRun, NewTarget
from memctl.ops.names import refuse_absent, refuse_absent_in
from memctl.ops.recording import Recording
from memctl.ops.report import Total
from memctl.ops.retry import Retries
from memctl.output.numbers import count
from memctl.registry import make_store, refuse_unknown_extension
from memctl.selection import Selection
from memctl.store import Store
from memctl.wrappers.embedded import embedded
from memctl.wrappers.rate_limit import RateLimit
from memctl.wrappers.timeout import Timeout


@takes_options
def migrate(
    run: Run,
    source: Annotated[str, typer.Argument(metavar="SRC", help=f"The source. {STORE_HELP}")],
    target: Annotated[str, typer.Argument(metavar="DST", help=f"The target. {STORE_HELP}")],
    where: Selection,
    on_conflict: ConflictOption = OnConflict.FAIL,
    verify: Annotated[
        bool, guarding("--verify/--no-verify", help="Do not compare source and target afterwards.")
    ] = True,
    checksum: Annotated[
        bool,
        typer.Option(
            "--checksum",
            help="Compare contents too, to find changed messages whose ids are the same.",
        ),
    ] = False,
    lossy: LossyOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep copying new messages until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            min=0.1,
            help="Look for new messages this often, with --follow.",
        ),
    ] = 5.0,
    embedder: EmbedderOption = None,
    jobs: JobsOption = 1,
    transfer: Transfer = TRANSFER,
    path: PathOption = None,
    backup: BackupOption = True,
    dry_run: DryRunOption = False,
) -> None:
    """Copy memories to another store; run it again to copy what is new.

    Each memory is copied completely or not at all, and compared with its source afterwards. The
    source is never changed. A memory that differs in the target is a conflict: it is left alone
    and reported (exit code 5). With --follow, the first Ctrl-C copies the rest and ends; the
    second stops at once.

    Examples:
      memctl migrate agents.db postgresql://ops@db/agents --dry-run
      memctl migrate agents.db postgresql://ops@db/agents
      memctl migrate agents.db postgresql://ops@db/agents --follow
    """
    options = CopyOptions(on_conflict, lossy, jobs, checksum)
    with readable(run.locate(source), where, path) as origin:
        destination = narrowed(run.locate(target), where, path)
        if follow:
            _refuse_to_follow(where, dry_run=dry_run, stdio="-" in (source, target))
            if backup and on_conflict is OnConflict.REPLACE:
                raise UsageError(
                    "--follow cannot be undone, so --on-conflict replace needs --no-backup",
                    "add --no-backup, or migrate with --on-conflict replace first, then with "
                    "--follow",
                )
        outcome = CopyOutcome("migrate", origin.label, destination.label, dry_run=dry_run)
        # What follows the first copy is not recorded, and a half of a run is not undone.
        recorded_ = backup and not follow
        recording = recorded(run, "migrate", target, destination) if recorded_ else None
        outcome.copied.embedding.embedder = named_embedder(run, embedder)
        migration = Migration(run, outcome, origin, where, options, transfer, recording)
        migration.run(destination, verify=verify, interval=interval if follow else None)


def _refuse_to_follow(where: Selection, *, dry_run: bool, stdio: bool) -> None:
    """Refuse what has no end to wait for.

    Raises:
        UsageError: see there.
    """
    if dry_run:
        raise UsageError("--follow and --dry-run cannot be combined", "leave one of them out")
    if stdio:
        raise UsageError("--follow cannot be combined with -", "name a file or a URL")
    if not where.whole:
        raise UsageError(
            "--follow copies whole memories", "select by --user and --session, or not at all"
        )


FILES = ("state", "sessions", "archive", "openai")


class Migration:
    """A copy from one location to another, resumed where a connection is lost, then verified."""

    def __init__(
        self,
        run: Run,
        outcome: CopyOutcome,
        origin: Location,
        where: Selection,
        options: CopyOptions,
        transfer: Transfer,
        recording: Recording | None = None,
    ) -> None:
        """``recording`` is None where nothing is to be recorded for undo."""
        self._output = run.output
        self._outcome = outcome
        self._origin = origin
        self._where = where
        self._transfer = transfer
        self._copy = CopyRun(
            *(where, options, recording),
            dry_run=outcome.dry_run,
            observer=run.output,
            report=outcome.copied,
        )
        self._retries = Retries(transfer.retries, run.output.retry)
        self._passes = 0

    def run(
        self, destination: Location, *, verify: bool = False, interval: float | None = None
    ) -> None:
        """Copy, verify and report; with an ``interval`` in seconds follow the source.

        Raises:
            MemctlError: as ``CopyRun``; Conflict, Partial or Different when that is how it ended.
        """
        refuse_unknown_extension(destination)
        if destination.kind != "stdio":  # there stdout is the archive, which a report would spoil
            self._output.report = self._outcome.report()
        new = NewTarget(destination)
        try:
            with self._copy.recorded(), writable(destination) as place:
                work = self._run(place, verify=verify, interval=interval)
                wait_for(work, self._copy.stop)
            self._outcome.run = self._copy.id or ""
            self._outcome.ended = True
            if error := self._outcome.error():
                raise error
        except BaseException:
            wait_for(new.withdraw(self._outcome.copied))
            raise
        self._output.emit()

    async def _run(self, destination: Location, *, verify: bool, interval: float | None) -> None:
        report = self._outcome.copied
        async with report.embedding.embedder or nullcontext():
            await self._retries.run(
                lambda: self._attempt(destination, verify=verify, interval=interval),
                lambda: report.memories.written + len(report.settled) + self._passes,
            )
        for text in report.warnings:
            self._output.warn(text)
        refuse_absent(self._where, report.memories.selected, self._origin)

    async def _attempt(
        self, destination: Location, *, verify: bool, interval: float | None
    ) -> None:
        """Make one attempt, which resumes where the one before ended."""
        dry_run = self._outcome.dry_run
        async with self._source() as source:
            target = self._timed(make_target(destination, dry_run=dry_run))
            if not self._copy.examined:
                if self._origin.kind == "state" and target.location.kind not in FILES:
                    await _refuse_nameless(source, self._where)
                await self._copy.examine(source, target)
                if source.dialect.facts and not dry_run:
                    await self._refuse_vectors(source, destination)
                if interval is None:
                    await self._refuse_nothing(source)
            async with opened(target, self._output):
                await self._copy.begin(source, target)
                self._retries.reached = True
                await self._copy.copy(source, target, following=interval is not None)
                if not self._outcome.copied.memories.selected:
                    await warn_of_other_contents(source, self._output)
                    if interval is None:
                        await refuse_absent_in(self._where, 0, source)
                if interval is not None:
                    await self._copy.follow(source, target, interval, self._tell)
                if verify and not dry_run and self._outcome.copied.memories.written:
                    await self._verify(destination)

    @asynccontextmanager
    async def _source(self) -> AsyncGenerator[Store]:
        store = self._timed(make_store(self._origin))
        if self._transfer.rate is not None:
            store = RateLimit(store, self._transfer.rate)
        async with opened(store, self._output):
            yield store

    def _timed(self, store: Store) -> Store:
        return Timeout(store, self._transfer.timeout)

    async def _refuse_vectors(self, source: Store, destination: Location) -> None:
        """Refuse facts whose vectors do not fit, before anything of the target is made."""
        made = self._outcome.copied.embedding
        async with self._timed(make_target(destination, dry_run=True)) as target:
            if target.embedding is not None:
                await embedded(source, target, self._where, made)

    async def _refuse_nothing(self, source: Store) -> None:
        """Refuse to create a file or tables for a memory that does not exist."""
        if self._where.named:
            async with aclosing(source.headers(self._where)) as found:
                async for _ in found:
                    return
            await refuse_absent_in(self._where, 0, source)

    def _tell(self, lag: Lag) -> None:
        """Show how far behind the target was."""
        self._passes += 1
        self._outcome.rounds = self._passes + 1  # the first copy is one, too
        text = f"the target is {lag.seconds:.1f} s behind"
        if lag.messages or lag.memories:
            new = f"{count(lag.messages, 'message')} in {count(lag.memories, 'memory')}"
            self._output.note(f"{text}; copied {new}")
        else:
            self._output.detail(text)

    async def _verify(self, destination: Location) -> None:
        """Compare both sides by fresh reads, while the target is still locked."""
        outcome, report = self._outcome, self._outcome.copied
        async with (
            self._source() as source,
            opened(self._timed(make_store(destination)), self._output) as target,
        ):
            total = Total(len(report.settled), sum(report.settled.values()))
            with self._output.progress("verifying", lambda: total) as progress:
                compared = await compare(
                    *(source, target, self._where, report.settled, progress),
                    together=report.ordinary,
                )
        found = expected(compared, report)
        if report.uneven:
            self._output.warn(
                f"not compared, because --on-conflict or --lossy leaves them different: "
                f"{count(len(report.uneven), 'memory')}"
            )
        if found.grown > 0:
            self._output.note(
                f"{count(found.grown, 'message')} added to the source meanwhile: "
                "run again to copy them"
            )
        if found.kept:
            self._output.note(
                f"{count(found.kept, 'summary')} of the target kept: the source has none"
            )
        outcome.verified = found.equal
        if not found.equal:
            first = found.differences[0]
            raise Different(
                f"the target differs after the copy: {first.key}: {first.message} "
                f"({len(found.differences)} differences)",
                "the source may have changed meanwhile; list every difference with: memctl verify",
            )


async def _refuse_nameless(source: Store, where: Selection) -> None:
    """A state_dict does not say whose memory it is.

    Raises:
        UsageError: neither do the options.
    """
    location = source.location
    async with aclosing(source.headers(where)) as memories:
        async for memory in memories:
            guessed = "session" not in location.options and memory.key.session == location.path.stem
            if guessed or ("user" not in location.options and not memory.key.user):
                raise UsageError(
                    f"{source.label} names no user and session", "add --user and --session"
                )
