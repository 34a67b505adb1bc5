"""Session histories and memories of the services of agentscope-runtime in Redis.

Sources: ``engine/services/session_history/redis_session_history_service.py`` and
``engine/services/memory/redis_memory_service.py`` of agentscope-runtime 1.0.5.  Version 0.2.0 also
keeps a set ``session_index:{user}``, and sets no expiry.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Any

from memctl.dialects.runtime import RUNTIME
from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.text import decode, encode, encode_or_none, escape
from memctl.errors import BadData
from memctl.json import jsonio
from memctl.layouts.redis.whole import Held, MemoryPlace, WholeMemoryReader, expiring_unread
from memctl.location import Location, visible
from memctl.model import Finding, Memory, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import Features, Maintenance, OpenMode
from memctl.storekit.read_only import RetiredStore
from memctl.storekit.simple import Rejected
from memctl.stores.runtime.paths import HISTORY, MEMORY, path_of

_SESSION = b"session:"
_MEMORY = b"user_memory:"
_INDEX = b"session_index:"


class RuntimeStore(RetiredStore, WholeMemoryReader):
    """Memories in the strings ``session:{user}:{session}`` and the hashes ``user_memory:{user}``.

    A string has the history of a session.  A field of a hash has a session's messages in the memory
    service, which are the part ``memory`` of the session.  All sessions in a hash expire together.
    With ``?path=history`` or ``?path=memory``, only these messages are available, without a part.

    The names of users and sessions may contain ``:``.  If a history has the fields ``user_id`` and
    ``id``, they name the user and the session.  If not, the user ends at the first ``:`` of the
    key.  Reading changes no expiry.
    """

    kind = "redis-runtime"
    lock_name = "runtime"
    dialect = RUNTIME
    features = Features(
        marks=frozenset(),
        ttl=True,
        empty=True,
        duplicate_ids=True,
        parts=True,
        retired=True,
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._prefix = encode(self.server.prefix)
        self._path = path_of(location)

    def maintenance(self) -> Maintenance:
        return _RuntimeMaintenance(self)

    # Names

    @property
    def _part(self) -> str:
        """The part of the memory service's memories: ``memory``; empty with ``?path=memory``."""
        return "" if self._path == MEMORY else MEMORY

    def place_of(self, key: MemoryKey) -> MemoryPlace:
        user, session = encode_or_none(key.user), encode_or_none(key.session)
        if user is None or session is None:
            raise Rejected("bad-name", f"{key} has half of a surrogate pair in its name")
        if MEMORY in (key.part, self._path) and key.part in ("", self._part):
            return MemoryPlace(self._prefix + _MEMORY + user, key, session, asked=True)
        if key.part:
            text = f"a session has a history and the part {MEMORY!r}, not {key.part!r}"
            raise Rejected("bad-name", text)
        return MemoryPlace(self._prefix + _SESSION + user + b":" + session, key, asked=True)

    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        if where.keys is not None:
            found = self.named(key for key in where.keys if where.has_key(key))
        else:
            found = []
            if self._path != MEMORY:
                found += self._histories(pipeline, where)
            if self._path != HISTORY and (not where.parts or MEMORY in where.parts):
                found += self._memories(pipeline, where)
        return sorted(found, key=lambda place: place.order)

    def _histories(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        user = encode_or_none(next(iter(where.users))) if len(where.users) == 1 else None
        pattern = escape(self._prefix + _SESSION) + (b"*" if user is None else escape(user))
        keys = set(scan(pipeline, pattern + b":*", b"string"))
        return [MemoryPlace(key, self._split(key)) for key in keys]

    def _split(self, key: bytes) -> MemoryKey:
        user, _, session = key.removeprefix(self._prefix + _SESSION).partition(b":")
        return MemoryKey(decode(user), decode(session))

    def _memories(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        found = []
        for key in set(scan(pipeline, escape(self._prefix + _MEMORY) + b"*", b"hash")):
            user = decode(key.removeprefix(self._prefix + _MEMORY))
            if not where.users or user in where.users:
                for field in _fields(pipeline, key):
                    name = MemoryKey(user, decode(field), self._part)
                    found.append(MemoryPlace(key, name, field))
        return found

    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        return (place.key,)

    # Values

    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        get = (b"GET", place.key) if place.field is None else (b"HGET", place.key, place.field)
        text, ttl = pipeline.execute([get, (b"PTTL", place.key)], tolerate=WRONG_TYPE)
        if not isinstance(text, bytes):
            return None
        try:
            value = jsonio.loads(text)
        except ValueError as error:
            raise BadData(f"{_name(place)} is not valid JSON: {error}") from error
        owner, messages = place.memory, value
        if place.field is None:
            owner = self._owner(place, value)
            messages = value.get("messages") if isinstance(value, dict) else None
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise BadData(f"{_name(place)} holds no messages of agentscope-runtime")
        if place.asked and owner != place.memory:
            raise Rejected("bad-name", f"the key of {place.memory} is that of {owner}")
        rest = _rest(value, owner) if isinstance(value, dict) else ""
        memory = Memory(owner, ttl=ttl / 1000 if ttl >= 0 else None, extra=rest)
        return Held(memory, [_message(one) for one in messages])

    def _owner(self, place: MemoryPlace, value: Any) -> MemoryKey:
        """Return the user and session of a history, whose JSON is ``value``."""
        if isinstance(value, dict):
            told = MemoryKey(str(value.get("user_id", "")), str(value.get("id", "")))
            try:
                if self.place_of(told).key == place.key:
                    return told
            except Rejected:
                pass  # no key can have this name
        return self._split(place.key)

    # Erasing

    def erasing(
        self,
        pipeline: Pipeline,  # noqa: ARG002 - the key suffices
        place: MemoryPlace,
        owner: MemoryKey,
        old: Held | None,  # noqa: ARG002
    ) -> list[Command]:
        if place.field is not None:
            return [(b"HDEL", place.key, place.field)]
        index = self._prefix + _INDEX + encode(owner.user)
        return [(b"UNLINK", place.key), (b"SREM", index, encode(owner.session))]

    def users(self, pipeline: Pipeline) -> Iterator[str]:
        start = self._prefix + _INDEX
        for key in scan(pipeline, escape(start) + b"*", b"set"):
            yield decode(key.removeprefix(start))

    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:  # noqa: ARG002
        return [(b"UNLINK", self._prefix + _INDEX + encode(user))]

    # Findings

    def findings(self, pipeline: Pipeline, where: Selection) -> list[Finding]:
        """Return findings about names, indexes and expiry of the selected memories."""
        found: list[Finding] = []
        histories: dict[str, set[str]] = {}
        left: list[float] = []
        for place in self.places(pipeline, where):
            try:
                held = self.fetch(pipeline, place)
            except (BadData, Rejected):
                continue  # the general check reports the damage
            if held is None or not where.has_key(held.memory.key):
                continue
            key, ttl = held.memory.key, held.memory.ttl
            left += [] if ttl is None else [ttl]
            if place.field is not None:
                continue
            histories.setdefault(key.user, set()).add(key.session)
            if (
                held.memory.extra
                and {"id", "user_id"} & jsonio.loads(held.memory.extra.encode()).keys()
            ):
                found.append(Finding("owner-mismatch", key))
            elif ":" in key.user or ":" in key.session:
                found.append(Finding("ambiguous-key", key))
        found += expiring_unread(left)
        if not where.sessions and where.keys is None:
            found += self._stale_indexes(pipeline, where, histories)
        return found

    def _stale_indexes(
        self, pipeline: Pipeline, where: Selection, histories: dict[str, set[str]]
    ) -> Iterator[Finding]:
        start = self._prefix + _INDEX
        for key in sorted(set(scan(pipeline, escape(start) + b"*", b"set"))):
            user = decode(key.removeprefix(start))
            if where.users and user not in where.users:
                continue
            [members] = pipeline.execute([(b"SMEMBERS", key)])
            listed = {decode(one) for one in members}
            if where.shard is not None:
                listed = set(filter(where.shard.has_name, listed))
            wrong = listed ^ histories.get(user, set())
            if wrong:
                examples = tuple(sorted(wrong)[:3])
                yield Finding("session-index-stale", None, len(wrong), examples, f"user {user!r}")


def _name(place: MemoryPlace) -> str:
    field = "" if place.field is None else f", field {visible(decode(place.field))}"
    return f"the key {visible(decode(place.key))}{field}"


def _message(value: dict[str, Any]) -> StoredMessage:
    id = value.get("id")
    return StoredMessage(id if isinstance(id, str) else "", jsonio.dumps(value))


def _rest(value: dict[str, Any], owner: MemoryKey) -> str:
    """Return the further fields of a history as JSON; empty if there are none."""
    usual = {"id": owner.session, "user_id": owner.user, "messages": value["messages"]}
    rest = {
        name: found
        for name, found in value.items()
        if name != "messages" and (name not in usual or usual[name] != found)
    }
    return jsonio.dumps(rest).decode() if rest else ""


def _fields(pipeline: Pipeline, key: bytes) -> Iterator[bytes]:
    [fields] = pipeline.execute([(b"HKEYS", key)], tolerate=WRONG_TYPE)
    if isinstance(fields, list):
        yield from fields


class _RuntimeMaintenance(Maintenance):
    """The checks of ``doctor`` on the Redis keys of agentscope-runtime."""

    store: RuntimeStore

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        async with self.store.server.pipeline() as pipeline:
            find = partial(self.store.findings, pipeline, where)
            for finding in await in_thread(pipeline, find):
                yield finding
