"""``memctl verify``: compares two stores, or checks an archive or a receipt."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from typing import Annotated

from msgspec import UNSET
from rich.text import Text

from memctl import api
from memctl.commands._context import Run
from memctl.commands._options import STORE_HELP, PathOption, divisible
from memctl.commands._parameters import argument, option
from memctl.commands._receipt import verify_receipt
from memctl.commands._run import readable, wait_for
from memctl.errors import Different, UsageError
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.ops.copy.compare import CompareReport, Difference
from memctl.ops.copy.diff import with_lines
from memctl.ops.observer import opened
from memctl.output import tables
from memctl.output.csv_rows import CsvRows, columns
from memctl.output.printout import Listing, Printout
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.reports.report import Maybe, named
from memctl.reports.verify import (
    ArchiveRow,
    ComparedMemories,
    ComparedMessages,
    DifferenceRow,
    VerifyArchiveReport,
    VerifyReport,
)
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count


@divisible
def verify(
    run: Run,
    where: Selection,
    left: Annotated[str | None, argument("A", f"A store. {STORE_HELP}")] = None,
    right: Annotated[str | None, argument("B", "The store to compare it with.")] = None,
    more: Annotated[list[str] | None, argument("STORE", "More stores, with --receipt.")] = None,
    show: Annotated[
        bool, option("--show", "Show the differences line by line, as git diff does.")
    ] = False,
    receipt: Annotated[
        str | None,
        option("--receipt FILE", "Look for data that erase or redact removed, by its receipt."),
    ] = None,
    path: PathOption = None,
) -> None:
    """Compare two stores, message by message.

    Compares ids, order, marks, contents, summaries, expiries, and paths in session states. Exit
    code 6 means that the stores differ. An archive alone is read whole, and its digest and counts
    are checked; exit code 8 means that it is damaged. With --receipt, checks that no data that
    memctl erase or redact removed has come back: in the stores of the receipt, or in the named
    stores.

    Examples:
      memctl verify agents.db postgresql://ops@db/agents --show
      memctl verify backup.ndjson.zst
      memctl verify --receipt ada.json
    """
    output = run.output
    if receipt is not None:
        if where != Selection() or path is not None or show:
            raise UsageError(
                "--receipt cannot be combined with other options", "leave the other options out"
            )
        verify_receipt(run, receipt, [name for name in (left, right, *(more or ())) if name])
        return
    if left is None or more:
        raise _two_needed()
    if right is None:
        with readable(run.locate(left), where, path) as archive:
            if archive.kind != "archive":
                raise _two_needed()
            if where != Selection() or path is not None or show:
                raise UsageError(
                    "an archive alone is checked whole",
                    "leave the selection, --shard and --show out",
                )
            wait_for(_check(output, archive))
        output.finish()
        return
    if left == right == "-":
        raise UsageError("only one side can be stdin", "write the other side to a file")
    with (
        readable(run.locate(left), where, path) as first,
        readable(run.locate(right), where, path) as second,
    ):
        found = wait_for(_compare(output, first, second, where, show=show))
    if found.differences:
        raise Different(f"{count(len(found.differences), 'difference')} between the two stores")
    output.finish()


def _two_needed() -> UsageError:
    return UsageError(
        "verify needs two stores",
        "name both: memctl verify A B; only an archive is checked alone: memctl verify ARCHIVE",
    )


async def _check(output: Output, archive: Location) -> None:
    """Check an archive, and report the numbers of its memories and messages.

    Raises:
        BadData: the archive is damaged.
    """
    async with opened(make_store(archive), output) as store:  # which checks it
        memories, messages = await store.count(Selection()) or (0, 0)
        found = f"{count(memories, 'memory')}, {count(messages, store.dialect.noun)}"
        report = VerifyArchiveReport(ArchiveRow(archive.label, memories, messages))
        output.printout = Printout(
            lambda: report, lambda: Text(f"{visible(archive.label)}\nwhole: {found}"), of_run=True
        )


async def _compare(
    output: Output, first: Location, second: Location, where: Selection, *, show: bool
) -> CompareReport:
    async with (
        opened(make_store(first), output) as left,
        opened(make_store(second), output) as right,
    ):
        found = await api.compare(left, right, where, must_exist=True, observer=output)
        report = _report(found, first.label, second.label)
        output.printout = Printout(
            lambda: report,
            lambda: tables.comparison(report, noun=found.noun, brief=show),
            of_run=True,
        )
        if show:
            await show_differences(output, left, right, found.differences)
    return found


def _report(found: CompareReport, left: str, right: str) -> VerifyReport:
    return VerifyReport(
        source=left,
        target=right,
        memories=ComparedMemories(found.same, found.different, found.missing, found.extra),
        messages=ComparedMessages(found.left_messages, found.right_messages),
        differences=[difference_row(difference) for difference in found.differences],
    )


async def show_differences(
    output: Output, left: Store, right: Store, found: list[Difference]
) -> None:
    """Write the differences of two stores one by one, line by line as ``git diff`` does.

    Raises:
        MemctlError: as ``Store.read``.
    """
    diff = Diff(left.label, right.label)
    cells = CsvRows([*columns(difference_row(one).row() for one in found), "diff"])
    console = output.console()
    piped = not sys.stdout.isatty()  # long lines are not wrapped in a pipe
    head = output.reported
    head.pop("differences", None)
    listing = Listing("verify", head, "differences")
    if output.format is Format.JSON:
        output.listing = listing
    elif output.format is not Format.TABLE:
        output.printout = None  # the rows are the whole report
    async with aclosing(with_lines(left, right, found)) as shown:
        async for difference, lines in shown:
            row = difference_row(difference, lines).row()
            match output.format:
                case Format.TABLE:
                    console.print(diff.draw(difference, lines), soft_wrap=piped)
                case Format.JSON:
                    listing.add([json.dumps(row)])
                case Format.NDJSON:
                    sys.stdout.write(json.dumps(row) + "\n")
                case Format.CSV:
                    cells.add(row)
    if found and output.format is Format.TABLE:
        console.print()


def difference_row(difference: Difference, diff: Maybe[list[str]] = UNSET) -> DifferenceRow:
    """Return a difference of two stores as a row of the report."""
    key = difference.key
    return DifferenceRow(
        **named(key),
        code=difference.code,
        id=difference.id,
        message=difference.message,
        diff=diff,
    )


_SIGN_STYLES = {"-": "red", "+": "green"}


class Diff:
    """Draws differences of two stores one by one; the names of the stores come first."""

    def __init__(self, left: str, right: str) -> None:
        self._names = left, right
        self._key: MemoryKey | None = None
        self._id = ""

    def draw(self, difference: Difference, lines: list[str]) -> Text:
        """Return a difference as text, below headings of its memory and message.

        A heading is left out if it was drawn for the previous difference.  ``lines`` begin with
        ``-``, ``+`` or a space.
        """
        text = Text()
        if self._key is None:
            left, right = self._names
            text.append(f"--- a/{visible(left)}\n+++ b/{visible(right)}\n", "bold")
        if difference.key != self._key:
            text.append(f"@@ {visible(str(difference.key))} @@\n", "cyan")
            self._key, self._id = difference.key, ""
        if difference.id:
            if difference.id != self._id:
                text.append(f"message {visible(repr(difference.id))}", "bold")
                text.append(f"  {visible(difference.code)}\n", "dim")
            self._id = difference.id
        elif difference.code in ("summary", "settings", "expiry", "path"):
            text.append(f"{difference.code}\n", "bold")
        for line in lines or [" no longer different"]:
            text.append(f"{line[0]}{visible(line[1:])}\n", _SIGN_STYLES.get(line[0], ""))
        text.right_crop(1)  # the console ends the last line
        return text
