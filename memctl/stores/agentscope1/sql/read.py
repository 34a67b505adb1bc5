"""Reading messages: ordered pages of memories, an unordered search, and the catalog."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any

import orjson

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import RejectedValue, damage, is_text
from memctl.engines.sql.syntax import (
    HUGE_BYTES,
    MAX_PUSHED_VALUES,
    NEVER,
    Condition,
    session_condition,
)
from memctl.json import jsonio
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
from memctl.store import DamagedMemory, Matches
from memctl.storekit.batching import are_objects
from memctl.stores.agentscope1.sql.statements import BLOB, UNPROVEN, unproven
from memctl.stores.agentscope1.sql.tables import MemoryTables, shape_of

_SESSION_AND_USER = itemgetter(0, 1)
_PAYLOAD = itemgetter(4)
_MESSAGE_COLUMNS = itemgetter(2, 3, 4, 5)
_SESSION_OWNER = itemgetter(6)
_BEFORE = itemgetter(7)
_BRACE = "{", b"{"
_DEEP = 900
"""The maximum nesting of JSON in Python.  SQLite also accepts deeper JSON."""
_FEW = 10_000
"""The number of selected messages from which a single statement reads all memories."""


class ReadMode(Enum):
    """Which messages to read, and whether with texts."""

    FULL = auto()
    """Whole messages: all selected messages, and possibly further messages."""
    ANCHORED = auto()
    """Like ``FULL``, with the id of the preceding message for each message."""
    OUTLINE = auto()
    """All messages of the memories, without texts."""


class SqlReader:
    """A single pass over a database that reads at least all selected messages.

    For speed with millions of messages, each step works in C on hundreds of messages at a time.
    """

    def __init__(
        self, database: MemoryTables, where: Selection, mode: ReadMode, *, skip_damage: bool
    ) -> None:
        self._database = database
        self._statements = database.statements
        self._where = where
        self._mode = mode
        self._outline = mode is ReadMode.OUTLINE
        self._skip_damage = skip_damage

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield pages of the memories; memories without messages come last.

        Leaves out damaged memories; with ``skip_damage``, only unreadable rows.

        Raises:
            DamagedMemory: damage was found after a page of the same memory had been yielded.
        """
        database, where = self._database, self._where
        find_huge = self._statements.scans_for_huge and not self._outline
        seen: set[MemoryKey] = set()
        async with (
            database.snapshot(where.shard, find_huge=find_huge) as connection,
            database.second_connection(connection) as second,
        ):
            async with aclosing(self._with_messages(connection, second)) as pages:
                async for page in pages:
                    if page.last:
                        seen.add(page.memory.key)
                    yield page
            if where.whole:
                async with aclosing(database.sessions(connection, where.shard)) as keys:
                    async for key in keys:
                        if key not in seen and where.has_key(key) and not self._leaves_out(key):
                            yield Page(Memory(key), [])

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        """Return a window of a memory, as ``Store.window``.

        Does not look for unsound rows before it finds a damaged row in the window.
        """
        database = self._database
        async with database.snapshot(long=False) as connection:
            if database.is_damaged(key):
                return None
            places, first, last = await database.places(connection, key, start, count)
            if not (places or first or await database.has_session(connection, key)):
                return None
            try:
                messages = await self._placed(connection, key, places)
            except _DamagedRow as row:
                await database.find_unsound(connection)  # it knows more about the row
                database.damaged.setdefault(key, damage(str(row)))
                return None
        return Page(Memory(key), messages, first, last)

    async def _placed(
        self, connection: AsyncConnection, key: MemoryKey, places: Sequence[Any]
    ) -> list[StoredMessage]:
        """Return the messages of a memory with these row ids and indexes, in this order.

        Raises:
            _DamagedRow: a row is damaged.
        """
        row_ids = [row_id for row_id, _ in places]
        if not all(isinstance(row_id, str) and is_text(row_id) for row_id in row_ids):
            raise _DamagedRow("the id of a message is not a valid text")
        if not all(isinstance(index, int) for _, index in places):
            raise _DamagedRow("the index of a message is not a number")
        sql = self._statements.select_named()
        found = {
            id: more for id, *more in await self._database.select_rows(connection, sql, row_ids)
        }
        rows = [(key.session, key.user, *place, *found[place[0]]) for place in places]
        messages: list[StoredMessage] = []
        for large, some in groupby(rows, lambda row: _PAYLOAD(row) is None):
            for part in ([row] for row in some) if large else [list(some)]:
                some_messages = await self._messages(connection, key, part)
                if not some_messages:
                    raise _DamagedRow(f"the message {part[0][2]!r} is null")
                messages += some_messages
        return messages

    def _leaves_out(self, key: MemoryKey) -> bool:
        if not self._database.is_damaged(key):
            return False
        self._database.doubts += 1
        return not self._skip_damage

    async def _with_messages(
        self, connection: AsyncConnection, second: AsyncConnection
    ) -> AsyncGenerator[Page]:
        """Yield pages of the memories with messages; ``second`` fetches large messages.

        A page is yielded after the next row was read, which shows whether the page is the last page
        of its memory.
        """
        cutter: _PageCutter | None = None
        async with aclosing(await self._rows(connection)) as partitions:
            async for rows in partitions:
                # Process large messages one by one, without waiting for a full page.
                alone = not self._outline and None in map(_PAYLOAD, rows)
                for some in ([row] for row in rows) if alone else (rows,):
                    for (session, user), found in groupby(some, _SESSION_AND_USER):
                        key = MemoryKey(user, session)
                        of_memory = list(found)
                        if cutter is None or cutter.key != key:
                            if cutter and cutter.messages:
                                yield cutter.last()
                            owner = self._owner(key, _SESSION_OWNER(of_memory[0]))
                            anchored = self._mode is ReadMode.ANCHORED
                            cutter = _PageCutter(Memory(key, owner=owner), anchored=anchored)
                        elif alone:
                            while cutter.full(more=True):
                                yield cutter.next()
                        if not self._where.has_key(key) or self._leaves_out(key):
                            continue
                        wanted = self._wanted(key, of_memory)
                        try:
                            cutter.add(*await self._with_anchors(second, key, wanted))
                        except _DamagedRow as row:
                            self._leave_out(cutter, str(row))
                        while cutter.full():
                            yield cutter.next()
        if cutter and cutter.messages:
            yield cutter.last()

    def _owner(self, key: MemoryKey, owner: str | None) -> str | None:
        """Return ``Memory.owner``, the owner of the memory's session.

        Returns None if the user of the memory is the owner, or if the owner's memory in the session
        is not selected.
        """
        shared = owner not in (None, key.user)
        return (
            owner if shared and self._where.has_key(MemoryKey(owner or "", key.session)) else None
        )

    def _wanted(self, key: MemoryKey, rows: list[Any]) -> list[Any]:
        """Return the rows of a memory whose message ids may be selected."""
        if self._where.own_ids is None or self._outline:
            return rows
        start = f"{key.user}-{key.session}-"
        return [
            row
            for row in rows
            if not row[2].startswith(start) or self._where.may_have(key, row[2].removeprefix(start))
        ]

    def _leave_out(self, cutter: _PageCutter, reason: str) -> None:
        """Note the memory of ``cutter`` as damaged, and drop the messages in the cutter.

        Raises:
            DamagedMemory: a page of the memory has already been yielded.
        """
        failure = self._database.damaged[cutter.key] = damage(reason)
        if cutter.began:
            raise DamagedMemory(self._database.label, cutter.key, failure)
        cutter.clear()

    async def _rows(self, connection: AsyncConnection) -> AsyncGenerator[Sequence[Any]]:
        database, statements, where = self._database, self._statements, self._where
        match self._mode:
            case ReadMode.FULL:
                return database.read_ordered(connection, statements.condition(where))
            case ReadMode.ANCHORED:
                memories = await self._few_memories(connection) or statements.memory_condition(
                    where
                )
                messages = statements.message_condition(where)
                return database.read_matching(connection, memories, messages)
            case ReadMode.OUTLINE:
                condition, values = statements.memory_condition(where)
                statement = statements.select_ordered(condition, outline=True)
                return database.rows(connection, statement, values, PAGE_ENTRIES)

    async def _few_memories(self, connection: AsyncConnection) -> Condition | None:
        """Return a condition on the memories that have messages with the selected ids or marks.

        Returns None if all memories should be read: the selection names sessions, or neither ids
        nor marks, or the condition would name too many sessions.
        """
        statements, where = self._statements, self._where
        selected = statements.condition(where)
        if not statements.message_condition(where).values or "sessions" in selected.values:
            return None
        sql = f"SELECT m.session_id FROM {statements.source()} WHERE {selected.sql} LIMIT {_FEW}"
        found = await self._database.fetch_all(connection, sql, selected.values)
        sessions = frozenset(session for (session,) in found)
        if not found:
            return Condition(NEVER, {})
        if len(found) == _FEW or len(sessions) > MAX_PUSHED_VALUES:
            return None
        if not all(map(is_text, sessions)):
            return None
        return statements.memory_condition(replace(where, sessions=sessions))

    async def _with_anchors(
        self, second: AsyncConnection, key: MemoryKey, rows: Sequence[Any]
    ) -> tuple[list[StoredMessage], list[str | None]]:
        """Return the messages of rows, and the id of the message before each of them.

        The id is None at the beginning of the memory.  The list of ids is empty unless the mode is
        ``ANCHORED``.
        """
        messages = await self._messages(second, key, rows)
        if self._mode is not ReadMode.ANCHORED or not messages:
            return messages, []
        start = f"{key.user}-{key.session}-"
        return messages, [
            None if row_id is None else await self._id(second, start, row_id)
            for row_id in map(_BEFORE, rows)
        ]

    async def _messages(
        self, second: AsyncConnection, key: MemoryKey, rows: Sequence[Any]
    ) -> list[StoredMessage]:
        """Return the messages of rows of a memory.

        A large message must be the only row; ``second`` fetches its text.  If it was deleted
        meanwhile, the result is empty.

        Raises:
            _DamagedRow: a row is damaged, and ``skip_damage`` is not set.
        """
        if not rows:
            return []
        row_ids, indexes, texts, marks = zip(*map(_MESSAGE_COLUMNS, rows), strict=True)
        if self._outline:
            texts = (b"",) * len(rows)
        elif texts[0] is None:
            texts = (await self._database.fetch_message(second, row_ids[0]),)
            if not texts[0]:
                return []
            if len(texts[0]) < HUGE_BYTES:
                texts = (UNPROVEN + texts[0],)
        if isinstance(texts[0], str):
            texts = tuple(text.encode("utf-8", "surrogatepass") for text in texts)
        blobs: set[str] = set()
        if not self._outline:
            # SQLite parses a text only up to its first NUL.
            odd = any(map(bytes.__contains__, texts, repeat(b"\0")))
            proves = self._database.statements.proves_json
            objects = map(bytes.startswith, texts, repeat(b"{"))
            if odd or not (all(objects) if proves else are_objects(texts)):
                pairs = zip(row_ids, texts, strict=True)
                blobs.update(row_id for row_id, text in pairs if text.startswith(BLOB))
                texts = tuple(map(self._proven, row_ids, texts))
            if self._skip_damage and max(map(_nesting, texts)) > _DEEP:
                self._database.doubts += 1
        if not all(map(bytes.isascii, texts)):
            for row_id, text in zip(row_ids, texts, strict=True):
                if not jsonio.is_utf8(text):  # AgentScope does not read such text
                    self._doubt(f"the message {row_id!r} is not UTF-8")
        if not is_text("".join(row_ids)):
            self._doubt("the id of a message is not valid UTF-8")
        start = f"{key.user}-{key.session}-"
        labels = self._labels(row_ids, marks)
        plain = all(map(str.startswith, row_ids, repeat(start)))
        if plain:
            skipped = len(start)
            ids = [row_id[skipped:] for row_id in row_ids]
        else:
            pairs = zip(row_ids, texts, strict=True)
            ids = [await self._id(second, start, *pair) for pair in pairs]
        if plain and not blobs:
            return list(map(StoredMessage, ids, texts, labels, indexes))
        shapes = [
            shape_of(None if one.startswith(start) else one, blob=one in blobs) for one in row_ids
        ]
        return list(map(StoredMessage, ids, texts, labels, indexes, shapes))

    async def _id(
        self, second: AsyncConnection, start: str, row_id: str, message: bytes = b""
    ) -> str:
        """Return the id of a message: the row id without the prefix ``start``.

        If the row id does not begin with ``start``, returns the field ``id`` of the message, or
        else the row id.  If ``message`` is empty, ``second`` fetches the message.
        """
        if not is_text(row_id):
            self._doubt("the id of a message is not valid UTF-8")
        if row_id.startswith(start):
            return row_id.removeprefix(start)
        if not message:
            message = await self._database.fetch_message(second, row_id)
        if not message:  # deleted meanwhile
            return row_id
        try:
            return jsonio.field(message, "id") or row_id
        except ValueError as error:
            self._doubt(f"the message {row_id!r} is not JSON: {error}")
            return row_id

    def _doubt(self, reason: str) -> None:
        if not self._skip_damage:
            raise _DamagedRow(reason)
        self._database.doubts += 1

    def _proven(self, row_id: str, text: bytes) -> bytes:
        """Return a message without the prefix of ``Statements.proven_payload``.

        Calls ``_doubt`` if the message is not a JSON object.
        """
        message = unproven(text)
        if not are_objects([message]):
            try:
                found = jsonio.outline(message)
                if not isinstance(found, dict):
                    self._doubt(f"the message {row_id!r} is not a JSON object")
            except ValueError as error:
                self._doubt(f"the message {row_id!r} is not JSON: {error}")
        return message

    def _labels(
        self, row_ids: Sequence[str], marks: Sequence[str | bytes | None]
    ) -> list[tuple[str, ...]]:
        try:
            return [_sorted_marks(some) if some else () for some in marks]
        except (ValueError, TypeError):  # find the damaged message
            marked = zip(row_ids, marks, strict=True)
            return [self._marks(row_id, some) if some else () for row_id, some in marked]

    def _marks(self, row_id: str, marks: str | bytes) -> tuple[str, ...]:
        try:
            return _sorted_marks(marks)
        except (ValueError, TypeError):
            self._doubt(f"a mark of the message {row_id!r} is not a string")
            return ()


