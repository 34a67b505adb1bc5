"""The states that the state service of agentscope-runtime keeps in Redis, one for each round.

Source: ``engine/services/agent_state/redis_state_service.py`` of agentscope-runtime 1.0.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from functools import partial

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import WRONG_TYPE, Pipeline, in_thread, scan
from memctl.engines.redis.text import decode, encode, encode_or_none, escape
from memctl.layouts.redis.store import RedisStore
from memctl.layouts.redis.whole import expiring_unread
from memctl.location import Location, visible
from memctl.model import Finding, MemoryKey, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, OpenMode
from memctl.storekit.read_only import RetiredStore
from memctl.stores.states.document import Document
from memctl.stores.states.memories import DocumentIndex, MemoryPart
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.redis import key_name, seconds
from memctl.stores.states.store import StateReader

_STATE = b"user_state:"
LATEST = "latest"
"""The path of the round with the highest number."""


class Round(OwnedDocument, frozen=True):
    """The document with the state of one round of a session.

    ``name`` is the number of the round.  ``several`` is True if the session has other rounds.
    """

    name: str = ""
    several: bool = False


class RuntimeStateStore(RetiredStore, RedisStore, StateReader):
    """The states of agentscope-runtime: a hash for each session, with a field for each round.

    The key of the hash is ``user_state:{user}:{session}``.  The user ends at the first ``:`` after
    ``user_state:``, unless the selection names another user.  The state of a round is a document
    with memories.  If a session has several rounds, the part of a memory key begins with the number
    of the round, such as ``2`` or ``2:agent.memory``.  The option ``?path=`` chooses a round in the
    same form, or the round ``latest``.  All rounds of a session expire together.  Reading changes
    no TTL.
    """

    kind = "redis-runtime-state"
    lock_name = "runtime-state"
    features = Features(
        summaries=True,
        ttl=True,
        empty=True,
        duplicate_ids=True,
        mark_order=True,
        parts=True,
        retired=True,
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._start = encode(self.server.prefix) + _STATE
        head, _, path = (self.path or "").partition(":")
        self._chosen = head if head.isdigit() or head == LATEST else None
        if self._chosen is not None:
            self.path = path or None
        self._claimed: dict[bytes, MemoryKey] = {}
        """The user and session of keys that can be read in several ways, if known."""

    # Names

    def _key(self, user: str, session: str) -> bytes | None:
        one, other = encode_or_none(user), encode_or_none(session)
        return None if one is None or other is None else self._start + one + b":" + other

    def _owners(self, key: bytes) -> Iterator[MemoryKey]:
        name = decode(key.removeprefix(self._start))
        at = name.find(":")
        while at >= 0:
            yield MemoryKey(name[:at], name[at + 1 :])
            at = name.find(":", at + 1)

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Read ambiguous Redis keys as the keys of these users and sessions.

        A Redis key is ambiguous if it has a further ``:`` in the name of the user or session.
        """
        for key in keys:
            place = self._key(key.user, key.session)
            if place is not None and place.count(b":") - self._start.count(b":") > 1:
                self._claimed.setdefault(place, key._replace(part=""))

    def maintenance(self) -> Maintenance:
        return _StateMaintenance(self)

    # Reading

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        async with self.server.pipeline() as pipeline:
            for key, owner in await in_thread(pipeline, partial(self._hashes, pipeline, where)):
                rounds = self._selected(await in_thread(pipeline, partial(_rounds, pipeline, key)))
                for name in rounds:
                    get = partial(_field, pipeline, key, encode(name))
                    document = await in_thread(pipeline, get)
                    if document.exists:
                        yield Round(document, owner[:2], None, name, len(rounds) > 1)
                    await document.close()

    def _selected(self, rounds: list[str]) -> list[str]:
        if self._chosen == LATEST:
            return rounds[-1:]
        return rounds if self._chosen is None else [one for one in rounds if one == self._chosen]

    def _hashes(self, pipeline: Pipeline, where: Selection) -> list[tuple[bytes, MemoryKey]]:
        if where.keys is not None:
            asked = {key._replace(part="") for key in where.keys}
            named = [(self._key(*owner[:2]), owner) for owner in asked]
            return sorted((key, owner) for key, owner in named if key is not None)
        found = []
        for key in set(scan(pipeline, escape(self._start) + b"*", b"hash")):
            claimed = self._claimed.get(key)
            owners = self._owners(key) if claimed is None else [claimed]
            owner = next((one for one in owners if where.has_key(one)), None)
            if owner is not None:
                found.append((key, owner))
        return sorted(found)

    def _named(
        self, owned: OwnedDocument, index: DocumentIndex, where: Selection
    ) -> list[tuple[MemoryKey, MemoryPart]]:
        assert isinstance(owned, Round)
        parts = [part for part in index.parts.values() if self.path in (None, part.path)]
        named = []
        for part in parts:
            path = part.path if len(parts) > 1 else ""
            names = [owned.name, path] if owned.several else [path]
            key = MemoryKey(*owned.owner, ":".join(filter(None, names)))
            if where.has_key(key):
                named.append((key, part))
        return named

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.server.pipeline() as pipeline:
            for _, owner in await in_thread(pipeline, partial(self._hashes, pipeline, where)):
                yield owner

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Remove the hashes of the selected sessions, with all rounds."""
        messages: Counter[MemoryKey] = Counter()
        async with aclosing(self.list_memories(where)) as infos:
            async for info in infos:
                messages[info.key._replace(part="")] += info.messages
        async with self.server.pipeline() as pipeline:
            for key, owner in await in_thread(pipeline, partial(self._hashes, pipeline, where)):
                await in_thread(pipeline, partial(pipeline.execute, [(b"UNLINK", key)]))
                yield WriteResult(owner, deleted=messages[owner])


def _rounds(pipeline: Pipeline, key: bytes) -> list[str]:
    [fields] = pipeline.execute([(b"HKEYS", key)], tolerate=WRONG_TYPE)
    if isinstance(fields, ResponseError):
        return []
    return sorted(map(decode, fields), key=lambda name: (len(name), name))


def _field(pipeline: Pipeline, key: bytes, field: bytes) -> Document:
    data, ttl = pipeline.execute([(b"HGET", key, field), (b"PTTL", key)])
    return Document(_field_name(key, field), data, seconds(ttl))


def _field_name(key: bytes, field: bytes) -> str:
    return f"{key_name(key)}, field {visible(decode(field))}"


class _StateMaintenance(Maintenance):
    """The checks of each store, and a check for states that will expire."""

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        async with aclosing(self.store.headers(where)) as memories:
            left = [memory.ttl async for memory in memories if memory.ttl is not None]
        for finding in expiring_unread(left):
            yield finding
