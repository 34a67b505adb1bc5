"""AgentScope 2.x sessions in Redis (``RedisStorage``).

Source: ``app/storage/_redis_storage.py`` of agentscope 2.0.11; its ``KeyConfig`` defines the keys.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import compress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from redis.exceptions import ResponseError

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.view import COMPRESSED
from memctl.engines.redis.pipeline import (
    WRONG_TYPE,
    Command,
    Pipeline,
    in_thread,
    items_in_thread,
    scan,
)
from memctl.engines.redis.text import decode, encode, encode_or_none, escape
from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.json.located import with_names
from memctl.layouts.redis.whole import Held, MemoryPlace, WholeMemoryStore, moved
from memctl.location import Location, visible
from memctl.model import Edit, Finding, Memory, MemoryKey, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import CHANGED, MADE, Rejected
from memctl.stores.agentscope2.session import (
    MARKS,
    UNLOGGED,
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
    with_context,
    with_summary,
    without_context,
)

PREFIX = "agentscope:"
"""The beginning of all keys, unless ``?prefix=`` gives another."""
MESSAGES, IDS = b":messages", b":message_ids"

_SESSION = b":session:"
_TIMES = ("created_at", "updated_at")
_IDENTITY = ("id", "user_id")
_SOURCE = ("source", "source_schedule_id")
_PUSHED = 1000
_NEVER, _MISSING = -1, -2
"""Replies of PTTL for a key without expiry, and for a missing key."""
_LOG_ALONE = '{"record": false}'
"""The shape of a message in a log without a record: an undo must not create the record."""
_MADE_AGENT = f"{MADE} agent "


class StoredSession(Struct, frozen=True):
    """The contents of a session's Redis keys, without the texts of its messages."""

    record: dict[str, Any] | None
    """The JSON object of the session; None if only the message log exists."""
    session: Session
    context: list[Entry]
    """The context: an id for a message of the memory, or the message in full."""
    indexed: bool
    """True if the set of message ids exists."""
    expiries: tuple[int, int, int]
    """The replies of PTTL for record, log and ids, in milliseconds."""