def _nesting(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


class _DamagedRow(Exception):
    """A row is not a valid message; the text gives the reason."""


@lru_cache(maxsize=1000)
def _sorted_marks(marks: str | bytes) -> tuple[str, ...]:
    found: list[str] = sorted(orjson.loads(marks))
    "".join(found)  # raises TypeError for a null, the substitute of a mark that is not a text
    return tuple(found)


class _PageCutter:
    """Cuts the messages of a memory into pages."""

    def __init__(self, memory: Memory, *, anchored: bool) -> None:
        self.key = memory.key
        self.messages: list[StoredMessage] = []
        self._memory = memory
        self._offset = 0
        self._sizes: list[int] = []
        self._count = PAGE_ENTRIES
        self._anchors: list[str | None] | None = [] if anchored else None
        self._newest: tuple[str | None, str | None] = None, None
        """The ids of the last message and of the preceding message."""

    @property
    def began(self) -> bool:
        """True if the cutter has returned a page of the memory."""
        return self._offset > 0

    def clear(self) -> None:
        """Drop the messages that were added since the last page."""
        self.messages.clear()
        self._sizes.clear()
        if self._anchors is not None:
            self._anchors.clear()

    def add(self, messages: list[StoredMessage], before: Sequence[str | None]) -> None:
        """Add messages of the memory, in order.

        If the cutter is anchored, ``before`` has the id of the stored message before each of them,
        None at the beginning of the memory.
        """
        self.messages += messages
        self._sizes += [len(message.message) for message in messages]
        if self._anchors is not None:
            for message, id in zip(messages, before, strict=True):
                newest, anchor = self._newest
                anchor = anchor if id == newest else id
                self._anchors.append(anchor)
                self._newest = message.id, anchor

    def full(self, *, more: bool = False) -> bool:
        """Return whether ``next`` can return a page, which will not be the last page of the memory.

        ``more`` is True if the memory has further messages that are not yet added.
        """
        if len(self.messages) <= PAGE_ENTRIES and sum(self._sizes) < PAGE_BYTES:
            return more and len(self.messages) == PAGE_ENTRIES
        reached = bisect_left(list(accumulate(self._sizes)), PAGE_BYTES) + 1
        self._count = min(reached, PAGE_ENTRIES)
        return more or self._count < len(self.messages)

    def next(self) -> Page:
        """Return the next page, after ``full`` has returned True, and remove its messages."""
        count = self._count
        anchors = None if self._anchors is None else self._anchors[:count]
        page = Page(self._memory, self.messages[:count], self._offset, last=False, anchors=anchors)
        del self.messages[:count], self._sizes[:count]
        if self._anchors is not None:
            del self._anchors[:count]
        self._offset += count
        return page

    def last(self) -> Page:
        """Return the last page of the memory: all messages added since the page before."""
        return Page(self._memory, self.messages, self._offset, last=True, anchors=self._anchors)


# Search


async def find_messages(
    database: MemoryTables, where: Selection, matches: Matches
) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
    """Yield the matching messages, each with its memory (``Store.find_messages``).

    To find the user of a message, memctl must read the session.  Therefore only the users of
    matching messages are looked up.
    """
    async with (
        database.snapshot(find_huge=database.statements.scans_for_huge) as connection,
        database.second_connection(connection) as second,
    ):
        condition = session_condition(where)
        async with aclosing(database.read_unordered(connection, condition)) as partitions:
            async for rows in partitions:
                small = [row for row in rows if row[1] is not None and row[1][:1] in _BRACE]
                texts = _utf8([message for _, message, _ in small])
                found = [(small[index][0], texts[index]) for index in matches(texts)]
                for row_id, message, _ in rows if len(small) < len(rows) else ():
                    if message is None:
                        message = await database.fetch_message(second, row_id)
                    elif message[:1] in _BRACE:
                        continue
                    text = _object(message)
                    found += [(row_id, text) for _ in matches([text])] if text else []
                for key, stored in await _with_keys(database, found) if found else ():
                    if where.has_key(key) and not database.is_damaged(key):
                        yield key, stored


def _utf8(texts: list[str | bytes]) -> list[bytes]:
    """Return texts in UTF-8.

    If any text is not ASCII, each text that is not a JSON object in valid UTF-8 becomes empty.
    """
    found = list(map(jsonio.encoded, texts))
    return found if all(map(bytes.isascii, found)) else [_object(text) or b"" for text in found]


def _object(text: str | bytes) -> bytes | None:
    message = unproven(jsonio.encoded(text))
    return message if jsonio.is_object(message) else None


async def _with_keys(
    database: MemoryTables, found: list[tuple[str, bytes]]
) -> list[tuple[MemoryKey, StoredMessage]]:
    """Return the memory and the message of each row that exists.

    ``found`` has pairs of a row id and the text of the message.  In the result, the id of a message
    is its row id.
    """
    statements = database.statements
    texts = dict(found)
    sql = (
        f"SELECT m.session_id, {statements.user}, m.id FROM {statements.source()} "
        f"WHERE m.id {statements.in_row_ids}"
    )
    async with database.snapshot() as connection:
        rows = await database.select_rows(connection, sql, list(texts))
    return [(MemoryKey(user, session), StoredMessage(id, texts[id])) for session, user, id in rows]


# The catalog


async def count_messages(database: MemoryTables, where: Selection) -> AsyncGenerator[MemoryInfo]:
    """Yield a ``MemoryInfo`` for each selected memory; ``where`` must select whole memories.

    The database counts the messages: one statement by memory and role, another by memory and mark.
    """
    try:
        infos = await _count(database, where)
    except RejectedValue:
        if not database.statements.enable_lenient_json():
            raise
        infos = await _count(database, where)
    for info in infos.values():
        yield info


async def _count(database: MemoryTables, where: Selection) -> dict[MemoryKey, MemoryInfo]:
    infos: dict[MemoryKey, MemoryInfo] = {}
    async with database.snapshot(where.shard, find_huge=True) as connection:
        condition, values = database.statements.condition(where)
        by_role = database.rows(connection, _by_role(database, condition), values)
        async with aclosing(by_role) as partitions:
            async for rows in partitions:
                for row in rows:
                    _add_role(database, infos, where, row)
        by_mark = database.rows(connection, _by_mark(database, condition), values)
        async with aclosing(by_mark) as partitions:
            async for rows in partitions:
                for user, session, mark, number in rows:
                    key = MemoryKey(user, session)
                    if isinstance(mark, str) and is_text(mark):
                        if info := infos.get(key):
                            info.marks[mark] = number
                    elif infos.pop(key, None):
                        database.damaged[key] = damage("a mark of a message is not a string")
        async with aclosing(database.sessions(connection, where.shard)) as keys:
            async for key in keys:
                if key not in infos and where.has_key(key) and not database.is_damaged(key):
                    infos[key] = MemoryInfo(key, repeated=0)
    return infos


async def count_marks(
    database: MemoryTables, where: Selection, marks: frozenset[str]
) -> AsyncGenerator[tuple[MemoryKey, Counter[str]]]:
    """Yield a count of one of ``marks`` in a memory at a time; ``where`` selects whole memories."""
    condition, values = database.statements.condition(where)
    sql = _by_mark(database, f"{condition} AND marked.mark IN :marks")
    async with database.snapshot(where.shard) as connection:
        found = database.rows(connection, sql, {**values, "marks": sorted(marks)})
        async with aclosing(found) as partitions:
            async for rows in partitions:
                for user, session, mark, number in rows:
                    key = MemoryKey(user, session)
                    if mark in marks and where.has_key(key) and not database.is_damaged(key):
                        yield key, Counter({mark: number})


def _by_role(database: MemoryTables, condition: str) -> str:
    statements = database.statements
    return (
        f"SELECT user_id, session_id, role, COUNT(*), SUM(size), MIN(at), MAX(at) FROM ("
        f"SELECT {statements.user} AS user_id, m.session_id AS session_id, "
        f"{statements.short_field('role')} AS role, "
        f"{statements.huge.sized(statements.message_size())} AS size, "
        f"NULLIF({statements.short_field('timestamp')}, '') AS at "
        f"FROM {statements.source()} {statements.fields_join()} "
        f"WHERE {condition} {statements.subquery_barrier}) AS found "
        f"GROUP BY {_exactly(database, 'user_id', 'session_id', 'role')}"
    )


def _by_mark(database: MemoryTables, condition: str) -> str:
    statements = database.statements
    return (
        f"SELECT user_id, session_id, mark, COUNT(*) FROM ("
        f"SELECT {statements.user} AS user_id, m.session_id AS session_id, marked.mark AS mark "
        f"FROM {statements.source()} JOIN message_mark marked ON marked.msg_id = m.id "
        f"WHERE {condition} {statements.subquery_barrier}) AS found "
        f"GROUP BY {_exactly(database, 'user_id', 'session_id', 'mark')}"
    )


def _exactly(database: MemoryTables, *columns: str) -> str:
    return ", ".join(database.statements.exact(column) for column in columns)


def _add_role(
    database: MemoryTables, infos: dict[MemoryKey, MemoryInfo], where: Selection, row: Any
) -> None:
    user, session, role, number, size, first, last = row
    key = MemoryKey(user, session)
    if not where.has_key(key) or database.is_damaged(key):
        return
    info = infos.setdefault(key, MemoryInfo(key, repeated=0))
    info.messages += number
    info.bytes += int(size)
    if role is not None:
        info.roles[role] = info.roles.get(role, 0) + number
    if first is not None:
        info.first = min(info.first or first, first)
        info.last = max(info.last or last, last)
