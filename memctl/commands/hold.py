"""``memctl hold``: adds, removes and lists holds, which keep memories from deletion."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from typing import Annotated

from rich.text import Text

from memctl import api
from memctl.commands._change import confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._options import YesOption, group, selecting, takes_options
from memctl.commands._parameters import argument, option
from memctl.commands._run import wait_for
from memctl.errors import UsageError
from memctl.holds import Hold
from memctl.journal.holds import HoldRecord, RecordedHold
from memctl.journal.runs import describe_run
from memctl.location import visible
from memctl.ops.holds import note_nowhere
from memctl.output.printout import Printout
from memctl.output.tables import Column, Grid, cell
from memctl.reports.hold import HoldAddedReport, HoldRemovedReport, HoldReport, HoldRow
from memctl.reports.report import Report
from memctl.storekit.files import missing

app = group()

_LONGEST = 1000
"""The maximum number of characters of a reason."""
_IN_FORCE, _ENDED, _REMOVED = "in-force", "ended", "removed"


@app.callback()
def _hold() -> None:
    """Add, remove or list holds, which keep memories from deletion.

    Every command that would remove or replace something of a held memory leaves it alone and
    reports it: exit code 7, or 9 if all that was selected is held.

    Examples:
      memctl hold add --user ada --reason "case 17" --until 2027-06-30
      memctl hold list
      memctl hold remove 5c1f09ab
    """


@app.command("add")
@takes_options
def add(
    run: Run,
    reason: Annotated[str, option("--reason TEXT", "Why the memories must stay.")],
    user: Annotated[str | None, selecting("--user NAME", "Hold the memories of this user.")] = None,
    session: Annotated[str | None, selecting("--session NAME", "Hold this session.")] = None,
    store: Annotated[
        str | None, selecting("--store STORE", "Hold memories of this store only.")
    ] = None,
    until: Annotated[
        str | None, option("--until DATE", "The last day of the hold, such as 2027-06-30.")
    ] = None,
) -> None:
    """Hold the memories of a user, a session or a store.

    The hold is in force at once, also for a command that is waiting for an answer.

    Examples:
      memctl hold add --user ada --reason "case 17"
      memctl hold add --user ada --session kyoto-trip --reason "case 17" --until 2027-06-30
      memctl hold add --store prod --reason audit
    """
    if user is None and session is None and store is None:
        raise UsageError(
            "the hold names no user, session or store", "add --user, --session or --store"
        )
    _refuse_text("--reason", reason, empty=False)
    for name, text in (("--user", user), ("--session", session)):
        if text is not None:
            _refuse_text(name, text)
    hold = Hold(reason, user, session, until=_last_day(until))
    if store is not None:
        argument, place = _place(run, store)
        hold = Hold(reason, user, session, argument, hold.until, place=place)
    added = api.add_hold(hold)
    _changed(run, HoldAddedReport(_row(added.hold, recorded=added)), f"Hold {added.hold.id} added.")
    run.output.emit()
    stores = run.configuration().stores if store is None else [store]
    if stores and (user, session) != (None, None):
        wait_for(note_nowhere(hold, stores, run.locate, run.output))


@app.command("list")
@takes_options
def list_(
    run: Run,
    all_: Annotated[
        bool, option("--all", "List holds that have ended or were removed, too.")
    ] = False,
) -> None:
    """List the holds of the configuration and of memctl hold add.

    Examples:
      memctl hold list
      memctl hold list --all --json
    """
    rows = [row for row in _rows(run) if all_ or row.state == _IN_FORCE]
    run.output.printout = Printout(lambda: HoldReport(rows), lambda: _table(rows))
    run.output.emit()


@app.command("remove")
@takes_options
def remove(
    run: Run,
    id_: Annotated[str, argument("HOLD", "The id of the hold.")],
    reason: Annotated[
        str, option("--reason TEXT", "Why the hold is removed.", show_default=False)
    ] = "",
    yes: YesOption = False,
) -> None:
    """Remove a hold; its memories can be deleted from then on.

    Asks first; scripts use --yes. The removal is recorded: memctl hold list --all shows it.

    Examples:
      memctl hold remove 5c1f09ab
      memctl hold remove 5c1f09ab --reason "case 17 is closed" --yes
    """
    refuse_unasked(yes, "memctl hold list shows the holds")
    _refuse_text("--reason", reason)
    if any(one.id == id_ for one in _configured(run)):
        raise UsageError(
            f"the hold {id_} is in the configuration", f"remove it from {run.configuration().path}"
        )
    if not yes:
        found = HoldRecord().find(id_)
        run.output.show(_table([_row(found.hold, recorded=found)]))
        confirm(f"remove the hold {id_}? its memories can be deleted then;")
    removed = api.remove_hold(id_, reason)
    _changed(run, HoldRemovedReport(_row(removed.hold, recorded=removed)), f"Hold {id_} removed.")
    run.output.emit()


def _refuse_text(option: str, text: str, *, empty: bool = True) -> None:
    if not empty and not text.strip():
        raise UsageError(f"{option} is empty", "check for an unset variable")
    if any("\ud800" <= char <= "\udfff" for char in text):  # the argument was not UTF-8
        raise UsageError(f"{option} is not valid text", "write it in UTF-8")
    if option == "--reason" and len(text) > _LONGEST:
        raise UsageError(f"--reason has {len(text):,} characters", f"write at most {_LONGEST:,}")


def _last_day(until: str | None) -> date | None:
    if until is None:
        return None
    try:
        day = date.fromisoformat(until)
    except ValueError:
        raise UsageError(f"--until {until!r} is not a date", "write 2027-06-30") from None
    if day < date.today():
        raise UsageError(f"--until {day} is over", "name a day to come, or leave --until out")
    return day


def _place(run: Run, store: str) -> tuple[str, str]:
    """Return the name of a store for the record of a hold, and the place that the name means.

    The place is a URL without its password, or an absolute path; the name may be an alias.

    Raises:
        UsageError: the store is stdin, or there is no such store.
        NotFound: the file does not exist.
    """
    location = run.address(store)
    if location.kind == "stdio":
        raise UsageError("stdin cannot be held", "name a file or a URL")
    if location.path.name and not os.path.lexists(location.path):
        raise missing(location.path)
    aliases = run.configuration().stores
    url = aliases[store].url if store in aliases else store
    about = describe_run("hold", url, location)
    return store if store in aliases else about.argument, about.argument


def _configured(run: Run) -> list[Hold]:
    from memctl.config.holds import read_holds  # not needed to show the help

    return read_holds(run.configuration())


def _rows(run: Run) -> Iterator[HoldRow]:
    for hold in _configured(run):
        yield _row(hold, file=str(run.configuration().path))
    for one in api.list_holds():
        yield _row(one.hold, recorded=one)


def _row(hold: Hold, *, recorded: RecordedHold | None = None, file: str = "") -> HoldRow:
    """Return the row of a hold that ``recorded`` records, or that is in the configuration."""
    removed = recorded.removed if recorded is not None else None
    state = _REMOVED if removed else _ENDED if hold.ended(date.today()) else _IN_FORCE
    return HoldRow(
        *(hold.id, hold.user, hold.session, hold.store, hold.reason),
        None if hold.until is None else hold.until.isoformat(),
        state,
        "configuration" if recorded is None else "state",
        file or None,
        recorded.added.by if recorded is not None else None,
        recorded.added.at if recorded is not None else None,
        removed.by if removed else None,
        removed.at if removed else None,
        removed.reason or None if removed else None,
    )


def _changed(run: Run, report: Report, text: str) -> None:
    run.output.printout = Printout(lambda: report, lambda: Text(text), of_run=True)


def _table(rows: list[HoldRow]) -> Grid | Text:
    if not rows:
        return Text("There are no holds.", "dim")

    def names(key: str) -> list[Text]:
        return [Text("") if (name := getattr(row, key)) is None else cell(name) for row in rows]

    def source(row: HoldRow) -> str:
        if row.source == "configuration":
            return "configuration"
        by = f"{row.by}, {(row.added or '')[:10]}"
        if row.state == _REMOVED:
            by += f"; removed: {row.removed_by}, {(row.removed or '')[:10]}"
        return by

    columns = [
        Column("id", [Text(row.id) for row in rows]),
        Column("user", names("user"), shrinks=True),
        Column("session", names("session"), shrinks=True),
        Column("store", names("store"), shrinks=True),
        Column("until", [Text(row.until or "") for row in rows]),
        Column("reason", names("reason"), shrinks=True),
        Column("by", [Text(visible(source(row))) for row in rows], leaves=1, shrinks=True),
    ]
    if any(row.state != _IN_FORCE for row in rows):
        columns.insert(1, Column("state", [Text(row.state) for row in rows]))
    return Grid(columns)
