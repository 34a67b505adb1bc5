"""The states that the state service of agentscope-runtime keeps in Redis, one for each round.

Source: ``engine/services/agent_state/redis_state_service.py`` of agentscope-runtime 1.0.5.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode, encode, encode_or_none, escape
from memctl.errors import Failure
from memctl.layouts.redis.keyspace import other_keys, require_layout
from memctl.layouts.redis.whole import expiring_unread
from memctl.location import Location, visible
from memctl.model import (
    LARGEST_MESSAGE,
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
from memctl.stores.states.document import Document, DocumentIndex, DocumentTooLarge, MemoryPart
from memctl.stores.states.maintenance import StateMaintenance
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft
from memctl.stores.states.store import StateStore

_STATE = b"user_state:"
_FIRST = "1"
LATEST = "latest"
"""The path of the last round, whatever its number."""
_UNCHOSEN = "\0"
"""Names no round, where there are several."""


class FieldDocument(Document):
    """A field of a hash, in hand."""

    version = None

    def __init__(self, key: bytes, field: bytes, data: bytes | None, ttl: int) -> None:
        """``ttl`` as PTTL tells it."""
        self.name = f"the key {visible(decode(key))}, field {visible(decode(field))}"
        self.key, self.field = key, field
        self.exists = data is not None
        self.ttl = ttl / 1000 if ttl >= 0 else None
        self._set(data or b"")

    def _set(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    async def read_at(self, start: int, size: int) -> bytes:
        return self._data[start : start + size]

    async def verify(self) -> None:
        """Nothing changes what is in hand."""

    async def close(self) -> None:
        self._data = b""


class WatchedField(FieldDocument):
    """A field that is about to be replaced: its hash is watched by a connection of its own."""

    def __init__(self, server: RedisServer, key: bytes, field: bytes) -> None:
        super().__init__(key, field, None, -1)
        self._context = server.pipeline()
        self._pipeline: Pipeline | None = None
        self.is_first = False

    async def open(self) -> Self:
        """Watch the hash from now on, and read the field.

        Raises:
            Unavailable: see ``Pipeline.stream``.
        """
        self._pipeline = await self._context.__aenter__()
        try:
            commands = [
                (b"WATCH", self.key),
                (b"HGET", self.key, self.field),
                (b"EXISTS", self.key),
            ]
            _, data, exists = await self._execute(commands)
        except BaseException:
            await self.close()
            raise
        self.exists = data is not None
        self.is_first = not exists
        self._set(data or b"")
        return self

    async def replace(self, commands: Iterable[Command]) -> bool:
        """Run commands that take effect only if nobody has touched the hash; whether they did.

        Raises:
            Unavailable: see ``Pipeline.stream``; or one of them failed.
        """
        assert self._pipeline is not None
        return await in_thread(self._pipeline, partial(self._pipeline.commit, list(commands)))

    async def _execute(self, commands: Iterable[Command]) -> list[Any]:
        assert self._pipeline is not None
        return await in_thread(self._pipeline, partial(self._pipeline.execute, commands))

    async def close(self) -> None:
        await super().close()
        if self._pipeline is not None:
            self._pipeline.abort()  # so that no other use of the connection watches the hash
            self._pipeline = None
            await self._context.__aexit__(None, None, None)


class FieldDraft(Draft):
    """The new value of a field, in hand."""

    def __init__(self, watched: WatchedField) -> None:
        self._watched = watched
        self._pieces: list[bytes] = []
        self._size = 0

    async def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > LARGEST_MESSAGE:
            raise DocumentTooLarge("Redis holds no value of more than 512 MiB")
        self._pieces.append(data)

    async def publish(self, ttl: int | None) -> Failure | None:
        """Take the place of the field; a new hash lives for ``ttl`` milliseconds.

        Raises:
            Unavailable: see ``Pipeline.stream``.
        """
        key, field = self._watched.key, self._watched.field
        commands: list[Command] = [(b"HSET", key, field, b"".join(self._pieces))]
        if ttl is not None and self._watched.is_first:
            commands.append((b"PEXPIRE", key, b"%d" % ttl))
        if not await self._watched.replace(commands):
            return Failure("changed", f"{self._watched.name} was changed meanwhile")
        return None

    async def discard(self) -> None:
        self._pieces.clear()


@dataclass(frozen=True, slots=True)
class Round(OwnedDocument):
    """A round of a session, and whether the session has others."""

    name: str = _FIRST
    several: bool = False


class RuntimeStateStore(StateStore):
    """A hash a session, ``user_state:{user}:{session}``, with a field for each round.

    Each round is a memory: the part of its key is the round where a session has several, such as
    ``2`` or ``2:agent.memory``.  The option ``path`` chooses one by such a text, or the ``latest``.
    A user ends at the first ``:`` of a key, unless the selection names another.  All rounds of a
    session expire together.  Reading changes no expiry.
    """

    kind = "redis-runtime-state"
    features = replace(StateStore.features, ttl=True, retired=True)
    keys_tell = True
    batch_documents = 1
    """Each takes a connection, which watches the hash."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._server = RedisServer(location)
        self._start = encode(self._server.prefix) + _STATE
        head, _, path = (self.path or "").partition(":")
        self._chosen = head if head.isdigit() or head == LATEST else None
        if self._chosen is not None:
            self.path = path or None
        self._claimed: dict[bytes, MemoryKey] = {}
        """The names of keys that were written, or are expected, and could be read in other ways."""

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self._server.open()
        await require_layout(self._server, self.location, mode)

    async def other_contents(self) -> str:
        return await other_keys(self._server)

    async def lock(self, owner: str) -> None:
        await self._server.lock("runtime-state", owner, self.warnings)

    async def close(self) -> None:
        await self._server.close()

    async def identity(self) -> str:
        return f"{self.kind}:{self._server.identity()}"

    # Names

    def _key(self, user: str, session: str) -> bytes | None:
        one, other = encode_or_none(user), encode_or_none(session)
        return None if one is None or other is None else self._start + one + b":" + other

    def _owners(self, key: bytes) -> Iterator[MemoryKey]:
        """Yield the sessions that a key may name, that of the shortest user first."""
        name = decode(key.removeprefix(self._start))
        at = name.find(":")
        while at >= 0:
            yield MemoryKey(name[:at], name[at + 1 :])
            at = name.find(":", at + 1)

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Resolve names that can be read in several ways to these keys."""
        for key in keys:
            place = self._key(key.user, key.session)
            if place is not None and place.count(b":") - self._start.count(b":") > 1:
                self._claimed.setdefault(place, key._replace(part=""))

    def maintenance(self) -> Maintenance:
        return _StateMaintenance(self)

    # Reading

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        async with self._server.pipeline() as pipeline:
            for key, owner in await in_thread(pipeline, partial(self._hashes, pipeline, where)):
                rounds = self._selected(await in_thread(pipeline, partial(_rounds, pipeline, key)))
                for name in rounds:
                    get = partial(_field, pipeline, key, encode(name))
                    document = await in_thread(pipeline, get)
                    if document.exists:
                        yield Round(document, owner[:2], None, name, len(rounds) > 1)
                    await document.close()

    def _selected(self, rounds: list[str]) -> list[str]:
        """Return the rounds that ``?path=`` names; all where it names none."""
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

    # Writing: a memory goes by ``{session}\\0{round}`` and its path, while it is written

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async def inner() -> AsyncGenerator[Page]:
            async for page in pages:
                yield replace(page, memory=await self._inner(page.memory, page.offset, names))

        names: dict[MemoryKey, MemoryKey] = {}
        async with aclosing(super().write(inner(), mode)) as results:
            async for result in results:
                yield replace(result, key=names.pop(result.key))

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async def inner() -> AsyncGenerator[Edit]:
            async for edit in edits:
                yield replace(edit, memory=await self._inner(edit.memory, edit.offset, names))

        names: dict[MemoryKey, MemoryKey] = {}
        async with aclosing(super().edit(inner())) as results:
            async for result in results:
                yield replace(result, key=names.pop(result.key))

    async def _inner(
        self, memory: Memory, offset: int, names: dict[MemoryKey, MemoryKey]
    ) -> Memory:
        """Return the memory by the name of its document; ``names`` gets the way back."""
        key = memory.key
        known = next((inner for inner, outer in names.items() if outer == key), None)
        if known is None or offset == 0:
            round, path = await self._round(key)
            known = MemoryKey(key.user, f"{key.session}\0{round}", path)
            names[known] = key
        return replace(memory, key=known)

    async def _round(self, key: MemoryKey) -> tuple[str, str]:
        """Return the round of a memory and its path there."""
        rounds: list[str] = []
        place = self._key(key.user, key.session)
        if place is not None:
            async with self._server.pipeline() as pipeline:
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
        async with self._server.pipeline() as pipeline:
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
        return await WatchedField(self._server, encode(key), encode(field)).open()

    async def draft(self, name: str, old: Document | None) -> Draft:
        assert isinstance(old, WatchedField), name
        return FieldDraft(old)

    async def remove(self, name: str, document: Document) -> None:
        assert isinstance(document, WatchedField), name
        await document.replace([(b"HDEL", document.key, document.field)])

    async def publish(
        self,
        drafts: list[tuple[Draft, float | None]],
        *,
        keep: bool = False,  # noqa: ARG002 - a hash that is there keeps its expiry in any case
    ) -> list[Failure | None]:
        published = [(draft, ttl) for draft, ttl in drafts if isinstance(draft, FieldDraft)]
        return [await draft.publish(self._server.ttl_of(ttl)) for draft, ttl in published]


def _rounds(pipeline: Pipeline, key: bytes) -> list[str]:
    """Return the rounds of a session, in order."""
    [fields] = pipeline.execute([(b"HKEYS", key)], tolerate=WRONG_TYPE)
    if isinstance(fields, ResponseError):
        return []
    return sorted(map(decode, fields), key=lambda name: (len(name), name))


def _field(pipeline: Pipeline, key: bytes, field: bytes) -> FieldDocument:
    data, ttl = pipeline.execute([(b"HGET", key, field), (b"PTTL", key)])
    return FieldDocument(key, field, data, ttl)


class _StateMaintenance(StateMaintenance):
    """Findings in the hashes of the service."""

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async for finding in super().check(where):
            yield finding
        async with aclosing(self.store.headers(where)) as memories:
            left = [memory.ttl async for memory in memories if memory.ttl is not None]
        for finding in expiring_unread(left):
            yield finding
