"""A Redis database, as a location names it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from redis import exceptions

from memctl.errors import MemctlError, Unavailable
from memctl.location import Location
from memctl.stores.redis.connect import in_daemon
from memctl.stores.redis.errors import translated
from memctl.stores.redis.pool import make_pool, milliseconds
from memctl.stores.redis.wire import Wire, in_thread

_OLDEST = (6, 2)


class RedisServer:
    """A Redis database, as a location names it.

    ``prefix`` is the location's option, ``ttl`` too, in milliseconds.
    """

    def __init__(self, location: Location, environ: Mapping[str, str] = os.environ) -> None:
        """Reads the location; connects to nothing.

        Raises:
            UsageError: the URL or an option is wrong.
        """
        self.label = location.label
        self.prefix = location.options.get("prefix", "")
        self.ttl = milliseconds(location.options.get("ttl"))
        self._pool, self._reply_seconds = make_pool(location, environ.get("REDISCLI_AUTH"))
        self._run_id: str | None = None

    async def open(self) -> None:
        """Connects and logs in.

        Raises:
            Unavailable: the server cannot be reached, refuses the login or is too old.
            NotFound: the server has no database of this number.
            UsageError: the URL has a host, or the value of an option, that cannot be.
        """
        async with self.wire() as wire:
            info = await in_thread(wire, lambda: _info(wire))
        self._run_id = info.get("run_id")
        text = info.get("redis_version", "")
        version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
        if version and version < _OLDEST:
            raise Unavailable(f"{self.label} is Redis {text}", "memctl needs Redis 6.2 or later")

    async def close(self) -> None:
        """Closes every connection."""
        await asyncio.to_thread(self._pool.disconnect)

    def identity(self) -> str:
        """A text that two locations of one database and prefix share."""
        options = self._pool.connection_kwargs
        address = options.get("path") or f"{options.get('host')}:{options.get('port', 6379)}"
        return f"{self._run_id or address}/{options.get('db', 0)}/{self.prefix}"

    @asynccontextmanager
    async def wire(self) -> AsyncGenerator[Wire]:
        """A connection for one operation.  After an error it is closed, and not used again."""
        wire = Wire(self)
        try:
            await in_daemon(wire.connect)
            yield wire
        except BaseException:
            wire.abort()
            raise
        finally:
            wire.release()

    def take(self) -> Any:
        """A connection of the driver; ``give`` it back."""
        connection: Any = self._pool.get_connection()
        connection._sock.settimeout(self._reply_seconds)
        return connection

    def give(self, connection: Any) -> None:
        """Takes a connection back."""
        self._pool.release(connection)

    def translate(self, error: exceptions.RedisError) -> MemctlError:
        """What an error of the driver, or an error reply, means for the operator."""
        return translated(error, self.label)


def _info(wire: Wire) -> dict[str, str]:
    """What the server says of itself; nothing where the ACL forbids to ask."""
    [reply] = wire.ask([(b"INFO", b"server")], tolerate="NOPERM")
    if isinstance(reply, exceptions.ResponseError):
        return {}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
