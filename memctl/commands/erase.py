"""``memctl erase``: erases a user or a session from stores, undo runs and archives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from msgspec import UNSET
from rich.console import RenderableType

from memctl.commands._change import confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import hold_source, record, runs_on
from memctl.commands._offloaded import Asked, remove_unreferred
from memctl.commands._options import (
    STORE_HELP,
    DryRunOption,
    YesOption,
    guarding,
    opens_stores,
    printing,
    selecting,
)
from memctl.commands._reports import all_held, nothing_but_held
from memctl.commands._run import files_of, narrowed_for_change, wait_for
from memctl.config.offload import read_offload
from memctl.errors import Interrupted, MemctlError, Partial, UsageError
from memctl.holds import LIST
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.ops.data_subject import ALWAYS, Subject
from memctl.ops.erase import EraseRun
from memctl.ops.names import list_names, refuse_absent
from memctl.ops.observer import opened
from memctl.ops.offload.blobs import Blobs
from memctl.ops.receipt import FAILED, ErasedStore, Receipt
from memctl.ops.recording import note_unrecorded
from memctl.ops.report import DOCTOR
from memctl.output import erasing
from memctl.output.printout import Printout
from memctl.output.terminal import Output
from memctl.registry import make_store, refuse_missing
from memctl.reports.erase import ErasedMemory, ErasedRuns, EraseReport, NotErased, StoreOutcome
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.text.numbers import count


@opens_stores
def erase(
    run: Run,
    stores: Annotated[list[str] | None, typer.Argument(metavar="STORE", help=STORE_HELP)] = None,
    user: Annotated[
        str | None, selecting("--user", metavar="NAME", help="The user to erase.")
    ] = None,
    session: Annotated[
        str | None,
        selecting(
            "--session", metavar="NAME", help="Only this session of the user, or of no user."
        ),
    ] = None,
    archives: Annotated[
        list[str] | None,
        selecting(
            "--archives",
            metavar="FILE",
            help="Also erase from this archive, or all files of a rotation; they are rewritten.",
        ),
    ] = None,
    blobs: Annotated[
        str | None,
        typer.Option(
            "--blobs",
            metavar="DIR|URL",
            help="Also remove offloaded contents here that only erased messages refer to.",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    receipt: Annotated[
        str | None,
        printing("--receipt", metavar="FILE", help="Write the receipt to FILE, or s3://..."),
    ] = None,
    force: Annotated[
        bool, guarding("--force", help="Replace the file of --receipt if it exists.")
    ] = False,
) -> None:
    """Erase a user or a session. Cannot be undone.

    Removes messages, summaries, rows, keys and session states from each store, and the user's part
    of the undo runs on it. Archives are rewritten. Asks for the name; scripts use --yes. Writes a
    receipt, which memctl verify --receipt checks later.

    Examples:
      memctl erase --user ada agents.db --dry-run
      memctl erase --user ada prod redis://cache --archives backup.ndjson.zst --yes
      memctl erase --user ada --session kyoto-trip agents.db --receipt kyoto.json
    """
    if user is None and session is None:
        raise UsageError("nobody is named", "name the user: memctl erase --user NAME STORE...")
    if not user and session is None:
        raise UsageError(
            "--user is empty", "check for an unset variable; name a session of no user by --session"
        )
    output, subject = run.output, Subject(user or "", session)
    if not (stores or archives):
        raise UsageError("no store is named", "name one: memctl erase --user NAME STORE...")
    if not dry_run:
        refuse_unasked(yes)
        receipts = Receipt.begin(receipt, subject, force=force)
    place = blobs or read_offload(run.configuration()).to
    targets = _targets(run, subject, stores or [], archives or [], notes_blobs=bool(place))
    outcome = _Outcome(subject, targets, dry_run=dry_run)
    output.printout = Printout(outcome.report, outcome.table, of_run=not dry_run)
    if dry_run or not yes:
        mode = OpenMode.READ if dry_run else OpenMode.CHANGE
        for target in targets:
            target.attempt(output, mode, target.run.plan)
        if dry_run or not receipts.earlier:
            _refuse_nobody(output, targets, subject)
        _refuse_held(targets)
    if dry_run:
        outcome.end(output)
        return
    if not yes:
        output.show(erasing.plan(outcome.lines))
        _ask(subject, targets)
    outcome.receipt = receipts
    receipts.stores = [target.entry for target in targets]
    for target in targets:
        work = partial(target.run.execute, digests=receipts.digests, save=receipts.save)
        try:
            target.attempt(output, OpenMode.CHANGE, work)
        finally:
            if target.run.begun:
                erased = record(run, "erase", target.entry.argument, target.location)
                note_unrecorded(erased, output.warn)
            if outcome.begun or receipts.earlier:
                receipts.save()
    if not (outcome.begun or receipts.earlier):
        receipts.discard()
        outcome.receipt = None
        _refuse_nobody(output, targets, subject)
        _refuse_held(targets)
    else:
        if place:
            outcome.remove_blobs(run, Blobs(place))
        receipts.end()
        receipts.save()
    outcome.end(output)


@dataclass(slots=True)
class _Target:
    """A store to erase from, its entry in the receipt, and the error that stopped its erase."""

    location: Location
    entry: ErasedStore
    run: EraseRun
    error: MemctlError | None = None

    def attempt(self, output: Output, mode: OpenMode, work: Callable[..., Awaitable[None]]) -> None:
        """Open the store and do the work on it; keep an error in ``error`` instead of raising it.

        Do nothing if ``error`` is already set.

        Raises:
            Interrupted: a signal came.
        """
        if self.error is not None:
            return

        async def do() -> None:
            async with opened(make_store(self.location, mode), output) as store:
                await work(store)

        try:
            wait_for(do())
        except Interrupted:
            raise
        except MemctlError as error:
            self.error = error
            self.entry.failures.append(error.code)
            if not self.run.begun:
                self.entry.state = FAILED

    @property
    def only_held(self) -> bool:
        """True if the erase left held memories, and nothing else."""
        report = self.run.report
        return self.error is None and not report.runs.failures and all_held(report.failures)

    @property
    def why(self) -> str:
        """The first reason why the erase of this store is incomplete; empty if it is complete."""
        report = self.run.report
        if self.error is not None:
            return self.error.message
        if report.failures:
            key, failure = report.failures[0]
            return f"{key}: {failure.message}"
        return next(iter(report.runs.failures.values()), "")


class _Outcome:
    """The report of an erase from all its stores, and the error with which it ends."""

    def __init__(self, subject: Subject, targets: list[_Target], *, dry_run: bool) -> None:
        self.subject = subject
        self.targets = targets
        self.dry_run = dry_run
        self.receipt: Receipt | None = None
        self.asked = Asked()
        self.blobs: list[str] | None = None
        """The names of the removed blobs; None if no place of blobs is known."""
        self._blobs_error: MemctlError | None = None
        self._ended = False

    @property
    def begun(self) -> bool:
        """True if data were erased from any store."""
        return any(target.run.begun for target in self.targets)

    @property
    def lines(self) -> list[erasing.Line]:
        """The erase of each store, for the tables of the report."""
        return [
            erasing.Line(one.location.label, one.run.report, one.entry.not_reached, one.why)
            for one in self.targets
        ]

    def remove_blobs(self, run: Run, place: Blobs) -> None:
        """Remove the blobs to which only erased messages referred; keep an error for ``end``.

        Messages of the stores of this erase, and undo runs on them, keep what they refer to.
        """
        found = dict.fromkeys((name for target in self.targets for name in target.run.blobs), 0)
        removed: dict[str, int] = {}
        try:
            if found and not any(target.error is not None for target in self.targets):
                locations = [target.location for target in self.targets]
                wait_for(remove_unreferred(run, locations, place, found, removed, self.asked))
                self._blobs_error = self.asked.error
        except MemctlError as error:
            self._blobs_error = error
        self.blobs = sorted(removed)
        if self.receipt is not None:
            self.receipt.blobs = [self.receipt.digests.of(name) for name in self.blobs]
            self.receipt.blobs_kept_for = list(self.asked.failed)

    def end(self, output: Output) -> None:
        """Write the report; raise an error if the erase of a store is incomplete.

        Raises:
            MemctlError: the first error, if nothing was erased from any store.
            Partial: data could not be erased from a store, or a store could not be searched.
        """
        self._ended = True
        failed = [target for target in self.targets if target.why]
        if failed and not self.begun and not self.dry_run and failed[0].error is not None:
            raise failed[0].error
        left = [one for target in failed for one in target.run.report.failures]
        if failed and all(target.only_held for target in failed):
            key, failure = left[0]
            stay = "would stay" if self.dry_run else "stay" if len(left) > 1 else "stays"
            raise Partial(
                f"{count(len(left), 'memory')} {stay}; the first: {key}: {failure.message}",
                self._hint(failed[0]),
            )
        if failed:
            first = failed[0]
            label = visible(first.location.label)
            raise Partial(
                f"{count(len(failed), 'store')} of {len(self.targets)} could not be "
                f"{'searched' if self.dry_run else 'erased completely'}; "
                f"{label}: {first.why.removeprefix(f'{label}: ')}",
                self._hint(first),
            )
        if self._blobs_error is not None:
            raise Partial(
                f"offloaded contents were not removed: {self._blobs_error.message}",
                "the messages are erased; memctl offload --prune removes the contents",
            )
        output.emit()

    def _hint(self, failed: _Target) -> str:
        if any(one.code == "damaged" for _, one in failed.run.report.failures):
            return f"{DOCTOR}, then run the same command again"
        if self.dry_run:
            return "nothing was erased: this was a dry run"
        if all_held(failed.run.report.failures):
            return f"the rest was done; {LIST}"
        if not any(one.run.report.erased or one.run.report.runs.found for one in self.targets):
            return "nothing was erased; run the same command again"
        return "the rest was done; run the same command again"

    def report(self) -> EraseReport:
        """Return the report as it is now."""
        receipt = UNSET if self.receipt is None else self.receipt.file.text
        blobs = UNSET if self.blobs is None else self.blobs
        return EraseReport(
            dry_run=self.dry_run,
            stores=[self._store(target) for target in self.targets],
            failures=[row for target in self.targets for row in _failures(target)],
            not_reached=list(ALWAYS),
            receipt=receipt,
            blobs=blobs,
        )

    def _store(self, target: _Target) -> StoreOutcome:
        report, entry = target.run.report, target.entry
        found = report.found if self.dry_run else report.erased
        return StoreOutcome(
            store=target.location.label,
            kind=entry.kind,
            state="planned" if self.dry_run and target.error is None else entry.state,
            messages=sum(found.values()),
            memories=[ErasedMemory(*key[:2], messages) for key, messages in found.items()],
            runs=ErasedRuns(report.runs.removed, report.runs.rewritten),
            not_reached=entry.not_reached,
        )

    def table(self) -> RenderableType | None:
        """Draw the report; None if the run failed before it erased or planned anything."""
        if self.dry_run:
            return erasing.plan(self.lines) if self._ended else None
        if not self.begun:
            return None
        path = None if self.receipt is None else self.receipt.file.text
        return erasing.outcome(self.lines, path, len(self.blobs or ()))


def _failures(target: _Target) -> list[NotErased]:
    """Return what could not be erased from a store, a row each with the reason."""
    label, report = target.location.label, target.run.report
    rows = [
        NotErased(
            store=label, user=key.user, session=key.session, code=one.code, message=one.message
        )
        for key, one in report.failures
    ]
    rows += [
        NotErased(store=label, run=run, code="run", message=message)
        for run, message in report.runs.failures.items()
    ]
    if (error := target.error) is not None:
        rows.append(NotErased(store=label, code=error.code, message=error.message))
    return rows


def _targets(
    run: Run, subject: Subject, stores: list[str], archives: list[str], *, notes_blobs: bool
) -> list[_Target]:
    """Return the stores and archives to erase from, each once, even if named in several ways.

    The name of a rotation stands for all its files.  ``notes_blobs`` is as for ``EraseRun``.

    Raises:
        UsageError: a store named by ``--archives`` is not an archive.
        NotFound: an archive named by ``--archives`` does not exist.
    """
    found: dict[tuple[str, str], _Target] = {}
    holds = hold_source(run)
    names = [
        (*one, name in archives) for name in (*stores, *archives) for one in files_of(run, name)
    ]
    for name, place, is_archive in names:
        location = narrowed_for_change(place, subject.where, None)
        if is_archive and location.path.name and location.path.is_dir():
            raise UsageError(
                f"{location.label} is a folder, not an archive", "name the archives in it"
            )
        if is_archive and location.kind != "archive":
            raise UsageError(f"{location.label} is not an archive", "name it without --archives")
        if is_archive:
            refuse_missing(location)
        kept = record(run, "erase", name, location)
        entry = ErasedStore(location.label, kept.argument, location.kind)
        erasure = EraseRun(
            *(subject, entry, partial(runs_on, run), run.output),
            holds=holds,
            notes_blobs=notes_blobs,
        )
        found.setdefault((location.label, str(location.options)), _Target(location, entry, erasure))
    return list(found.values())


def _refuse_nobody(output: Output, targets: list[_Target], subject: Subject) -> None:
    """Raise an error if no store holds data of the user or session to erase.

    Raises:
        NotFound: all stores were searched in vain; the hint suggests similar names.
        MemctlError: nothing was found, and a store could not be searched.
    """
    if not all(target.run.report.nothing for target in targets):
        return
    output.printout = None
    failed = next((target.error for target in targets if target.error is not None), None)
    if failed is not None:
        raise failed
    names: list[MemoryKey] = []

    async def look(location: Location) -> None:
        async with opened(make_store(location), output) as store:
            names.extend(await list_names(store, Selection()))

    for target in targets:
        with suppress(MemctlError):  # then without its names
            wait_for(look(target.location))
    places = [target.location for target in targets]
    refuse_absent(subject.where, 0, *places, names=names)


def _refuse_held(targets: list[_Target]) -> None:
    """Raise an error if all data that were found are held.

    Raises:
        Loss: there are data of the user or session, and all of them are held.
    """
    found = [target.run.report for target in targets if not target.run.report.nothing]
    failed = any(target.error is not None for target in targets)
    if found and not failed and all(report.all_held for report in found):
        raise nothing_but_held([one for report in found for one in report.failures])


def _ask(subject: Subject, targets: list[_Target]) -> None:
    name = subject.user if subject.session is None else subject.session
    what = f"user {visible(repr(subject.user))}"
    if subject.session is not None:
        what = f"session {visible(repr(subject.session))} of {what}"
    where = count(len([one for one in targets if not one.run.report.nothing]), "store")
    confirm(f"erase {what} from {where}? this cannot be undone;", expected=name.strip() or "erase")
