"""One Redis database: its connections, commands sent ahead of their replies, and its errors.

The synchronous client is used, in threads: it reads replies twice as fast as the asynchronous one.
redis-py makes the connections, for it knows logins and TLS.  Its pipelines are not used: they hold
all commands and all replies of a batch at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

from hiredis import pack_command
from redis import exceptions

from memctl.errors import MemctlError, Unavailable, UsageError
from memctl.location import Location
from memctl.stores import _threads
from memctl.stores.redis.connect import in_daemon
from memctl.stores.redis.errors import code, translated
from memctl.stores.redis.pool import make_pool, milliseconds

T = TypeVar("T")
Command = tuple[bytes, ...]

AHEAD = 256
"""How many commands may wait for their replies, unless the caller says otherwise."""
WRONG_TYPE = "WRONGTYPE"
"""The first word of the error reply where a key holds another kind of value."""

_OLDEST = (6, 2)
_SEND_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024


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
    async def wire(self) -> AsyncIterator[Wire]:
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


class Wire:
    """One connection, on which many commands may be under way.

    All but ``abort`` may block: it belongs into a thread (see ``in_thread``).
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._connection: Any = None
        self._waiting = 0
        self._broken = False
        self._handover = threading.Lock()

    def connect(self) -> None:
        """Takes a connection from the pool, which connects where none is idle.

        Nobody may be there any more when it has connected: then it is closed.

        Raises:
            MemctlError: see ``RedisServer.open``.
        """
        try:
            connection = self._server.take()
        except exceptions.RedisError as error:
            raise self._server.translate(error) from error
        except (ValueError, OverflowError) as error:
            # redis-py leaves names of hosts, time limits and versions of TLS to Python to check.
            raise UsageError(
                f"{self._server.label} has a host or an option that cannot be", str(error)
            ) from error
        with self._handover:
            self._connection = connection
            left = self._broken
        if left:
            self.release()

    def release(self) -> None:
        """Gives the connection back; one that broke, or has replies to come, is closed first."""
        with self._handover:
            connection, self._connection = self._connection, None
        if connection is not None:
            if self._waiting or self._broken:
                connection.disconnect()
            self._server.give(connection)

    def abort(self) -> None:
        """Breaks the connection, also under a thread that waits for it.

        redis-py's own ``disconnect`` would let that thread connect again with its next command,
        and run the rest of a transaction outside of it.
        """
        with self._handover:
            self._broken = True
        link = self._connection and self._connection._sock
        if link:
            with suppress(OSError):  # it is closed already
                link.shutdown(socket.SHUT_RDWR)

    def translate(self, reply: exceptions.ResponseError) -> MemctlError:
        """What an error reply means for the operator."""
        return self._server.translate(reply)

    def ask(self, commands: Iterable[Command], *, tolerate: str = "") -> list[Any]:
        """All replies to some commands; see ``stream``."""
        return list(self.stream(commands, tolerate=tolerate))

    def stream(
        self,
        commands: Iterable[Command],
        *,
        tolerate: str = "",
        ahead: Callable[[], int] = lambda: AHEAD,
    ) -> Iterator[Any]:
        """The replies to the commands, in order.

        Commands are taken and sent while replies are: no more than ``ahead()`` wait, so that
        neither side has much to buffer.  Error replies that begin with the word ``tolerate`` are
        handed out as ``ResponseError`` of redis-py.  A stream must be used up before another
        begins.

        Raises:
            Unavailable: the connection broke, or the server refuses a command.
        """
        source = iter(commands)
        more = True
        while more or self._waiting:
            most = ahead()
            if more and self._waiting <= most // 2:
                more = self._send(source, most - self._waiting)
            else:
                yield self._receive(tolerate)

    def _send(self, commands: Iterator[Command], most: int) -> bool:
        """Sends the next commands, up to a number and a size; whether there may be more."""
        pieces: list[bytes] = []
        size = count = 0
        more = False
        for command in commands:
            packed = _pack(command)
            pieces += packed
            size += sum(map(len, packed))
            count += 1
            if count >= most or size >= _SEND_BYTES:
                more = True
                break
        if pieces:
            if self._broken:
                raise Unavailable(f"the connection to {self._server.label} was closed")
            try:
                # A health check would take the reply to another command for its own.
                self._connection.send_packed_command(_join(pieces), check_health=False)
            except exceptions.RedisError as error:
                raise self._failed(error) from error
            self._waiting += count
        return more

    def _receive(self, tolerate: str) -> Any:
        try:
            reply = self._connection.read_response()
        except exceptions.ResponseError as error:
            self._waiting -= 1
            if not tolerate or code(error) != tolerate:
                raise self._failed(error) from error
            return error
        except exceptions.RedisError as error:
            raise self._failed(error) from error
        self._waiting -= 1
        return reply

    def _failed(self, error: exceptions.RedisError) -> MemctlError:
        """The error for memctl; the connection is of no more use, and must not come back."""
        self._broken = True
        return self._server.translate(error)


async def in_thread(wire: Wire, call: Callable[[], T]) -> T:
    """Runs a call that uses the wire in a thread; cancelling closes the connection."""
    return await _threads.in_thread(call, wire.abort)


def _pack(command: Command) -> list[bytes]:
    """The command on the wire; large values stay pieces of their own, so that none is copied."""
    if max(map(len, command)) <= _LARGE_BYTES:
        return [pack_command(cast(Any, command))]
    pieces = [b"*%d\r\n" % len(command)]
    for value in command:
        pieces += (b"$%d\r\n" % len(value), value, b"\r\n")
    return pieces


def _join(pieces: list[bytes]) -> list[bytes]:
    """Fewer pieces: those between large ones in one."""
    joined: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) <= _LARGE_BYTES:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    return [*joined, b"".join(small)]


def _info(wire: Wire) -> dict[str, str]:
    """What the server says of itself; nothing where the ACL forbids to ask."""
    [reply] = wire.ask([(b"INFO", b"server")], tolerate="NOPERM")
    if isinstance(reply, exceptions.ResponseError):
        return {}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
