"""``memctl verify --receipt``: search stores for data that were erased."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._journal import runs_on
from memctl.commands._run import files_of, wait_for
from memctl.errors import Different, NotFound, Partial, Unavailable
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.ops.observer import opened
from memctl.ops.receipt import Receipt, Trace, Traces, find_traces, read_receipt
from memctl.output.printout import Printout
from memctl.registry import make_store
from memctl.reports.verify import DifferenceRow, VerifyReceiptReport
from memctl.text.numbers import count


def verify_receipt(run: Run, place: str, stores: Iterable[str]) -> None:
    """Search stores for data that an erase removed; ``place`` is the receipt of the erase.

    Without ``stores``, the stores that the receipt names are searched.

    Raises:
        Different: a store or an undo run holds erased data.
        Partial: nothing was found, but an undo run could not be searched.
        MemctlError: a store cannot be read, or the file is not a receipt.
    """
    output, receipt = run.output, read_receipt(place)
    names = list(stores) or [one.argument for one in receipt.stores]
    named = dict(one for name in names for one in files_of(run, name))
    found: list[DifferenceRow] = []
    unsearched: list[str] = []
    labels: list[str] = []
    for location in named.values():
        labels.append(location.label)
        try:
            traces = wait_for(_look(run, location, receipt))
        except NotFound as error:  # a store that does not exist holds nothing
            output.note(error.message)
        except Unavailable as error:
            if not stores:
                error.hint = "name the store with its password: memctl verify --receipt FILE STORE"
            raise
        else:
            found += [_row(location, trace) for trace in traces.found]
            if number := len(traces.held):
                output.note(
                    f"{location.label}: {count(number, 'memory')} left by the erase as held: "
                    "run memctl erase again when the hold has ended"
                )
            unsearched += [why for why in traces.unsearched if why not in unsearched]
    name = receipt.file.text
    output.printout = Printout(
        lambda: VerifyReceiptReport(name, labels, found),
        lambda: _table(name, labels, found),
        of_run=True,
    )
    if found:
        raise Different(
            f"found {count(len(found), 'trace')} of the erased data", "run memctl erase again"
        )
    if unsearched:
        raise Partial(
            f"{count(len(unsearched), 'undo run')} could not be searched; {unsearched[0]}",
            "memctl erase lists them; remove those that you no longer need",
        )
    output.finish()


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


def _table(receipt: str, labels: list[str], found: list[DifferenceRow]) -> Text:
    text = Text()
    for label in labels:
        rows = [row for row in found if row.store == label]
        text.append(f"{visible(label)}: ", "bold")
        text.append("nothing found\n" if not rows else f"{count(len(rows), 'trace')}\n", "not bold")
        for row in rows:
            key = MemoryKey(row.user, row.session)
            who = "" if row.code == "undo-run" else f"{visible(str(key))}: "
            text.append(f"  {who}{visible(row.message)}\n", "not bold red")
    text.append(f"receipt: {visible(receipt)}", "dim")
    return text
