"""``verify --show``: each difference with the lines that differ, in every format."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from typing import Any

from memctl.ops.differences import Difference
from memctl.ops.show import with_lines
from memctl.output.diff import Diff
from memctl.output.formats import CsvRows, Listing
from memctl.output.terminal import Format, Output
from memctl.store import Store


async def show_differences(
    output: Output, left: Store, right: Store, found: list[Difference], data: dict[str, Any]
) -> None:
    """Writes them as they come; ``data`` is what the report says beside them.

    Raises:
        MemctlError: as ``Store.read``.
    """
    diff, cells = Diff(left.label, right.label), CsvRows()
    console = output.console()
    piped = not sys.stdout.isatty()  # there lines are as long as they are
    listing = Listing("verify", data, "differences")
    if output.format is Format.JSON:
        output.listing = listing
    elif output.format is not Format.TABLE:
        output.report = None  # the rows are all that it has
    async with aclosing(with_lines(left, right, found)) as shown:
        async for difference, lines in shown:
            row = {**difference_row(difference), "diff": lines}
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


def difference_row(difference: Difference) -> dict[str, Any]:
    """A difference as programs get it."""
    key = difference.key
    row = {"user": key.user, "session": key.session}
    if key.part:
        row["path"] = key.part
    return row | {"code": difference.code, "id": difference.id, "message": difference.message}
