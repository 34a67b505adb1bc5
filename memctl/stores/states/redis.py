"""JSON documents that are values of Redis keys."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple, Self

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode, encode
from memctl.errors import Failure, MemctlError
from memctl.layouts.redis.keys import LEASE, STATE, Keys
from memctl.layouts.redis.keyspace import other_keys, require_layout
from memctl.location import Location, visible
from memctl.model import LARGEST_MESSAGE, PAGE_BYTES, MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.states.document import Document, DocumentChanged, DocumentTooLarge
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft
from memctl.stores.states.store import StateStore

_WINDOW = 4 * 1024 * 1024
_STAGE_BYTES = 1024 * 1024


class KeyDocument(Document):
    """A value: in hand where it is small, else read through windows while its key is watched."""

    version = None

    def __init__(self, key: bytes, ttl: int, *, data: bytes = b"", size: int = -1) -> None:
        """``ttl`` as PTTL tells it; a document of which only the size is known is not in hand."""
        self.name = f"the key {visible(decode(key))}"
        self.size = len(data) if size < 0 else size
        self.ttl = ttl / 1000 if ttl >= 0 else None
        self.key = key
        self.pipeline: Pipeline | None = None
        self._data = data if size < 0 else None

    async def read_at(self, start: int, size: int) -> bytes:
        """See ``Source``.

        Raises:
            Unavailable: see ``Pipeline.stream``.
        """
        if self._data is not None:
            return self._data[start : start + size]
        size = min(size, self.size - start)
        if size <= 0 or self.pipeline is None:
            return b""
        return await in_thread(self.pipeline, partial(_range, self.pipeline, self.key, start, size))

    async def verify(self) -> None:
        if self.pipeline is None:
            return
        # An empty transaction fails if the watched key was touched; then it is watched again.
        commands = [(b"MULTI",), (b"EXEC",), (b"WATCH", self.key)]
        _, done, _ = await in_thread(self.pipeline, partial(self.pipeline.execute, commands))
        if done is None:
            raise DocumentChanged(self.name)

    async def close(self) -> None:
        self._data = b""
        self.pipeline = None


class WatchedKey(KeyDocument):
    """The value of a key that is about to be replaced, on a connection of its own."""

    def __init__(self, server: RedisServer, key: bytes) -> None:
        super().__init__(key, -1, size=0)
        self._context = server.pipeline()
        self._watching = True

    async def open(self) -> Self:
        """Watch the key from now on.

        Raises:
            Unavailable: see ``Pipeline.stream``.
        """
        self.pipeline = await self._context.__aenter__()
        try:
            _, self.size, exists = await self.execute(
                [(b"WATCH", self.key), (b"STRLEN", self.key), (b"EXISTS", self.key)]
            )
        except BaseException:
            await self.close()
            raise
        self.exists = bool(exists)
        return self

    async def execute(self, commands: Iterable[Command]) -> list[Any]:
        """Return the replies to the commands; see ``Pipeline.execute``."""
        assert self.pipeline is not None
        return await in_thread(self.pipeline, partial(self.pipeline.execute, commands))

    async def replace(self, commands: Iterable[Command]) -> bool:
        """Run commands that take effect only if nobody has touched the key; whether they did.

        Raises:
            Unavailable: see ``Pipeline.stream``; or one of them failed.
        """
        *_, done = await self.execute([(b"MULTI",), *commands, (b"EXEC",)])
        self._watching = False
        for reply in done or ():
            if isinstance(reply, ResponseError) and self.pipeline is not None:
                raise self.pipeline.translate(reply)
        return done is not None

    async def close(self) -> None:
        if self.pipeline is None:
            return
        if self._watching:
            self.pipeline.abort()  # so that no other use of the connection watches the key
        self.pipeline = None
        await self._context.__aexit__(None, None, None)


class KeyDraft(Draft):
    """A value in the making: in hand, or appended to a key of its own."""

    def __init__(self, server: RedisServer, watched: WatchedKey) -> None:
        """``watched`` is what will be replaced, and lends its connection."""
        self._server = server
        self._watched = watched
        self._staged = encode(server.prefix) + b"memctl:" + secrets.token_hex(8).encode()
        self._pieces: list[bytes] = []
        self._held = self._size = 0
        self._is_staged = False

    @property
    def replaces(self) -> bool:
        """Return whether there is a value whose place it takes."""
        return self._watched.exists

    async def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > LARGEST_MESSAGE:
            raise DocumentTooLarge("Redis holds no value of more than 512 MiB")
        self._pieces.append(data)
        self._held += len(data)
        if self._held >= _STAGE_BYTES:
            await self._watched.execute(self._appending())

    def _appending(self) -> Iterator[Command]:
        """Yield commands that move to the server what is in hand."""
        pieces, self._pieces, self._held = self._pieces, [], 0
        for piece in _cut(pieces):
            if self._is_staged:
                yield (b"APPEND", self._staged, piece)
            else:
                self._is_staged = True
                yield (b"SET", self._staged, piece, b"PX", LEASE)

    async def publish(self, ttl: int | None) -> Failure | None:
        """Take the key's place, to live for ``ttl`` milliseconds, or as long as what is there.

        Raises:
            Unavailable: see ``Pipeline.stream``.
        """
        key = self._watched.key
        if self._is_staged:
            await self._watched.execute(self._appending())
            [left] = await self._watched.execute([(b"PTTL", key)])
            expire = _expire(self._staged, left if ttl is None else ttl)
            done = await self._watched.replace([expire, (b"RENAME", self._staged, key)])
        else:
            life = (b"KEEPTTL",) if ttl is None else (b"PX", b"%d" % ttl)
            done = await self._watched.replace([(b"SET", key, b"".join(self._pieces), *life)])
        if not done:
            return Failure("changed", f"{self._watched.name} was changed meanwhile")
        self._is_staged = False
        return None

    async def discard(self) -> None:
        if not self._is_staged:
            return
        self._is_staged = False
        with suppress(MemctlError):  # what cannot be removed expires by itself
            async with self._server.pipeline() as pipeline:
                await in_thread(pipeline, partial(pipeline.execute, [(b"UNLINK", self._staged)]))


def _expire(key: bytes, ttl: int) -> Command:
    """``ttl`` as PTTL tells it."""
    return (b"PEXPIRE", key, b"%d" % max(ttl, 1)) if ttl >= 0 else (b"PERSIST", key)


def _range(pipeline: Pipeline, key: bytes, start: int, size: int) -> bytes:
    """A part of a value.  ``BytesIO`` hands out what it gathered without a copy."""
    found = BytesIO()
    end = start + size
    commands = (
        (b"GETRANGE", key, b"%d" % at, b"%d" % (min(at + _WINDOW, end) - 1))
        for at in range(start, end, _WINDOW)
    )
    for data in pipeline.stream(commands, ahead=lambda: 2):
        found.write(data)
    return found.getvalue()


def _cut(pieces: list[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of no more than a window, small ones joined."""
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < _WINDOW:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        for start in range(0, len(piece), _WINDOW):
            yield piece[start : start + _WINDOW]
    if small:
        yield b"".join(small)


