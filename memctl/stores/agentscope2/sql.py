"""AgentScope 2.x sessions in a SQL database of any kind.

A session is a row of ``sessions``, with the state in its payload, and a log: rows of ``messages``
in the order of (created_at, msg_id).  ``memctl.stores.agentscope2.session`` turns a session into a
memory.

Source: ``app/storage/_sql/_storage.py`` of agentscope 2.0.11.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import compress, pairwise
from typing import Any, NamedTuple

from memctl.dialects.agentscope2 import AGENTSCOPE2, CREATED, DEFAULT_AGENT
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import (
    Contended,
    Database,
    RejectedValue,
    damage,
    is_text,
    shown_name,
)
from memctl.engines.sql.executor import BATCH_MESSAGES, Executor, erase_memories
from memctl.engines.sql.store import SqlStore
from memctl.engines.sql.syntax import (
    EVERY,
    MAX_PUSHED_VALUES,
    SMALL_BYTES,
    Condition,
    pieces,
    session_condition,
)
from memctl.errors import Failure, Uninitialised
from memctl.json import jsonio
from memctl.layouts.sql import ALL_TABLES, name_failure
from memctl.location import Location
from memctl.model import (
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
from memctl.shard import Shard
from memctl.store import Deletion, Features, Maintenance, OpenMode
from memctl.storekit.batching import (
    BATCH_BYTES,
    Group,
    Small,
    are_objects,
    gather,
    grouped,
    paginate,
)
from memctl.storekit.edits import Snapshot, apply_edit, batch_edits
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope2.session import (
    COLUMNS,
    MARKS,
    Comparison,
    Entry,
    NotASession,
    Session,
    agent_of,
    agent_record,
    context_findings,
    context_texts,
    in_log_order,
    is_unlogged,
    lost_summary,
    messages_of,
    new_session,
    parse_extra,
    parse_shape,
    with_summary,
    without_context,
)
from memctl.stores.agentscope2.tables import (
    METADATA,
    create_tables,
    existing_teams,
    missing_tables,
)

CHUNK_MESSAGES = PAGE_ENTRIES
"""The most messages of small sessions that are read in one step."""

SESSION_COLUMNS = ("id", "user_id", *COLUMNS, "payload")
AGENT_COLUMNS = ("id", "user_id", "source", "created_at", "updated_at", "payload")
MESSAGE_COLUMNS = ("session_id", "msg_id", "created_at", "payload")
_TIMES = ("created_at", "updated_at")
_PLAIN = re.compile("[0-9a-z]+")
ATTEMPTS = 3
"""The number of attempts to write a session; another run may insert the session meanwhile."""


class Listed(NamedTuple):
    """A row of a listing of sessions.

    ``bytes`` is the size of the payload, ``messages`` the number of logged messages.
    """

    session: str
    user: str
    bytes: int
    messages: int

    @property
    def key(self) -> MemoryKey:
        """The memory key of the session; names that are not text are converted to text."""
        return MemoryKey(shown_name(self.user), shown_name(self.session))

    @property
    def is_named(self) -> bool:
        """True if the names of the session and the user are valid text."""
        return _is_name(self.user) and _is_name(self.session)


class LogRow(NamedTuple):
    """A row of ``messages``, the message log of a session."""

    id: str
    time: Any
    text: bytes | None
    """The message; None if it is large: ``Agentscope2Database.complete`` fetches it."""


class Agentscope2Database:
    """The SQL statements on AgentScope's sessions and message logs, for each kind of database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.zone: tzinfo | None = None
        """The zone of the times in messages; None for the local zone."""
        self.syntax = database.syntax
        self.others: tuple[str, ...] = ()
        """The existing tables, besides ``agents``, with records of users that an erase deletes."""

    async def fetch(self, connection: AsyncConnection, sql: str, **values: Any) -> Sequence[Any]:
        """Run a statement with ``values`` as parameters, and return all rows."""
        return await self.database.execute(connection, sql, values)

    def _text(self, column: str) -> str:
        return self.syntax.json_text(column)

    async def listed(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        """Yield the sessions that ``where`` selects, in the order of their ids.

        May also yield sessions that ``where`` does not select.
        """
        conditions = [self.syntax.in_shard(where.shard, "s.id")]
        values = dict[str, Any]()
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
        """Return the rows of the sessions with the ids in ``names`` that exist, by id.

        ``lock`` is the SQL clause that locks the rows; if empty, the rows are not locked.
        """
        columns = ", ".join(
            self.syntax.readable_time(f"s.{name}") if name in _TIMES else f"s.{name}"
            for name in SESSION_COLUMNS[:-1]
        )
        found: dict[str, StoredSession] = {}
        for some in pieces(sorted(names)):
            sql = (
                f"SELECT {columns}, {self._small('s.payload')} FROM sessions s "
                f"WHERE s.id IN :names ORDER BY s.id {lock}"
            )
            for name, user, *record, payload in await self.fetch(connection, sql, names=some):
                fields = dict(zip(COLUMNS, record, strict=True))
                fields |= {key: _moment_text(fields[key]) for key in _TIMES}
                found[name] = StoredSession(name, user, fields, _optional(payload))
        return found

    async def counts(
        self, connection: AsyncConnection, names: Iterable[str]
    ) -> dict[str, tuple[int, Any]]:
        """Return the number of messages and the latest time in each session's message log, by id.

        The result lacks sessions without messages.
        """
        last = f"MAX({self.syntax.readable_time('created_at')})"
        sql = (
            f"SELECT session_id, COUNT(*), {last} FROM messages WHERE session_id IN :names "
            "GROUP BY session_id"
        )
        found: dict[str, tuple[int, Any]] = {}
        for some in pieces(sorted(names)):
            rows = await self.fetch(connection, sql, names=some)
            found |= {name: (count, last) for name, count, last in rows}
        return found

    async def users(self, connection: AsyncConnection) -> list[str]:
        """Return the names of the users who have sessions."""
        sql = "SELECT DISTINCT user_id FROM sessions ORDER BY user_id"
        return [shown_name(user) for (user,) in await self.fetch(connection, sql)]

    async def logs_alone(self, connection: AsyncConnection) -> list[str]:
        """Return the session ids in ``messages`` that have no row in ``sessions``."""
        sql = (
            "SELECT DISTINCT m.session_id FROM messages m WHERE NOT EXISTS "
            "(SELECT 1 FROM sessions s WHERE s.id = m.session_id) ORDER BY m.session_id"
        )
        return [shown_name(name) for (name,) in await self.fetch(connection, sql)]

    async def logs(
        self, connection: AsyncConnection, sessions: Mapping[str, Session]
    ) -> dict[str, list[LogRow]]:
        """Return the rows of each session's message log, in order; the result lacks empty logs.

        To save memory, a row shares its text with an equal message of the context.  The rows of
        large messages have no text; ``complete`` fetches these texts.
        """
        contexts = [session.context for session in sessions.values()]
        known = {one.text: one.text for context in contexts for one in context}
        time = self.syntax.readable_time("m.created_at")
        sql = (
            f"SELECT m.session_id, m.msg_id, {time}, {self._small('m.payload')} "
            "FROM messages m WHERE m.session_id IN :names "
            "ORDER BY m.session_id, m.created_at, m.msg_id"
        )
        found: dict[str, list[LogRow]] = {}
        rows = self.database.rows(connection, sql, {"names": list(sessions)})
        async with aclosing(rows) as partitions:
            async for some in partitions:
                for name, id, time, stored in some:
                    text = _optional(stored)
                    text = known.get(text, text) if text else text
                    found.setdefault(name, []).append(LogRow(id, time, text))
        return found

    async def complete(self, connection: AsyncConnection, session: str, log: list[LogRow]) -> None:
        """Fetch the missing texts of large messages into the rows of ``log``."""
        for at, row in enumerate(log):
            if row.text is None:
                log[at] = row._replace(text=await self.text(connection, session, row.id))

    async def ids(
        self, connection: AsyncConnection, names: Iterable[str], lock: str = ""
    ) -> dict[str, set[str]]:
        """Return the message ids in the message log of each session; the result lacks empty logs.

        ``lock`` is the SQL clause that locks the rows; if empty, the rows are not locked.
        """
        sql = f"SELECT session_id, msg_id FROM messages WHERE session_id IN :names {lock}"
        found: dict[str, set[str]] = {}
        for some in pieces(sorted(names)):
            for name, id in await self.fetch(connection, sql, names=some):
                found.setdefault(name, set()).add(id)
        return found

    async def text(self, connection: AsyncConnection, session: str, id: str) -> bytes:
        """Return the JSON text of a logged message; empty if the message does not exist."""
        sql = (
            f"SELECT {self._text('m.payload')} FROM messages m "
            "WHERE m.session_id = :session AND m.msg_id = :id"
        )
        rows = await self.fetch(connection, sql, session=session, id=id)
        return _bytes(rows[0][0]) if rows else b""

    async def taken_apart(self, connection: AsyncConnection, stored: StoredSession) -> Session:
        """Parse a row of ``sessions`` into a session; fetch the payload first if it is large.

        Raises:
            NotASession: a column is not a text, or the payload is not the payload of a session.
        """
        for name, value in stored.record.items():
            if isinstance(value, bytes):
                raise NotASession(f"its column {name} is not a text")
            if value is None and name in _TIMES:
                raise NotASession(f"its column {name} is not a time of the years 1 to 9999")
        text = stored.text
        if text is None:
            sql = f"SELECT {self._text('s.payload')} FROM sessions s WHERE s.id = :id"
            rows = await self.fetch(connection, sql, id=stored.name)
            text = _bytes(rows[0][0]) if rows else b""
            del rows  # may hold another copy
        if not jsonio.is_utf8(text):  # the driver of AgentScope cannot read such a text, either
            raise NotASession("its payload is not UTF-8")
        try:
            payload, context = without_context(text)
        except ValueError as error:
            raise NotASession(f"its payload is not JSON: {error}") from error
        return Session.of(stored.record, payload, context)

    def _small(self, column: str) -> str:
        size = self.syntax.json_size(column)
        return f"CASE WHEN {size} <= {SMALL_BYTES} THEN {self._text(column)} END"

    # Writing

    async def delete_messages(
        self, connection: AsyncConnection, session: str, ids: Iterable[str]
    ) -> None:
        """Delete the messages with ``ids`` from the message log of a session.

        Raises:
            RejectedValue: the database did not delete each of them.
        """
        sql = "DELETE FROM messages WHERE session_id = :session AND msg_id IN :ids"
        for some in pieces(list(ids)):
            deleted = await self._run(connection, sql, {"session": session, "ids": some})
            self.database.check_deleted("messages", len(some), deleted)

    async def clear_log(self, connection: AsyncConnection, session: str, messages: int) -> None:
        """Delete the message log of a session; ``messages`` is its number of messages.

        Raises:
            RejectedValue: the number of deleted rows is not ``messages``.
        """
        sql = "DELETE FROM messages WHERE session_id = :session"
        deleted = await self._run(connection, sql, {"session": session})
        self.database.check_deleted("messages", messages, deleted)

    async def agent_owners(
        self, connection: AsyncConnection, agents: Iterable[str]
    ) -> dict[str, str]:
        """Return the users of the agents with the ids in ``agents`` that exist, by id."""
        owners: dict[str, str] = {}
        for some in pieces(sorted(agents)):
            sql = "SELECT id, user_id FROM agents WHERE id IN :ids"
            owners |= dict(await self.fetch(connection, sql, ids=some))
        return owners

    async def insert_agents(self, connection: AsyncConnection, agents: Mapping[str, str]) -> None:
        """Insert missing agents; ``agents`` maps the id of an agent to its user."""
        now = datetime.now(UTC)
        moment = self.syntax.stored_time(now.replace(tzinfo=None))
        sql = self.syntax.insert_free(
            f"INSERT INTO agents ({', '.join(AGENT_COLUMNS)}) "
            f"VALUES (:id, :user, :source, :now, :now_, {self.syntax.json_place})",
            "id",
        )
        for agent, user in agents.items():
            record = agent_record(user, agent, now)
            values = {"id": agent, "user": user, "source": record["source"]}
            payload = jsonio.dumps({"data": record["data"]})
            times = {"now": moment, "now_": moment}
            await self.database.execute_json(connection, sql, payload, values | times)

    async def update_sessions(
        self, connection: AsyncConnection, rows: Sequence[tuple[bytes, dict[str, Any]]]
    ) -> None:
        """Update sessions; each row has the payload, and other columns by name, such as ``id``.

        Raises:
            RejectedValue: the database did not update each of them.
        """
        sets = "".join(f"{name} = :{name}, " for name in rows[0][1] if name != "id")
        sql = f"UPDATE sessions SET {sets}payload = {self.syntax.json_place} WHERE id = :id"
        if len(rows) == 1:
            updated = await self.database.execute_json(connection, sql, *rows[0])
        else:
            payloads, values = zip(*rows, strict=True)
            updated = await self.database.execute_json_many(connection, sql, payloads, values)
        self.database.check_updated("sessions", len(rows), updated)

    async def move_message(
        self, connection: AsyncConnection, session: str, id: str, time: datetime
    ) -> None:
        """Set the time of a message in the message log of a session."""
        sql = "UPDATE messages SET created_at = :time WHERE session_id = :session AND msg_id = :id"
        values = {"time": self.syntax.stored_time(time), "session": session, "id": id}
        updated = await self.database.change(connection, sql, values)
        self.database.check_updated("messages", 1, updated)

    async def delete_empty(self, connection: AsyncConnection, key: MemoryKey, agent: Any) -> None:
        """Delete a session and its agent; do nothing if the message log is not empty.

        ``agent`` is the id of an agent that memctl made, or None.  The agent stays if another
        session has it, or if it was changed.  A row with a value in a column that an application
        added stays, too.
        """
        if await self.counts(connection, [key.session]) or await self._has_added_value(
            connection, "sessions", key.session
        ):
            return
        sql = "DELETE FROM sessions WHERE id = :id"
        self.database.check_deleted(
            "sessions", 1, await self._run(connection, sql, {"id": key.session})
        )
        if isinstance(agent, str) and not await self._has_added_value(connection, "agents", agent):
            sql = (
                "DELETE FROM agents WHERE id = :id AND user_id = :user AND created_at = updated_at "
                "AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.agent_id = :agent)"
            )
            await self.fetch(connection, sql, id=agent, user=key.user, agent=agent)

    async def _has_added_value(self, connection: AsyncConnection, table: str, id: str) -> bool:
        known = METADATA.tables[table].columns.keys()
        where = Condition("m.id IN :ids", {"ids": [id]})
        return await self.database.has_added_value(connection, table, known, where)

    async def erase_sessions(
        self, connection: AsyncConnection, keys: Iterable[MemoryKey]
    ) -> dict[MemoryKey, int]:
        """Delete sessions, their messages and their teams in a transaction.

        Returns the number of messages of each session; lacks sessions that do not exist.

        Raises:
            Contended: another program added messages meanwhile.
        """
        same, among = self.syntax.exact, self.syntax.among
        async with self.database.transaction(connection):
            names = [key.session for key in keys]
            sql = f"SELECT id, user_id FROM sessions WHERE id IN :names {self.syntax.row_lock}"
            rows = await self.fetch(connection, sql, names=names)
            found = {MemoryKey(user, session) for session, user in rows}.intersection(keys)
            if not found:
                return {}
            names = [key.session for key in found]
            sql = (
                f"SELECT session_id, COUNT(*) FROM messages WHERE {among('session_id', 'names')} "
                f"GROUP BY {same('session_id')}"
            )
            counts = dict(await self.fetch(connection, sql, names=names))
            await self._run(
                connection, f"DELETE FROM sessions WHERE {among('id', 'names')}", {"names": names}
            )
            if "teams" in self.others:
                of_session = among("session_id", "names")
                sql = (
                    f"DELETE FROM teams WHERE {of_session} AND {same('user_id')} = {same(':user')}"
                )
                for user in {key.user for key in found}:
                    led = [key.session for key in found if key.user == user]
                    await self._run(connection, sql, {"names": led, "user": user})
            sql = f"DELETE FROM messages WHERE {among('session_id', 'names')}"
            if await self._run(connection, sql, {"names": names}) != sum(counts.values()):
                raise Contended(f"{self.database.label}: another program added messages")
            return {key: counts.get(key.session, 0) for key in found}

    async def erase_user(self, connection: AsyncConnection, user: str) -> None:
        """Delete the agents and teams of a user, unless the user has a session."""
        same = self.syntax.exact
        of_user = f"{same('user_id')} = {same(':user')}"
        other = f"NOT EXISTS (SELECT 1 FROM sessions s WHERE {same('s.user_id')} = {same(':user')})"
        for table in ("agents", *self.others):
            sql = f"DELETE FROM {table} WHERE {of_user} AND {other}"
            await self._run(connection, sql, {"user": user})

    async def _run(self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]) -> int:
        return (await connection.execute(*self.syntax.bind(sql, values))).rowcount

    def columns(self, session: Session) -> dict[str, Any]:
        """Return the values of ``COLUMNS`` for a session, by name.

        Raises:
            RejectedValue: a value in ``session.record`` is not a string.
        """
        record = {"agent_id": DEFAULT_AGENT, "source": "user"} | {
            name: value for name, value in session.record.items() if value is not None
        }
        for name, value in record.items():
            if not isinstance(value, str):
                raise RejectedValue(f"the {name} in its extra is not a string", "refused")
        now = datetime.now(UTC).replace(tzinfo=None)
        times = {name: self.syntax.stored_time(_utc(record.get(name)) or now) for name in _TIMES}
        return {name: (record | times).get(name) for name in COLUMNS}


