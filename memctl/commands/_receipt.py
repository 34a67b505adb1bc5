"""``memctl verify --receipt``: search stores for data that were erased or redacted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET
from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._journal import run_options, runs_on
from memctl.commands._run import files_of, wait_for
from memctl.errors import (
    Different,
    Interrupted,
    MemctlError,
    NotFound,
    Partial,
    Unavailable,
)
from memctl.journal.runs import describe_run
from memctl.location import Location, redact_value, visible
from memctl.model import MemoryKey
from memctl.ops.observer import opened
from memctl.ops.receipt import Receipt, Trace, Traces, find_traces, read_receipt
from memctl.ops.redact import receipt as redact_receipt
from memctl.ops.redact.redactor import Redactor
from memctl.ops.redact.run import StoreRedaction
from memctl.output.printout import Printout
from memctl.registry import make_store
from memctl.reports.verify import DifferenceRow, UnsearchedRow, VerifyReceiptReport
from memctl.store import OpenMode
from memctl.text.numbers import count

_Look = Callable[[Location], Coroutine[Any, Any, Traces]]
_TAKEN_OUT = {"erase": "erased data", "redact": "redacted values"}
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
    output = run.output
    receipt: Receipt | redact_receipt.Receipt
    look: _Look
    try:
        receipt = redact_receipt.read_receipt(place)
        look, command = partial(_redacted, run, Redactor(receipt.rules())), "redact"
    except redact_receipt.OtherReceipt:
        receipt = read_receipt(place)
        look, command = partial(_erased, run, receipt), "erase"
    search = _Search(run, receipt.file.text, look)
    for name in stores:
        search.look_in(name)
    for recorded in receipt.stores if not stores else ():
        search.look_in(recorded.argument, hint=_NAME_IT)
    if search.failed and not search.labels:
        raise next(iter(search.failed.values()))
    output.printout = Printout(search.report, search.table, of_run=True)
    if found := search.found:
        raise Different(
            f"found {count(len(found), 'trace')} of the {_TAKEN_OUT[command]}",
            f"run memctl {command} again",
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
            f"memctl {command} lists them; remove those that you no longer need",
        )
    output.finish()


class _Search:
    """The search for data that were taken out, in several stores."""

    def __init__(self, run: Run, receipt: str, look: _Look) -> None:
        self._run = run
        self._receipt = receipt
        self._look = look
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
                traces = wait_for(self._look(location))
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
        return VerifyReceiptReport(self._receipt, self.labels, self.found, unsearched=rows or UNSET)

    def table(self) -> Text:
        text = Text()
        for label in self.labels:
            rows = [row for row in self.found if row.store == label]
            said = "nothing found" if not rows else count(len(rows), "trace")
            text.append(f"{visible(label)}: ", "bold")
            text.append(f"{said}\n", "not bold")
            for row in rows:
                key = MemoryKey(row.user, row.session)
                who = f"{visible(str(key))}: " if row.code in ("name", "message") else ""
                text.append(f"  {who}{visible(row.message)}\n", "not bold red")
        for label in self.failed:
            text.append(f"{visible(label)}: ", "bold")
            text.append("not searched\n", "not bold yellow")
        text.append(f"receipt: {visible(self._receipt)}", "dim")
        return text


async def _redacted(run: Run, redactor: Redactor, location: Location) -> Traces:
    """Return the values that were redacted, as they are in a store and in the undo runs on it."""
    record = describe_run("verify", location.label, location)
    redaction = StoreRedaction(location, record, run_options(run, dry_run=True), redactor)
    await redaction.attempt(OpenMode.READ, partial(redaction.scan, blobs=None))
    if redaction.error is not None:
        raise redaction.error
    found = redaction.found
    rows = [(one.place, one.value, one.kind) for one in found.places]
    rows += [(one.place, one.value, one.kind) for one in found.left]
    texts = [f"{place}: {value} ({kind})" for place, value, kind in rows]
    return Traces([Trace("text", text) for text in texts])


async def _erased(run: Run, receipt: Receipt, location: Location) -> Traces:
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
