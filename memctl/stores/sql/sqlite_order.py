"""Messages in the order of memories: their keys are sorted, and the messages fetched by these.

In SQLite's sorter the messages would go to the disk and back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.stores.sql.ahead import ahead
from memctl.stores.sql.database import FETCH_ROWS, SqlDatabase
from memctl.stores.sql.dialect import ALWAYS, Condition
from memctl.stores.sql.sqlite_driver import driver_of


async def sorted_rows(
    store: SqlDatabase, connection: AsyncConnection, where: Condition
) -> AsyncGenerator[Sequence[Any]]:
    """See ``SqlDatabase.sorted``."""
    await _sort(store, connection, where)
    # SQLite reads the marks of each message faster than it joins them all.
    marks = f"SELECT {store.mark_list} FROM message_mark k WHERE k.msg_id = o.id"
    sql = (
        f"SELECT o.session_id, o.owner, o.id, o.position, {store.small_payload()}, ({marks}) "
        "FROM temp.sorted o CROSS JOIN message m ON m.rowid = o.row_ ORDER BY o.rowid"
    )
    async with aclosing(store.rows(connection, sql, {})) as partitions:
        async for rows in partitions:
            yield rows


async def picked_rows(
    store: SqlDatabase, connection: AsyncConnection, memories: Condition, messages: Condition
) -> AsyncGenerator[Sequence[Any]]:
    """See ``SqlDatabase.picked``.

    Which messages there are, and their marks, is of one moment.  The texts, which never change, are
    fetched afterwards, some at a time: agents can write meanwhile.
    """
    driver = await driver_of(connection)
    values = dict(messages.values)
    ids = {"ids": values.pop("ids")} if "ids" in values else {}
    named = store.of_ids if ids else ALWAYS
    await _sort(store, connection, Condition(memories.sql, {**memories.values, **ids}), named)
    await driver.execute("DROP TABLE IF EXISTS temp.marked")
    await driver.execute(
        "CREATE TABLE temp.marked (msg_id TEXT, mark TEXT, PRIMARY KEY (msg_id, mark)) "
        "WITHOUT ROWID"
    )
    await driver.execute(
        "INSERT INTO temp.marked SELECT msg_id, mark FROM message_mark ORDER BY msg_id, mark"
    )
    await driver.commit()
    marks = "FROM temp.marked k WHERE k.msg_id = o.id"
    marked = f"EXISTS (SELECT 1 {marks} AND k.mark IN :marks)" if values else ALWAYS
    text = f"SELECT {store.small_payload()} FROM message m WHERE m.id = o.id"
    before = (
        "SELECT p.id FROM temp.sorted p WHERE p.rowid = o.place - 1 "
        "AND p.session_id = o.session_id AND p.owner = o.owner"
    )
    statement, bound = store.plain(
        "WITH o AS (SELECT rowid AS place, * FROM temp.sorted WHERE rowid > :low AND named) "
        f"SELECT o.session_id, o.owner, o.id, o.position, ({text}), "
        f"(SELECT {store.mark_list} {marks}), ({before}), o.place FROM o WHERE {marked} "
        f"ORDER BY o.place LIMIT {FETCH_ROWS}",
        {"low": 0, **values},
    )
    _, *others = bound  # that of low is the first
    low = 0

    async def fetch() -> Sequence[Any]:
        nonlocal low
        rows = list(await driver.execute_fetchall(statement, (low, *others)))
        low = rows[-1][-1] if rows else low
        return rows

    async with aclosing(ahead(fetch)) as partitions:
        async for rows in partitions:
            yield rows


async def _sort(
    store: SqlDatabase, connection: AsyncConnection, where: Condition, named: str = ALWAYS
) -> None:
    """Puts the keys of messages into ``temp.sorted``, and of which ``named`` is true."""
    driver = await driver_of(connection)
    statement, bound = store.plain(
        f"INSERT INTO temp.sorted SELECT m.rowid, m.session_id, {store.user}, m.id, "
        f"{store.index}, {named} FROM {store.source()} WHERE {where.sql} "
        f"ORDER BY m.session_id, 3, {store.index}, m.id",
        where.values,
    )
    await driver.execute("DROP TABLE IF EXISTS temp.sorted")
    await driver.execute(
        "CREATE TABLE temp.sorted (row_ INTEGER, session_id TEXT, owner TEXT, id TEXT, "
        "position INTEGER, named INTEGER)"
    )
    await driver.execute(statement, bound)
