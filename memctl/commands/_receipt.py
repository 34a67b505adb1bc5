"""``memctl verify --receipt``: search stores for data that were erased."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._journal import runs_on
from memctl.commands._run import files_of, wait_for
from memctl.errors import (
    Different,
    Interrupted,
    MemctlError,
    NotFound,
    Partial,
    Unavailable,
)
from memctl.location import Location, redact_value, visible
from memctl.model import MemoryKey
from memctl.ops.observer import opened
from memctl.ops.receipt import Receipt, Trace, Traces, find_traces, read_receipt
from memctl.output.printout import Printout
from memctl.registry import make_store
from memctl.reports.verify import DifferenceRow, UnsearchedRow, VerifyReceiptReport
from memctl.text.numbers import count

_NAME_IT = "name the store with its password: memctl verify --receipt FILE STORE"


def verify_receipt(run: Run, place: str, stores: Sequence[str]) -> None:
    """Search stores for data that an erase removed; ``place`` is the receipt of the erase.

    Without ``stores``, the stores that the receipt names are searched.  A store that does not
    exist holds nothing.

    Raises:
        Different: a store or an undo run holds erased data.
        Partial: nothing was found, but a store or an undo run could not be searched.
        MemctlError: no store could be searched, or the file is not a receipt.
    """
    output, receipt = run.output, read_receipt(place)
    search = _Search(run, receipt)
    for name in stores:
        search.look_in(name)
    for recorded in receipt.stores if not stores else ():
        search.look_in(recorded.argument, hint=_NAME_IT)
    if search.failed and not search.labels:
        raise next(iter(search.failed.values()))
    output.printout = Printout(search.report, search.table, of_run=True)
    if found := search.found:
        raise Different(
            f"found {count(len(found), 'trace')} of the erased data", "run memctl erase again"
        )
    if failed := search.failed:
        label, first = next(iter(failed.items()))
        why = first.message.removeprefix(f"{label}: ")
        raise Partial(
            f"{count(len(failed), 'store')} of {len(failed) + len(search.labels)} could not be "
            f"searched; {label}: {why}",
            first.hint or "",
        )
    if unsearched := search.unsearched:
        raise Partial(
            f"{count(len(unsearched), 'undo run')} could not be searched; {unsearched[0]}",
            "memctl erase lists them; remove those that you no longer need",
        )
    output.finish()


class _Search:
    """The search for erased data in several stores."""

    def __init__(self, run: Run, receipt: Receipt) -> None:
        self._run = run
        self._receipt = receipt
        self.labels: list[str] = []
        """The searched stores, each once."""
        self.found: list[DifferenceRow] = []
        self.failed: dict[str, MemctlError] = {}
        """The stores that could not be searched."""
        self.unsearched: list[str] = []
        """Why undo runs could not be searched."""

    def look_in(self, name: str, *, hint: str = "") -> None:
        """Search a store, or all files of a rotation; keep an error in ``failed``.

        ``hint`` is for an error of a URL, which may lack its password.

        Raises:
            Interrupted: a signal came.
        """
        try:
            places = files_of(self._run, name)
        except MemctlError as error:
            self._fail(visible(redact_value(name)), error)
            return
        for _, location in places:
            if location.label in self.labels:
                continue
            try:
                traces = wait_for(_look(self._run, location, self._receipt))
            except Interrupted:
                raise
            except MemctlError as error:
                if isinstance(error, Unavailable) and "://" in name:
                    error.hint = hint or error.hint
                self._fail(location.label, error)
            else:
                self.labels.append(location.label)
                self._note(location, traces)

    def _fail(self, label: str, error: MemctlError) -> None:
        if isinstance(error, NotFound):  # which holds nothing
            self._run.output.note(error.message)
            self.labels.append(label)
        else:
            self.failed[label] = error

    def _note(self, location: Location, traces: Traces) -> None:
        self.found += [_row(location, trace) for trace in traces.found]
        if number := len(traces.held):
            self._run.output.note(
                f"{location.label}: {count(number, 'memory')} left by the erase as held: "
                "run memctl erase again when the hold has ended"
            )
        self.unsearched += [why for why in traces.unsearched if why not in self.unsearched]

    def report(self) -> VerifyReceiptReport:
        rows = [UnsearchedRow(at, one.code, one.message) for at, one in self.failed.items()]
        return VerifyReceiptReport(
            self._receipt.file.text, self.labels, self.found, unsearched=rows or UNSET
        )

    def table(self) -> Text:
        text = Text()
        for label in self.labels:
            rows = [row for row in self.found if row.store == label]
            said = "nothing found" if not rows else count(len(rows), "trace")
            text.append(f"{visible(label)}: ", "bold")
            text.append(f"{said}\n", "not bold")
            for row in rows:
                key = MemoryKey(row.user, row.session)
                who = "" if row.code == "undo-run" else f"{visible(str(key))}: "
                text.append(f"  {who}{visible(row.message)}\n", "not bold red")
        for label in self.failed:
            text.append(f"{visible(label)}: ", "bold")
            text.append("not searched\n", "not bold yellow")
        text.append(f"receipt: {visible(self._receipt.file.text)}", "dim")
        return text


async def _look(run: Run, location: Location, receipt: Receipt) -> Traces:
    """Return the traces of erased data in a store and in the undo runs on it."""
    async with opened(make_store(location), run.output) as store:
        return await find_traces(store, receipt, runs_on(run, store.location))


def _row(location: Location, trace: Trace) -> DifferenceRow:
    return DifferenceRow(
        store=location.label,
        user=trace.key.user,
        session=trace.key.session,
        code=trace.code,
        id=trace.id,
        message=trace.message,
    )
