"""AgentScope 2.x sessions in a SQL database of any kind.

A session is a row of ``sessions``, whose payload has the state, and its log, rows of ``messages``
in order of (created_at, msg_id).  The database and its driver are those of the layout of 1.x; see
``memctl.stores.agentscope2.session`` for what a session is as a memory.

Source: ``app/storage/_sql/_storage.py`` of agentscope 2.0.11.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl import jsonio
from memctl.dialects.agentscope2 import AGENTSCOPE2, COMPRESSED, CREATED, DEFAULT_AGENT
from memctl.engines.sql.database import (
    FETCH_ROWS,
    Contended,
    Database,
    RejectedValue,
    damage,
    is_text,
    make_database,
    retry_while_locked,
    shown_name,
)
from memctl.engines.sql.syntax import MAX_PUSHED_VALUES, SMALL_BYTES, session_condition
from memctl.errors import Failure, Uninitialised
from memctl.layouts.sql import name_failure
from memctl.location import Location
from memctl.model import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import DamagedMemory, Features, Maintenance, OpenMode, Store
from memctl.storekit.batching import BATCH_BYTES, Group, Large, Small, are_objects, gather
from memctl.storekit.edits import (
    ChangeMatcher,
    Drop,
    Keep,
    LargeEdit,
    Mark,
    Marks,
    Put,
    Step,
    batch_edits,
    is_same_text,
)
from memctl.stores.agentscope2.session import (
    COLUMNS,
    MARKS,
    Comparison,
    Entry,
    NotASession,
    Session,
    Unlogged,
    agent_of,
    agent_record,
    context_findings,
    in_log_order,
    is_unlogged,
    lost_summary,
    merge,
    new_session,
    parse_extra,
    parse_shape,
    rebuild,
    with_summary,
    without_context,
)
from memctl.stores.agentscope2.tables import create_tables, existing_teams, missing_tables

T = TypeVar("T")

BATCH_MESSAGES = 10_000
"""Small memories share a transaction up to this size: a commit waits for the disk."""
CHUNK_MESSAGES = PAGE_ENTRIES
"""Small sessions are read together, as many as have so many messages."""
IDS = 500
"""The ids in one statement."""
WHOLE_LOG = 4
"""A log of up to so many times the ids that are asked for is read whole."""

SESSION_COLUMNS = ("id", "user_id", *COLUMNS, "payload")
AGENT_COLUMNS = ("id", "user_id", "source", "created_at", "updated_at", "payload")
MESSAGE_COLUMNS = ("session_id", "msg_id", "created_at", "payload")
_TIMES = ("created_at", "updated_at")
_PLAIN = re.compile("[0-9a-z]+")
ATTEMPTS = 3
"""The attempts to write a session that another run may be making."""


class Listed(NamedTuple):
    """A session that may be read: its names, and how much it holds."""

    session: str
    user: str
    bytes: int
    messages: int

    @property
    def key(self) -> MemoryKey:
        """Return its name, as a text where it is none."""
        return MemoryKey(shown_name(self.user), shown_name(self.session))

    @property
    def is_named(self) -> bool:
        """Return whether its names are texts."""
        return _is_name(self.user) and _is_name(self.session)


class LogRow(NamedTuple):
    """A row of the log; ``text`` is None where it is large, and read by itself."""

    id: str
    time: Any
    text: bytes | None


class Agentscope2Database:
    """The statements about sessions and logs, in a database of any kind."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.syntax = database.syntax
        self.others: tuple[str, ...] = ()
        """The tables of a user's records, besides agents, that an erase clears and that exist."""

    async def fetch(self, connection: AsyncConnection, sql: str, **values: Any) -> Sequence[Any]:
        """Return all rows of a statement."""
        return await self.database.execute(connection, sql, values)

    def _text(self, column: str = "m.payload") -> str:
        return self.syntax.json_text(column)

    async def listed(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        """Yield the sessions that may be selected, in order of their ids."""
        conditions, values = ["1 = 1"], dict[str, Any]()
        sessions = where.sessions
        if not sessions and where.keys is not None:
            sessions = frozenset(key.session for key in where.keys)
        for column, names in (("s.id", sessions), ("s.user_id", where.users)):
            if 0 < len(names) <= MAX_PUSHED_VALUES:
                conditions.append(f"{column} IN :names{len(values)}")
                values[f"names{len(values)}"] = sorted(names)
        size = self.syntax.json_size("s.payload")
        count = "(SELECT COUNT(*) FROM messages m WHERE m.session_id = s.id)"
        more = ""
        while True:
            sql = (
                f"SELECT s.id, s.user_id, {size}, {count} FROM sessions s "
                f"WHERE {' AND '.join(conditions)} {more} ORDER BY s.id LIMIT {PAGE_ENTRIES}"
            )
            rows = await self.fetch(connection, sql, **values)
            for session, user, bytes, messages in rows:
                yield Listed(session, user, bytes or 0, messages)
            if len(rows) < PAGE_ENTRIES:
                return
            more = "AND s.id > :last"
            values["last"] = rows[-1][0]

    async def sessions(
        self, connection: AsyncConnection, names: Iterable[str], lock: str = ""
    ) -> dict[str, StoredSession]:
        """Return the sessions of these names that there are, locked where ``lock`` says so."""
        columns = ", ".join(f"s.{name}" for name in SESSION_COLUMNS[:-1])
        found: dict[str, StoredSession] = {}
        for some in _pieces(sorted(names)):
            sql = (
                f"SELECT {columns}, {self._text('s.payload')} FROM sessions s "
                f"WHERE s.id IN :names ORDER BY s.id {lock}"
            )
            for name, user, *record, payload in await self.fetch(connection, sql, names=some):
                fields = dict(zip(COLUMNS, record, strict=True))
                fields |= {key: _moment_text(fields[key]) for key in _TIMES}
                found[name] = StoredSession(name, user, fields, _bytes(payload))
        return found

    async def counts(
        self, connection: AsyncConnection, names: Iterable[str]
    ) -> dict[str, tuple[int, Any]]:
        """Return how many messages are in the logs of sessions, and the times of the last."""
        sql = (
            "SELECT session_id, COUNT(*), MAX(created_at) FROM messages WHERE session_id IN :names "
            "GROUP BY session_id"
        )
        found: dict[str, tuple[int, Any]] = {}
        for some in _pieces(sorted(names)):
            rows = await self.fetch(connection, sql, names=some)
            found |= {name: (count, last) for name, count, last in rows}
        return found

    async def users(self, connection: AsyncConnection) -> list[str]:
        """Return the users who have sessions."""
        sql = "SELECT DISTINCT user_id FROM sessions ORDER BY user_id"
        return [shown_name(user) for (user,) in await self.fetch(connection, sql)]

    async def logs_alone(self, connection: AsyncConnection) -> list[str]:
        """Return the names of logs that have no session."""
        sql = (
            "SELECT DISTINCT m.session_id FROM messages m WHERE NOT EXISTS "
            "(SELECT 1 FROM sessions s WHERE s.id = m.session_id) ORDER BY m.session_id"
        )
        return [shown_name(name) for (name,) in await self.fetch(connection, sql)]

    async def logs(self, connection: AsyncConnection, names: list[str]) -> dict[str, list[LogRow]]:
        """Return the logs of a few small sessions."""
        sql = (
            f"SELECT m.session_id, m.msg_id, m.created_at, {self._small()} FROM messages m "
            "WHERE m.session_id IN :names ORDER BY m.session_id, m.created_at, m.msg_id"
        )
        rows = await self.fetch(connection, sql, names=names)
        return {
            name: [LogRow(id, time, _optional(text)) for _, id, time, text in some]
            for name, some in groupby(rows, lambda row: row[0])
        }

    async def log(self, connection: AsyncConnection, session: str) -> AsyncGenerator[list[LogRow]]:
        """Yield the log of a session in pages of some hundred rows."""
        more, values = "", dict[str, Any](session=session)
        while True:
            sql = (
                f"SELECT m.msg_id, m.created_at, {self._small()} FROM messages m "
                f"WHERE m.session_id = :session {more} "
                f"ORDER BY m.created_at, m.msg_id LIMIT {FETCH_ROWS}"
            )
            rows = await self.fetch(connection, sql, **values)
            page = [LogRow(id, time, _optional(text)) for id, time, text in rows]
            yield page
            if len(page) < FETCH_ROWS:
                return
            # So written, an index leads to the first of them.
            more = "AND m.created_at >= :time AND (m.created_at > :same OR m.msg_id > :last)"
            values |= {"time": page[-1].time, "same": page[-1].time, "last": page[-1].id}

    async def entries(
        self, connection: AsyncConnection, session: str, lock: str = ""
    ) -> list[tuple[str, Any]]:
        """Return the ids and the times of a log, locked where ``lock`` says so."""
        sql = (
            "SELECT m.msg_id, m.created_at FROM messages m WHERE m.session_id = :session "
            f"ORDER BY m.created_at, m.msg_id {lock}"
        )
        return [(id, time) for id, time in await self.fetch(connection, sql, session=session)]

    async def logged(
        self, connection: AsyncConnection, wanted: Mapping[str, Set[str]], counts: Mapping[str, int]
    ) -> dict[str, set[str]]:
        """Return the ids that logs have, by their sessions: at least all that are ``wanted``.

        ``counts`` says how many messages a log has.  A log of not many more than are wanted is read
        whole, which takes one value of a statement instead of one for each id.
        """
        sql = "SELECT m.session_id, m.msg_id FROM messages m WHERE"
        pairs: list[tuple[str, str]] = []
        whole: list[str] = []
        for name, ids in wanted.items():
            if counts[name] <= WHOLE_LOG * len(ids):
                whole.append(name)
            else:
                pairs += [(name, id) for id in sorted(ids)]
        found: dict[str, set[str]] = {name: set() for name in wanted}
        for some in _pieces(whole):
            rows = await self.fetch(connection, f"{sql} m.session_id IN :names", names=some)
            for name, id in rows:
                found[name].add(id)
        for few in _pieces(pairs):
            rows = await self.fetch(connection, f"{sql} (m.session_id, m.msg_id) IN :few", few=few)
            for name, id in rows:
                found[name].add(id)
        return found

    async def text(self, connection: AsyncConnection, session: str, id: str) -> bytes:
        """Return the text of one message."""
        sql = (
            f"SELECT {self._text()} FROM messages m "
            "WHERE m.session_id = :session AND m.msg_id = :id"
        )
        rows = await self.fetch(connection, sql, session=session, id=id)
        return _bytes(rows[0][0]) if rows else b""

    async def texts(
        self, connection: AsyncConnection, session: str, ids: Iterable[str]
    ) -> dict[str, bytes]:
        """Return the texts of some messages by their ids."""
        sql = (
            f"SELECT m.msg_id, {self._small()} FROM messages m "
            "WHERE m.session_id = :session AND m.msg_id IN :ids"
        )
        found: dict[str, bytes] = {}
        for some in _pieces(sorted(ids)):
            for id, text in await self.fetch(connection, sql, session=session, ids=some):
                found[id] = (
                    await self.text(connection, session, id) if text is None else _bytes(text)
                )
        return found

    def _small(self) -> str:
        size = self.syntax.json_size("m.payload")
        return f"CASE WHEN {size} <= {SMALL_BYTES} THEN {self._text()} END"

    # Writing

    async def delete_messages(
        self, connection: AsyncConnection, session: str, ids: Iterable[str] | None = None
    ) -> int:
        """Delete some messages of a log, or all; return how many."""
        sql = "DELETE FROM messages WHERE session_id = :session"
        if ids is None:
            statement = self.syntax.bind(sql, {"session": session})
            return (await connection.execute(*statement)).rowcount
        deleted = 0
        for some in _pieces(list(ids)):
            values = {"session": session, "ids": some}
            statement = self.syntax.bind(f"{sql} AND msg_id IN :ids", values)
            deleted += (await connection.execute(*statement)).rowcount
        return deleted

    async def ensure_agents(
        self, connection: AsyncConnection, wanted: Iterable[tuple[str, str]], now: datetime
    ) -> tuple[dict[str, str], set[str]]:
        """Make the agents, by user and id, whose ids are free.

        Returns the owners of all these ids, and the ids that are new.
        """
        pairs = sorted(set(wanted), key=lambda pair: (pair[1], pair[0]))
        owners: dict[str, str] = {}
        for some in _pieces(sorted({agent for _, agent in pairs})):
            sql = "SELECT id, user_id FROM agents WHERE id IN :ids"
            owners |= dict(await self.fetch(connection, sql, ids=some))
        names = ", ".join(AGENT_COLUMNS)
        made = set()
        for user, agent in pairs:
            if agent in owners:
                continue
            record = agent_record(user, agent, now)
            moment = self.syntax.stored_time(now.astimezone(UTC).replace(tzinfo=None))
            sql = (
                f"INSERT INTO agents ({names}) "
                f"VALUES (:id, :user, :source, :now, :now_, {self.syntax.json_place})"
            )
            await self.fetch(
                connection,
                self.syntax.insert_free(sql, "id"),
                id=agent,
                user=user,
                source=record["source"],
                now=moment,
                now_=moment,
                json=self.syntax.stored_json(jsonio.dumps({"data": record["data"]})),
            )
            owners[agent] = user
            made.add(agent)
        return owners, made

    async def update_sessions(
        self, connection: AsyncConnection, rows: Iterable[tuple[Any, ...]]
    ) -> None:
        """Give sessions the columns of their rows."""
        sets = ", ".join(f"{name} = :{name}" for name in COLUMNS)
        sql = f"UPDATE sessions SET {sets}, payload = {self.syntax.json_place} WHERE id = :id"
        values = [dict(zip(SESSION_COLUMNS, row, strict=True)) for row in rows]
        texts = [one.pop("payload") for one in values]
        for one in values:
            del one["user_id"]
        await self.database.execute_json_many(connection, sql, texts, values)

    async def update_payload(
        self, connection: AsyncConnection, session: str, payload: bytes
    ) -> None:
        """Give a session another payload."""
        sql = f"UPDATE sessions SET payload = {self.syntax.json_place} WHERE id = :id"
        await self.database.execute_json(connection, sql, payload, {"id": session})

    async def move_message(
        self, connection: AsyncConnection, session: str, id: str, time: datetime
    ) -> None:
        """Give a row of a log another time."""
        sql = "UPDATE messages SET created_at = :time WHERE session_id = :session AND msg_id = :id"
        moment = self.syntax.stored_time(time)
        await self.fetch(connection, sql, time=moment, session=session, id=id)

    async def shift_log(self, connection: AsyncConnection, session: str, by: timedelta) -> None:
        """Give the rows of a log earlier times, by whole seconds."""
        shifted = self.syntax.earlier("created_at", int(by.total_seconds()) + 1)
        sql = f"UPDATE messages SET created_at = {shifted} WHERE session_id = :session"
        await self.fetch(connection, sql, session=session)

    async def delete_empty(
        self, connection: AsyncConnection, stored: StoredSession, agent: Any
    ) -> None:
        """Delete a session without messages, and its agent, if that has no other session."""
        if await self.counts(connection, [stored.name]):
            return
        await self.fetch(connection, "DELETE FROM sessions WHERE id = :id", id=stored.name)
        if isinstance(agent, str):
            sql = (
                "DELETE FROM agents WHERE id = :id AND user_id = :user AND created_at = updated_at "
                "AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.agent_id = :agent)"
            )
            await self.fetch(connection, sql, id=agent, user=stored.user, agent=agent)

    async def erase_session(self, connection: AsyncConnection, key: MemoryKey) -> int:
        """Delete a session with its log and the teams that it leads; return how many messages."""
        values = {"session": key.session, "user": key.user}
        same = self.syntax.exact
        of_session = f"{same('session_id')} = {same(':session')}"
        of_user = f"{same('user_id')} = {same(':user')}"
        sessions = f"DELETE FROM sessions WHERE {same('id')} = {same(':session')} AND {of_user}"
        if not (await self._run(connection, sessions, values)):
            return 0
        if "teams" in self.others:
            sql = f"DELETE FROM teams WHERE {of_session} AND {of_user}"
            await self._run(connection, sql, values)
        return await self._run(connection, f"DELETE FROM messages WHERE {of_session}", values)

    async def erase_user(self, connection: AsyncConnection, user: str) -> None:
        """Delete the agents and teams of a user who has no session left."""
        same = self.syntax.exact
        of_user = f"{same('user_id')} = {same(':user')}"
        other = f"NOT EXISTS (SELECT 1 FROM sessions s WHERE {same('s.user_id')} = {same(':user')})"
        for table in ("agents", *self.others):
            sql = f"DELETE FROM {table} WHERE {of_user} AND {other}"
            await self._run(connection, sql, {"user": user})

    async def _run(self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]) -> int:
        """Run a statement; return how many rows it has changed."""
        return (await connection.execute(*self.syntax.bind(sql, values))).rowcount

    def session_row(self, key: MemoryKey, session: Session, payload: bytes) -> tuple[Any, ...]:
        """Return a row of ``sessions``.

        Raises:
            RejectedValue: its record has a value that its column cannot hold.
        """
        record = {"agent_id": DEFAULT_AGENT, "source": "user"} | {
            name: value for name, value in session.record.items() if value is not None
        }
        for name, value in record.items():
            if not isinstance(value, str):
                raise RejectedValue(f"the {name} in its extra is not a string", "refused")
        now = datetime.now(UTC)
        times = {
            name: self.syntax.stored_time(_utc(record.get(name)) or now.replace(tzinfo=None))
            for name in _TIMES
        }
        return (key.session, key.user, *((record | times).get(name) for name in COLUMNS), payload)


