"""Recognition of layouts by the tables of a Tablestore instance.

The table names are the defaults of TablestoreMemory and TablestoreSession (AgentScope 1.0.21) and
of the services of agentscope-runtime 0.2 and 1.0.5.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from memctl.engines.tablestore.service import TableSchema, TablestoreInstance
from memctl.engines.tablestore.texts import RowTexts
from memctl.errors import BadData, NotFound, UsageError
from memctl.location import Location, visible
from memctl.selection import EVERYTHING, Selection
from memctl.store import OpenMode, Store
from memctl.storekit.texts import Rewriter, TextResult

TABLES = {
    "memory": ("agentscope_memory",),
    "session": ("agentscope_session",),
    "runtime": (
        "agentscope_runtime_session",
        "agentscope_runtime_message",
        "agentscope_runtime_memory",
    ),
}
"""The tables of each layout."""
_KEYS: dict[tuple[str, ...], str] = {
    ("document_id", "tenant_id"): "memory",
    ("user_id", "session_id"): "session",
}
"""The layout of a table with any name, by the primary key of the table."""


class TablestoreStore(Store):
    """A store in a Tablestore instance."""

    clock = ""
    """The column of each table with the time of the last change; empty if they have none."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.instance = TablestoreInstance(location)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        try:
            await self.prepare(mode)
        except BaseException:
            await self.instance.close()
            raise

    @abstractmethod
    async def prepare(self, mode: OpenMode) -> None:
        """Check the tables of the store with ``open_tables``; the errors are as there."""

    async def close(self) -> None:
        await self.instance.close()

    @property
    @abstractmethod
    def text_tables(self) -> Mapping[str, Sequence[str]]:
        """The columns of the primary key of each table with texts; a table may not exist."""

    async def rewrite_texts(
        self,
        rewriter: Rewriter,
        where: Selection = EVERYTHING,  # noqa: ARG002 - it selects no texts
        *,
        writes: bool,
    ) -> AsyncGenerator[TextResult]:
        there = await self.instance.tables()
        for table, key in self.text_tables.items():
            if table not in there:
                continue
            texts = RowTexts(self.instance, table, key, self.clock)
            async with aclosing(texts.rewrite(rewriter, writes=writes)) as results:
                async for result in results:
                    yield result


def table_of(location: Location, layout: str) -> str:
    """Return the name of a layout's only table: ``?table=``, or the default name."""
    return location.options.get("table", TABLES[layout][0])


async def open_tables(
    instance: TablestoreInstance,
    location: Location,
    mode: OpenMode,
    layout: str,
    schemas: Sequence[TableSchema],
) -> str | None:
    """Check the tables of a layout, or create them.

    Returns None if the tables of ``layout`` exist now.  If the URL names no layout and only the
    tables of another layout exist, returns this other layout; tables of memories are preferred to
    tables of session states.

    Raises:
        NotFound: no table of any layout exists, or no table of the layout that the URL names.
        UsageError: the tables of several layouts exist, and the URL must name one.
        BadData: the table of ``?table=`` has another primary key.
        Unavailable: the instance cannot be reached, does not exist, or refuses the login.
    """
    tables = await instance.tables()
    own = [schema for schema in schemas if schema.name in tables]
    if "table" in location.options and own:
        return await _layout_by_key(instance, location, layout)
    if mode.creates:
        for schema in schemas:
            if schema.name not in tables:
                await instance.create(schema)
        return None
    if "layout" in location.options or "table" in location.options:
        if own:
            return None
        raise _missing(location, [schema.name for schema in schemas], tables)
    found = {name for name, usual in TABLES.items() if not tables.isdisjoint(usual)}
    if layout in found:
        found.discard("session")
    if len(found) > 1:
        found = {name for name in found if await _has_rows(instance, name, tables)} or {layout}
    if len(found) > 1:
        names = sorted(found)
        raise UsageError(
            f"{location.label} holds data of several layouts: {', '.join(names)}",
            f"choose one with ?layout={names[0]}",
        )
    if not found:
        raise _missing(location, TABLES[layout], tables)
    [only] = found
    return None if only == layout else only


async def _layout_by_key(
    instance: TablestoreInstance, location: Location, layout: str
) -> str | None:
    """Return the layout of the table that the URL names, judged by its primary key.

    Returns None if this is ``layout``.

    Raises:
        BadData: the primary key is of no layout, or not of the layout that the URL names.
    """
    name = location.options["table"]
    key = await instance.key_of(name)
    found = _KEYS.get(key)
    if found == layout:
        return None
    if found is None or "layout" in location.options:
        raise BadData(
            f"the table {visible(name)} has the primary key {', '.join(map(visible, key))}, which "
            f"is not that of the layout {layout}",
            "name a table that AgentScope made, and its layout",
        )
    return found


async def _has_rows(instance: TablestoreInstance, layout: str, tables: frozenset[str]) -> bool:
    for name in tables.intersection(TABLES[layout]):
        key = await instance.key_of(name)
        async with aclosing(instance.scan(name, key, key[:1], limit=1)) as pages:
            async for _ in pages:
                return True
    return False


def _missing(location: Location, names: Sequence[str], tables: frozenset[str]) -> NotFound:
    others = ", ".join(sorted(map(visible, tables))[:5])
    return NotFound(
        f"{location.label} has no table {' or '.join(map(visible, names))}",
        f"its tables: {others}; name one with ?table=" if others else "it has no tables at all",
    )
