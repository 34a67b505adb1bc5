"""Reading messages: pages of memories in order, searches in any order, and counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl import codec
from memctl.errors import BadData
from memctl.model import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
)
from memctl.selection import Selection
from memctl.store import Matches
from memctl.stores.sql.database import Refused, SqlDatabase
from memctl.stores.sql.dialect import MAX_PUSHED_VALUES, NEVER, Condition

_SESSION_AND_USER = itemgetter(0, 1)
_PAYLOAD = itemgetter(4)
_OF_MESSAGE = itemgetter(2, 3, 4, 5)
_BEFORE = itemgetter(6)
_FEW = 10_000
"""More messages than these may be of any memory: all are gone through at once."""


class Reading(Enum):
    """What is read of the messages."""

    WHOLE = auto()
    """All of those that may be selected."""
    PLACED = auto()
    """The same, and what each of them stands behind."""
    OUTLINE = auto()
    """Of all messages of the memories all but the texts."""


class SqlReader:
    """One pass over a store: at least what is selected.

    What is done for each message is done in C, for some hundred of them at a time: there may be
    millions.
    """

    def __init__(
        self, store: SqlDatabase, where: Selection, reading: Reading = Reading.WHOLE
    ) -> None:
        self._store = store
        self._where = where
        self._reading = reading
        self._outline = reading is Reading.OUTLINE

    async def pages(self) -> AsyncGenerator[Page]:
        """Pages of the memories, those without messages at the end."""
        store, where = self._store, self._where
        seen: set[MemoryKey] = set()
        async with (
            store.snapshot(opened=store.seeks_huge and not self._outline) as connection,
            store.aside(connection) as aside,
        ):
            async with aclosing(self._with_messages(connection, aside)) as pages:
                async for page in pages:
                    if page.last:
                        seen.add(page.memory.key)
                    yield page
            if where.whole:
                async with aclosing(store.sessions(connection)) as keys:
                    async for key in keys:
                        if key not in seen and where.has_key(key):
                            yield Page(Memory(key), [])

    async def _with_messages(
        self, connection: AsyncConnection, aside: AsyncConnection
    ) -> AsyncGenerator[Page]:
        """Pages of the memories that have messages.

        The newest message always waits: only the next row tells whether it closes its memory.
        """
        cutter: _Cutter | None = None
        async with aclosing(await self._rows(connection)) as partitions:
            async for rows in partitions:
                # Large messages come one by one, and a page of them is not to be waited for.
                alone = not self._outline and None in map(_PAYLOAD, rows)
                for some in ([row] for row in rows) if alone else (rows,):
                    for (session, user), found in groupby(some, _SESSION_AND_USER):
                        key = MemoryKey(user, session)
                        if cutter is None or cutter.key != key:
                            if cutter and cutter.entries:
                                yield cutter.last()
                            cutter = _Cutter(key, placed=self._reading is Reading.PLACED)
                        elif alone:
                            while cutter.full(going_on=True):
                                yield cutter.next()
                        if self._where.has_key(key):
                            cutter.add(*await self._placed(aside, key, list(found)))
                            while cutter.full():
                                yield cutter.next()
        if cutter and cutter.entries:
            yield cutter.last()

    async def _rows(self, connection: AsyncConnection) -> AsyncGenerator[Sequence[Any]]:
        store, where = self._store, self._where
        match self._reading:
            case Reading.WHOLE:
                return store.sorted(connection, store.conditions(where))
            case Reading.PLACED:
                memories = await self._few(connection) or store.of_memories(where)
                return store.picked(connection, memories, store.of_messages(where))
            case Reading.OUTLINE:
                condition, values = store.of_memories(where)
                statement = store.ordered(condition, outline=True)
                return store.rows(connection, statement, values, PAGE_ENTRIES)

    async def _few(self, connection: AsyncConnection) -> Condition | None:
        """The memories of the messages that may be selected, where these are few."""
        store, where = self._store, self._where
        wanted = store.conditions(where)
        if not store.of_messages(where).values or "sessions" in wanted.values:
            return None
        sql = f"SELECT m.session_id FROM {store.source()} WHERE {wanted.sql} LIMIT {_FEW}"
        found = await store.few(connection, sql, wanted.values)
        sessions = frozenset(session for (session,) in found)
        if not found:
            return Condition(NEVER, {})
        if len(found) == _FEW or len(sessions) > MAX_PUSHED_VALUES:
            return None
        return store.of_memories(replace(where, sessions=sessions))

    async def _placed(
        self, aside: AsyncConnection, key: MemoryKey, rows: Sequence[Any]
    ) -> tuple[list[StoredMessage], list[str | None]]:
        """Rows of one memory as entries, with the ids of the messages before them if asked for."""
        entries = await self._entries(aside, key, rows)
        if self._reading is not Reading.PLACED or not entries:
            return entries, []
        start = f"{key.user}-{key.session}-"
        before = map(_BEFORE, rows)
        return entries, [row_id and await self._name(aside, start, row_id) for row_id in before]

    async def _entries(
        self, aside: AsyncConnection, key: MemoryKey, rows: Sequence[Any]
    ) -> list[StoredMessage]:
        """Rows of one memory as entries; a large message comes alone, if it is still there."""
        row_ids, indexes, messages, marks = zip(*map(_OF_MESSAGE, rows), strict=True)
        if self._outline:
            messages = (b"",) * len(rows)
        elif messages[0] is None:
            messages = (await self._store.fetch(aside, row_ids[0]),)
            if not messages[0]:
                return []
        if isinstance(messages[0], str):
            messages = tuple(text.encode("utf-8", "surrogatepass") for text in messages)
        if not all(map(bytes.isascii, messages)):
            messages = tuple(map(codec.utf8, messages))
        start = f"{key.user}-{key.session}-"
        if all(map(str.startswith, row_ids, repeat(start))):
            skipped = len(start)
            names = [row_id[skipped:] for row_id in row_ids]
        else:
            pairs = zip(row_ids, messages, strict=True)
            names = [await self._name(aside, start, *pair) for pair in pairs]
        labels = [_labels(found) if found else () for found in marks]
        return list(map(StoredMessage, names, messages, labels, indexes))

    async def _name(
        self, aside: AsyncConnection, start: str, row_id: str, message: bytes = b""
    ) -> str:
        """The message id, which only the message tells where the row id is of another form."""
        if row_id.startswith(start):
            return row_id.removeprefix(start)
        if not message:
            message = codec.utf8(await self._store.fetch(aside, row_id))
        if not message:  # deleted meanwhile
            return row_id
        try:
            return codec.field(message, "id") or row_id
        except ValueError as error:
            if self._store.skips_damage:
                return row_id
            label = self._store.label
            raise BadData(f"{label}: the message {row_id!r} is not JSON: {error}") from error


@lru_cache(maxsize=1000)
def _labels(marks: str | bytes) -> tuple[str, ...]:
    """The marks of a message in order, from a JSON array; most messages have the same few."""
    return tuple(sorted(orjson.loads(marks)))


class _Cutter:
    """Cuts the messages of one memory into pages."""

    def __init__(self, key: MemoryKey, *, placed: bool) -> None:
        self.key = key
        self.entries: list[StoredMessage] = []
        self._memory = Memory(key)
        self._offset = 0
        self._sizes: list[int] = []
        self._count = PAGE_ENTRIES
        self._after: list[str | None] | None = [] if placed else None
        self._newest: tuple[str | None, str | None] = None, None
        """The id of the last message, and what it stands behind."""

    def add(self, entries: list[StoredMessage], before: Sequence[str | None]) -> None:
        """The memory goes on; ``before`` are the messages before the entries, if asked for."""
        self.entries += entries
        self._sizes += [len(entry.message) for entry in entries]
        if self._after is not None:
            for entry, id in zip(entries, before, strict=True):
                newest, behind = self._newest
                behind = behind if id == newest else id
                self._after.append(behind)
                self._newest = entry.id, behind

    def full(self, *, going_on: bool = False) -> bool:
        """Whether a page is ready that is not the last; ``going_on`` when more is to be added."""
        if len(self.entries) <= PAGE_ENTRIES and sum(self._sizes) < PAGE_BYTES:
            return going_on and len(self.entries) == PAGE_ENTRIES
        reached = bisect_left(list(accumulate(self._sizes)), PAGE_BYTES) + 1
        self._count = min(reached, PAGE_ENTRIES)
        return going_on or self._count < len(self.entries)

    def next(self) -> Page:
        """The page that is ready."""
        count = self._count
        after = None if self._after is None else self._after[:count]
        page = Page(self._memory, self.entries[:count], self._offset, last=False, anchors=after)
        del self.entries[:count], self._sizes[:count]
        if self._after is not None:
            del self._after[:count]
        self._offset += count
        return page

    def last(self) -> Page:
        """The end of the memory."""
        return Page(self._memory, self.entries, self._offset, last=True, anchors=self._after)


Found = tuple[str, bytes]
"""A row id and a text."""


async def search(
    store: SqlDatabase, where: Selection, matches: Matches
) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
    """See ``Store.search``; the entries have the ids of the rows.

    Whose a message is takes a look at its session, so that is asked of those alone that match.
    """
    async with (
        store.snapshot(opened=store.seeks_huge) as connection,
        store.aside(connection) as aside,
    ):
        condition = store.of_sessions(where)
        async with aclosing(store.unsorted(connection, condition)) as partitions:
            async for rows in partitions:
                small = [row for row in rows if row[1] is not None]
                texts = _utf8([message for _, message, _ in small])
                found = [(small[place][0], texts[place]) for place in matches(texts)]
                for row_id, message, _ in rows if len(small) < len(rows) else ():
                    if message is None:
                        text = codec.utf8(await store.fetch(aside, row_id))
                        found += [(row_id, text) for _ in matches([text])]
                for key, entry in await _owned(store, found) if found else ():
                    if where.has_key(key):
                        yield key, entry


def _utf8(texts: list[str | bytes]) -> list[bytes]:
    found = [
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts
    ]
    return found if all(map(bytes.isascii, found)) else list(map(codec.utf8, found))


async def _owned(store: SqlDatabase, found: list[Found]) -> list[tuple[MemoryKey, StoredMessage]]:
    texts = dict(found)
    sql = f"SELECT m.session_id, {store.user}, m.id FROM {store.source()} WHERE m.id IN :rows"
    async with store.snapshot(opened=False) as connection:
        rows = await store.for_rows(connection, sql, list(texts))
    return [(MemoryKey(user, session), StoredMessage(id, texts[id])) for session, user, id in rows]


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