class StoredSession(NamedTuple):
    """A row of ``sessions``."""

    name: str
    user: str
    record: dict[str, Any]
    text: bytes | None
    """The payload; None if it is large: ``Agentscope2Database.taken_apart`` fetches it."""


def messages_in(session: Session, log: list[LogRow]) -> tuple[list[StoredMessage], Comparison]:
    """Return the messages of a session, and the comparison of its context with its message log."""
    comparison = Comparison(session.context)
    times = (_moment_text(row.time) for row in log)
    about = ({"at": time} if isinstance(time, str) else {} for time in times)
    return messages_of(comparison, [(row.id, row.text or b"") for row in log], about), comparison


# Reading


class Agentscope2Reader:
    """Reads the selected sessions of a database, each session as a whole."""

    def __init__(self, store: SqlAgentscope2Store, where: Selection) -> None:
        """Prepare to read the sessions that ``where`` selects.

        A damaged session is left out and noted in ``store.left_out``.  If the store skips damage,
        only damaged messages are left out, and a finding for each is appended to ``store.damage``.
        """
        self._store = store
        self._tables = store.tables
        self._where = where

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the sessions in pages, with all messages, whatever messages are selected."""
        database = self._tables.database
        async with (
            database.snapshot(self._where.shard) as connection,
            aclosing(self._chunks(connection)) as chunks,
        ):
            async for chunk in chunks:
                async with aclosing(self._read(connection, chunk)) as pages:
                    async for page in pages:
                        self._store.left_out.others |= page.last
                        yield page
                        del page  # a large page must not stay while the next page is read
                if database.syntax.reads_briefly:
                    await connection.rollback()
                    await database.begin_read(connection)

    async def _chunks(self, connection: AsyncConnection) -> AsyncGenerator[list[Listed]]:
        """Yield lists of sessions to read at once; a large session is alone."""
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
        names = [one.session for one in chunk]
        stored = await self._tables.sessions(connection, names)
        sessions: dict[str, Session] = {}
        for one in chunk:
            there = stored.pop(one.session, None)
            if there is None or there.user != one.user:  # deleted meanwhile
                continue
            try:
                sessions[one.session] = await self._tables.taken_apart(connection, there)
            except NotASession as error:
                self._leave_out(one.key, str(error))
        logs = await self._tables.logs(connection, sessions) if sessions else {}
        for one in chunk:
            if one.session in sessions:
                session, log = sessions.pop(one.session), logs.pop(one.session, [])
                await self._tables.complete(connection, one.session, log)
                pages = self._session(one.key, session, log)
                del session, log  # each page releases its messages
                for page in pages:
                    yield page
                    del page

    def _session(self, key: MemoryKey, session: Session, log: list[LogRow]) -> Iterator[Page]:
        placed = list(map(_is_placed, log))
        messages, comparison = messages_in(session, list(compress(log, placed)))
        bad = [
            f"the message {shown_name(row.id)!r} is not one with an id and a time"
            for row, fits in zip(log, placed, strict=True)
            if not fits
        ]
        if not are_objects([one.message for one in messages]):
            objects = [jsonio.is_object(one.message) for one in messages]
            bad += [
                _not_an_object(one) for one, fits in zip(messages, objects, strict=True) if not fits
            ]
            messages = list(compress(messages, objects))
        for why in bad:
            self._leave_out(key, why)
            if not self._store.skips_damage:
                return
        memory = Memory(key, session.summary_text, extra=session.extra(comparison))
        del log, comparison, session
        messages.reverse()
        # Popping releases each message with its page.
        yield from paginate(memory, (messages.pop() for _ in range(len(messages))), empty=True)

    def _leave_out(self, key: MemoryKey, why: str) -> None:
        if self._store.skips_damage:
            self._store.damage.append(Finding("damaged-row", key, 1, (), why))
        else:
            self._store.left_out.failures[key] = damage(why)


def _is_placed(row: LogRow) -> bool:
    return _is_name(row.id) and _utc(row.time) is not None


def _not_an_object(message: StoredMessage) -> str:
    what = "a JSON object" if jsonio.is_utf8(message.message) else "UTF-8"
    return f"the message {message.id!r} is not {what}"


# Writing


class Clock:
    """Chooses ascending times for messages, because a message log is ordered by time.

    ``step`` is the smallest difference of stored times.  ``last`` is the time of the last message
    in the log; None if the log is empty.  ``zone`` is the zone of the times in messages; None for
    the local zone.
    """

    def __init__(self, step: timedelta, zone: tzinfo | None, last: datetime | None = None) -> None:
        self._step = step
        self._zone = zone
        self._now = _whole(datetime.now(UTC).replace(tzinfo=None), step)
        self.last = last
        self._last_id = ""

    def time(self, entry: StoredMessage) -> datetime:
        """Return a time for the next message of the message log.

        This is the time in the shape of the message, or else in its JSON, or else the present time.
        The result is later if the message would not sort last with this time.
        """
        kept = _time_of(entry.shape)
        if kept is None:
            own = _whole(_own_time(entry.message, self._zone) or self._now, self._step)
            kept = min(own, self._now)
        return self.next(entry.id, kept)

    def next(self, id: str, time: datetime) -> datetime:
        """Return ``time``, or a later time if the message ``id`` would not sort last then."""
        if self.last is not None and not (
            time > self.last or (time == self.last and comes_after(id, self._last_id))
        ):
            time = self.last + self._step
        self.last, self._last_id = time, id
        return time

    def set(self, id: str, time: datetime) -> None:
        """Note that the log has a message with this id and time; the next time follows."""
        self.last, self._last_id = time, id

    def between(self, entry: StoredMessage, limit: datetime | None) -> datetime:
        """Return a time for a new message before a message with the time ``limit``.

        This is the time in the shape of the message, if it fits, or else the time of the last
        message, or else a time well before ``limit``.  Without ``limit``, the message is the last,
        and the time is as ``time`` returns it.
        """
        kept = _time_of(entry.shape)
        if kept is not None and (limit is None or kept <= limit):
            return self.next(entry.id, kept)
        if limit is None:
            return self.time(entry._replace(shape=""))
        return self.next(entry.id, self.last or limit - 1000 * self._step)

    @property
    def ahead(self) -> timedelta:
        """The time from now to the last message; negative if the message is in the past."""
        return (self.last or self._now) - self._now


def comes_after(id: str, last: str) -> bool:
    """Return whether ``id`` sorts after ``last`` in every database and collation.

    False if this is uncertain.
    """
    return id > last and bool(_PLAIN.fullmatch(id) and _PLAIN.fullmatch(last))


@dataclass(slots=True)
class Draft:
    """A session after a change, and the rows of its message log that the change concerns."""

    result: WriteResult
    session: Session
    context: list[bytes] | None = None
    """The messages of its context as JSON texts; None if the payload stays."""
    is_new: bool = False
    """True if the session has no row yet."""
    has_agent: bool = True
    """False if the session gets the default agent."""
    cleared: int = 0
    """The number of messages in the stored log, if all are deleted."""
    gone: list[str] = field(default_factory=list)
    """The ids of deleted messages."""
    moved: dict[str, datetime] = field(default_factory=dict)
    """The new times of messages, by id."""
    rows: list[tuple[str, datetime, bytes]] = field(default_factory=list)
    """The new messages: id, time, and JSON text."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What an undo would not restore, for ``WriteResult.before``."""
    undone: dict[str, Any] = field(default_factory=dict)
    """The notes of the change that is undone."""

    @property
    def size(self) -> int:
        """The bytes of the texts to write."""
        return sum(map(len, self.context or ())) + sum([len(text) for _, _, text in self.rows])

    def payload(self) -> bytes:
        """Return the payload of the session, and forget the texts of the context to save memory."""
        context, self.context = self.context or [], None
        self.session.context.clear()
        return self.session.text(context)

    def change_log(self, log: list[LogRow], messages: list[StoredMessage], clock: Clock) -> None:
        """Set the rows to delete, to move and to insert, so that the log has ``messages``.

        Restores the times that the undone change had moved, unless the order breaks.
        """
        places = {row.id: place for place, row in enumerate(log)}
        stay: list[LogRow | None] = []
        last = -1
        for one in messages:
            place = places.get(one.id, -1)
            stays = place > last and log[place].text == one.message
            stay.append(log[place] if stays else None)
            last = place if stays else last
        kept = {row.id for row in stay if row is not None}
        self.gone = [row.id for row in log if row.id not in kept]
        back = self.undone.get("times")
        if None not in stay and not back:
            return
        old = [None if row is None else _utc(row.time) or datetime.min for row in stay]
        times = old
        if isinstance(back, dict):
            times = [
                time and (_utc(back.get(one.id)) or time)
                for one, time in zip(messages, old, strict=True)
            ]
            if any(one > other for one, other in pairwise(filter(None, times))):
                times = old
        limits: list[datetime | None] = []
        limit: datetime | None = None
        for time in reversed(times):
            limits.append(limit)
            limit = time or limit
        fresh = False
        for one, was, time, limit in zip(messages, old, times, reversed(limits), strict=True):
            if time is None:
                self.rows.append((one.id, clock.between(one, limit), one.message))
                fresh = True
                continue
            if fresh:
                later = clock.next(one.id, time)
                fresh = later != time
                if fresh:
                    self.notes.setdefault("times", {})[one.id] = _moment_text(time)
                    time = later
            else:  # unmoved rows are in order, however the database sorts ids
                clock.set(one.id, time)
            if time != was:
                self.moved[one.id] = time