_TOGETHER = 128


class _StateKey(NamedTuple):
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
    keys_tell = True
    batch_documents = 1
    """Each takes a connection, which watches the key."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._server = RedisServer(location)
        self._keys = Keys(self._server.prefix)
        self._written: dict[bytes, MemoryKey] = {}
        """Return the written or expected names of keys that could be read in another way."""

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self._server.open()
        await require_layout(self._server, self.location, mode)

    async def other_contents(self) -> str:
        return await other_keys(self._server)

    async def lock(self, owner: str) -> None:
        await self._server.lock("session", owner, self.warnings)

    async def close(self) -> None:
        await self._server.close()

    async def identity(self) -> str:
        # The messages of RedisMemory share the names, but not the keys.
        return f"redis-session:{self._server.identity()}"

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Resolve names that can be read in several ways to these keys."""
        for key in keys:
            owner = key._replace(part="")
            base = self._keys.base_or_none(owner)
            if base is not None and len(list(self._keys.parse_base(base))) > 1:
                self._written.setdefault(base + STATE, owner)

    # Reading

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        async with self._server.pipeline() as pipeline:
            names = await in_thread(pipeline, partial(self._names, pipeline, where))
            for start in range(0, len(names), _TOGETHER):
                states = _states(pipeline, names[start : start + _TOGETHER])
                while (state := await in_thread(pipeline, partial(next, states, None))) is not None:
                    for name, document in state:
                        yield OwnedDocument(document, name.owner[:2])
                        await document.close()

    def _names(self, pipeline: Pipeline, where: Selection) -> list[_StateKey]:
        if where.keys is not None:
            asked = {key._replace(part="") for key in where.keys}
            bases = ((self._keys.base_or_none(key), key) for key in asked)
            return sorted(_StateKey(base + STATE, key) for base, key in bases if base is not None)
        pattern = self._keys.pattern(where, STATE)
        owners = ((key, self._owner(key, where)) for key in set(scan(pipeline, pattern, b"string")))
        return sorted(_StateKey(key, owner) for key, owner in owners if owner is not None)

    def _owner(self, key: bytes, where: Selection) -> MemoryKey | None:
        written = self._written.get(key)
        if written is not None:
            return written if where.has_key(written) else None
        readings = self._keys.parse_base(key.removesuffix(STATE))
        return next((owner for owner in readings if where.has_key(owner)), None)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self._server.pipeline() as pipeline:
            for name in await in_thread(pipeline, partial(self._names, pipeline, where)):
                yield name.owner

    # Writing

    def name_of(self, key: MemoryKey) -> str | Failure:
        owner = key._replace(part="")
        base = self._keys.base_or_none(owner)
        if base is None:
            return Failure("bad-name", f"{owner} has half of a surrogate pair in its name")
        readings = list(self._keys.parse_base(base))
        if len(readings) > 1 and self._written.setdefault(base + STATE, owner) != owner:
            return Failure("bad-name", f"the key of {owner} is that of another session")
        return decode(base + STATE)

    async def document(self, name: str) -> Document | None:
        return await WatchedKey(self._server, encode(name)).open()

    async def draft(self, name: str, old: Document | None) -> Draft:
        assert isinstance(old, WatchedKey), name
        return KeyDraft(self._server, old)

    async def remove(self, name: str, document: Document) -> None:
        assert isinstance(document, WatchedKey), name
        await document.replace([(b"UNLINK", document.key)])

    async def publish(
        self, drafts: list[tuple[Draft, float | None]], *, keep: bool = False
    ) -> list[Failure | None]:
        published = [(draft, ttl) for draft, ttl in drafts if isinstance(draft, KeyDraft)]
        return [
            await draft.publish(None if keep and draft.replaces else self._server.ttl_of(ttl))
            for draft, ttl in published
        ]


