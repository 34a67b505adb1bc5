"""The texts in the columns of Tablestore's tables, given to a rewriter and replaced row by row.

A row changes only if its texts are as they were read.  Keys stay.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from memctl.engines.tablestore.service import (
    CONDITION_FAILED,
    Columns,
    Row,
    TablestoreInstance,
    Update,
)
from memctl.location import visible
from memctl.storekit.binary import rewrite_bytes
from memctl.storekit.texts import CHANGED_MEANWHILE, IS_NAME, Rewriter, TextResult

_VECTOR = "embedding"
_HAS_VECTOR = f"the column {_VECTOR} would still tell it: delete the message"


class RowTexts:
    """The texts in the rows of a table.

    ``key`` names the columns of its primary key, and ``clock`` the column with the time of the last
    change in microseconds since 1970, if it has one.
    """

    def __init__(
        self, instance: TablestoreInstance, table: str, key: Sequence[str], clock: str = ""
    ) -> None:
        self._instance = instance
        self._table = table
        self._key = key
        self._clock = clock

    async def rewrite(self, rewriter: Rewriter, *, writes: bool) -> AsyncGenerator[TextResult]:
        """Rewrite all texts, or, unless ``writes``, tell what a rewrite would do.

        Raises:
            NotFound, Unavailable: as ``TablestoreInstance.change``.
        """
        async with aclosing(self._instance.scan(self._table, self._key)) as pages:
            async for rows in pages:
                results: list[TextResult] = []
                changes: list[tuple[Update, list[TextResult]]] = []
                for row in rows:
                    found, new = self._rewritten(row, rewriter)
                    if writes and new:
                        changes.append((self._update(row, new), found))
                    else:
                        results += found
                for result in results + await self._change(changes):
                    yield result

    def _rewritten(self, row: Row, rewriter: Rewriter) -> tuple[list[TextResult], Columns]:
        """Return what there is to report of a row, and its new columns."""
        names = ", ".join(map(visible, map(str, row.key)))
        place = f"the row {names} of {visible(self._table)}"
        found = [TextResult(place, [], rewriter.stays(str(one), IS_NAME)) for one in row.key]
        new: Columns = {}
        for name, value in row.columns.items():
            if isinstance(value, str | bytearray) and rewriter.is_suspect(_as_bytes(value)):
                text = rewrite_bytes(_as_bytes(value), rewriter, name)
                found.append(text.at(f"{place}, column {visible(name)}"))
                if text.hits:
                    is_text = isinstance(value, str)
                    new[name] = text.text.decode() if is_text else bytearray(text.text)
        if new and row.columns.get(_VECTOR):
            found, new = [one.failed(_HAS_VECTOR) for one in found], {}
        return [one for one in found if one.changes], new

    def _update(self, row: Row, new: Columns) -> Update:
        where = {name: row.columns[name] for name in new}
        before = row.columns.get(self._clock)
        if isinstance(before, int):
            new = new | {self._clock: max(time.time_ns() // 1000, before + 1)}
        return Update(row.key, new, where)

    async def _change(self, changes: Sequence[tuple[Update, list[TextResult]]]) -> list[TextResult]:
        outcomes: list[Any] = []
        updates = [update for update, _ in changes]
        await self._instance.change(self._table, self._key, updates, outcomes)
        results: list[TextResult] = []
        for (_, found), failure in zip(changes, outcomes, strict=True):
            if failure is None:
                results += found
                continue
            is_other = failure.code == CONDITION_FAILED
            why = CHANGED_MEANWHILE if is_other else f"Tablestore refuses it: {failure.message}"
            results += [one.failed(why) for one in found]
        return results


def _as_bytes(value: str | bytearray) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
