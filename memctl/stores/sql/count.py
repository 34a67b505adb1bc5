"""The catalogue, counted by the database: a row a memory and role, and one a memory and mark."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from memctl.model import MemoryInfo, MemoryKey
from memctl.selection import Selection
from memctl.stores.sql.database import Refused, SqlDatabase


async def count(store: SqlDatabase, where: Selection) -> AsyncGenerator[MemoryInfo]:
    """The selected memories with all their messages."""
    try:
        infos = await _count(store, where)
    except Refused:
        if not store.take_care():
            raise
        infos = await _count(store, where)
    for info in infos.values():
        yield info


async def _count(store: SqlDatabase, where: Selection) -> dict[MemoryKey, MemoryInfo]:
    infos: dict[MemoryKey, MemoryInfo] = {}
    async with store.snapshot() as connection:
        condition, values = store.conditions(where)
        by_role = store.rows(connection, _by_role(store, condition), values)
        async with aclosing(by_role) as partitions:
            async for rows in partitions:
                for row in rows:
                    _add_role(infos, where, row)
        by_mark = store.rows(connection, _by_mark(store, condition), values)
        async with aclosing(by_mark) as partitions:
            async for rows in partitions:
                for user, session, mark, number in rows:
                    if info := infos.get(MemoryKey(user, session)):
                        info.marks[mark] = number
        async with aclosing(store.sessions(connection)) as keys:
            async for key in keys:
                if key not in infos and where.has_key(key):
                    infos[key] = MemoryInfo(key, repeated=0)
    return infos


def _by_role(store: SqlDatabase, condition: str) -> str:
    return (
        f"SELECT user_id, session_id, role, COUNT(*), SUM(size), MIN(at), MAX(at) FROM ("
        f"SELECT {store.user} AS user_id, m.session_id AS session_id, "
        f"{store.short('role')} AS role, {store.huge.sized(store.size())} AS size, "
        f"{store.short('timestamp')} AS at "
        f"FROM {store.source()} {store.opened()} WHERE {condition} {store.apart}) AS found "
        f"GROUP BY {_exactly(store, 'user_id', 'session_id', 'role')}"
    )


def _by_mark(store: SqlDatabase, condition: str) -> str:
    return (
        f"SELECT user_id, session_id, mark, COUNT(*) FROM ("
        f"SELECT {store.user} AS user_id, m.session_id AS session_id, marked.mark AS mark "
        f"FROM {store.source()} JOIN message_mark marked ON marked.msg_id = m.id "
        f"WHERE {condition} {store.apart}) AS found "
        f"GROUP BY {_exactly(store, 'user_id', 'session_id', 'mark')}"
    )


def _exactly(store: SqlDatabase, *columns: str) -> str:
    return ", ".join(store.exact(column) for column in columns)


def _add_role(infos: dict[MemoryKey, MemoryInfo], where: Selection, row: Any) -> None:
    user, session, role, number, size, first, last = row
    key = MemoryKey(user, session)
    if not where.has_key(key):
        return
    info = infos.setdefault(key, MemoryInfo(key, repeated=0))
    info.messages += number
    info.bytes += int(size)
    if role is not None:
        info.roles[role] = info.roles.get(role, 0) + number
    if first is not None:
        info.first = min(info.first or first, first)
        info.last = max(info.last or last, last)
