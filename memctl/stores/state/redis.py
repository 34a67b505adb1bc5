"""The states that RedisSession keeps (``session/_redis_session.py`` of agentscope 1.0.21)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from redis.exceptions import ResponseError

from memctl.errors import Failure
from memctl.location import Location
from memctl.model import PAGE_BYTES, MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.redis.keys import STATE, Keys, decode, encode
from memctl.stores.redis.lock import RedisLock
from memctl.stores.redis.server import RedisServer
from memctl.stores.redis.wire import WRONG_TYPE, Wire, in_thread
from memctl.stores.state.document import Document
from memctl.stores.state.redis_documents import KeyDocument, KeyDraft, WatchedKey
from memctl.stores.state.rewrite import Draft
from memctl.stores.state.store import Owned, StateStore

_TOGETHER = 128
_COUNT = b"2000"


class _Named(NamedTuple):
    """A state's key, and whose session it is."""

    key: bytes
    owner: MemoryKey


class RedisSessionStore(StateStore):
    """A string a session, ``{prefix}user_id:{user}:session:{session}:state``.

    Such a key can be read in several ways where names hold ``:session:``: a user ends at the first
    one, unless the selection names a user, session or key that another reading gives, or this
    store wrote the state under another name, or expects it there.

    What is written lives for the ``ttl`` of the location in seconds, else for ``Memory.ttl``; with
    neither, a state that is there keeps its own expiry.  Reading changes no expiry.
    """

    kind = "redis-session"
    features = replace(StateStore.features, ttl=True)
    together = 1
    """Each takes a connection, which watches the key."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._server = RedisServer(location)
        self._keys = Keys(self._server.prefix)
        self._lock: RedisLock | None = None
        self._written: dict[bytes, MemoryKey] = {}
        """The names of keys that could be read otherwise, and were written or are expected."""

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self._server.open()

    async def lock(self, owner: str) -> None:
        self._lock = RedisLock(self._server, "session", self.warnings)
        await self._lock.take(owner)

    async def close(self) -> None:
        try:
            if self._lock is not None:
                await self._lock.release()
        finally:
            await self._server.close()

    async def identity(self) -> str:
        # The messages of RedisMemory share the names, but not the keys.
        return f"redis-session:{self._server.identity()}"

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Of the names that a state may have, those are the right ones."""
        for key in keys:
            owner = key._replace(part="")
            base = self._keys.base_or_none(owner)
            if base is not None and len(list(self._keys.readings(base))) > 1:
                self._written.setdefault(base + STATE, owner)

    # Reading

    async def documents(self, where: Selection) -> AsyncGenerator[Owned, None]:
        async with self._server.wire() as wire:
            names = await in_thread(wire, partial(self._names, wire, where))
            for start in range(0, len(names), _TOGETHER):
                states = _states(wire, names[start : start + _TOGETHER])
                while (state := await in_thread(wire, partial(next, states, None))) is not None:
                    for name, document in state:
                        yield Owned(document, name.owner[:2])
                        await document.close()

    def _names(self, wire: Wire, where: Selection) -> list[_Named]:
        if where.keys is not None:
            asked = {key._replace(part="") for key in where.keys}
            bases = ((self._keys.base_or_none(key), key) for key in asked)
            return sorted(_Named(base + STATE, key) for base, key in bases if base is not None)
        pattern = self._keys.pattern(where, STATE)
        owners = ((key, self._owner(key, where)) for key in set(_scanned(wire, pattern)))
        return sorted(_Named(key, owner) for key, owner in owners if owner is not None)

    def _owner(self, key: bytes, where: Selection) -> MemoryKey | None:
        written = self._written.get(key)
        if written is not None:
            return written if where.has_key(written) else None
        readings = self._keys.readings(key.removesuffix(STATE))
        return next((owner for owner in readings if where.has_key(owner)), None)

    # Writing

    def name_of(self, key: MemoryKey) -> str | Failure:
        owner = key._replace(part="")
        base = self._keys.base_or_none(owner)
        if base is None:
            return Failure("bad-name", f"{owner} has half of a surrogate pair in its name")
        readings = list(self._keys.readings(base))
        if len(readings) > 1 and self._written.setdefault(base + STATE, owner) != owner:
            return Failure("bad-name", f"the key of {owner} is that of another session")
        return decode(base + STATE)

    async def document(self, name: str) -> Document | None:
        return await WatchedKey(self._server, encode(name)).open()

    async def draft(self, name: str, old: Document | None) -> Draft:
        assert isinstance(old, WatchedKey), name
        return KeyDraft(self._server, old)

    async def publish(
        self, drafts: list[tuple[Draft, float | None]], *, keep: bool = False
    ) -> list[Failure | None]:
        published = [(draft, ttl) for draft, ttl in drafts if isinstance(draft, KeyDraft)]
        return [
            await draft.publish(None if keep and draft.replaces else self._ttl(ttl))
            for draft, ttl in published
        ]

    def _ttl(self, ttl: float | None) -> int | None:
        """How long a state shall live, in milliseconds; None to leave that as it is."""
        if self._server.ttl is not None or ttl is None:
            return self._server.ttl
        return max(1, round(ttl * 1000))


def _scanned(wire: Wire, pattern: bytes) -> Iterator[bytes]:
    """The strings whose names match; some may come twice."""
    cursor = b"0"
    while True:
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _COUNT, b"TYPE", b"string")
        [(cursor, found)] = wire.ask([command])
        yield from found
        if cursor == b"0":
            return


def _states(wire: Wire, names: list[_Named]) -> Iterator[list[tuple[_Named, KeyDocument]]]:
    """The states that exist: small ones together, a large one by itself and watched."""
    looks = ((command, name.key) for name in names for command in (b"STRLEN", b"PTTL"))
    replies = iter(wire.ask(looks, tolerate=WRONG_TYPE))
    some: list[tuple[_Named, int]] = []
    held = 0
    for name, size, ttl in zip(names, replies, replies, strict=True):
        if isinstance(size, ResponseError) or not size:
            continue
        if size > PAGE_BYTES:
            yield [(name, _watched(wire, name.key, ttl))]
            wire.ask([(b"UNWATCH",)])
            continue
        some.append((name, ttl))
        held += size
        if held >= PAGE_BYTES:
            yield _in_hand(wire, some)
            some, held = [], 0
    if some:
        yield _in_hand(wire, some)


def _in_hand(wire: Wire, some: list[tuple[_Named, int]]) -> list[tuple[_Named, KeyDocument]]:
    values = wire.ask((b"GET", name.key) for name, _ in some)
    return [
        (name, KeyDocument(name.key, ttl, data=data))
        for (name, ttl), data in zip(some, values, strict=True)
        if data is not None
    ]


def _watched(wire: Wire, key: bytes, ttl: int) -> KeyDocument:
    _, size = wire.ask([(b"WATCH", key), (b"STRLEN", key)])
    document = KeyDocument(key, ttl, size=size)
    document.wire = wire
    return document
