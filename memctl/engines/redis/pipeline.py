"""One connection to Redis: commands sent ahead of their replies.

redis-py makes the connections, for it knows logins and TLS.  Its pipelines are not used: they hold
all commands and all replies of a batch at once.  Nor is its way of reading replies, which costs ten
times what parsing them does, for it comes back to Python for each of them.  Sockets are read in
threads: asyncio takes twice as long.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from hiredis import Reader, pack_command
from redis import exceptions

from memctl import concurrency
from memctl.errors import Lost, MemctlError, UsageError
from memctl.model import PAGE_BYTES, PAGE_ENTRIES

T = TypeVar("T")

Command = tuple[bytes, ...]

AHEAD = 256
"""Commands that may wait for their replies, unless the caller sets another limit."""
ABSENT = -2
"""PTTL of a key that does not exist."""
WRONG_TYPE = "WRONGTYPE"
"""The first word of the error reply where a key holds another kind of value."""

_SCANNED = b"2000"
_SEND_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024
_MORE = object()


class PackedCommands(NamedTuple):
    """Commands in the bytes of the protocol, and their number."""

    data: bytes
    commands: int


class Connections(Protocol):
    """A source of connections, such as ``RedisServer``."""

    label: str

    def acquire(self) -> Any:
        """Return a connection of redis-py."""

    def release(self, connection: Any) -> None:
        """Take a connection back."""

    def translate(self, error: exceptions.RedisError) -> MemctlError:
        """Return the memctl error for an error of redis-py, or for an error reply."""


class Pacer:
    """The number of rows to request from a server, so that a page stays near PAGE_BYTES.

    Rows are requested by number, whatever their size; the size of the last rows shows how many of
    the next ones fit.
    """

    def __init__(self) -> None:
        self.rows = 16

    def observe(self, rows: int, size: int) -> None:
        """Learn from a fetch of ``rows`` rows of ``size`` bytes in all."""
        if rows:
            fit = PAGE_BYTES * rows // max(size, 1)
            self.rows = max(1, min(PAGE_ENTRIES, fit, self.rows * 4))


class Pipeline:
    """One connection, on which many commands may be under way.

    All methods but ``abort`` may block: call them in a thread (see ``in_thread``).
    """

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._connection: Any = None
        self._socket: RespSocket | None = None
        self._waiting = 0
        self._broken = False
        self._handover = threading.Lock()

    def connect(self) -> None:
        """Take a connection from the pool, which connects where none is idle.

        If ``abort`` was called meanwhile, the connection is closed.

        Raises:
            MemctlError: see ``RedisServer.open``.
        """
        try:
            connection = self._server.acquire()
        except exceptions.RedisError as error:
            raise self._server.translate(error) from error
        except (ValueError, OverflowError) as error:
            # redis-py leaves names of hosts, time limits and versions of TLS to Python to check.
            raise UsageError(
                f"{self._server.label} has a host or an option that is not valid", str(error)
            ) from error
        with self._handover:
            self._connection = connection
            self._socket = RespSocket(connection)
            aborted = self._broken
        if aborted:
            self.release()

    def release(self) -> None:
        """Return the connection to the pool; close one that broke, or has replies to come."""
        with self._handover:
            connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            if self._waiting or self._broken:
                connection.disconnect()
            self._server.release(connection)

    def abort(self) -> None:
        """Break the connection, also under a thread that waits for it.

        redis-py's own ``disconnect`` would let that thread connect again with its next command,
        and run the rest of a transaction outside of it.
        """
        with self._handover:
            self._broken = True
        if self._socket is not None:
            self._socket.shut_down()

    def translate(self, reply: exceptions.ResponseError) -> MemctlError:
        """Return the memctl error for an error reply."""
        return self._server.translate(reply)

    def execute(
        self, commands: Iterable[Command | PackedCommands], *, tolerate: str = ""
    ) -> list[Any]:
        """Return the replies to the commands; see ``stream``."""
        return list(self.stream(commands, tolerate=tolerate))

    def stream(
        self,
        commands: Iterable[Command | PackedCommands],
        *,
        tolerate: str = "",
        ahead: Callable[[], int] = lambda: AHEAD,
    ) -> Iterator[Any]:
        """Yield the replies to the commands, in order.

        Commands are taken and sent while replies are: no more than ``ahead()`` wait, so that
        neither side has much to buffer.  Error replies that begin with the word ``tolerate`` are
        yielded as ``ResponseError`` of redis-py.  Exhaust a stream before another begins.

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
        """Yield the replies to commands that the server runs at one moment (MULTI and EXEC).

        However large they are together, they arrive one by one.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self._transact(commands)
        while self._waiting:
            yield from self._receive(tolerate)

    def commit(self, commands: Iterable[Command | PackedCommands]) -> bool:
        """Run commands at one moment; return False if a watched key changed and none was run.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command, and so all.
        """
        done = self._transact(commands)
        while self._waiting:
            deque(self._receive(""), maxlen=0)
        return done

    def _transact(self, commands: Iterable[Command | PackedCommands]) -> bool:
        """Send a transaction; return whether it was run.  Its replies are still to come."""
        deque(self.stream(chain([(b"MULTI",)], commands)), maxlen=0)
        resp = self._send([b"*1\r\n$4\r\nEXEC\r\n"], 1)
        try:
            count = resp.open_array()
        except exceptions.RedisError as error:
            raise self._failed(error) from error
        self._waiting = max(count, 0)
        return count >= 0

    def values(self, keys: Sequence[bytes], pacer: Pacer) -> Iterator[list[Any]]:
        """Yield the values of the keys, in order, in lists of about a page.

        None stands for a key that does not exist, a ``ResponseError`` for one that is not a string.
        ``pacer`` sets how many are requested ahead: about a page, twice.  (MGET would be no faster,
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
                resp = self._send([b"".join(gets)], len(some))
                sent += len(some)
            found = resp.replies(sent - got)
            if not found:
                size += self._read(resp)
                continue
            got += len(found)
            self._waiting -= len(found)
            self._check(found, WRONG_TYPE)
            held[0] += found
            del found
            if size >= PAGE_BYTES or len(held[0]) >= PAGE_ENTRIES or got == len(keys):
                pacer.observe(len(held[0]), size)
                yield held.pop()  # not kept here while it is used: it may be large
                held.append([])
                size = 0

    def _send_some(self, commands: Iterator[Command | PackedCommands], most: int) -> bool:
        """Send the next commands, up to a number and a size; return whether there may be more."""
        pieces: list[bytes] = []
        size = count = 0
        more = False
        for command in commands:
            if isinstance(command, PackedCommands):
                pieces.append(command.data)
                size += len(command.data)
                count += command.commands
            else:
                some = _pack(command)
                pieces += some
                size += sum(map(len, some))
                count += 1
            if count >= most or size >= _SEND_BYTES:
                more = True
                break
        if pieces:
            self._send(pieces, count)
        return more

    def _send(self, pieces: Iterable[bytes], count: int) -> RespSocket:
        """Send so many commands; return the socket that reads their replies."""
        if self._broken or self._socket is None:
            raise Lost(f"the connection to {self._server.label} was closed")
        try:
            self._socket.send(pieces)
        except exceptions.RedisError as error:
            raise self._failed(error) from error
        self._waiting += count
        return self._socket

    def _read(self, resp: RespSocket) -> int:
        try:
            return resp.read()
        except exceptions.RedisError as error:
            raise self._failed(error) from error

    def _receive(self, tolerate: str) -> Iterator[Any]:
        """Yield the next replies, at least one."""
        resp = self._send((), 0)
        while not (found := resp.replies(self._waiting)):
            self._read(resp)
        self._waiting -= len(found)
        self._check(found, tolerate)
        found.reverse()
        while found:
            yield found.pop()  # not kept here while it is used: it may be large

    def _check(self, replies: Iterable[Any], tolerate: str) -> None:
        """Raise the first error reply that is not tolerated."""
        if exceptions.ResponseError not in set(map(type, replies)):
            return
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError) and error_code(reply) != tolerate:
                raise self._failed(reply)

    def _failed(self, error: exceptions.RedisError) -> MemctlError:
        """Return the memctl error; the connection is not used again."""
        self._broken = True
        return self._server.translate(error)


