"""The states that the state service of agentscope-runtime keeps in Redis, one for each round.

Source: ``engine/services/agent_state/redis_state_service.py`` of agentscope-runtime 1.0.5.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode, encode, encode_or_none, escape
from memctl.errors import Failure
from memctl.layouts.redis.whole import expiring_unread
from memctl.location import Location, visible
from memctl.model import (
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Maintenance, OpenMode
from memctl.stores.states.document import Document
from memctl.stores.states.maintenance import StateMaintenance
from memctl.stores.states.memories import DocumentIndex, MemoryPart
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft
from memctl.stores.states.watched import (
    RedisStates,
    WatchedDocument,
    WatchedDraft,
    key_name,
    seconds,
)

_STATE = b"user_state:"
_FIRST = "1"
LATEST = "latest"
"""The path of the round with the highest number."""
_UNCHOSEN = "\0"
"""Stands for the round of a memory if the session has several rounds and the key names none."""


class WatchedField(WatchedDocument):
    """A session document that is a field of a Redis hash, watched for changes of the hash."""

    def __init__(self, server: RedisServer, key: bytes, field: bytes) -> None:
        super().__init__(server, key, _field_name(key, field))
        self.field = field
        self.is_first = False
        """True if the hash does not exist yet."""

    def load(self, pipeline: Pipeline) -> bytes | None:
        commands = [(b"WATCH", self.key), (b"HGET", self.key, self.field), (b"EXISTS", self.key)]
        _, data, exists = pipeline.execute(commands)
        self.is_first = not exists
        found: bytes | None = data
        return found


class FieldDraft(WatchedDraft):
    """A draft of a new value of a field of a Redis hash.

    A new hash gets the TTL.  A hash that exists keeps its TTL.
    """

    def __init__(self, watched: WatchedField) -> None:
        super().__init__(watched)
        self._field, self._is_first = watched.field, watched.is_first

    async def replace(self, ttl: int | None) -> bool:
        key = self.watched.key
        commands: list[Command] = [(b"HSET", key, self._field, self.data())]
        if ttl is not None and self._is_first:
            commands.append((b"PEXPIRE", key, b"%d" % ttl))
        return await self.watched.replace(commands)


@dataclass(frozen=True, slots=True)
class Round(OwnedDocument):
    """The document with the state of one round of a session.

    ``name`` is the number of the round.  ``several`` is True if the session has other rounds.
    """

    name: str = _FIRST
    several: bool = False


class RuntimeStateStore(RedisStates):
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
    features = replace(RedisStates.features, retired=True)

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._names: dict[MemoryKey, MemoryKey] = {}
        """The keys of the memories being changed, by the key that ``name_of`` takes."""
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

    # Writing: the key of a memory is ``{session}\\0{round}`` and its path while it is written

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async def inner() -> AsyncGenerator[Page]:
            async for page in pages:
                yield replace(page, memory=await self._inner(page.memory, page.offset))

        async with aclosing(super().write(inner(), mode)) as results:
            async for result in results:
                yield replace(result, key=self._names.pop(result.key))

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async def inner() -> AsyncGenerator[Edit]:
            async for edit in edits:
                yield replace(edit, memory=await self._inner(edit.memory, edit.offset))

        async with aclosing(super().edit(inner())) as results:
            async for result in results:
                yield replace(result, key=self._names.pop(result.key))

    def about_to_commit(self, results: Iterable[WriteResult]) -> None:
        super().about_to_commit(replace(one, key=self._names[one.key]) for one in results)

    async def _inner(self, memory: Memory, offset: int) -> Memory:
        """Return the memory with the key that ``name_of`` takes.

        Its session includes the round, and its part is the path.  ``offset`` 0 starts a new memory.
        """
        key = memory.key
        known = next((inner for inner, outer in self._names.items() if outer == key), None)
        if known is None or offset == 0:
            round, path = await self._round(key)
            known = MemoryKey(key.user, f"{key.session}\0{round}", path)
            self._names[known] = key
        return replace(memory, key=known)

    async def _round(self, key: MemoryKey) -> tuple[str, str]:
        """Return the round of a memory, and the path of the memory in the state of this round.

        For a memory that is not stored yet, this is the round to write.  The round is ``_UNCHOSEN``
        if the session has several rounds and the key names none.
        """
        rounds: list[str] = []
        place = self._key(key.user, key.session)
        if place is not None:
            async with self.server.pipeline() as pipeline:
                rounds = await in_thread(pipeline, partial(_rounds, pipeline, place))
        if self._chosen is not None:
            newest = rounds[-1] if rounds else _FIRST
            return newest if self._chosen == LATEST else self._chosen, key.part
        head, _, path = key.part.partition(":")
        if head in rounds or head.isdigit():
            return head, path
        if len(rounds) > 1:
            return _UNCHOSEN, key.part
        return rounds[0] if rounds else _FIRST, key.part

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.server.pipeline() as pipeline:
            for _, owner in await in_thread(pipeline, partial(self._hashes, pipeline, where)):
                yield owner

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        async with aclosing(super().erase(where)) as results:
            async for result in results:
                session = result.key.session.partition("\0")[0]
                yield replace(result, key=result.key._replace(session=session))

    def key_of(self, owned: OwnedDocument) -> MemoryKey:
        assert isinstance(owned, Round)
        user, session = owned.owner
        return MemoryKey(user, f"{session}\0{owned.name}")

    def name_of(self, key: MemoryKey) -> str | Failure:
        session, _, round = key.session.partition("\0")
        place = self._key(key.user, session)
        if place is None:
            return Failure("bad-name", f"{key} has half of a surrogate pair in its name")
        if round == _UNCHOSEN:
            return Failure("bad-name", "the session has several rounds, and this names none")
        if self._claimed.setdefault(place, MemoryKey(key.user, session))[1] != session:
            return Failure("bad-name", f"the key of {key} is that of another session")
        return f"{decode(place)}\0{round}"

    async def document(self, name: str) -> Document | None:
        key, _, field = name.rpartition("\0")
        return await WatchedField(self.server, encode(key), encode(field)).open()

    async def draft(self, name: str, old: Document | None) -> Draft:
        assert isinstance(old, WatchedField), name
        return FieldDraft(old)

    async def remove(self, name: str, document: Document) -> None:
        assert isinstance(document, WatchedField), name
        await document.replace([(b"HDEL", document.key, document.field)])


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


class _StateMaintenance(StateMaintenance):
    """The checks and repairs of ``StateMaintenance``, and a check for states that will expire."""

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async for finding in super().check(where):
            yield finding
        async with aclosing(self.store.headers(where)) as memories:
            left = [memory.ttl async for memory in memories if memory.ttl is not None]
        for finding in expiring_unread(left):
            yield finding