def _states(
    pipeline: Pipeline, names: list[_StateKey]
) -> Iterator[list[tuple[_StateKey, KeyDocument]]]:
    """The states that exist: small ones together, a large one by itself and watched."""
    looks = ((command, name.key) for name in names for command in (b"STRLEN", b"PTTL"))
    replies = iter(pipeline.execute(looks, tolerate=WRONG_TYPE))
    some: list[tuple[_StateKey, int]] = []
    held = 0
    for name, size, ttl in zip(names, replies, replies, strict=True):
        if isinstance(size, ResponseError) or not size:
            continue
        if size > PAGE_BYTES:
            yield [(name, _watched(pipeline, name.key, ttl))]
            pipeline.execute([(b"UNWATCH",)])
            continue
        some.append((name, ttl))
        held += size
        if held >= PAGE_BYTES:
            yield _in_hand(pipeline, some)
            some, held = [], 0
    if some:
        yield _in_hand(pipeline, some)


def _in_hand(
    pipeline: Pipeline, some: list[tuple[_StateKey, int]]
) -> list[tuple[_StateKey, KeyDocument]]:
    values = pipeline.execute((b"GET", name.key) for name, _ in some)
    return [
        (name, KeyDocument(name.key, ttl, data=data))
        for (name, ttl), data in zip(some, values, strict=True)
        if data is not None
    ]


def _watched(pipeline: Pipeline, key: bytes, ttl: int) -> KeyDocument:
    _, size = pipeline.execute([(b"WATCH", key), (b"STRLEN", key)])
    document = KeyDocument(key, ttl, size=size)
    document.pipeline = pipeline
    return document
