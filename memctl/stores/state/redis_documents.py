"""JSON documents that are values of Redis keys."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any, Self

from redis.exceptions import ResponseError

from memctl.errors import Failure, MemctlError
from memctl.location import visible
from memctl.stores.redis.keys import decode, encode
from memctl.stores.redis.link import Command
from memctl.stores.redis.server import RedisServer
from memctl.stores.redis.wire import Wire, in_thread
from memctl.stores.state.document import Changed, Document, TooLarge
from memctl.stores.state.rewrite import Draft

_WINDOW = 4 * 1024 * 1024
_STAGE_BYTES = 1024 * 1024
_LARGEST = 512 * 1024 * 1024
"""What a Redis string can hold, in bytes."""
_LEASE = b"%d" % (6 * 3600 * 1000)
"""How long a staged value lives, in milliseconds, if the run that staged it is killed."""


class KeyDocument(Document):
    """A value: in hand where it is small, else read through windows while its key is watched."""

    version = None

    def __init__(self, key: bytes, ttl: int, *, data: bytes = b"", size: int = -1) -> None:
        """``ttl`` as PTTL tells it; a document of which only the size is known is not in hand."""
        self.name = f"the key {visible(decode(key))}"
        self.size = len(data) if size < 0 else size
        self.ttl = ttl / 1000 if ttl >= 0 else None
        self.key = key
        self.wire: Wire | None = None
        self._data = data if size < 0 else None

    async def read_at(self, start: int, size: int) -> bytes:
        """See ``Source``.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        if self._data is not None:
            return self._data[start : start + size]
        size = min(size, self.size - start)
        if size <= 0 or self.wire is None:
            return b""
        return await in_thread(self.wire, partial(_range, self.wire, self.key, start, size))

    async def verify(self) -> None:
        if self.wire is None:
            return
        # An empty transaction fails if the watched key was touched; then it is watched again.
        commands = [(b"MULTI",), (b"EXEC",), (b"WATCH", self.key)]
        _, done, _ = await in_thread(self.wire, partial(self.wire.ask, commands))
        if done is None:
            raise Changed(self.name)

    async def close(self) -> None:
        self._data = b""
        self.wire = None


class WatchedKey(KeyDocument):
    """The value of a key that is about to be replaced, on a connection of its own."""

    def __init__(self, server: RedisServer, key: bytes) -> None:
        super().__init__(key, -1, size=0)
        self._context = server.wire()
        self._watching = True

    async def open(self) -> Self:
        """Watches the key from now on.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        self.wire = await self._context.__aenter__()
        try:
            _, self.size, exists = await self.ask(
                [(b"WATCH", self.key), (b"STRLEN", self.key), (b"EXISTS", self.key)]
            )
        except BaseException:
            await self.close()
            raise
        self.exists = bool(exists)
        return self

    async def ask(self, commands: Iterable[Command]) -> list[Any]:
        """The replies to some commands; see ``Wire.ask``."""
        assert self.wire is not None
        return await in_thread(self.wire, partial(self.wire.ask, commands))

    async def replace(self, commands: Iterable[Command]) -> bool:
        """Runs commands that take effect only if nobody has touched the key; whether they did.

        Raises:
            Unavailable: see ``Wire.stream``; or one of them failed.
        """
        *_, done = await self.ask([(b"MULTI",), *commands, (b"EXEC",)])
        self._watching = False
        for reply in done or ():
            if isinstance(reply, ResponseError) and self.wire is not None:
                raise self.wire.translate(reply)
        return done is not None

    async def close(self) -> None:
        if self.wire is None:
            return
        if self._watching:
            self.wire.abort()  # so that no other use of the connection watches the key
        self.wire = None
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
        """Whether there is a value whose place it takes."""
        return self._watched.exists

    async def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _LARGEST:
            raise TooLarge("Redis holds no value of more than 512 MiB")
        self._pieces.append(data)
        self._held += len(data)
        if self._held >= _STAGE_BYTES:
            await self._watched.ask(self._appending())

    def _appending(self) -> Iterator[Command]:
        """Commands that move to the server what is in hand."""
        pieces, self._pieces, self._held = self._pieces, [], 0
        for piece in _cut(pieces):
            if self._is_staged:
                yield (b"APPEND", self._staged, piece)
            else:
                self._is_staged = True
                yield (b"SET", self._staged, piece, b"PX", _LEASE)

    async def publish(self, ttl: int | None) -> Failure | None:
        """Takes the key's place, to live for ``ttl`` milliseconds, or as long as what is there.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        key = self._watched.key
        if self._is_staged:
            await self._watched.ask(self._appending())
            [left] = await self._watched.ask([(b"PTTL", key)])
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
            async with self._server.wire() as wire:
                await in_thread(wire, partial(wire.ask, [(b"UNLINK", self._staged)]))


def _expire(key: bytes, ttl: int) -> Command:
    """``ttl`` as PTTL tells it."""
    return (b"PEXPIRE", key, b"%d" % max(ttl, 1)) if ttl >= 0 else (b"PERSIST", key)


def _range(wire: Wire, key: bytes, start: int, size: int) -> bytes:
    """A part of a value.  ``BytesIO`` hands out what it gathered without a copy."""
    found = BytesIO()
    end = start + size
    commands = (
        (b"GETRANGE", key, b"%d" % at, b"%d" % (min(at + _WINDOW, end) - 1))
        for at in range(start, end, _WINDOW)
    )
    for data in wire.stream(commands, ahead=lambda: 2):
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
