"""The sessions of AgentScope Java in Redis.

The keys of a session begin with ``{prefix}USER/SESSION``.  A value has the key ``:KEY``, and its
version the key ``:KEY:ver``.  A list has the key ``:KEY:list``, and its hash ``:KEY:list:_hash``.
The set ``:_keys`` has ``KEY`` for each value, and ``KEY:list`` for each list.

Sources in agentscope-java of 22 August 2026: ``RedisAgentStateStore.java`` and
``RedisStateVersionSupport.java`` of agentscope-extensions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress

from msgspec.structs import replace

from memctl.dialects.agentscope_java import AGENTSCOPE_JAVA
from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.text import decode, encode, escape
from memctl.errors import BadData
from memctl.layouts.redis.keyspace import JAVA_PREFIX
from memctl.layouts.redis.whole import Held, MemoryPlace, WholeMemoryStore, moved
from memctl.location import Location
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope_java.session import (
    FEATURES,
    LIST,
    STATE,
    Kept,
    Naming,
    changed,
    idle_seconds,
    read,
    refuse_at_work,
    warn_of_hidden,
    with_new_names,
)

_NAMING = Naming("/")
_KEYS, _LIST, _VERSION, _HASH = b":_keys", b":list", b":ver", b":_hash"
_STATE = f":{STATE}".encode()
_MESSAGES = f":{LIST}".encode() + _LIST


class RedisAgentScopeJavaStore(WholeMemoryStore):
    """The sessions of AgentScope Java in Redis, each replaced in one transaction."""

    kind = "redis-java"
    lock_name = "java"
    dialect = AGENTSCOPE_JAVA
    features = replace(FEATURES, parallel=True)

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        idle_seconds(location)  # an error at once
        if "prefix" not in location.options:
            self.server.prefix = JAVA_PREFIX.decode()
        self._prefix = encode(self.server.prefix)

    def maintenance(self) -> Maintenance:
        return JavaMaintenance(self)

    # Names

    def place_of(self, key: MemoryKey) -> MemoryPlace:
        if failure := _NAMING.refusal(key):
            raise Rejected(failure.code, failure.message)
        return MemoryPlace(self._prefix + encode(_NAMING.name(key)), key, asked=True)

    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        if where.keys is None:
            start = escape(self._prefix) + b"*"
            names = {key.removesuffix(_KEYS) for key in scan(pipeline, start + _KEYS, b"set")}
            names |= {key.removesuffix(_STATE) for key in scan(pipeline, start + _STATE, b"string")}
        else:
            places = self.named(filter(where.has_key, where.keys))
            wanted = sorted({name for one in places for name in (one.key, self._plain(one))})
            commands = ((b"EXISTS", name + _KEYS, name + _STATE) for name in wanted)
            names = {*compress(wanted, pipeline.execute(commands))}
        found = [MemoryPlace(name, _NAMING.key(self._name(name))) for name in sorted(names)]
        named = {one.memory for one in found if one.key != self._plain(one)}
        hidden = {one for one in found if one.key == self._plain(one) and one.memory in named}
        warn_of_hidden(self, [one.memory for one in hidden])
        return [one for one in found if one not in hidden]

    def _plain(self, place: MemoryPlace) -> bytes:
        """Return the name of a session in AgentScope Java 1, if it has no user; else no name."""
        user, session, _ = place.memory
        return b"" if user else self._prefix + encode(session)

    def _name(self, key: bytes) -> str:
        return decode(key.removeprefix(self._prefix))

    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        return tuple(place.key + end for end in (_STATE, _STATE + _VERSION, _KEYS, _MESSAGES))

    def members(self, pipeline: Pipeline, place: MemoryPlace) -> list[bytes]:
        """Return the keys of a session in its set; a list has ``:list`` behind its key."""
        [found] = pipeline.execute([(b"SMEMBERS", place.key + _KEYS)], tolerate=WRONG_TYPE)
        if isinstance(found, Exception):
            raise BadData(f"{self._name(place.key + _KEYS)!r} is not a set")
        return sorted(found)

    # Rewriting

    def text_keys(self, pipeline: Pipeline) -> Iterator[bytes]:
        for place in self.places(pipeline, Selection()):
            keys = {*scan(pipeline, escape(place.key) + b":*")}
            yield from sorted(key for key in keys if not key.endswith((_KEYS, _VERSION, _HASH)))

    def with_text(self, key: bytes) -> Iterable[Command]:
        return [(b"INCR", key + _VERSION)] if key.endswith(_STATE) else []

    # Memories

    def _kept(self, pipeline: Pipeline, place: MemoryPlace) -> Kept:
        names = sorted({*self.members(pipeline, place), STATE.encode()})
        keys = [place.key + b":" + name for name in names]
        commands: list[Command] = [
            (b"LRANGE", key, b"0", b"-1") if key.endswith(_LIST) else (b"GET", key) for key in keys
        ]
        found = Kept()
        values = pipeline.execute(commands, tolerate=WRONG_TYPE)
        for name, value in zip(names, values, strict=True):
            if isinstance(value, Exception):
                raise BadData(f"its {decode(name)} is a value of another type")
            if value:
                found[decode(name.removesuffix(_LIST))] = value
        return found

    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        kept = self._kept(pipeline, place)
        owner = _NAMING.key(self._name(place.key), kept.get(STATE))
        found = read(owner, kept)
        if found is not None and place.asked and owner != place.memory:
            raise Rejected("bad-name", f"the key of {place.memory} is that of {owner}")
        return None if found is None else Held(found.memory, found.messages)

    def replacing(
        self,
        pipeline: Pipeline,
        place: MemoryPlace,
        old: Held | None,
        new: Snapshot,
        before: str = "",  # noqa: ARG002 - nothing is lost
    ) -> list[Command]:
        there = old or Snapshot(new.memory, exists=False)
        refuse_at_work(self, there, new)
        commands: list[Command] = []
        for name, value in changed(self._kept(pipeline, place), there, new).items():
            key = place.key + b":" + encode(name)
            if isinstance(value, bytes):
                commands += [(b"SET", key, value, b"KEEPTTL"), (b"INCR", key + _VERSION)]
                commands.append((b"SADD", place.key + _KEYS, encode(name)))
            elif value:
                commands += [(b"UNLINK", key + _LIST), (b"RPUSH", key + _LIST, *value)]
                commands.append((b"SADD", place.key + _KEYS, encode(name) + _LIST))
        return commands

    def removing(
        self,
        pipeline: Pipeline,
        place: MemoryPlace,
        old: Held,
        before: str,  # noqa: ARG002 - the session is removed whole
    ) -> list[Command]:
        return self.erasing(pipeline, place, old.memory.key, old)

    # Erasing

    def erasing(
        self,
        pipeline: Pipeline,
        place: MemoryPlace,
        owner: MemoryKey,  # noqa: ARG002 - the place suffices
        old: Held | None,  # noqa: ARG002
    ) -> list[Command]:
        starts = filter(None, {place.key, self._plain(place)})
        return [(b"UNLINK", *sorted(key for one in starts for key in self._keys(pipeline, one)))]

    def _keys(self, pipeline: Pipeline, start: bytes) -> set[bytes]:
        members = self.members(pipeline, MemoryPlace(start, MemoryKey("", "")))
        names = {b":" + name for name in members} | {_STATE}
        keys = {start + name + end for name in names for end in (b"", _VERSION, _HASH)}
        return keys | {start + _KEYS}

    def moving(
        self, pipeline: Pipeline, place: MemoryPlace, target: MemoryPlace, held: Held
    ) -> list[Command]:
        kept = self._kept(pipeline, place)
        keys = sorted(self._keys(pipeline, place.key))
        commands = moved(pipeline, keys, place.key, target.key)
        state = kept.get(STATE)
        if isinstance(state, bytes):
            state = with_new_names(state, held.memory.key, target.memory)
            commands.append((b"SET", target.key + _STATE, state, b"KEEPTTL"))
        return commands

    def users(self, pipeline: Pipeline) -> Iterator[str]:  # noqa: ARG002 - only sessions have users
        return iter(())

    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:  # noqa: ARG002
        return []


class JavaMaintenance(Maintenance):
    """The checks of the sets of keys."""

    store: RedisAgentScopeJavaStore

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        async with self.store.server.pipeline() as pipeline:
            for finding in await in_thread(pipeline, partial(self._stale, pipeline, where)):
                yield finding

    def _stale(self, pipeline: Pipeline, where: Selection) -> list[Finding]:
        found = []
        for place in self.store.places(pipeline, where):
            names = self.store.members(pipeline, place)
            keys = [place.key + b":" + name for name in names] + [place.key + _STATE]
            *there, state = pipeline.execute((b"EXISTS", key) for key in keys)
            wrong = [name for name, exists in zip(names, there, strict=True) if not exists]
            if state and STATE.encode() not in names:
                wrong.append(STATE.encode())
            if wrong and where.has_key(place.memory):
                examples = tuple(map(decode, wrong[:3]))
                found.append(Finding("state-keys-stale", place.memory, len(wrong), examples))
        return found