@dataclass(slots=True)
class StoredSession:
    """A session that is there: its row."""

    name: str
    user: str
    record: dict[str, Any]
    text: bytes
    """The payload, until it is taken apart."""
    _session: Session | None = None

    def session(self) -> Session:
        """Return what the row says, the same object each time.

        Raises:
            NotASession: its payload is that of something else.
        """
        for name, value in self.record.items():
            if isinstance(value, bytes):
                raise NotASession(f"its column {name} is not a text")
        if self._session is None:
            if not jsonio.is_utf8(self.text):  # the driver of AgentScope does not read it, either
                raise NotASession("its payload is not UTF-8")
            try:
                payload, context = without_context(self.text)
            except ValueError as error:
                raise NotASession(f"its payload is not JSON: {error}") from error
            self._session = Session.of(self.record, payload, context)
            self.text = b""
        return self._session


# Reading


class Agentscope2Reader:
    """One pass over the sessions of a database, session after session."""

    def __init__(
        self,
        tables: Agentscope2Database,
        where: Selection,
        failures: dict[MemoryKey, Failure],
        damage: list[Finding] | None,
    ) -> None:
        """``damage`` takes what is damaged instead of ``failures``, where there is one."""
        self._tables = tables
        self._where = where
        self._failures = failures
        self._damage = damage

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield pages of the sessions, all of whose messages are selected.

        Raises:
            DamagedMemory: a session is damaged, of which pages were handed out.
        """
        database = self._tables.database
        async with (
            database.snapshot() as connection,
            aclosing(self._chunks(connection)) as chunks,
        ):
            async for chunk in chunks:
                async with aclosing(self._read(connection, chunk)) as pages:
                    async for page in pages:
                        yield page
                        del page
                if database.syntax.reads_briefly:
                    await connection.rollback()
                    await database.begin_read(connection)

    async def _chunks(self, connection: AsyncConnection) -> AsyncGenerator[list[Listed]]:
        """Yield small sessions together, large ones one by one."""
        chunk: list[Listed] = []
        messages = size = 0
        async with aclosing(self._tables.listed(connection, self._where)) as listed:
            async for one in listed:
                if not self._where.has_key(one.key):
                    continue
                if not one.is_named:
                    self._leave_out(one.key, "its id or its user is not a text")
                    continue
                messages += one.messages + 1
                size += one.bytes
                if chunk and (messages > CHUNK_MESSAGES or size > BATCH_BYTES):
                    yield chunk
                    chunk, messages, size = [], one.messages + 1, one.bytes
                chunk.append(one)
        if chunk:
            yield chunk

    async def _read(self, connection: AsyncConnection, chunk: list[Listed]) -> AsyncGenerator[Page]:
        stored = await self._tables.sessions(connection, [one.session for one in chunk])
        small = [one.session for one in chunk if one.messages <= CHUNK_MESSAGES]
        logs = await self._tables.logs(connection, small) if small else {}
        for one in chunk:
            there = stored.get(one.session)
            if there is None or there.user != one.user:  # deleted meanwhile
                continue
            log = logs.pop(one.session, [] if one.messages <= CHUNK_MESSAGES else None)
            if log is not None and any(row.text is None for row in log):
                log = None  # large messages come one by one
            async with aclosing(self._session(connection, there, log)) as pages:
                async for page in pages:
                    yield page
                    del page

    async def _session(
        self, connection: AsyncConnection, there: StoredSession, log: list[LogRow] | None
    ) -> AsyncGenerator[Page]:
        key = MemoryKey(there.user, there.name)
        try:
            session = there.session()
            comparison = Comparison(session.context)
            ids = session.ids()
            async with aclosing(self._log(connection, there.name, log)) as pages:
                async for rows in pages if ids else _nothing():
                    for row in rows:
                        if row.id in ids and _utc(row.time) is not None:
                            comparison.add(row.id, await self._text(connection, there.name, row))
        except NotASession as error:
            self._leave_out(key, str(error))
            return
        memory = Memory(key, session.summary_text, extra=session.extra(comparison))
        found: list[StoredMessage] = []
        offset = size = 0
        messages = self._messages(connection, there.name, log, comparison)
        async with aclosing(messages):
            async for message in messages:
                if not _is_object(message.message):
                    what = "a JSON object" if message.message else "one with an id and a time"
                    if not jsonio.is_utf8(message.message):
                        what = "UTF-8"
                    why = f"the message {message.id!r} is not {what}"
                    self._leave_out(key, why)
                    if self._damage is not None:
                        continue
                    if offset:
                        raise DamagedMemory(self._tables.database.label, key, damage(why))
                    return
                if found and (size >= PAGE_BYTES or len(found) >= PAGE_ENTRIES):
                    yield Page(memory, found, offset, last=False)
                    offset += len(found)
                    found, size = [], 0
                found.append(message)
                size += len(message.message)
                del message
        yield Page(memory, found, offset)

    def _leave_out(self, key: MemoryKey, why: str) -> None:
        """Note that a session, or one of its messages, is damaged."""
        if self._damage is None:
            self._failures[key] = damage(why)
        else:
            self._damage.append(Finding("damaged-row", key, 1, (), why))

    async def _messages(
        self,
        connection: AsyncConnection,
        session: str,
        log: list[LogRow] | None,
        comparison: Comparison,
    ) -> AsyncGenerator[StoredMessage]:
        """Yield the messages of the log, and among them those that are in the context alone.

        A row whose id is not a text, or whose time is not one, yields an empty message.
        """
        unlogged = comparison.unlogged

        def alone(before: str | None) -> Iterator[StoredMessage]:
            for id in unlogged.before(before):
                yield StoredMessage(id, unlogged.messages[id], shape=comparison.shape(id))

        last: str | None = None
        async with aclosing(self._log(connection, session, log)) as pages:
            async for rows in pages:
                for row in rows:
                    if not _is_name(row.id) or _utc(row.time) is None:
                        yield StoredMessage(shown_name(row.id), b"")
                        continue
                    for message in alone(row.id):
                        yield message
                    text = await self._text(connection, session, row)
                    shape = comparison.shape(row.id, last, at=_moment_text(row.time))
                    last = row.id
                    yield StoredMessage(row.id, text, comparison.marks(row.id), shape=shape)
                    del text
        for message in alone(None):
            yield message

    async def _log(
        self, connection: AsyncConnection, session: str, log: list[LogRow] | None
    ) -> AsyncGenerator[list[LogRow]]:
        if log is not None:
            yield log
            return
        async with aclosing(self._tables.log(connection, session)) as pages:
            async for rows in pages:
                yield rows

    async def _text(self, connection: AsyncConnection, session: str, row: LogRow) -> bytes:
        if row.text is not None:
            return row.text
        return await self._tables.text(connection, session, row.id)


async def _nothing() -> AsyncGenerator[list[LogRow]]:
    for _ in range(0):
        yield []


# Writing


class Clock:
    """Times for the rows of a log, each after the one before, with which rows come in order."""

    def __init__(self, step: timedelta, last: datetime | None = None) -> None:
        self._step = step
        self._now = _whole(datetime.now(UTC).replace(tzinfo=None), step)
        self.last = last
        self._last_id = ""

    def time(self, entry: StoredMessage) -> datetime:
        """Return the time of the next row: that of its shape, or of the message, if it can be."""
        kept = _time_of(entry.shape)
        if kept is None:
            own = _whole(_own_time(entry.message) or self._now, self._step)
            kept = min(own, self._now)
        return self.next(entry.id, kept)

    def next(self, id: str, time: datetime) -> datetime:
        """Return ``time`` where the row of an id comes last at it, or else the next there is."""
        if self.last is not None and not (
            time > self.last or (time == self.last and comes_after(id, self._last_id))
        ):
            time = self.last + self._step
        self.last, self._last_id = time, id
        return time

    def set(self, id: str, time: datetime) -> None:
        """Go on after a row that is there."""
        self.last, self._last_id = time, id

    def before(self, limit: datetime) -> datetime:
        """Return a time for a row that is to come before one at ``limit``."""
        return limit - 1000 * self._step if self.last is None else self.last

    @property
    def ahead(self) -> timedelta:
        """The time by which the last lies in the future."""
        return (self.last or self._now) - self._now


def comes_after(id: str, last: str) -> bool:
    """Return whether an id comes after another in the order of every database."""
    return id > last and bool(_PLAIN.fullmatch(id) and _PLAIN.fullmatch(last))


@dataclass(slots=True)
class Draft:
    """A session that is being written: its record, and the context of its messages so far."""

    session: Session
    entries: list[Entry] | None
    clock: Clock
    is_new: bool
    lost: dict[str, Any]
    """The parts that an undo would not restore."""
    context: list[bytes] = field(default_factory=list)
    """The messages of the context, where it is just the unmarked ones."""
    log: list[tuple[str, bool]] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)

    def add(self, session: str, messages: list[StoredMessage]) -> list[tuple[Any, ...]]:
        """Take the next messages; return their rows, but for the form of the time."""
        rows = []
        for entry in messages:
            if entry.marks or entry.id not in self.session.unlogged:
                rows.append((session, entry.id, self.clock.time(entry), entry.message))
            if self.entries is None:
                if not entry.marks:
                    self.context.append(entry.message)
                continue
            self.log.append((entry.id, not entry.marks))
            if not entry.marks:
                self.texts[entry.id] = entry.message
        return rows

    def payload(self) -> bytes:
        """Return the payload of the session, whose messages are let go of."""
        context = self.context
        if self.entries is not None:
            merged = merge(self.entries, self.log)
            texts = (self.texts.get(one) if isinstance(one, str) else one.text for one in merged)
            context = [text for text in texts if text is not None]
        self.context, self.texts, self.entries = [], {}, None
        self.session.context.clear()
        return self.session.text(context)


class Agentscope2Writer:
    """One ``write`` of a store."""

    def __init__(self, tables: Agentscope2Database, mode: WriteMode, agent: str) -> None:
        self._tables = tables
        self._database = tables.database
        self._mode = mode
        self._agent = agent

    async def write(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[WriteResult]:
        """Write sessions; see ``Store.write``."""
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            async for batch in gather(pages, BATCH_BYTES, BATCH_MESSAGES):
                if connection is None:
                    connection = await stack.enter_async_context(self._database.connect())
                if isinstance(batch, Large):
                    yield await self._write_large(connection, batch)
                else:
                    for result in await self._write_small(connection, batch):
                        yield result
                del batch  # the next one needs its room

    async def _write_small(
        self, connection: AsyncConnection, batch: list[Small]
    ) -> list[WriteResult]:
        results, good = [], []
        for small in batch:
            failure = failure_of(small.memory, small.entries)
            if failure:
                results.append(WriteResult(small.memory.key, failure=failure))
            else:
                good.append(small)
        if not good:
            return results
        for attempt in reversed(range(ATTEMPTS if len(good) == 1 else 1)):
            try:
                async with self._database.transaction(connection):
                    written = await self.commit(connection, good)
                return results + written
            except (RejectedValue, Contended) as error:
                # Another run may have made the session meanwhile: then it is there now.
                if not attempt and len(good) == 1:
                    key = good[0].memory.key
                    return [*results, WriteResult(key, failure=error.failure)]
        # One of them was rejected, and the database does not tell which.
        half = len(good) // 2
        results += await self._write_small(connection, good[:half])
        return results + await self._write_small(connection, good[half:])

    async def _write_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        key = large.memory.key
        failure = failure_of(large.memory, [])
        try:
            if failure is None:
                async with self._database.transaction(connection):
                    [result] = await self.commit(connection, [large])
                failure = result.failure
                if failure is None:
                    return result
        except (RejectedValue, Contended) as error:
            failure = error.failure
        async for _ in large.pages:
            pass
        return WriteResult(key, failure=failure)

    async def commit(
        self, connection: AsyncConnection, batch: Sequence[Small | Large]
    ) -> list[WriteResult]:
        """Write memories in a transaction that is open."""
        results: list[WriteResult] = []
        tables = self._tables
        names = {one.memory.key.session for one in batch}
        there = await tables.sessions(connection, names, tables.syntax.row_lock)
        held = await tables.counts(connection, names)
        alone: dict[str, Set[str]] = {}
        if self._mode is WriteMode.ADD:
            alone = await self._unlogged(connection, there, held)
        owners = {name: stored.user for name, stored in there.items()}
        drafts: list[tuple[Small | Large, Draft]] = []
        for one in batch:
            key = one.memory.key
            owner = owners.setdefault(key.session, key.user)
            count, last = held.get(key.session, (0, None))
            try:
                whole = count + len(alone.get(key.session, ()))
                failure = self._failure(key, owner, one.offset, whole)
                if failure is None:
                    stored = there.get(key.session)
                    drafts.append((one, await self._draft(one.memory, stored, last, count)))
            except NotASession as error:
                failure = Failure("refused", str(error))
            if failure is not None:
                results.append(WriteResult(key, failure=failure))
        agents = await self._agents(connection, drafts)
        new: list[tuple[Any, ...]] = []
        rows: list[tuple[Any, ...]] = []
        changed: Group[tuple[Any, ...]] = Group()
        for one, draft in drafts:
            key = one.memory.key
            deleted = 0
            if self._mode is WriteMode.REPLACE and held.get(key.session):
                deleted = await tables.delete_messages(connection, key.session)
            written = 0
            async for page in _pages_of(one):
                _refuse_marks(page)
                if not alone.get(key.session, set()).isdisjoint(entry.id for entry in page):
                    raise RejectedValue("a message id occurs twice", "repeated-id")
                written += len(page)
                added = draft.add(key.session, page)
                rows += [(*row[:2], tables.syntax.stored_time(row[2]), row[3]) for row in added]
                del page, added
                if isinstance(one, Large):
                    await self._database.insert(connection, "messages", MESSAGE_COLUMNS, rows)
                    rows = []
            row = tables.session_row(key, draft.session, draft.payload())
            if draft.is_new:
                new.append(row)
            elif changed.add(row, len(row[-1]), 1):
                await tables.update_sessions(connection, changed.take())
            before = made_of(draft, agents)
            results.append(WriteResult(key, written, deleted, before=before))
        if rows:
            await self._database.insert(connection, "messages", MESSAGE_COLUMNS, rows)
        if changed.items:
            await tables.update_sessions(connection, changed.take())
        if new:
            await self._database.insert(connection, "sessions", SESSION_COLUMNS, new)
        for one, draft in drafts:
            if draft.clock.ahead > timedelta(seconds=1) and one.offset == 0:
                await tables.shift_log(connection, one.memory.key.session, draft.clock.ahead)
        return results

    async def _unlogged(
        self,
        connection: AsyncConnection,
        there: Mapping[str, StoredSession],
        held: Mapping[str, tuple[int, Any]],
    ) -> dict[str, Set[str]]:
        """Return the ids of the messages that are in contexts alone, by their sessions."""
        wanted: dict[str, Set[str]] = {}
        for name, stored in there.items():
            with suppress(NotASession):  # it is refused
                wanted[name] = stored.session().ids()
        counts = {name: held.get(name, (0, None))[0] for name in wanted}
        logged = await self._tables.logged(connection, wanted, counts)
        return {name: ids - logged[name] for name, ids in wanted.items()}

    def _failure(self, key: MemoryKey, owner: str, offset: int, count: int) -> Failure | None:
        if owner != key.user:
            text = f"the session {key.session!r} belongs to the user {owner!r}"
            return Failure("bad-name", text)
        if self._mode is WriteMode.ADD and count != offset:
            return Failure("changed", f"the target holds {count} messages, not {offset}")
        return None

    async def _draft(
        self, memory: Memory, stored: StoredSession | None, last: Any, count: int
    ) -> Draft:
        """Return what a memory is written to.

        Raises:
            NotASession: its extra, or what is stored, is not that of a session.
        """
        step = self._tables.syntax.time_step
        clock = Clock(step)
        entries: list[Entry] | None = None
        if stored is not None and (self._mode is WriteMode.ADD or not memory.extra):
            session = stored.session()
            if self._mode is WriteMode.ADD and count:
                clock = Clock(step, _utc(last))
        elif memory.extra:
            session, entries = parse_extra(memory.extra)
            if stored is not None and memory.summary is None:
                session.summary = stored.session().summary
        else:
            session = new_session(memory.key.session, self._agent, datetime.now(UTC))
        lost = lost_summary(session, memory.summary) if stored is not None else {}
        with_summary(session, memory.summary)
        draft = Draft(session, entries, clock, stored is None, lost)
        if self._mode is WriteMode.ADD:
            draft.context += [one.text for one in session.context]
        return draft

    async def _agents(
        self, connection: AsyncConnection, drafts: list[tuple[Small | Large, Draft]]
    ) -> set[str]:
        """Make the agents of new sessions that are missing; return the ids of new agents.

        An id belongs to one user.  Where the default one is another user's, the session gets one
        that has the name of the user, too.
        """
        now = datetime.now(UTC)
        tables = self._tables
        wanted = {
            (one.memory.key.user, draft.session.record.get("agent_id") or self._agent)
            for one, draft in drafts
            if draft.is_new
        }
        if not wanted:
            return set()
        owners, made = await tables.ensure_agents(connection, wanted, now)
        other: set[tuple[str, str]] = set()
        for one, draft in drafts:
            user = one.memory.key.user
            if draft.is_new and not one.memory.extra and owners[self._agent] != user:
                agent = f"{self._agent}-{user}"
                draft.session.record["agent_id"] = agent
                draft.session.payload["config"]["workspace_id"] = agent
                other.add((user, agent))
        if other:
            made |= (await tables.ensure_agents(connection, other, now))[1]
        return made


# Editing


class Agentscope2Editor:
    """One ``edit`` of a store: each session in a transaction of its own, small ones together."""

    def __init__(self, tables: Agentscope2Database, agent: str) -> None:
        self._tables = tables
        self._database = tables.database
        self._agent = agent

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Change sessions; see ``Store.edit``."""
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            batches = batch_edits(edits)
            async for batch in await stack.enter_async_context(aclosing(batches)):
                if connection is None:
                    connection = await stack.enter_async_context(self._database.connect())
                if isinstance(batch, LargeEdit):
                    changes = [change async for some in batch.pieces for change in some]
                    batch = [replace(batch.edit, changes=changes, last=True)]
                    del changes
                for result in await self._edit_all(connection, batch):
                    yield result
                del batch

    async def _edit_all(self, connection: AsyncConnection, edits: list[Edit]) -> list[WriteResult]:
        """Change sessions together, or one by one where the database does not take them so."""
        try:
            return await self._try_all(connection, edits)
        except (RejectedValue, Contended) as error:
            if len(edits) == 1:
                return [WriteResult(edits[0].memory.key, failure=error.failure)]
        half = len(edits) // 2
        results = await self._edit_all(connection, edits[:half])
        return results + await self._edit_all(connection, edits[half:])

    async def _try_all(self, connection: AsyncConnection, edits: list[Edit]) -> list[WriteResult]:
        async with self._database.transaction(connection):
            names = {edit.memory.key.session for edit in edits}
            lock = self._tables.syntax.row_lock
            there = await self._tables.sessions(connection, names, lock)
            return [
                await self._edit(connection, edit, there.get(edit.memory.key.session))
                for edit in edits
            ]

    async def _edit(
        self, connection: AsyncConnection, edit: Edit, stored: StoredSession | None
    ) -> WriteResult:
        key = edit.memory.key
        if failure := name_failure(key):
            return WriteResult(key, failure=failure)
        if stored is None:
            return await self._make(connection, edit)
        if stored.user != key.user:
            text = f"the session {key.session!r} belongs to the user {stored.user!r}"
            code = (
                "changed"
                if any(change.old is not None for change in edit.changes)
                else ("bad-name")
            )
            return WriteResult(key, failure=Failure(code, text))
        try:
            return await SessionEdit(self._tables, connection, edit, stored).apply()
        except NotASession as error:
            return WriteResult(key, failure=damage(str(error)))
        except EditRefused as refused:
            return WriteResult(key, failure=refused.failure)

    async def _make(self, connection: AsyncConnection, edit: Edit) -> WriteResult:
        """Make a session anew, of what an edit puts in."""
        key = edit.memory.key
        matcher = ChangeMatcher(edit.shared_ids)
        matcher.give(edit.changes, last=True)
        steps, _ = matcher.apply([], [])
        if failure := matcher.failure():
            return WriteResult(key, failure=failure)
        if edit.summary:
            return WriteResult(key, failure=Failure("changed", "the summary differs"))
        messages = [step.entry for step in steps if isinstance(step, Put)]
        if failure := failure_of(edit.memory, messages):
            return WriteResult(key, failure=failure)
        writer = Agentscope2Writer(self._tables, WriteMode.ADD, self._agent)
        small = Small(replace(edit.memory, summary=edit.memory.summary or ""), messages, 0)
        [result] = await writer.commit(connection, [small])
        return result