class Stored(NamedTuple):
    """What the database has of the sessions of a batch, by id."""

    rows: dict[str, StoredSession]
    """The locked rows of the sessions that exist."""
    owners: dict[str, str]
    """The users of the sessions, with those that the batch makes."""
    counts: dict[str, tuple[int, Any]]
    """The number of messages in each log that is not empty, and the time of the last."""

    def held(self, session: str) -> int:
        """Return the number of messages in the stored log of a session."""
        return self.counts.get(session, (0,))[0]


Loaded = tuple[Session, list[LogRow]] | set[str] | Failure
"""A session and its log, to edit it; the ids of its log, to append to it; or why it is damaged."""


class Agentscope2Changes(Executor[Any, Any]):
    """One write or one edit of sessions.  Each session is changed as a whole."""

    def __init__(
        self, tables: Agentscope2Database, agent: str, mode: WriteMode = WriteMode.ADD
    ) -> None:
        super().__init__(tables.database)
        self._tables = tables
        self._agent = agent
        self._adds = mode is WriteMode.ADD

    def write(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[WriteResult]:
        """Write the memories of the pages; yield a result for each session."""
        return self.execute(gather(pages, BATCH_BYTES, BATCH_MESSAGES))

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Carry out edits of sessions; yield a result for each session."""
        return self.execute(batch_edits(edits))

    def failure(self, task: Any) -> Failure | None:
        """Return why the tables cannot hold a memory with these messages; None if they can.

        Possible reasons are an invalid name, an unknown mark, and a repeated message id.
        """
        messages = task.entries if isinstance(task, Small) else []
        if failure := name_failure(task.memory.key) or _mark_failure(messages):
            return failure
        ids = [message.id for message in messages]
        if len(set(ids)) < len(ids):
            return Failure("repeated-id", "a message id occurs twice")
        return None

    async def commit_alone(
        self, connection: AsyncConnection, batch: list[Small | Edit]
    ) -> list[WriteResult]:
        for _ in range(ATTEMPTS - 1 if isinstance(batch[0], Small) else 0):
            # If another run inserted the session meanwhile, the next attempt finds the session.
            with suppress(*self.memory_errors):
                return await self.commit(connection, batch)
        return await self.commit(connection, batch)

    async def commit(
        self, connection: AsyncConnection, batch: list[Small | Edit]
    ) -> list[WriteResult]:
        tables = self._tables
        names = {one.memory.key.session for one in batch}
        results: list[WriteResult] = []
        made: dict[str, str] = {}

        def weight(task: Small | Edit) -> tuple[int, int]:
            return 0, stored.held(task.memory.key.session) if isinstance(task, Edit) else 0

        async with self._database.transaction(connection):
            rows = await tables.sessions(connection, names, tables.syntax.row_lock)
            owners = {name: row.user for name, row in rows.items()}
            stored = Stored(rows, owners, await tables.counts(connection, names))
            for some in grouped(batch, weight):
                loaded = await self._load(connection, some, stored)
                drafts: Group[Draft] = Group(BATCH_BYTES)
                for one in some:
                    key = one.memory.key
                    try:
                        draft = await self._draft(connection, one, stored, loaded)
                    except NotASession as error:
                        results.append(WriteResult(key, failure=Failure("refused", str(error))))
                    except Rejected as refused:
                        results.append(WriteResult(key, failure=refused.failure))
                    else:
                        if drafts.add(draft, draft.size, 1):
                            results += await self._save(connection, drafts.take(), made)
                        del draft  # it may be large
                results += await self._save(connection, drafts.take(), made)
            self._database.about_to_commit(results)
        return results

    async def _load(
        self, connection: AsyncConnection, batch: list[Small | Edit], stored: Stored
    ) -> dict[str, Loaded]:
        """Return what the changes need of the sessions that exist, by id."""
        tables, lock = self._tables, self._tables.syntax.row_lock
        names = {one.memory.key.session for one in batch} & stored.rows.keys()
        if isinstance(batch[0], Small):
            few = [name for name in names if stored.held(name) <= CHUNK_MESSAGES]
            return dict(await tables.ids(connection, few)) if self._adds else {}
        sessions: dict[str, Session] = {}
        found: dict[str, Loaded] = {}
        for name in names:
            try:
                sessions[name] = await tables.taken_apart(connection, stored.rows[name])
            except NotASession as error:
                found[name] = damage(str(error))
        if lock and sessions:
            await tables.ids(connection, sessions, lock)
        logs = await tables.logs(connection, sessions) if sessions else {}
        for name, session in sessions.items():
            found[name] = session, logs.get(name, [])
        return found

    async def _draft(
        self,
        connection: AsyncConnection,
        task: Small | Edit,
        stored: Stored,
        loaded: dict[str, Loaded],
    ) -> Draft:
        """Return a session after its change.

        Raises:
            Rejected: the session is not as the change expects, or it cannot hold the messages.
            NotASession: ``Memory.extra`` or the stored row does not describe a session.
        """
        key = task.memory.key
        owner = stored.owners.setdefault(key.session, key.user)
        if owner != key.user:
            changes = isinstance(task, Edit) and any(one.old is not None for one in task.changes)
            text = f"the session {key.session!r} belongs to the user {owner!r}"
            raise Rejected("changed" if changes else "bad-name", text)
        found = loaded.pop(key.session, set())
        if isinstance(found, Failure):
            raise Rejected(found.code, found.message)
        if isinstance(found, tuple):
            assert isinstance(task, Edit)
            await self._tables.complete(connection, key.session, found[1])
            return self._edited(task, *found)
        if isinstance(task, Edit):
            made = _applied(task, Snapshot(Memory(key), exists=False))[0].messages
            memory = replace(task.memory, summary=task.memory.summary or "")
            task = Small(memory, made, 0)
            if failure := self.failure(task):
                raise Rejected(failure.code, failure.message)
        if self._adds and stored.held(key.session) > CHUNK_MESSAGES:
            ids = await self._tables.ids(connection, [key.session])
            found = ids.get(key.session, found)
        return await self._written(connection, task, stored, found)

    async def _written(
        self, connection: AsyncConnection, small: Small, stored: Stored, logged: set[str]
    ) -> Draft:
        """Return a session that gets messages; ``logged`` are the ids in its stored log."""
        tables, memory, adds = self._tables, small.memory, self._adds
        row = stored.rows.get(memory.key.session)
        held, last = stored.counts.get(memory.key.session, (0, None))
        there, entries = None, None
        if row is not None and (adds or not memory.extra or memory.summary is None):
            there = await tables.taken_apart(connection, row)
        if there is not None and (adds or not memory.extra):
            session = there
        elif memory.extra:
            session, entries = parse_extra(memory.extra)
            session.summary = session.summary if there is None else there.summary
        else:
            session = new_session(memory.key.session, self._agent, datetime.now(UTC))
        if adds:
            _refuse_misfit(session.ids() - logged, held, small)
        notes = {} if row is None else lost_summary(session, memory.summary)
        with_summary(session, memory.summary)
        if entries is None:
            context = [one.text for one in session.context] if adds else []
            context += [one.message for one in small.entries if not one.marks]
        else:
            context = context_texts(entries, [], small.entries)
        grows = adds and row is not None and held
        clock = Clock(tables.syntax.time_step, tables.zone, _utc(last) if grows else None)
        log = [one for one in small.entries if one.marks or one.id not in session.unlogged]
        times = [clock.time(one) for one in log]
        back = timedelta()
        if small.offset == 0 and clock.ahead > timedelta(seconds=1):
            back = timedelta(seconds=int(clock.ahead.total_seconds()) + 1)
        cleared = 0 if adds else held
        result = WriteResult(memory.key, len(small.entries), cleared)
        rows = [(one.id, time - back, one.message) for one, time in zip(log, times, strict=True)]
        is_new, has_agent = row is None, bool(memory.extra)
        return Draft(result, session, context, is_new, has_agent, cleared, rows=rows, notes=notes)

    def _edited(self, edit: Edit, session: Session, log: list[LogRow]) -> Draft:
        """Return a session after an edit; ``log`` is its stored log."""
        messages, _ = messages_in(session, log)
        changes = in_log_order(edit.changes, [one.id for one in messages])
        there = Snapshot(Memory(edit.memory.key, session.summary_text), messages)
        changed, result = _applied(replace(edit, changes=changes), there)
        if failure := _mark_failure(changed.messages):
            raise Rejected(failure.code, failure.message)
        summary = edit.memory.summary
        draft = Draft(result, session, notes=lost_summary(session, summary))
        draft.undone = parse_shape(edit.before)
        clock = Clock(self._tables.syntax.time_step, self._tables.zone)
        logged = [one for one in changed.messages if not is_unlogged(one)]
        draft.change_log(log, logged, clock)
        texts = {one.id: one.message for one in messages}
        again = {one.id for one in changed.messages if texts.get(one.id) != one.message}
        # A message that replaces a message with the same id replaces it in the context, too.
        entries: list[Entry] = [
            one.id if one.id is not None and one.id in again else one for one in session.context
        ]
        context = context_texts(entries, messages, changed.messages)
        same = context == [one.text for one in session.context]
        if not same or summary not in (None, session.summary_text):
            with_summary(session, summary, edit.before)
            draft.context = context
        return draft

    async def _save(
        self, connection: AsyncConnection, drafts: list[Draft], made: dict[str, str]
    ) -> list[WriteResult]:
        """Write sessions in an open transaction, and return their results.

        ``made`` are the agents that the transaction has made, with their users.
        """
        tables, insert = self._tables, self._database.insert
        made |= await self._agents(connection, [draft for draft in drafts if draft.is_new])
        log: Group[tuple[Any, ...]] = Group(BATCH_BYTES, BATCH_MESSAGES, BATCH_MESSAGES)
        new: Group[tuple[Any, ...]] = Group(BATCH_BYTES)
        changed: Group[tuple[bytes, dict[str, Any]]] = Group(BATCH_BYTES)
        results: list[WriteResult] = []
        for draft in drafts:
            key = draft.result.key
            if draft.cleared:
                await tables.clear_log(connection, key.session, draft.cleared)
            await tables.delete_messages(connection, key.session, draft.gone)
            for id, time in draft.moved.items():
                await tables.move_message(connection, key.session, id, time)
            for id, time, text in draft.rows:
                row = (key.session, id, tables.syntax.stored_time(time), text)
                if log.add(row, len(text), 1):
                    await insert(connection, "messages", MESSAGE_COLUMNS, log.take())
            draft.rows.clear()
            if draft.is_new:
                columns = tables.columns(draft.session)
                agent = draft.session.record.get("agent_id")
                draft.notes = {"session": None} | ({"agent": agent} if agent in made else {})
                row = (key.session, key.user, *columns.values(), draft.payload())
                if new.add(row, len(row[-1]), 1):
                    await insert(connection, "sessions", SESSION_COLUMNS, new.take())
            elif draft.context is not None:
                columns = {} if self._adds else tables.columns(draft.session)
                payload = draft.payload()
                if changed.add((payload, columns | {"id": key.session}), len(payload), 1):
                    await tables.update_sessions(connection, changed.take())
            before = json.dumps(draft.notes) if draft.notes else ""
            results.append(replace(draft.result, before=before))
        if log.items:
            await insert(connection, "messages", MESSAGE_COLUMNS, log.take())
        if changed.items:
            await tables.update_sessions(connection, changed.take())
        if new.items:
            await insert(connection, "sessions", SESSION_COLUMNS, new.take())
        for draft in drafts:
            if "session" in draft.undone:
                agent = draft.undone.get("agent")
                await tables.delete_empty(connection, draft.result.key, agent)
        return results

    async def _agents(self, connection: AsyncConnection, drafts: list[Draft]) -> dict[str, str]:
        """Insert the missing agents of new sessions; return the users of the inserted agents.

        An agent belongs to one user.  If the default agent belongs to another user, the session
        gets an agent of its own, named ``{agent}-{user}``.
        """
        drafts = sorted(drafts, key=lambda draft: draft.result.key.user)
        named = [(one, str(one.session.record.get("agent_id") or self._agent)) for one in drafts]
        ids = {agent for _, agent in named}
        ids |= {f"{self._agent}-{one.result.key.user}" for one in drafts if not one.has_agent}
        owners = await self._tables.agent_owners(connection, ids)
        made: dict[str, str] = {}
        for draft, agent in named:
            user, session = draft.result.key.user, draft.session
            if agent not in owners:
                owners[agent] = made[agent] = user
            if owners[agent] != user and not draft.has_agent:
                agent = f"{agent}-{user}"
                session.record["agent_id"] = agent
                session.payload["config"]["workspace_id"] = agent
                if agent not in owners:
                    owners[agent] = made[agent] = user
        await self._tables.insert_agents(connection, made)
        return made


def _refuse_misfit(alone: set[str], held: int, small: Small) -> None:
    """Check that new messages may be appended to a session.

    ``alone`` are the ids that only the context of the session has, ``held`` is the number of
    messages in the stored log.

    Raises:
        Rejected: the session does not hold as many messages as the caller expects, or its
            context holds the id of a new message.
    """
    count = held + len(alone)
    if count != small.offset:
        raise Rejected("changed", f"the target holds {count} messages, not {small.offset}")
    if not alone.isdisjoint(one.id for one in small.entries):
        raise Rejected("repeated-id", "a message id occurs twice")


def _applied(edit: Edit, there: Snapshot) -> tuple[Snapshot, WriteResult]:
    """Return a memory after an edit, and the result of the edit.

    Raises:
        Rejected: the edit does not fit.
    """
    changed, result = apply_edit(edit, there)
    if changed is None:
        assert result.failure is not None
        raise Rejected(result.failure.code, result.failure.message)
    return changed, result


# The store


class Agentscope2Maintenance(Maintenance):
    """The checks of sessions: contexts, logs without a session, and sessions of several users."""

    store: SqlAgentscope2Store

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        tables = self.store.tables
        async with self.store.database.snapshot(where.shard) as connection:
            async with aclosing(tables.listed(connection, where)) as listed:
                async for one in listed:
                    if one.is_named and where.has_key(one.key):
                        for finding in await self._session(connection, one.key):
                            yield finding
            if where.named or where.keys is not None or not where.leads:
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
            session = await self.store.tables.taken_apart(connection, stored)
        except NotASession:
            return []  # reading has reported the session
        ids = await self.store.tables.ids(connection, [key.session])
        return list(context_findings(key, session.context, ids.get(key.session, set())))


class SqlAgentscope2Store(SqlStore):
    """The sessions in the SQL tables of AgentScope 2.x."""

    features = Features(parallel=True, marks=MARKS, summaries=True, empty=True, session_owners=True)
    dialect = AGENTSCOPE2

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.features = replace(self.features, parallel=self.database.parallel)
        self.tables = Agentscope2Database(self.database)
        self.agent = agent_of(location)

    async def prepare(self) -> None:
        self.tables.zone = self.dialect.zone
        missing = await self.database.run(missing_tables)
        self.tables.others = await self.database.run(existing_teams)
        if missing and not self.mode.creates:
            raise Uninitialised(
                f"{self.label} holds no AgentScope 2 sessions: it has no table {missing[0]!r}",
                "check the database: AgentScope 2's tables are sessions, messages, agents",
            )
        if missing:
            await self.database.create(create_tables)

    @property
    def changed_tables(self) -> Sequence[str]:
        return "messages", "sessions", "agents", "teams"

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - rights of tables
        return await self.database.missing_right(("messages",), locked=("sessions",))

    async def unrestorable(self, where: Selection) -> str:
        condition = session_condition(where)
        return await self.database.find_other_values("messages", MESSAGE_COLUMNS, condition)

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        if deletion is Deletion.MARKS:  # they are in the payloads of sessions
            return []
        tables = {"messages": session_condition(where)}
        if deletion is not Deletion.MESSAGES:
            tables |= {"sessions": session_condition(where, "id"), "agents": EVERY, "teams": EVERY}
        return await self.database.side_effects(tables, ALL_TABLES["agentscope2"])

    async def is_empty(self) -> bool:
        async with self.database.snapshot(self.shard) as connection:
            for table, session in ("sessions", "m.id"), ("messages", "m.session_id"):
                condition = self.tables.syntax.in_shard(self.shard, session)
                sql = f"SELECT 1 FROM {table} m WHERE {condition} LIMIT 1"
                if await self.tables.fetch(connection, sql):
                    return False
        return True

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(Agentscope2Reader(self, where).pages(), self.dialect)

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return Agentscope2Changes(self.tables, self.agent, mode).write(pages)

    def maintenance(self) -> Maintenance:
        return Agentscope2Maintenance(self)

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.database.snapshot(where.shard) as connection:
            keys = await self._keys(connection, where.shard)
        for key in filter(where.has_key, keys):
            yield key

    async def _keys(
        self, connection: AsyncConnection, shard: Shard | None = None
    ) -> list[MemoryKey]:
        condition = self.tables.syntax.in_shard(shard, "id")
        sql = f"SELECT user_id, id FROM sessions WHERE {condition}"
        sessions = await self.tables.fetch(connection, sql)
        return [MemoryKey(shown_name(user), shown_name(session)) for user, session in sessions]

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.database.snapshot() as connection:
            keys = await self._keys(connection)
            agents = await self.tables.fetch(connection, "SELECT DISTINCT user_id FROM agents")
        alone = {shown_name(user) for (user,) in agents} - {key.user for key in keys}
        for key in [*keys, *(MemoryKey(user, "") for user in sorted(alone))]:
            if where.has_key(key):
                yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Erase sessions with their messages and teams; yield a result for each session.

        If a user has no session afterwards, also erases the agents and teams of the user.  Other
        records of a user, such as credentials and schedules, stay, because they are not memory.
        """
        keys = [key async for key in self.names(where)]
        if not keys:
            return
        async with self.database.connect() as connection:
            await self.database.prepare_erasing(connection)
            sessions = {key.session for key in keys}
            async with self.database.read_transaction(connection):
                counts = await self.tables.counts(connection, sessions)
            sizes = {key: counts.get(key.session, (0,))[0] for key in keys}
            attempt = partial(self.tables.erase_sessions, connection)
            most = self.database.batch_changes
            async with aclosing(erase_memories(sizes, attempt, most)) as results:
                async for result in results:
                    yield result
            for user in sorted({key.user for key in keys}):
                async with self.database.transaction(connection):
                    await self.tables.erase_user(connection, user)
            await self.database.finish_erasing(connection)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return Agentscope2Changes(self.tables, self.agent).edit(edits)


def _mark_failure(messages: Iterable[StoredMessage]) -> Failure | None:
    for message in messages:
        for mark in message.marks:
            if mark not in MARKS:
                return Failure("refused", f"AgentScope 2 has no mark {mark!r}, only compressed")
    return None


def _time_of(shape: str) -> datetime | None:
    return _utc(parse_shape(shape).get("at"))


def _own_time(message: bytes, zone: tzinfo | None) -> datetime | None:
    """Return the time in a message's JSON, in UTC without a zone; None without a valid time.

    A time without a zone is in ``zone``; None for the local zone.
    """
    try:
        time = jsonio.field(message, CREATED)
        found = datetime.fromisoformat(time or "")
        if found.tzinfo is None:
            found = found.replace(tzinfo=zone)
        return found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _utc(time: Any) -> datetime | None:
    """Convert a datetime or ISO text to UTC without a zone; None if ``time`` is neither."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return None
    if not isinstance(time, datetime):
        return None
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


def _moment_text(time: Any) -> Any:
    found = _utc(time)
    return time if found is None else found.replace(tzinfo=UTC).isoformat()


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and is_text(value)


def _whole(time: datetime, step: timedelta) -> datetime:
    return time.replace(microsecond=0) if step >= timedelta(seconds=1) else time


def _bytes(text: Any) -> bytes:
    return b"" if text is None else jsonio.encoded(text)


def _optional(text: Any) -> bytes | None:
    return None if text is None else _bytes(text)