async def in_thread(pipeline: Pipeline, call: Callable[[], T]) -> T:
    """Run a call that uses the pipeline in a thread; cancelling closes the connection."""
    return await concurrency.in_thread(call, pipeline.abort)


async def items_in_thread(
    pipeline: Pipeline, make: Callable[[], Iterator[Iterable[T]]]
) -> AsyncGenerator[T]:
    """Yield the items of the lists that an iterator gives, which is made and moved in a thread."""
    lists = await in_thread(pipeline, make)
    while (items := await in_thread(pipeline, partial(next, lists, None))) is not None:
        for item in items:
            yield item


def scan(pipeline: Pipeline, pattern: bytes, kind: bytes = b"") -> Iterator[bytes]:
    """Yield the keys of a type, or of any, whose names match; some may come twice.

    Raises:
        Unavailable: see ``Pipeline.stream``.
    """
    cursor = b"0"
    while True:
        typed = (b"TYPE", kind) if kind else ()
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCANNED, *typed)
        [(cursor, found)] = pipeline.execute([command])
        yield from found
        if cursor == b"0":
            return


class RespSocket:
    """Commands sent as bytes, and replies parsed by hiredis.

    Error replies are ``ResponseError`` of redis-py.
    """

    def __init__(self, connection: Any) -> None:
        """Take a connection of redis-py on which no reply is to come."""
        self._connection = connection
        self._buffer = bytearray(_READ_BYTES)
        self._reader: Any = Reader(
            protocolError=exceptions.InvalidResponse,
            replyError=exceptions.ResponseError,
            notEnoughData=_MORE,
        )

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send bytes.

        Raises:
            RedisError: the connection broke.
        """
        # A health check would take the reply to another command for its own.
        self._connection.send_packed_command(_join_small(pieces), check_health=False)

    def replies(self, most: int) -> list[Any]:
        """Return the replies that have come, at most so many; there may be none."""
        return list(islice(iter(self._reader.gets, _MORE), most))

    def read(self) -> int:
        """Wait for bytes from the server, and return their number.

        Raises:
            RedisError: the connection broke, or nothing came in time.
        """
        size = self._receive()
        self._reader.feed(self._buffer, 0, size)
        return size

    def open_array(self) -> int:
        """Wait for an array, and return its length; its items follow as if they were replies.

        -1 stands for no array.  No other reply may be on its way.

        Raises:
            RedisError: as ``read``; or the reply is an error.
        """
        head = b""
        while b"\r\n" not in head:
            head += self._buffer[: self._receive()]
        line, _, rest = head.partition(b"\r\n")
        if not line.startswith(b"*"):
            raise exceptions.ResponseError(line[1:].decode(errors="replace"))
        self._reader.feed(rest)
        return int(line[1:])

    def _receive(self) -> int:
        link = driver_socket(self._connection)
        try:
            if link is None:
                raise OSError("the connection is closed")
            size = link.recv_into(self._buffer)
        except TimeoutError as error:
            raise exceptions.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise exceptions.ConnectionError(f"Error while reading from socket: {error}") from error
        if not size:
            raise exceptions.ConnectionError("Connection closed by server.")
        return size

    def shut_down(self) -> None:
        """Break the connection, also under a thread that waits for it."""
        link = driver_socket(self._connection)
        if link is not None:
            with suppress(OSError):  # it is closed already
                link.shutdown(socket.SHUT_RDWR)


def driver_socket(connection: Any) -> socket.socket | None:
    """Return the socket of a connection of redis-py, None once redis-py gave it up.

    redis-py (6 to 8) keeps it in ``_sock`` and has no public name for it: their own parsers take it
    from there.  This is the only place that does.
    """
    return cast("socket.socket | None", connection._sock)


def error_code(error: exceptions.RedisError) -> str:
    """Return the word that an error reply began with; redis-py strips some of them."""
    match error:
        case exceptions.OutOfMemoryError():
            return "OOM"
        case exceptions.ReadOnlyError():
            return "READONLY"
        case exceptions.BusyLoadingError():
            return "LOADING"
        case exceptions.MasterDownError():
            return "MASTERDOWN"
        case exceptions.TryAgainError():
            return "TRYAGAIN"
        case exceptions.NoPermissionError():
            return "NOPERM"
        case exceptions.MovedError() | exceptions.AskError():
            return "MOVED"
        case exceptions.ClusterCrossSlotError() | exceptions.ClusterDownError():
            return "CLUSTERDOWN"
        case _:
            return str(error).partition(" ")[0]


def _pack(command: Command) -> list[bytes]:
    """Return the bytes of a command; large values stay pieces of their own, and are not copied."""
    if max(map(len, command)) <= _LARGE_BYTES:
        return [pack_command(cast(Any, command))]
    pieces = [b"*%d\r\n" % len(command)]
    for value in command:
        pieces += (b"$%d\r\n" % len(value), value, b"\r\n")
    return pieces


def _join_small(pieces: Iterable[bytes]) -> list[bytes]:
    """Return fewer pieces: those between large ones are joined."""
    joined: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) <= _LARGE_BYTES:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    return [*joined, b"".join(small)]