class EditRefused(Exception):
    """A session is not as an edit says, or cannot be as it says."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


PlacedRow = tuple[str, Any, StoredMessage | None]
"""The id and the time of a row that stays, or a message that is put in."""


def _limits(placed: list[PlacedRow]) -> list[datetime | None]:
    """Return for each row the time of the next one that stays, None at the end."""
    found: list[datetime | None] = []
    limit: datetime | None = None
    for _, time, entry in reversed(placed):
        found.append(limit)
        limit = _utc(time) if entry is None else limit
    found.reverse()
    return found


class SessionEdit:
    """One edit of one session, whose row is locked."""

    def __init__(
        self,
        tables: Agentscope2Database,
        connection: AsyncConnection,
        edit: Edit,
        stored: StoredSession,
    ) -> None:
        self._tables = tables
        self._connection = connection
        self._edit = edit
        self._key = edit.memory.key
        self._session = stored.session()
        self._stored = stored
        self._before = parse_shape(edit.before)
        self._lost: dict[str, Any] = lost_summary(self._session, edit.memory.summary)
        """The parts that the reverse of this edit would not restore."""

    async def apply(self) -> WriteResult:
        """Change the session, all of it or, where that fails, nothing.

        Raises:
            EditRefused: it is not as the edit says.
        """
        edit, session = self._edit, self._session
        if edit.summary is not None and edit.summary != session.summary_text:
            raise EditRefused(Failure("changed", "the summary differs"))
        lock = self._tables.syntax.row_lock
        log = await self._tables.entries(self._connection, self._key.session, lock)
        self._unlogged = Unlogged(session.context, {id for id, _ in log})
        alone = self._unlogged.messages
        log = list(self._interleaved(log))
        in_context = session.ids()
        ids = [id for id, _ in log]
        marks: list[Marks] = [() if id in in_context else (COMPRESSED,) for id in ids]
        # Those that go have to be what they were; those that leave the log stay in the context.
        needed = {
            change.id
            for change in edit.changes
            if (change.new is None and change.message) or parse_shape(change.shape).get("unlogged")
        }
        texts = await self._tables.texts(self._connection, self._key.session, needed - alone.keys())
        self._texts = texts | {id: self._unlogged.messages[id] for id in needed & alone.keys()}
        matcher = ChangeMatcher(edit.shared_ids)
        matcher.give(in_log_order(edit.changes, ids), last=True)
        steps, at = matcher.apply(
            ids, marks, has_text=lambda at, text: is_same_text(self._texts.get(ids[at], b""), text)
        )
        steps += matcher.apply([], [])[0] if at == len(ids) else []
        if failure := matcher.failure():
            raise EditRefused(failure)
        await self._carry_out(steps, log, marks)
        await self._restore()
        before = json.dumps(self._lost) if self._lost else ""
        return WriteResult(
            self._key,
            matcher.written,
            matcher.deleted,
            before=before,
            shared_ids=matcher.shared_ids(),
        )

    async def _moved_back(self, placed: list[PlacedRow]) -> list[PlacedRow]:
        """Give rows the times again that the edit to undo has changed, where they stay in order."""
        times = self._before.get("times")
        if not isinstance(times, dict):
            return placed
        back = [(id, _utc(times.get(id)), entry) for id, _, entry in placed]
        found = [
            (id, time if again is None else again, entry)
            for (id, time, entry), (_, again, _) in zip(placed, back, strict=True)
        ]
        there = [_utc(time) or datetime.min for _, time, entry in found if entry is None]
        if any(one > other for one, other in pairwise(there)):
            return placed
        for id, time, entry in back:
            if time is not None and entry is None:
                await self._tables.move_message(self._connection, self._key.session, id, time)
        return found

    def _interleaved(self, log: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the ids of the memory with the times of their rows, None without one."""
        for id, time in log:
            yield from ((one, None) for one in self._unlogged.before(id))
            yield id, time
        yield from ((one, None) for one in self._unlogged.before(None))

    async def _carry_out(
        self, steps: list[Step], log: list[tuple[str, Any]], marks: list[Marks]
    ) -> None:
        alone = self._unlogged.messages
        dropped: list[str] = []
        new: list[StoredMessage] = []
        shapes: dict[str, dict[str, Any]] = {}
        after: list[tuple[str, bool]] = []
        placed: list[PlacedRow] = []
        for step in steps:
            match step:
                case Keep(start, stop):
                    after += [(log[at][0], not marks[at]) for at in range(start, stop)]
                    placed += [
                        (*log[at], None) for at in range(start, stop) if log[at][0] not in alone
                    ]
                case Drop(at):
                    dropped.append(log[at][0])
                    after.append((log[at][0], False))
                case Mark(at, wanted, shape):
                    id = log[at][0]
                    entry = StoredMessage(id, b"", wanted, shape=shape)
                    _refuse_marks([entry])
                    shapes[id] = {} if wanted else parse_shape(shape)
                    after.append((id, not wanted))
                    if id in alone:
                        if wanted:  # what is not in the context is in the log
                            placed.append(
                                (id, None, entry._replace(message=self._unlogged.messages[id]))
                            )
                    elif is_unlogged(entry):
                        dropped.append(id)
                    else:
                        placed.append((*log[at], None))
                case Put(entry):
                    _refuse_marks([entry])
                    shapes[entry.id] = {} if entry.marks else parse_shape(entry.shape)
                    new.append(entry)
                    after.append((entry.id, not entry.marks))
                    if not is_unlogged(entry):
                        placed.append((entry.id, None, entry))
        replaced = set(dropped) & {entry.id for entry in new if not entry.marks}
        await self._tables.delete_messages(self._connection, self._key.session, dropped)
        await self._insert(await self._moved_back(placed))
        # An id that went and came again is what it is now.
        await self._context([one for one in after if one[1] or one[0] not in replaced], new, shapes)

    async def _insert(self, placed: list[PlacedRow]) -> None:
        """Insert rows at their places, with other times for the rows after them if needed."""
        if not any(entry for _, _, entry in placed):
            return
        tables, session = self._tables, self._key.session
        clock = Clock(tables.syntax.time_step)
        rows: list[tuple[Any, ...]] = []
        moved: list[tuple[str, datetime]] = []
        fresh = False
        for (id, time, entry), limit in zip(placed, _limits(placed), strict=True):
            if entry is not None:
                rows.append((session, id, self._time(clock, entry, limit), entry.message))
                fresh = True
                continue
            there = _utc(time) or datetime.min
            # Rows that have not moved are in order, whatever the database's order of ids.
            if not fresh:  # it comes in order, whatever the database's order of ids
                clock.set(id, there)
                continue
            time = clock.next(id, there)
            fresh = time != there
            if fresh:
                moved.append((id, time))
                self._lost.setdefault("times", {})[id] = _moment_text(there)
        for id, moment in moved:
            await tables.move_message(self._connection, session, id, moment)
        stored = tables.syntax.stored_time
        await tables.database.insert(
            self._connection,
            "messages",
            MESSAGE_COLUMNS,
            [(*row[:2], stored(row[2]), row[3]) for row in rows],
        )

    @staticmethod
    def _time(clock: Clock, entry: StoredMessage, limit: datetime | None) -> datetime:
        """Return the time of a row that is put in: its own where that is its place."""
        kept = _time_of(entry.shape)
        if kept is not None and (limit is None or kept <= limit):
            return clock.next(entry.id, kept)
        if limit is None:
            return clock.time(entry._replace(shape=""))
        return clock.next(entry.id, clock.before(limit))

    async def _context(
        self,
        after: list[tuple[str, bool]],
        new: list[StoredMessage],
        shapes: dict[str, dict[str, Any]],
    ) -> None:
        """Store the context as it is now, and the summary.

        ``shapes`` are those of the messages that change, which say what they were in it.
        """
        session = self._session
        summary = self._edit.memory.summary
        again = {entry.id for entry in new}
        # A message that takes the place of another with its id takes it in the context too.
        entries = [one.id if one.id in again else one for one in session.context]
        merged = rebuild(entries, after, shapes)
        if merged == session.context and summary in (None, session.summary_text):
            return
        if summary is not None:
            with_summary(session, summary, self._edit.before)
        texts = self._texts | {entry.id: entry.message for entry in new}
        missing = {one for one in merged if isinstance(one, str)} - texts.keys()
        texts |= await self._tables.texts(self._connection, self._key.session, missing)
        payload = session.text([texts[one] if isinstance(one, str) else one.text for one in merged])
        del entries, merged, texts  # the database needs their room
        session.context.clear()
        await self._tables.update_payload(self._connection, self._key.session, payload)

    async def _restore(self) -> None:
        """Delete what ``Edit.before`` says was not there, if nothing is left in it."""
        if "session" in self._before:
            agent = self._before.get("agent")
            await self._tables.delete_empty(self._connection, self._stored, agent)


