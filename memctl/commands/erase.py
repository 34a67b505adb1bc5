"""``memctl erase``: erases a user or a session from stores, undo runs and archives."""

from __future__ import annotations

from typing import Annotated

from msgspec.structs import replace
from rich.console import RenderableType

from memctl.commands._change import confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import recorded_stores, run_options
from memctl.commands._offloaded import referrers
from memctl.commands._options import (
    STORE_HELP,
    DryRunOption,
    YesOption,
    guarding,
    opens_stores,
    printing,
    selecting,
)
from memctl.commands._parameters import argument, option
from memctl.commands._run import narrowed_for_change, wait_for
from memctl.config.offload import read_offload
from memctl.errors import UsageError
from memctl.location import visible
from memctl.ops.data_subject import Subject
from memctl.ops.erase import Erasure
from memctl.ops.offload.blobs import Blobs
from memctl.ops.receipt import Receipt
from memctl.output import erasing
from memctl.output.printout import Printout
from memctl.text.numbers import count


@opens_stores
def erase(
    run: Run,
    stores: Annotated[list[str] | None, argument("STORE", STORE_HELP)] = None,
    user: Annotated[str | None, selecting("--user NAME", "The user to erase.")] = None,
    session: Annotated[
        str | None, selecting("--session NAME", "Only this session of the user, or of no user.")
    ] = None,
    archives: Annotated[
        list[str] | None,
        selecting(
            "--archives FILE",
            "Also erase from this archive, or all files of a rotation; they are rewritten.",
        ),
    ] = None,
    blobs: Annotated[
        str | None,
        option(
            "--blobs DIR|URL",
            "Also remove offloaded contents here that only erased messages refer to.",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    receipt: Annotated[
        str | None,
        printing(
            "--receipt FILE", "Write the receipt to FILE, or s3://...: JSON, or a page (.html)."
        ),
    ] = None,
    force: Annotated[
        bool, guarding("--force", "Replace the file of --receipt if it exists.")
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
    begun: Receipt | None = None
    if not dry_run:
        refuse_unasked(yes)
        begun = Receipt.begin(receipt, subject, force=force)
    place = blobs or read_offload(run.configuration()).to
    erasure = Erasure(
        subject,
        recorded_stores(
            *(run, "erase", stores or [], archives or []),
            lambda place: narrowed_for_change(place, subject.where, None),
        ),
        run_options(run, dry_run=dry_run),
        begun,
        Blobs(place) if place else None,
        referrers(run),
    )
    printout = _printout(erasure)
    output.printout = replace(printout, table=lambda: None) if dry_run else printout
    try:
        if dry_run or not yes:
            wait_for(erasure.plan())
        if not dry_run:
            if not yes:
                output.show(erasing.plan(_lines(erasure)))
                _ask(erasure)
            wait_for(erasure.execute())
    finally:
        if erasure.nobody:
            output.printout = None
    output.printout = printout
    if error := erasure.error():
        raise error
    output.emit()


def _lines(erasure: Erasure) -> list[erasing.Line]:
    return [
        erasing.Line(one.location.label, one.report, one.entry.not_reached, one.why)
        for one in erasure.targets
    ]


def _printout(erasure: Erasure) -> Printout:
    def table() -> RenderableType | None:
        if erasure.dry_run:
            return erasing.plan(_lines(erasure))
        if not erasure.begun:
            return None
        path = None if erasure.receipt is None else erasure.receipt.file.text
        return erasing.outcome(_lines(erasure), path, len(erasure.blobs or ()))

    return Printout(erasure.report, table, of_run=not erasure.dry_run)


def _ask(erasure: Erasure) -> None:
    subject = erasure.subject
    name = subject.user if subject.session is None else subject.session
    what = f"user {visible(repr(subject.user))}"
    if subject.session is not None:
        what = f"session {visible(repr(subject.session))} of {what}"
    where = count(len([one for one in erasure.targets if not one.report.nothing]), "store")
    confirm(f"erase {what} from {where}? this cannot be undone;", expected=name.strip() or "erase")
