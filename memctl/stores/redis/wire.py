"""One connection to Redis: commands sent ahead of their replies.

Sockets are read in threads: asyncio takes twice as long.  redis-py makes the connections, for it
knows logins and TLS.  Its pipelines are not used: they hold all commands and all replies of a batch
at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

from redis import exceptions

from memctl import concurrency
from memctl.errors import Lost, MemctlError, UsageError
from memctl.model import PAGE_BYTES, PAGE_ENTRIES
from memctl.stores.redis.errors import code
from memctl.stores.redis.link import Command, Link, Packed, packed

T = TypeVar("T")

AHEAD = 256
"""How many commands may wait for their replies, unless the caller says otherwise."""
WRONG_TYPE = "WRONGTYPE"
"""The first word of the error reply where a key holds another kind of value."""

_SEND_BYTES = 256 * 1024


class Connections(Protocol):
    """Where connections come from."""

    label: str

    def take(self) -> Any:
        """A connection of the driver; ``give`` it back."""

    def give(self, connection: Any) -> None:
        """Takes a connection back."""

    def translate(self, error: exceptions.RedisError) -> MemctlError:
        """What an error of the driver, or an error reply, means for the operator."""


class Pacer:
    """Chooses how many rows to ask a driver for, so that a page stays near PAGE_BYTES.

    Drivers fetch by number of rows, whatever their size; the size of the last rows tells how many
    of the next ones fit.
    """

    def __init__(self) -> None:
        self.rows = 16

    def saw(self, rows: int, size: int) -> None:
        """Learns from a fetch of ``rows`` rows of ``size`` bytes in all."""
        if rows:
            fit = PAGE_BYTES * rows // max(size, 1)
            self.rows = max(1, min(PAGE_ENTRIES, fit, self.rows * 4))


class Wire:
    """One connection, on which many commands may be under way.

    All but ``abort`` may block: it belongs into a thread (see ``in_thread``).
    """

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._connection: Any = None
        self._link: Link | None = None
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
            self._link = Link(connection)
            left = self._broken
        if left:
            self.release()

    def release(self) -> None:
        """Gives the connection back; one that broke, or has replies to come, is closed first."""
        with self._handover:
            connection, self._connection, self._link = self._connection, None, None
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
        if self._link is not None:
            self._link.break_off()

    def translate(self, reply: exceptions.ResponseError) -> MemctlError:
        """What an error reply means for the operator."""
        return self._server.translate(reply)

    def ask(self, commands: Iterable[Command | Packed], *, tolerate: str = "") -> list[Any]:
        """All replies to some commands; see ``stream``."""
        return list(self.stream(commands, tolerate=tolerate))

    def stream(
        self,
        commands: Iterable[Command | Packed],
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
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        source = iter(commands)
        more = True
        while more or self._waiting:
            most = ahead()
            if more and self._waiting <= most // 2:
                more = self._send_some(source, most - self._waiting)
            else:
                yield from self._receive(tolerate)

    def atomic(self, commands: Iterable[Command], *, tolerate: str = "") -> Iterator[Any]:
        """The replies to commands that the server runs at one moment (MULTI and EXEC).

        However much they are together, they come one by one.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self._run(commands)
        while self._waiting:
            yield from self._receive(tolerate)

    def commit(self, commands: Iterable[Command | Packed]) -> bool:
        """Runs commands at one moment; False if a watched key has changed, so that none was run.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command, and so all.
        """
        done = self._run(commands)
        while self._waiting:
            deque(self._receive(""), maxlen=0)
        return done

    def _run(self, commands: Iterable[Command | Packed]) -> bool:
        """Runs commands at one moment, if the server does; their replies are to come."""
        deque(self.stream(chain([(b"MULTI",)], commands)), maxlen=0)
        link = self._send([b"*1\r\n$4\r\nEXEC\r\n"], 1)
        try:
            count = link.open_array()
        except exceptions.RedisError as error:
            raise self._failed(error) from error
        self._waiting = max(count, 0)
        return count >= 0

    def values(self, keys: Sequence[bytes], pacer: Pacer) -> Iterator[list[Any]]:
        """What the keys hold, in order, in lists of about a page.

        None stands for a key that does not exist, a ``ResponseError`` for one that holds no string.
        ``pacer`` says how many are asked for ahead: about a page, twice.  (MGET would be no faster,
        and its reply comes all at once, be it of gigabytes.)

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        sent = got = size = 0
        held: list[list[Any]] = [[]]
        while got < len(keys):
            if sent < len(keys) and sent - got <= pacer.rows // 2:
                some = keys[sent : sent + pacer.rows]
                gets = [b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key) for key in some]
                link = self._send([b"".join(gets)], len(some))
                sent += len(some)
            found = link.replies(sent - got)
            if not found:
                size += self._read(link)
                continue
            got += len(found)
            self._waiting -= len(found)
            self._check(found, WRONG_TYPE)
            held[0] += found
            del found
            if size >= PAGE_BYTES or len(held[0]) >= PAGE_ENTRIES or got == len(keys):
                pacer.saw(len(held[0]), size)
                yield held.pop()  # not kept here while it is used: it may be large
                held.append([])
                size = 0

    def _send_some(self, commands: Iterator[Command | Packed], most: int) -> bool:
        """Sends the next commands, up to a number and a size; whether there may be more."""
        pieces: list[bytes] = []
        size = count = 0
        more = False
        for command in commands:
            if isinstance(command, Packed):
                pieces.append(command.data)
                size += len(command.data)
                count += command.commands
            else:
                some = packed(command)
                pieces += some
                size += sum(map(len, some))
                count += 1
            if count >= most or size >= _SEND_BYTES:
                more = True
                break
        if pieces:
            self._send(pieces, count)
        return more

    def _send(self, pieces: Iterable[bytes], count: int) -> Link:
        """Sends so many commands, and gives what reads their replies."""
        if self._broken or self._link is None:
            raise Lost(f"the connection to {self._server.label} was closed")
        try:
            self._link.send(pieces)
        except exceptions.RedisError as error:
            raise self._failed(error) from error
        self._waiting += count
        return self._link

    def _read(self, link: Link) -> int:
        try:
            return link.read()
        except exceptions.RedisError as error:
            raise self._failed(error) from error

    def _receive(self, tolerate: str) -> Iterator[Any]:
        """The next replies, at least one."""
        link = self._send((), 0)
        while not (found := link.replies(self._waiting)):
            self._read(link)
        self._waiting -= len(found)
        self._check(found, tolerate)
        found.reverse()
        while found:
            yield found.pop()  # not kept here while it is used: it may be large

    def _check(self, replies: Iterable[Any], tolerate: str) -> None:
        """Raises the first error reply that is not tolerated."""
        if exceptions.ResponseError not in set(map(type, replies)):
            return
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError) and code(reply) != tolerate:
                raise self._failed(reply)

    def _failed(self, error: exceptions.RedisError) -> MemctlError:
        """The error for memctl; the connection is of no more use, and must not come back."""
        self._broken = True
        return self._server.translate(error)


async def in_thread(wire: Wire, call: Callable[[], T]) -> T:
    """Runs a call that uses the wire in a thread; cancelling closes the connection."""
    return await concurrency.in_thread(call, wire.abort)
