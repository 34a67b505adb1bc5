"""AgentScope 2.x sessions in a SQL database of any kind.

A session is a row of ``sessions``, with the state in its payload, and a log: rows of ``messages``
in the order of (created_at, msg_id).  ``memctl.stores.agentscope2.session`` turns a session into a
memory, and ``RowStore`` reads and writes the rows.

Source: ``app/storage/_sql/_storage.py`` of agentscope 2.0.11.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import compress, pairwise
from typing import Any

from msgspec import field, structs

from memctl.dialects.agentscope2 import AGENTSCOPE2, CREATED, DEFAULT_AGENT
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import is_text, shown_name
from memctl.engines.sql.inspector import inspect
from memctl.engines.sql.renaming import Named
from memctl.engines.sql.rows.store import RowStore
from memctl.engines.sql.rows.tables import Key, Row, Rows, RowTable
from memctl.errors import BadData, Failure, Uninitialised
from memctl.json import jsonio
from memctl.json.located import with_names
from memctl.layouts.files import SESSION
from memctl.layouts.sql import ALL_TABLES, name_failure
from memctl.location import Location
from memctl.model import Edit, Finding, Memory, MemoryKey, StoredMessage, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, OpenMode
from memctl.storekit.batching import Small, are_objects
from memctl.storekit.edits import Snapshot
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

_TIMES = frozenset({"created_at", "updated_at"})
AGENTS = RowTable(
    "agents",
    key=("id",),
    columns=("id", "user_id", "source", "created_at", "updated_at", "payload"),
    owner="user_id",
    text="payload",
    times=_TIMES,
    tail=2,
    deletable="created_at = updated_at "
    "AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.agent_id = agents.id)",
)
SESSIONS = RowTable(
    "sessions",
    key=("id",),
    columns=("id", "user_id", *COLUMNS, "payload"),
    session="id",
    owner="user_id",
    text="payload",
    times=_TIMES,
)
MESSAGES = RowTable(
    "messages",
    key=("session_id", "msg_id"),
    columns=("session_id", "msg_id", "created_at", "payload"),
    session="session_id",
    order=("created_at", "msg_id"),
    text="payload",
    times=_TIMES,
    tail=3,
)
TEAMS = RowTable(
    "teams",
    key=("id",),
    columns=("id",),
    session="session_id",
    deletable="EXISTS (SELECT 1 FROM sessions s "
    "WHERE s.id = teams.session_id AND s.user_id = teams.user_id)",
)
_PLAIN = re.compile("[0-9a-z]+")


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


class Held(Snapshot, frozen=True):
    """A stored session: its messages, and the rest of it."""

    session: Session = field(default_factory=Session)


class Agentscope2Maintenance(Maintenance):
    """The checks of sessions: contexts, logs without a session, and sessions of several users."""

    store: SqlAgentscope2Store

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        store = self.store
        async with store.database.snapshot(where.shard, long=True) as connection:
            async with aclosing(store.listed(connection, where)) as listed:
                async for one in listed:
                    if one.is_named and where.has_key(one.key):
                        for finding in await self._session(connection, one.key):
                            yield finding
            if where.named or where.keys is not None or not where.leads:
                return
            sql = (
                "SELECT DISTINCT m.session_id FROM messages m WHERE NOT EXISTS "
                "(SELECT 1 FROM sessions s WHERE s.id = m.session_id) ORDER BY m.session_id"
            )
            if names := await store.names_in(connection, sql):
                yield Finding("session-record-missing", None, len(names), tuple(names[:3]))
            sql = "SELECT DISTINCT user_id FROM sessions ORDER BY user_id"
            users = await store.names_in(connection, sql)
            if len(users) > 1:
                yield Finding("session-open-to-others", None, len(users), tuple(users[:3]))

    async def _session(self, connection: AsyncConnection, key: MemoryKey) -> list[Finding]:
        [rows] = (await self.store.rows.load(connection, [key.session], tail=True)).values()
        try:
            session = session_of(rows)
        except NotASession:
            return []  # reading has reported the session
        ids = {row[1] for row in rows["messages"].values()}
        return list(context_findings(key, session.context, ids))


class SqlAgentscope2Store(RowStore):
    """The sessions in the SQL tables of AgentScope 2.x."""

    features = Features(
        parallel=True,
        marks=MARKS,
        summaries=True,
        empty=True,
        session_owners=True,
        renames=frozenset({"user", "session"}),
        selects_texts=True,
    )
    dialect = AGENTSCOPE2
    tables = (AGENTS, SESSIONS, MESSAGES)
    head, log = SESSIONS, MESSAGES
    own_tables = ALL_TABLES["agentscope2"]

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.features = structs.replace(self.features, parallel=self.database.parallel)
        self._agent = agent_of(location)

    async def prepare(self) -> None:
        missing = await self.database.look(_missing_tables)
        if missing and not self.mode.creates:
            raise Uninitialised(
                f"{self.label} holds no AgentScope 2 sessions: it has no table {missing[0]!r}",
                "check the database: AgentScope 2's tables are sessions, messages, agents",
            )
        if missing:
            from memctl.stores.agentscope2.tables import create_tables  # by SQLAlchemy

            await self.database.create(create_tables)
        self.erased = (TEAMS,) if await self.database.look(_has_teams) else ()

    def maintenance(self) -> Maintenance:
        return Agentscope2Maintenance(self)

    async def names_in(self, connection: AsyncConnection, sql: str) -> list[str]:
        """Return the names that a query finds."""
        return [shown_name(name) for (name,) in await self.database.fetch_all(connection, sql, {})]

    # Reading

    def read_rows(self, key: MemoryKey, rows: Rows, bad: list[str]) -> Snapshot | None:
        try:
            session = session_of(rows)
        except NotASession as error:
            bad.append(str(error))
            return None
        log = list(rows["messages"].values())
        placed = list(map(_is_placed, log))
        messages, comparison = messages_in(session, list(compress(log, placed)))
        bad += [
            f"the message {shown_name(row[1])!r} is not one with an id and a time"
            for row, fits in zip(log, placed, strict=True)
            if not fits
        ]
        if not are_objects([one.message for one in messages]):
            objects = [jsonio.is_object(one.message) for one in messages]
            bad += [
                _not_an_object(one) for one, fits in zip(messages, objects, strict=True) if not fits
            ]
            messages = list(compress(messages, objects))
        memory = Memory(key, session.summary_text, extra=session.extra(comparison))
        return Snapshot(memory, messages)

    def there(self, key: MemoryKey, rows: Rows) -> Snapshot:
        if not rows["sessions"]:
            return Snapshot(Memory(key), exists=False)
        try:
            session = session_of(rows)
        except NotASession as error:
            raise Rejected("damaged", str(error)) from error
        messages, _ = messages_in(session, list(rows["messages"].values()))
        return Held(Memory(key, session.summary_text), messages, session=session)

    # Changing

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return name_failure(key)

    def refusal(self, messages: Sequence[StoredMessage]) -> Failure | None:
        if failure := _mark_failure(messages):
            return failure
        if len({message.id for message in messages}) < len(messages):
            return Failure("repeated-id", "a message id occurs twice")
        return None

    async def around(self, connection: AsyncConnection, tasks: Sequence[Small | Edit]) -> Rows:
        agents = {self._agent}
        for task in tasks:
            named: list[Any] = [f"{self._agent}-{task.memory.key.user}"]
            if isinstance(task, Edit):
                named.append(parse_shape(task.before).get("agent"))
            with suppress(NotASession):
                if task.memory.extra:
                    named.append(parse_extra(task.memory.extra)[0].record.get("agent_id"))
            agents |= {agent for agent in named if isinstance(agent, str)}
        return {"agents": await self.rows.find(connection, AGENTS, agents)}

    def written_rows(self, small: Small, rows: Rows, mode: WriteMode) -> tuple[Rows, WriteResult]:
        memory, key, adds = small.memory, small.memory.key, mode is WriteMode.ADD
        log, old = rows["messages"], next(iter(rows["sessions"].values()), None)
        session, entries = self._session(memory, rows, adds=adds)
        if adds:
            _refuse_misfit(session, {row[1] for row in log.values()}, small)
        kept = log if adds else {}
        found = {"messages": kept | self._added_log(small, session, kept if old else {})}
        notes = lost_summary(session, memory.summary) if old else {}
        with_summary(session, memory.summary)
        if entries is None:
            context = [one.text for one in session.context] if adds else []
            context += [one.message for one in small.entries if not one.marks]
        else:
            context = context_texts(entries, [], small.entries)
        if not old:
            found["agents"] = agents = self._agents(key, rows["agents"], session, memory.extra)
            agent = session.record["agent_id"]
            made = len(agents[(agent,)]) == len(AGENTS.columns)  # by this transaction
            notes = {"session": None} | ({"agent": agent} if made else {})
        session.context.clear()
        payload = session.text(context)
        row = (*old[:-1], payload) if adds and old else self._session_row(key, session, payload)
        found["sessions"] = {row[:1]: row}
        before = json.dumps(notes) if notes else ""
        gone = 0 if adds else len(log)
        return found, WriteResult(key, len(small.entries), gone, before=before)

    def _session(
        self, memory: Memory, rows: Rows, *, adds: bool
    ) -> tuple[Session, list[Entry] | None]:
        """Return a session to write, and the entries of its context if ``Memory.extra`` has them.

        Raises:
            Rejected: the stored row or ``Memory.extra`` does not describe a session.
        """
        there, entries = None, None
        try:
            if rows["sessions"] and (adds or not memory.extra or memory.summary is None):
                there = session_of(rows)
            if there is not None and (adds or not memory.extra):
                session = there
            elif memory.extra:
                session, entries = parse_extra(memory.extra)
                session.summary = session.summary if there is None else there.summary
            else:
                session = new_session(memory.key.session, self._agent, datetime.now(UTC))
        except NotASession as error:
            raise Rejected("refused", str(error)) from error
        if not (adds and there):
            for name, value in session.record.items():
                if not isinstance(value, str | None):
                    raise Rejected("refused", f"the {name} in its extra is not a string")
        return session, entries

    def _added_log(self, small: Small, session: Session, log: dict[Key, Row]) -> dict[Key, Row]:
        """Return the rows of new messages after the rows ``log``."""
        clock = Clock(self.database.syntax.time_step, self.dialect.zone)
        clock.last = next(filter(None, (utc(row[2]) for row in reversed(log.values()))), None)
        logged = [one for one in small.entries if one.marks or one.id not in session.unlogged]
        times = [clock.time(one) for one in logged]
        back = timedelta()
        if small.offset == 0 and clock.ahead > timedelta(seconds=1):
            back = timedelta(seconds=int(clock.ahead.total_seconds()) + 1)
        rows = (
            self._log_row(small.memory.key, one.id, time - back, one.message)
            for one, time in zip(logged, times, strict=True)
        )
        return {row[:2]: row for row in rows}

    def _log_row(self, key: MemoryKey, id: str, time: datetime, text: bytes) -> Row:
        return key.session, id, self.database.syntax.stored_time(time), text

    def _session_row(self, key: MemoryKey, session: Session, payload: bytes) -> Row:
        stored = self.database.syntax.stored_time
        record = {"agent_id": DEFAULT_AGENT, "source": "user"} | {
            name: value for name, value in session.record.items() if value is not None
        }
        now = datetime.now(UTC).replace(tzinfo=None)
        times = {name: stored(utc(record.get(name)) or now) for name in _TIMES}
        return key.session, key.user, *((record | times).get(name) for name in COLUMNS), payload

    def _agents(
        self, key: MemoryKey, there: dict[Key, Row], session: Session, extra: str
    ) -> dict[Key, Row]:
        """Return the agents, with that of a new session, whose user owns it.

        If the default agent belongs to another user, the session gets an agent of its own, named
        ``{agent}-{user}``.
        """
        agent: str = session.record.get("agent_id") or self._agent
        found = {(agent,): self._agent_row(key.user, agent)} | there
        if not extra and found[(agent,)][1] != key.user:
            agent = f"{agent}-{key.user}"
            session.payload["config"]["workspace_id"] = agent
            found = {(agent,): self._agent_row(key.user, agent)} | found
        session.record["agent_id"] = agent
        return found

    def _agent_row(self, user: str, agent: str) -> Row:
        now = datetime.now(UTC)
        record = agent_record(user, agent, now)
        time = self.database.syntax.stored_time(now.replace(tzinfo=None))
        return agent, user, record["source"], time, time, jsonio.dumps({"data": record["data"]})

    def fitted(self, edit: Edit, there: Snapshot) -> Edit:
        changes = in_log_order(edit.changes, [one.id for one in there.messages])
        return structs.replace(edit, changes=changes)

    def changed_rows(
        self, key: MemoryKey, rows: Rows, there: Snapshot, new: Snapshot, undone: str | None
    ) -> tuple[Rows, str]:
        if not isinstance(there, Held):
            memory = replace(new.memory, summary=new.memory.summary or "")
            if failure := self.refusal(new.messages):
                raise Rejected(failure.code, failure.message)
            found, result = self.written_rows(Small(memory, new.messages, 0), rows, WriteMode.ADD)
            return found, result.before
        if failure := _mark_failure(new.messages):
            raise Rejected(failure.code, failure.message)
        session, summary, about = there.session, new.memory.summary, parse_shape(undone or "")
        notes = lost_summary(session, summary)
        logged = [one for one in new.messages if not is_unlogged(one)]
        found = {"messages": self._changed_log(key, rows, logged, about.get("times"), notes)}
        texts = {one.id: one.message for one in there.messages}
        again = {one.id for one in new.messages if texts.get(one.id) != one.message}
        # A message that replaces a message with the same id replaces it in the context, too.
        entries: list[Entry] = [
            one.id if one.id is not None and one.id in again else one for one in session.context
        ]
        context = context_texts(entries, there.messages, new.messages)
        same = context == [one.text for one in session.context]
        if not same or summary != session.summary_text:
            with_summary(session, summary, undone or "")
            session.context.clear()
            [old] = rows["sessions"].values()
            found["sessions"] = {old[:1]: (*old[:-1], session.text(context))}
        return found, json.dumps(notes) if notes else ""

    def made_rows(self, key: MemoryKey, rows: Rows, undone: str) -> list[tuple[RowTable, Key]]:
        about = parse_shape(undone)
        if "session" not in about or rows["messages"]:
            return []
        agent = rows["agents"].get((str(about.get("agent")),))
        own = [(AGENTS, agent[:1])] if agent and agent[1] == key.user else []
        return [(SESSIONS, (key.session,)), *own]

    def _changed_log(
        self,
        key: MemoryKey,
        rows: Rows,
        messages: list[StoredMessage],
        back: Any,
        notes: dict[str, Any],
    ) -> dict[Key, Row]:
        """Return the rows of the log for ``messages``, and note the former times of moved rows.

        ``back`` has the times that the undone change had moved.  They are restored, unless the
        order breaks.
        """
        log = list(rows["messages"].values())
        places = {row[1]: place for place, row in enumerate(log)}
        stay: list[Row | None] = []
        last = -1
        for one in messages:
            place = places.get(one.id, -1)
            stays = place > last and log[place][3] == one.message
            stay.append(log[place] if stays else None)
            last = place if stays else last
        if None not in stay and not back:
            return {row[:2]: row for row in stay if row is not None}
        old = [None if row is None else utc(row[2]) or datetime.min for row in stay]
        times = old
        if isinstance(back, dict):
            times = [
                time and (utc(back.get(one.id)) or time)
                for one, time in zip(messages, old, strict=True)
            ]
            if any(one > other for one, other in pairwise(filter(None, times))):
                times = old
        limits: list[datetime | None] = []
        limit: datetime | None = None
        for time in reversed(times):
            limits.append(limit)
            limit = time or limit
        clock = Clock(self.database.syntax.time_step, self.dialect.zone)
        found: dict[Key, Row] = {}
        fresh = False
        placed = zip(messages, stay, old, times, reversed(limits), strict=True)
        for one, row, was, time, limit in placed:
            if row is None or time is None:
                time = clock.between(one, limit)
                row = self._log_row(key, one.id, time, one.message)
                fresh = True
            elif fresh:
                later = clock.next(one.id, time)
                fresh = later != time
                if fresh:
                    notes.setdefault("times", {})[one.id] = _moment_text(time)
                    time = later
            else:  # unmoved rows are in order, however the database sorts ids
                clock.set(one.id, time)
            if was is not None and time != was:
                row = self._log_row(key, one.id, time, row[3])
            found[row[:2]] = row
        return found

    # Other names

    @property
    def of_users(self) -> Sequence[Named]:
        sessions = {SESSIONS.name, MESSAGES.name}
        return [Named(table, user="user_id") for table in sorted(self.own_tables - sessions)]

    def renamed_rows(self, old: MemoryKey, new: MemoryKey, rows: Rows) -> Rows:
        [(*start, payload)] = rows["sessions"].values()
        try:
            text = with_names(payload, [(("state", SESSION), old.session, new.session)])
        except ValueError as error:
            raise Rejected("damaged", f"its payload is not JSON: {error}") from error
        row = (*start, text)
        return {"sessions": {row[:1]: row}} if text != payload else {}

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        keys = [one.key for one in await self.stored()]
        async with self.database.snapshot() as connection:
            users = await self.names_in(connection, "SELECT DISTINCT user_id FROM agents")
        alone = set(users) - {key.user for key in keys}
        for key in [*keys, *(MemoryKey(user, "") for user in sorted(alone))]:
            if where.has_key(key):
                yield key

    async def erase_users(self, connection: AsyncConnection, users: Iterable[str]) -> None:
        """Delete the agents and teams of users that have no session any more.

        Other records of a user, such as credentials and schedules, stay, because they are not
        memory.
        """
        exact = self.database.syntax.exact
        alone = (
            f"NOT EXISTS (SELECT 1 FROM sessions s WHERE {exact('s.user_id')} = {exact(':user')})"
        )
        for user in users:
            async with self.database.transaction(connection):
                for table in (AGENTS, *self.erased):
                    of_user = f"{exact('user_id')} = {exact(':user')}"
                    sql = f"DELETE FROM {table.name} WHERE {of_user} AND {alone}"
                    await self.database.change(connection, sql, {"user": user})


def _missing_tables(connection: Any) -> list[str]:
    """Return the tables that the database lacks, of those that memctl reads and writes.

    Raises:
        BadData: one of the tables lacks columns: it belongs to another application.
    """
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    missing = []
    for table in (SESSIONS, MESSAGES, AGENTS):
        if table.name not in there:
            missing.append(table.name)
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        if lacking := [name for name in table.columns if name not in columns]:
            raise BadData(
                f"the table {table.name!r} is not AgentScope 2's: it has no column {lacking[0]!r}",
                "give AgentScope a database (or a schema) of its own",
            )
    return missing


def _has_teams(connection: Any) -> bool:
    """Return whether the table ``teams`` exists, which older versions of AgentScope lack."""
    return inspect(connection).has_table(TEAMS.name)


def session_of(rows: Rows) -> Session:
    """Parse the row of a session.

    Raises:
        NotASession: a column is not a text, or the payload is not the payload of a session.
    """
    [(_, _, *columns, text)] = rows["sessions"].values()
    record = dict(zip(COLUMNS, columns, strict=True))
    record |= {name: _moment_text(record[name]) for name in _TIMES}
    for name, value in record.items():
        if isinstance(value, bytes):
            raise NotASession(f"its column {name} is not a text")
        if value is None and name in _TIMES:
            raise NotASession(f"its column {name} is not a time of the years 1 to 9999")
    if not jsonio.is_utf8(text):  # the driver of AgentScope cannot read such a text, either
        raise NotASession("its payload is not UTF-8")
    try:
        payload, context, around = without_context(text)
    except ValueError as error:
        raise NotASession(f"its payload is not JSON: {error}") from error
    return Session.of(record, payload, context, around)


def messages_in(session: Session, log: list[Row]) -> tuple[list[StoredMessage], Comparison]:
    """Return the messages of a session, and the comparison of its context with its message log.

    To save memory, a message shares its text with an equal message of the context.
    """
    comparison = Comparison(session.context)
    known: dict[Any, bytes] = {one.text: one.text for one in session.context}
    times = (_moment_text(time) for _, _, time, _ in log)
    about = ({"at": time} if isinstance(time, str) else {} for time in times)
    texts = [(id, known.get(text) or text) for _, id, _, text in log]
    return messages_of(comparison, texts, about), comparison


def _is_placed(row: Row) -> bool:
    return _is_name(row[1]) and utc(row[2]) is not None


def _not_an_object(message: StoredMessage) -> str:
    what = "a JSON object" if jsonio.is_utf8(message.message) else "UTF-8"
    return f"the message {message.id!r} is not {what}"


def _refuse_misfit(session: Session, logged: set[str], small: Small) -> None:
    """Check that new messages may be appended to a session; ``logged`` are the ids in its log.

    Raises:
        Rejected: the session does not hold as many messages as the caller expects, or it holds the
            id of a new message.
    """
    ids = session.ids() | logged
    if len(ids) != small.offset:
        raise Rejected("changed", f"the target holds {len(ids)} messages, not {small.offset}")
    if not ids.isdisjoint(one.id for one in small.entries):
        raise Rejected("repeated-id", "a message id occurs twice")


def _mark_failure(messages: Iterable[StoredMessage]) -> Failure | None:
    for message in messages:
        for mark in message.marks:
            if mark not in MARKS:
                return Failure("refused", f"AgentScope 2 has no mark {mark!r}, only compressed")
    return None


def _time_of(shape: str) -> datetime | None:
    return utc(parse_shape(shape).get("at"))


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


def utc(time: Any) -> datetime | None:
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
    found = utc(time)
    return time if found is None else found.replace(tzinfo=UTC).isoformat()


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and is_text(value)


def _whole(time: datetime, step: timedelta) -> datetime:
    return time.replace(microsecond=0) if step >= timedelta(seconds=1) else time