class RedisAgentScope2Store(WholeMemoryStore):
    """AgentScope 2.x sessions in Redis: keys under ``{prefix}user:{user}:session:{session}``.

    The key itself is a string: the record of the session, which contains the state.  The list
    ``:messages`` is the message log, and the set ``:message_ids`` has the ids of its messages.  A
    message log whose record has expired is a memory, too.

    The names of users and sessions may contain ``:``; the record gives both names.  Reading changes
    no expiry.  A new session gets the agent of its extra, or else the agent of the location
    (``?agent=``).  If this agent has no record, the record is created.
    """

    kind = "redis-agentscope2"
    lock_name = "agentscope2"
    dialect = AGENTSCOPE2
    features = Features(
        summaries=True,
        ttl=True,
        empty=True,
        parallel=True,
        marks=MARKS,
        renames=frozenset({"user", "session"}),
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.agent = agent_of(location)
        if "prefix" not in location.options:
            self.server.prefix = PREFIX
        self._prefix = encode(self.server.prefix)

    def maintenance(self) -> Maintenance:
        return SessionMaintenance(self)

    def text_keys(self, pipeline: Pipeline) -> Iterator[bytes]:
        """Yield the keys of sessions; those of agents and credentials are no memory."""
        return (key for key in super().text_keys(pipeline) if _SESSION in key)

    # Names

    def key_of(self, user: str, *names: str) -> bytes:
        """Return the key ``user:{user}:...`` that ends with ``names``, such as ``"agent", "a"``."""
        return self._prefix + b":".join(map(encode, ("user", user, *names)))

    def place_of(self, key: MemoryKey) -> MemoryPlace:
        if encode_or_none(key.user) is None or encode_or_none(key.session) is None:
            raise Rejected("bad-name", f"{key} has half of a surrogate pair in its name")
        if key.part:
            raise Rejected("bad-name", f"a session is one memory, without a part like {key.part!r}")
        return MemoryPlace(self.key_of(key.user, "session", key.session), key, asked=True)

    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        if where.keys is not None:
            found = self.named(key for key in where.keys if where.has_key(key))
        else:
            pattern = self._pattern(where)
            bases = set(scan(pipeline, pattern, b"string"))
            lists = scan(pipeline, pattern + MESSAGES, b"list")
            bases.update(key.removesuffix(MESSAGES) for key in lists)
            suffixed = {key + suffix for key in bases for suffix in (MESSAGES, IDS)} & bases
            # A key with such a suffix is a session only if it holds a JSON object.
            bases -= {key for key in suffixed if not _holds_object(pipeline, key)}
            found = [MemoryPlace(base, self._split(base)) for base in bases]
        return sorted(found, key=lambda place: place.order)

    def _pattern(self, where: Selection) -> bytes:
        def one(names: frozenset[str]) -> bytes:
            name = encode_or_none(next(iter(names))) if len(names) == 1 else None
            return b"*" if name is None else escape(name)

        user, session = one(where.users), one(where.sessions)
        return escape(self._prefix + b"user:") + user + _SESSION + session

    def _split(self, base: bytes) -> MemoryKey:
        user, _, session = base.removeprefix(self._prefix + b"user:").partition(_SESSION)
        return MemoryKey(decode(user), decode(session))

    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        return place.key, place.key + MESSAGES, place.key + IDS

    def restoring(self, key: MemoryKey) -> list[Command]:
        return [
            command
            for place in self.named([key])
            for command in (
                (b"RPUSH", place.key + MESSAGES, b""),
                (b"SADD", place.key + IDS, b"id"),
            )
        ]

    # Reading

    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        keys = self.watched(place)
        commands = [
            *((b"GET", keys[0]), (b"LRANGE", keys[1], b"0", b"-1"), (b"TYPE", keys[2])),
            *((b"PTTL", key) for key in keys),
        ]
        text, log, indexed, *expiries = pipeline.execute(commands, tolerate=WRONG_TYPE)
        wrong = (
            isinstance(text, ResponseError),
            isinstance(log, ResponseError),
            indexed not in (b"set", b"none"),
        )
        if any(wrong):
            if place.asked and any(_holds_object(pipeline, key) for key in keys[1:]):
                raise Rejected("bad-name", f"a key of {place.memory} is that of another session")
            key = visible(decode(next(compress(keys, wrong))))
            raise BadData(f"the key {key} holds another type of value than AgentScope writes")
        if text is None and not log:
            return None
        name = f"the session {visible(decode(place.key))}"
        digest = hashlib.sha256(text or b"")
        for one in log:
            digest.update(b"%d " % len(one))
            digest.update(one)
        owner, record, session = self._session(place, text, name)
        del text  # ``session`` has copies of the messages
        if owner is None:
            return None
        if place.asked and owner != place.memory:
            raise Rejected("bad-name", f"the key of {place.memory} is that of {owner}")
        comparison = Comparison(session.context)
        messages = messages_of(comparison, [(_id_of(one, name), jsonio.utf8(one)) for one in log])
        memory = Memory(
            owner,
            session.summary_text,
            ttl=_seconds_left(expiries),
            extra="" if record is None else session.extra(comparison),
            version=digest.hexdigest(),
        )
        entries = comparison.entries()
        kept = StoredSession(record, session, entries, indexed == b"set", tuple(expiries))
        if record is None:
            messages = [one._replace(shape=_LOG_ALONE) for one in messages]
        return Held(memory, messages, kept=kept)

    def _session(
        self, place: MemoryPlace, text: bytes | None, name: str
    ) -> tuple[MemoryKey | None, dict[str, Any] | None, Session]:
        """Return the memory key, the record and the session in a Redis key.

        ``text`` is the value of the key.  If the key is missing, ``text`` and the record are None.
        The memory key is None if the value is the record of another session.  ``name`` names the
        session in errors.

        Raises:
            BadData: the record is damaged.
        """
        if text is None:
            return self._split(place.key), None, Session()
        try:
            value, context, around = without_context(text)
            if not isinstance(value, dict):
                raise NotASession("it is not a JSON object")
            owner = self._owner(place, value)
            if owner is None:
                return None, None, Session()
            common = _common(value, self.dialect.zone)
            session = Session.of(common, _payload(value), context, around)
        except ValueError as error:
            raise BadData(f"{name} is damaged: {error}") from error
        return owner, value, session

    def _owner(self, place: MemoryPlace, value: dict[str, Any]) -> MemoryKey | None:
        """Return the memory key that a record names; None if the record is in the wrong Redis key.

        A record without names gets the names in its Redis key.
        """
        user, session = value.get("user_id"), value.get("id")
        if not (isinstance(user, str) and isinstance(session, str)):
            return self._split(place.key)
        told = MemoryKey(user, session)
        try:
            return told if self.place_of(told).key == place.key else None
        except Rejected:  # no key can have this name
            return None

    # Writing

    def replacing(
        self,
        pipeline: Pipeline,  # noqa: ARG002 - needs no reads
        place: MemoryPlace,
        old: Held | None,
        new: Snapshot,
        before: str = "",
    ) -> list[Command]:
        stored = old.kept if old is not None else None
        there = old.messages if old is not None else []
        assert stored is None or isinstance(stored, StoredSession)
        key = new.memory.key
        ttl = self.server.ttl_of(new.memory.ttl)
        messages = new.messages
        record: dict[str, Any] | None
        if old is not None and stored is not None and new.memory.extra in ("", old.memory.extra):
            record, session = stored.record, stored.session
            same = new.memory.extra == old.memory.extra
            entries, known = (stored.context, there) if same else ([], [])
        else:
            record, known = None, []
            session, entries = self._introduced(key, new.memory.extra)
            messages = [
                one._replace(shape=UNLOGGED) if one.id in session.unlogged else one
                for one in messages
            ]
        commands: list[Command] = []
        if record is None and _needs_record(new, is_log=stored is not None):
            if stored is not None and stored.record is None:
                raise Rejected("refused", "the record of the session with its context is gone")
            if not session.payload:
                session, _ = self._introduced(key, "")
            record = _record_of(key, session, self.dialect.zone)
            if stored is not None and stored.record is not None:
                commands += self._indexing(key, stored.record, b"SREM")
            commands += self._indexing(key, record, b"SADD")
            agent = str(record["agent_id"])
            new_agent = agent_record(key.user, agent, datetime.now(UTC))
            new_agent |= {name: _local(new_agent[name], self.dialect.zone) for name in _TIMES}
            made = jsonio.dumps(new_agent)
            commands.append((b"SET", self.key_of(key.user, "agent", agent), made, b"NX"))
        if record is not None:
            with_summary(session, new.memory.summary, before)
            text = _text(record, session, context_texts(entries, known, messages))
            commands.append((b"SET", place.key, text, b"KEEPTTL"))
        commands += _logging(place.key, stored, _logged(there), _logged(messages))
        return [*commands, *_expiring(place.key, stored, ttl)]

    def _introduced(self, key: MemoryKey, extra: str) -> tuple[Session, list[Entry]]:
        """Return the session that ``Memory.extra`` describes, and the entries of its context.

        If ``extra`` is empty, returns a new session with an empty context.

        Raises:
            Rejected: ``extra`` does not describe a session.
        """
        if not extra:
            return new_session(key.session, self.agent, datetime.now(UTC)), []
        try:
            session, entries = parse_extra(extra)
        except NotASession as error:
            raise Rejected("refused", str(error)) from error
        return session, entries or []

    def fitted(self, edit: Edit, there: Snapshot) -> Edit:
        return replace(edit, changes=in_log_order(edit.changes, [one.id for one in there.messages]))

    def before(self, pipeline: Pipeline, memory: Memory) -> str:
        session, _ = self._introduced(memory.key, memory.extra)
        agent = str(session.record.get("agent_id") or self.agent)
        [exists] = pipeline.execute([(b"EXISTS", self.key_of(memory.key.user, "agent", agent))])
        return MADE if exists else _MADE_AGENT + agent

    def lost(self, old: Held, new: Memory) -> str:
        assert isinstance(old.kept, StoredSession)
        found = lost_summary(old.kept.session, new.summary)
        return json.dumps(found) if found else ""

    def removing(
        self, pipeline: Pipeline, place: MemoryPlace, old: Held, before: str
    ) -> list[Command]:
        stored, user = old.kept, old.memory.key.user
        assert isinstance(stored, StoredSession)
        commands: list[Command] = [(b"UNLINK", *self.watched(place))]
        if stored.record is not None:
            commands += self._indexing(old.memory.key, stored.record, b"SREM")
            agent = str(stored.record.get("agent_id"))
            if before == _MADE_AGENT + agent:
                sessions = self.key_of(user, "agent", agent, "sessions")
                # Watch the set, so that the agent gets no session meanwhile.
                _, count = pipeline.execute([(b"WATCH", sessions), (b"SCARD", sessions)])
                if count <= 1:
                    commands.append((b"UNLINK", self.key_of(user, "agent", agent)))
                    commands.append((b"SREM", self.key_of(user, "agents"), encode(agent)))
        return commands

    def erasing(
        self, pipeline: Pipeline, place: MemoryPlace, owner: MemoryKey, old: Held | None
    ) -> list[Command]:
        """Return the commands that erase a session and each key or value that refers to it.

        These are members of index sets, keys whose value is the session, and a team that the
        session leads.
        """
        session = encode(owner.session)
        agents, lookups = self._lookups(pipeline, owner.user)
        found = pipeline.execute((b"GET", key) for key in lookups)
        ours = [key for key, value in zip(lookups, found, strict=True) if value == session]
        commands: list[Command] = [(b"UNLINK", *self.watched(place), *ours)]
        commands += (
            (b"SREM", self.key_of(owner.user, "agent", one, "sessions"), session) for one in agents
        )
        stored = old.kept if old else None
        if isinstance(stored, StoredSession) and stored.record is not None:
            commands += self._indexing(owner, stored.record, b"SREM")
            commands += self._dissolving(pipeline, owner, stored.record.get("team_id"))
        return commands

    def _lookups(self, pipeline: Pipeline, user: str) -> tuple[list[str], list[bytes]]:
        """Return the ids of a user's agents, and the key ``:session`` of each agent.

        The value of this key, if the key exists, is the id of a session.
        """
        [members] = pipeline.execute(
            [(b"SMEMBERS", self.key_of(user, "agents"))], tolerate=WRONG_TYPE
        )
        agents = [] if isinstance(members, ResponseError) else sorted(map(decode, members))
        return agents, [self.key_of(user, "agent", one, "session") for one in agents]

    def _dissolving(self, pipeline: Pipeline, owner: MemoryKey, team: Any) -> list[Command]:
        if not isinstance(team, str):
            return []
        key = self.key_of(owner.user, "team", team)
        [text] = pipeline.execute([(b"GET", key)], tolerate=WRONG_TYPE)
        if not isinstance(text, bytes) or jsonio.loads(text).get("session_id") != owner.session:
            return []
        return [(b"UNLINK", key), (b"SREM", self.key_of(owner.user, "teams"), encode(team))]

    def moving(
        self, pipeline: Pipeline, place: MemoryPlace, target: MemoryPlace, held: Held
    ) -> list[Command]:
        """Return the commands that rename a session, and each key or value that refers to it."""
        old, new = held.memory.key, target.memory
        commands = moved(pipeline, self.watched(place), place.key, target.key)
        [text] = pipeline.execute([(b"GET", place.key)])
        if text is not None:
            names = [("id",), ("state", "session_id")]
            commands.append((b"SET", target.key, _renamed(text, names, old, new), b"KEEPTTL"))
        agents, lookups = self._lookups(pipeline, old.user)
        sets = [self.key_of(old.user, "agent", one, "sessions") for one in agents]
        stored = held.kept
        if isinstance(stored, StoredSession) and stored.record is not None:
            sets += [key for _, key, _ in self._indexing(old, stored.record, b"SREM")]
            commands += self._renamed_team(pipeline, old, new, stored.record.get("team_id"))
        session, name = encode(old.session), encode(new.session)
        members = pipeline.execute((b"SISMEMBER", key, session) for key in sets)
        for key in compress(sets, members):
            commands += [(b"SREM", key, session), (b"SADD", key, name)]
        values = pipeline.execute((b"GET", key) for key in lookups)
        ours = (key for key, value in zip(lookups, values, strict=True) if value == session)
        return [*commands, *((b"SET", key, name, b"KEEPTTL") for key in ours)]

    def _renamed_team(
        self, pipeline: Pipeline, old: MemoryKey, new: MemoryKey, team: Any
    ) -> list[Command]:
        if not isinstance(team, str):
            return []
        key = self.key_of(old.user, "team", team)
        [text] = pipeline.execute([(b"GET", key)], tolerate=WRONG_TYPE)
        if not isinstance(text, bytes):
            return []
        return [(b"SET", key, _renamed(text, [("session_id",)], old, new), b"KEEPTTL")]

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename sessions each by itself, and a user with all keys at once."""
        users = {old.user: new.user for old, new in moves.items() if old.user != new.user}
        if not users:
            async with aclosing(super().rename(moves)) as results:
                async for result in results:
                    yield result
        for old, new in users.items():
            async with self.server.pipeline() as pipeline:
                failure = await in_thread(pipeline, partial(self._move_user, pipeline, old, new))
            for key in moves:
                if key.user == old:
                    yield WriteResult(key, failure=failure)

    def _move_user(self, pipeline: Pipeline, old: str, new: str) -> Failure | None:
        start, target = self.key_of(old, ""), self.key_of(new, "")
        for other in self.users(pipeline):
            if other.startswith(f"{old}:"):
                return Failure("refused", f"keys of {old!r} may be those of {other!r}")
        keys = sorted(set(scan(pipeline, escape(start) + b"*")))
        try:
            commands = moved(pipeline, keys, start, target)
        except Rejected as rejected:
            pipeline.execute([(b"UNWATCH",)])
            return rejected.failure
        found = pipeline.execute(((b"GET", key) for _, key, _ in commands), tolerate=WRONG_TYPE)
        names = MemoryKey(old, ""), MemoryKey(new, "")
        for (_, _, key), text in zip(list(commands), found, strict=True):
            if isinstance(text, bytes) and text.startswith(b"{"):
                commands.append((b"SET", key, _renamed(text, [], *names), b"KEEPTTL"))
        return None if pipeline.commit(commands) else CHANGED

    def users(self, pipeline: Pipeline) -> Iterator[str]:
        start = self._prefix + b"user:"
        for key in scan(pipeline, escape(start) + b"*:agents", b"set"):
            yield decode(key.removeprefix(start).removesuffix(b":agents"))

    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:
        """Return the commands that delete the agents and teams of a user."""
        agents, lookups = self._lookups(pipeline, user)
        [teams] = pipeline.execute([(b"SMEMBERS", self.key_of(user, "teams"))])
        keys = [self.key_of(user, "agents"), self.key_of(user, "teams"), *lookups]
        keys += (self.key_of(user, "team", decode(team)) for team in teams)
        for agent in agents:
            keys += self.key_of(user, "agent", agent), self.key_of(user, "agent", agent, "sessions")
        return [(b"UNLINK", *keys)]

    def _indexing(self, key: MemoryKey, record: dict[str, Any], command: bytes) -> list[Command]:
        """Return SADD or SREM commands for the index sets of a session."""
        agent, session = str(record.get("agent_id")), encode(key.session)
        commands: list[Command] = [
            (command, self.key_of(key.user, "agent", agent, "sessions"), session)
        ]
        if command == b"SADD":
            commands.append((b"SADD", self.key_of(key.user, "agents"), encode(agent)))
        match record.get("origin"):
            case {"type": "schedule", "schedule_id": str(id)}:
                commands.append(
                    (command, self.key_of(key.user, "schedule", id, "sessions"), session)
                )
            case {"type": "channel", "channel_id": str(id)}:
                commands.append(
                    (command, self.key_of(key.user, "channel", id, "sessions"), session)
                )
        return commands


# Records


def _renamed(
    text: bytes, paths: Iterable[tuple[str, ...]], old: MemoryKey, new: MemoryKey
) -> bytes:
    """Return a record with the new names of its user, and of its session at ``paths``."""
    named = [(path, old.session, new.session) for path in paths]
    try:
        return with_names(text, [(("user_id",), old.user, new.user), *named])
    except ValueError as error:
        raise Rejected("damaged", f"a record is not JSON: {error}") from error


def _common(value: dict[str, Any], zone: tzinfo | None) -> dict[str, Any]:
    """Return the fields of a Redis record that are columns in SQL (``COLUMNS``), times in UTC.

    ``zone`` is the zone of times without one; None for the local zone.
    """
    origin = value.get("origin")
    found: dict[str, Any] = {"agent_id": value.get("agent_id"), "source": value.get("source")}
    found["source_schedule_id"] = value.get("source_schedule_id")
    if isinstance(origin, dict):
        found["source"] = origin.get("type")
        found["source_schedule_id"] = origin.get("schedule_id")
    found["team_id"] = value.get("team_id")
    return found | {name: _utc(value[name], zone) for name in _TIMES if name in value}


def _payload(value: dict[str, Any]) -> dict[str, Any]:
    others = (*_IDENTITY, *_TIMES, *_SOURCE, "agent_id", "team_id")
    return {name: found for name, found in value.items() if name not in others}


def _record_of(key: MemoryKey, session: Session, zone: tzinfo | None) -> dict[str, Any]:
    common = session.record
    kept = ("agent_id", "team_id", *(() if "origin" in session.payload else _SOURCE))
    times = {name: _local(common[name], zone) for name in _TIMES if name in common}
    named = {"id": key.session, "user_id": key.user}
    return named | times | {name: common.get(name) for name in kept} | session.payload


def _text(record: dict[str, Any], session: Session, context: Iterable[bytes]) -> bytes:
    """Return a record as JSON, with the state of ``session`` and a new context."""
    if (spliced := session.spliced(context)) is not None:
        return spliced
    there = record.get("state") or {}
    token = secrets.token_hex(16)
    found = session.state | {"summary": session.summary, "context": token}
    state = {name: found[name] for name in dict.fromkeys((*there, *found)) if name in found}
    before, _, after = jsonio.dumps(record | {"state": state}).partition(f'"{token}"'.encode())
    return with_context(before, context, after)


def _local(time: Any, zone: tzinfo | None) -> Any:
    """Convert an ISO time to local time without a zone, as AgentScope writes times in ``zone``.

    Any other value is returned unchanged.
    """
    return _moved(time, lambda moment: moment.astimezone(zone).replace(tzinfo=None))


def _utc(time: Any, zone: tzinfo | None) -> Any:
    """Reverse ``_local``."""
    return _moved(
        time,
        lambda moment: (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC),
    )


def _moved(time: Any, move: Callable[[datetime], datetime]) -> Any:
    try:
        return move(datetime.fromisoformat(time)).isoformat()
    except (TypeError, ValueError, OverflowError):
        return time


def _needs_record(new: Snapshot, *, is_log: bool) -> bool:
    """Return whether a memory needs a record, because a message log alone cannot hold it.

    ``is_log`` is True if the stored session has a message log and no record.
    """
    in_context = any(COMPRESSED not in message.marks for message in new.messages)
    is_log |= bool(new.messages) and all(one.shape == _LOG_ALONE for one in new.messages)
    return not is_log or bool(new.memory.summary or new.memory.extra) or in_context


# Logs


def _id_of(text: bytes, name: str) -> str:
    try:
        return jsonio.field(jsonio.utf8(text), "id") or ""
    except ValueError as error:
        raise BadData(f"{name} is damaged: a message of its log is not valid: {error}") from error


def _logged(messages: list[StoredMessage]) -> list[StoredMessage]:
    return [one for one in messages if not is_unlogged(one)]


def _logging(
    base: bytes,
    stored: StoredSession | None,
    before: list[StoredMessage],
    messages: list[StoredMessage],
) -> Iterator[Command]:
    """Yield the Redis commands that change the message log from ``before`` to ``messages``.

    ``base`` is the key of the session.  The messages at the beginning that are equal in both stay.

    Raises:
        Rejected: a message has an unknown mark, or an id that no key can hold.
    """
    for message in messages:
        if not MARKS.issuperset(message.marks):
            mark = next(mark for mark in message.marks if mark not in MARKS)
            raise Rejected("refused", f"AgentScope 2.x has no mark {mark!r}")
    same = 0
    for old, new in zip(before, messages, strict=False):
        if old.message != new.message:
            break
        same += 1
    key, ids = base + MESSAGES, base + IDS
    more = messages[same:]
    if 0 < same < len(before):
        yield (b"LTRIM", key, b"0", b"%d" % (same - 1))
    for start in range(0, len(more), _PUSHED):
        yield (b"RPUSH", key, *(one.message for one in more[start : start + _PUSHED]))
    if same == 0 and before:  # trim last, so that the list keeps its expiry
        yield (b"LTRIM", key, b"%d" % len(before), b"-1")
    if stored is None or stored.indexed or not before:
        there, here = {one.id for one in before}, {one.id for one in messages}
        # Add before removing, so that the set keeps its expiry.
        for command, some in ((b"SADD", here - there), (b"SREM", there - here)):
            names = [_encoded(id) for id in sorted(some)]
            for start in range(0, len(names), _PUSHED):
                yield (command, ids, *names[start : start + _PUSHED])


def _encoded(id: str) -> bytes:
    name = encode_or_none(id)
    if name is None:
        raise Rejected("refused", f"no key can hold the message id {id!r}")
    return name


def _seconds_left(expiries: Sequence[int]) -> float | None:
    """Return the seconds until a session expires; None if it does not expire.

    ``expiries`` are the replies of PTTL for the keys of the session.
    """
    ttl = next((one for one in expiries if one != _MISSING), _NEVER)
    return ttl / 1000 if ttl >= 0 else None


def _expiring(base: bytes, stored: StoredSession | None, ttl: int | None) -> Iterator[Command]:
    """Yield the commands that set the expiry of all keys of a session to ``ttl`` milliseconds.

    If ``ttl`` is None, existing keys keep their expiry, and new keys get the longest expiry of the
    existing keys.  ``base`` is the key of the session.
    """
    keys = base, base + MESSAGES, base + IDS
    if ttl is not None:
        yield from ((b"PEXPIRE", key, b"%d" % ttl) for key in keys)
    elif stored is not None:
        left = max(stored.expiries)
        for key, one in zip(keys, stored.expiries, strict=True):
            if one == _MISSING and left > 0:
                yield (b"PEXPIRE", key, b"%d" % left)


def _holds_object(pipeline: Pipeline, key: bytes) -> bool:
    """Return whether the value of a key is a JSON object, as text."""
    [text] = pipeline.execute([(b"GET", key)], tolerate=WRONG_TYPE)
    return isinstance(text, bytes) and jsonio.is_object(text)


# Findings

_APART = 60_000
"""The tolerated difference between the TTLs of a session, in milliseconds."""


class SessionMaintenance(Maintenance):
    """The checks of sessions in Redis: records, message logs, contexts, expiries and index sets."""

    store: RedisAgentScope2Store

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        async with self.store.server.pipeline() as pipeline:
            sessions = partial(self._sessions, pipeline, where)
            async for finding in items_in_thread(pipeline, sessions):
                yield finding
            if where.leads and not where.sessions and where.keys is None:
                for finding in await in_thread(pipeline, partial(self._stale, pipeline, where)):
                    yield finding

    def _sessions(self, pipeline: Pipeline, where: Selection) -> Iterator[list[Finding]]:
        for place in self.store.places(pipeline, where):
            try:
                held = self.store.fetch(pipeline, place)
            except (BadData, Rejected):
                continue  # ``check`` reports the damage
            if held is not None and where.has_key(held.memory.key):
                yield list(_findings_of(held))

    def _stale(self, pipeline: Pipeline, where: Selection) -> list[Finding]:
        """Return findings for index sets whose agents or sessions are missing."""
        found = []
        start = self.store.server.prefix
        for name, ending in (("agent", b":agents"), ("session", b":sessions")):
            stale: list[str] = []
            pattern = escape(encode(start) + b"user:") + b"*" + ending
            for key in sorted(set(scan(pipeline, pattern, b"set"))):
                user = decode(key).removeprefix(f"{start}user:")
                user = user.removesuffix(":agents").partition(":agent:")[0]
                if (where.users and user not in where.users) or b":schedule:" in key:
                    continue
                [members] = pipeline.execute([(b"SMEMBERS", key)])
                ids = sorted(map(decode, members))
                keys = [self.store.key_of(user, name, id) for id in ids]
                there = pipeline.execute((b"EXISTS", key) for key in keys)
                stale += [id for id, one in zip(ids, there, strict=True) if not one]
            if stale:
                examples = tuple(stale[:3])
                detail = f"{name}s"
                found.append(Finding("session-index-expired", None, len(stale), examples, detail))
        return found


def _findings_of(held: Held) -> Iterator[Finding]:
    key, stored = held.memory.key, held.kept
    assert isinstance(stored, StoredSession)
    if stored.record is None:
        yield Finding("session-record-missing", key)
        return
    log = {message.id for message in _logged(held.messages)}
    yield from context_findings(key, stored.session.context, log)
    left = [one for one in stored.expiries if one != _MISSING]
    some_never = _NEVER in left and max(left) > 0
    if some_never or (_NEVER not in left and max(left) - min(left) > _APART):
        yield Finding("session-expires-apart", key)