# The store


class Agentscope2Maintenance(Maintenance):
    """The findings of contexts, and of logs without a session."""

    store: SqlAgentscope2Store

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async for finding in super().check(where):
            yield finding
        tables = self.store.tables
        async with self.store.database.snapshot() as connection:
            async with aclosing(tables.listed(connection, where)) as listed:
                async for one in listed:
                    if one.is_named and where.has_key(one.key):
                        for finding in await self._session(connection, one.key):
                            yield finding
            if where.users or where.sessions or where.keys is not None:
                return
            if names := await tables.logs_alone(connection):
                yield Finding("session-record-missing", None, len(names), tuple(names[:3]))
            users = await tables.users(connection)
            if len(users) > 1:
                yield Finding("session-open-to-others", None, len(users), tuple(users[:3]))

    async def _session(self, connection: AsyncConnection, key: MemoryKey) -> list[Finding]:
        stored = (await self.store.tables.sessions(connection, [key.session])).get(key.session)
        if stored is None:
            return []
        try:
            session = stored.session()
        except NotASession:
            return []  # reading has named it
        entries = await self.store.tables.entries(connection, key.session)
        return list(context_findings(key, session.context, {id for id, _ in entries}))


class SqlAgentscope2Store(Store):
    """The sessions in AgentScope 2.x's tables; a subclass names its database."""

    features = Features(parallel=True, marks=MARKS, summaries=True, empty=True, session_owners=True)
    dialect = AGENTSCOPE2

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.kind = location.kind
        self.database = make_database(location, self.label)
        self.features = replace(self.features, parallel=self.database.parallel)
        self.details = self.database.details
        self.tables = Agentscope2Database(self.database)
        self.agent = agent_of(location)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self.database.start(mode, self._prepare)

    async def _prepare(self) -> None:
        missing = await self.database.run(missing_tables)
        self.tables.others = await self.database.run(existing_teams)
        if missing and not self.mode.creates:
            raise Uninitialised(
                f"{self.label} holds no AgentScope 2 sessions: it has no table {missing[0]!r}",
                "check the database: AgentScope 2's tables are sessions, messages, agents",
            )
        if missing:
            await self.database.create(create_tables)

    async def close(self) -> None:
        await self.database.close()

    async def lock(self, owner: str) -> None:
        await self.database.lock(owner, self.warnings)

    async def identity(self) -> str:
        return await self.database.identity()

    async def unrestorable(self, where: Selection) -> str:
        condition = session_condition(where)
        return await self.database.find_other_values("messages", MESSAGE_COLUMNS, condition)

    async def is_empty(self) -> bool:
        async with self.database.snapshot() as connection:
            for table in "sessions", "messages":
                found = await connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1")
                if found.first() is not None:
                    return False
        return True

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        failures = self.left_out.failures
        found = self.damage if self.skips_damage else None
        reader = Agentscope2Reader(self.tables, where, failures, found)
        async with aclosing(reader.pages()) as pages:
            async for page in pages:
                self.left_out.others |= page.last
                yield page
                del page  # not kept while the next one is read: it may be large

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return Agentscope2Writer(self.tables, mode, self.agent).write(pages)

    def maintenance(self) -> Maintenance:
        return Agentscope2Maintenance(self)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.database.snapshot() as connection:
            sessions = await self.tables.fetch(connection, "SELECT user_id, id FROM sessions")
            keys = [MemoryKey(shown_name(user), shown_name(session)) for user, session in sessions]
            agents = await self.tables.fetch(connection, "SELECT DISTINCT user_id FROM agents")
        alone = {shown_name(user) for (user,) in agents} - {key.user for key in keys}
        for key in [*keys, *(MemoryKey(user, "") for user in sorted(alone))]:
            if where.has_key(key):
                yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Erase sessions, their logs and the teams that they lead, and agents of nobody's session.

        Other records of a user, such as credentials and schedules, are no memory, and stay.
        """
        keys = [key async for key in self.names(where)]
        if not keys:
            return
        async with self.database.connect() as connection:
            await self.database.prepare_erasing(connection)
            for key in keys:
                yield await self._erase_session(connection, key)
            for user in sorted({key.user for key in keys}):
                async with self.database.transaction(connection):
                    await self.tables.erase_user(connection, user)
            await self.database.finish_erasing(connection)

    async def _erase_session(self, connection: AsyncConnection, key: MemoryKey) -> WriteResult:
        async def attempt() -> int:
            async with self.database.transaction(connection):
                return await self.tables.erase_session(connection, key)

        try:
            return WriteResult(key, deleted=await retry_while_locked(attempt))
        except (RejectedValue, Contended) as error:
            return WriteResult(key, failure=error.failure)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return Agentscope2Editor(self.tables, self.agent).edit(edits)


def failure_of(memory: Memory, messages: list[StoredMessage]) -> Failure | None:
    """Return why a memory cannot be written: its name, a mark, or an id that occurs twice."""
    if failure := name_failure(memory.key):
        return failure
    if failure := _mark_failure(messages):
        return failure
    ids = [message.id for message in messages]
    if len(set(ids)) < len(ids):
        return Failure("repeated-id", "a message id occurs twice")
    return None


def _mark_failure(messages: Iterable[StoredMessage]) -> Failure | None:
    for message in messages:
        for mark in message.marks:
            if mark not in MARKS:
                return Failure("refused", f"AgentScope 2 has no mark {mark!r}, only compressed")
    return None


def _refuse_marks(messages: Iterable[StoredMessage]) -> None:
    failure = _mark_failure(messages)
    if failure is not None:
        raise RejectedValue(failure.message, failure.code)


async def _pages_of(one: Small | Large) -> AsyncGenerator[list[StoredMessage]]:
    if isinstance(one, Small):
        yield one.entries
        return
    async for page in one.pages:
        yield page.messages
        del page


def made_of(draft: Draft, agents: set[str]) -> str:
    """Return ``WriteResult.before``: the rows that were made, or what is lost."""
    if not draft.is_new:
        return json.dumps(draft.lost) if draft.lost else ""
    agent = draft.session.record.get("agent_id")
    return json.dumps({"session": None} | ({"agent": agent} if agent in agents else {}))


def _time_of(shape: str) -> datetime | None:
    return _utc(parse_shape(shape).get("at"))


def _own_time(message: bytes) -> datetime | None:
    """Return the time of a message, UTC without a zone; without one it is local."""
    try:
        time = jsonio.field(message, CREATED)
        found = datetime.fromisoformat(time or "")
        return found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _utc(time: Any) -> datetime | None:
    """Return a time as a database or an extra has it, UTC without a zone."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return None
    if not isinstance(time, datetime):
        return None
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


def _moment_text(time: Any) -> Any:
    """Return the time of a row with its zone, as it is where it is none."""
    found = _utc(time)
    return time if found is None else found.replace(tzinfo=UTC).isoformat()


def _is_name(value: Any) -> bool:
    """Return whether the value of a column of names is one; SQLite takes any."""
    return isinstance(value, str) and is_text(value)


def _whole(time: datetime, step: timedelta) -> datetime:
    return time.replace(microsecond=0) if step >= timedelta(seconds=1) else time


def _bytes(text: Any) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text or b""


def _optional(text: Any) -> bytes | None:
    return None if text is None else _bytes(text)


def _is_object(text: bytes) -> bool:
    if are_objects([text]):  # which takes only valid UTF-8
        return True
    try:
        return jsonio.is_utf8(text) and isinstance(jsonio.outline(text), dict)
    except ValueError:
        return False


def _pieces(names: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(names), IDS):
        yield list(names[start : start + IDS])
