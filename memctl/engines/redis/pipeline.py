"""A connection to Redis that sends commands ahead of their replies.

redis-py makes the connections, including logins and TLS.  Its pipelines are not used, because they
hold all commands and all replies of a batch at once.  Its reader is not used, because it returns
to Python for each reply, which costs ten times the time of parsing.  Threads read the sockets,
because asyncio takes twice the time.
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

from memctl.errors import Busy, Lost, MemctlError, UsageError
from memctl.machine import concurrency
from memctl.model import PAGE_BYTES, PAGE_ENTRIES

T = TypeVar("T")

Command = tuple[bytes, ...]

AHEAD = 256
"""The maximum number of commands sent ahead of their replies, unless the caller sets another."""
ABSENT = -2
"""The reply of PTTL for a key that does not exist."""
WRONG_TYPE = "WRONGTYPE"
"""The first word of the error reply to a command on a key of a type that it does not take."""

_SCANNED = b"2000"
_SEND_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024
_MORE = object()


class PackedCommands(NamedTuple):
    """Commands encoded in the Redis protocol (``data``), and their number (``commands``)."""

    data: bytes
    commands: int


class Connections(Protocol):
    """A pool of connections to Redis, such as ``RedisServer``."""

    label: str

    def acquire(self) -> Any:
        """Return a connection of redis-py from the pool."""

    def release(self, connection: Any) -> None:
        """Give a connection back to the pool."""

    def translate(self, error: exceptions.RedisError) -> MemctlError:
        """Return the memctl error for an error of redis-py or an error reply of the server."""

    @property
    def held_lock(self) -> HeldLock | None:
        """The lock that the run holds on the database; None if the run has not taken a lock."""


class HeldLock(Protocol):
    """The lock of a run: a key that may expire, or become the lock of another run."""

    key: bytes

    def check(self, value: bytes | None) -> None:
        """Check by the value of the key that the run has held the lock ever since it took it.

        Raises:
            Busy: the run has lost the lock.
        """


class Pacer:
    """Chooses how many rows to request at once, so that they have the size of a page.

    The size of a row is unknown before it arrives.  ``rows`` is the number to request, estimated
    from the sizes of the last rows.
    """

    def __init__(self) -> None:
        self.rows = 16

    def observe(self, rows: int, size: int) -> None:
        """Adjust the number to request: the last ``rows`` rows had ``size`` bytes in total."""
        if rows:
            fit = PAGE_BYTES * rows // max(size, 1)
            self.rows = max(1, min(PAGE_ENTRIES, fit, self.rows * 4))


class Pipeline:
    """A connection to Redis that sends commands before the replies to earlier commands arrive.

    All methods except ``abort`` may block: call them in a thread (see ``in_thread``).
    """

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._connection: Any = None
        self._socket: RespSocket | None = None
        self._waiting = 0
        self._broken = False
        self._handover = threading.Lock()

    def connect(self) -> None:
        """Take a connection from the pool, which opens a new one if none is idle.

        If ``abort`` is called before the connection is open, the connection is closed.

        Raises:
            MemctlError: see ``RedisServer.open``.
        """
        try:
            connection = self._server.acquire()
        except exceptions.RedisError as error:
            raise self._server.translate(error) from error
        except (ValueError, OverflowError) as error:
            # redis-py leaves the checks of host names, time limits and TLS versions to Python.
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
        """Give the connection back to the pool; close it if it is broken or replies are pending."""
        with self._handover:
            connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            if self._waiting or self._broken:
                connection.disconnect()
            self._server.release(connection)

    def abort(self) -> None:
        """Break the connection, even while a thread waits for a reply.

        redis-py's ``disconnect`` is not enough: the thread would connect again with its next
        command, and run the remaining commands of a transaction outside of the transaction.
        """
        with self._handover:
            self._broken = True
        if self._socket is not None:
            self._socket.shut_down()

    def translate(self, reply: exceptions.ResponseError) -> MemctlError:
        """Return the memctl error for an error reply of the server."""
        return self._server.translate(reply)

    def execute(
        self, commands: Iterable[Command | PackedCommands], *, tolerate: str = ""
    ) -> list[Any]:
        """Run commands and return their replies, in order.

        Error replies that begin with the word ``tolerate`` are returned as ``ResponseError``; other
        error replies are raised as ``stream`` does.
        """
        return list(self.stream(commands, tolerate=tolerate))

    def forbidden(self, commands: Sequence[Command]) -> Command | None:
        """Return the first command that the ACL forbids this login, or None; run no command.

        The server checks the ACL when it queues the commands of a transaction.  The connection is
        broken afterwards, which ends this transaction.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command for another reason.
        """
        [begun] = self.execute([(b"MULTI",)], tolerate="NOPERM")
        if begun != b"OK":
            return None
        replies = self.execute(commands, tolerate="NOPERM")
        self.abort()
        pairs = zip(commands, replies, strict=True)
        return next((one for one, reply in pairs if reply != b"QUEUED"), None)

    def stream(
        self,
        commands: Iterable[Command | PackedCommands],
        *,
        tolerate: str = "",
        ahead: Callable[[], int] = lambda: AHEAD,
    ) -> Iterator[Any]:
        """Run commands and yield their replies, in order.

        Commands are sent while replies arrive.  At most ``ahead()`` commands wait for replies, so
        that neither side buffers much.  Error replies that begin with the word ``tolerate`` are
        yielded as ``ResponseError`` of redis-py.  The caller must read all replies before the next
        call.

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
        """Run commands in a transaction (MULTI and EXEC) and yield their replies, in order.

        The replies are not held in RAM together, so their total size is not limited.  Error replies
        that begin with the word ``tolerate`` are yielded; others are raised.

        Raises:
            Busy: the run has lost its lock.
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self._transact(commands)
        while self._waiting:
            yield from self._receive(tolerate)

    def commit(self, commands: Iterable[Command | PackedCommands]) -> bool:
        """Run commands in one transaction; return whether the server ran the commands.

        False means that a watched key had changed, so that the server ran no command.

        Raises:
            Busy: the run has lost its lock; the server ran no command.
            Lost: the connection broke.
            Unavailable: the server refuses a command, and with it the transaction.
        """
        done = self._transact(commands)
        while self._waiting:
            deque(self._receive(""), maxlen=0)
        return done

    def _transact(self, commands: Iterable[Command | PackedCommands]) -> bool:
        """Send commands as a transaction; return whether the server ran the transaction.

        The caller must then read the replies.  If the run has lost its lock, the server runs no
        command.
        """
        lock = self._server.held_lock
        if lock is None:
            deque(self.stream(chain([(b"MULTI",)], commands)), maxlen=0)
        else:
            replies = self.stream(chain([(b"GET", lock.key), (b"MULTI",)], commands))
            held = next(replies)
            deque(replies, maxlen=0)
            try:
                lock.check(held)
            except Busy:
                self._broken = True  # the server drops the transaction with the connection
                raise
        resp = self._send([b"*1\r\n$4\r\nEXEC\r\n"], 1)
        try:
            count = resp.open_array()
        except exceptions.RedisError as error:
            raise self._failed(error) from error
        self._waiting = max(count, 0)
        return count >= 0

    def values(self, keys: Sequence[bytes], pacer: Pacer) -> Iterator[list[Any]]:
        """Yield the values of the keys, in order, in lists of about the size of a page.

        None stands for a missing key, and ``ResponseError`` for a key that is not a string.
        ``pacer`` sets the number of keys to request ahead, for about two pages.  (MGET is no
        faster, and its reply comes as a whole, even if it has gigabytes.)

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
                yield held.pop()  # keep no reference: the values may be large
                held.append([])
                size = 0

    def _send_some(self, commands: Iterator[Command | PackedCommands], most: int) -> bool:
        """Send at most ``most`` commands, or 256 KiB; return whether more commands may follow."""
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
        """Send ``count`` encoded commands; return the socket that reads their replies."""
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
        """Wait for replies and yield the next ones, at least one.

        Error replies that begin with the word ``tolerate`` are yielded; others are raised.
        """
        resp = self._send((), 0)
        while not (found := resp.replies(self._waiting)):
            self._read(resp)
        self._waiting -= len(found)
        self._check(found, tolerate)
        found.reverse()
        while found:
            yield found.pop()  # keep no reference: the reply may be large

    def _check(self, replies: Iterable[Any], tolerate: str) -> None:
        """Raise the memctl error for the first error reply whose first word is not ``tolerate``."""
        if exceptions.ResponseError not in set(map(type, replies)):
            return
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError) and error_code(reply) != tolerate:
                raise self._failed(reply)

    def _failed(self, error: exceptions.RedisError) -> MemctlError:
        """Mark the connection as broken, and return the memctl error for ``error``."""
        self._broken = True
        return self._server.translate(error)


async def in_thread(pipeline: Pipeline, call: Callable[[], T]) -> T:
    """Call a function that uses the pipeline, in a thread; return its result.

    If the task is cancelled, the connection is broken, so that the thread ends.
    """
    return await concurrency.in_thread(call, pipeline.abort)


async def items_in_thread(
    pipeline: Pipeline, make: Callable[[], Iterator[Iterable[T]]]
) -> AsyncGenerator[T]:
    """Yield the items of the lists that ``make()`` yields.

    ``make`` and its iterator use the pipeline, and run in a thread.
    """
    lists = await in_thread(pipeline, make)
    while (items := await in_thread(pipeline, partial(next, lists, None))) is not None:
        for item in items:
            yield item


def scan(pipeline: Pipeline, pattern: bytes, kind: bytes = b"") -> Iterator[bytes]:
    """Yield the keys that match a glob pattern; a key may come more than once.

    ``kind`` is a Redis type, such as ``b"list"``, to yield only keys of this type.

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
    """A socket that sends commands as bytes, and parses replies with hiredis.

    Error replies are ``ResponseError`` of redis-py.
    """

    def __init__(self, connection: Any) -> None:
        """Use a connection of redis-py, which must have no pending replies."""
        self._connection = connection
        self._buffer = bytearray(_READ_BYTES)
        self._reader: Any = Reader(
            protocolError=exceptions.InvalidResponse,
            replyError=exceptions.ResponseError,
            notEnoughData=_MORE,
        )

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send encoded commands, given in pieces.

        Raises:
            RedisError: the connection broke.
        """
        # A health check would read the reply to another command as its own.
        self._connection.send_packed_command(_join_small(pieces), check_health=False)

    def replies(self, most: int) -> list[Any]:
        """Return at most ``most`` replies that have arrived; an empty list if none has."""
        return list(islice(iter(self._reader.gets, _MORE), most))

    def read(self) -> int:
        """Wait for bytes from the server, keep them for ``replies``, and return their number.

        Raises:
            RedisError: the connection broke, or the time limit passed.
        """
        size = self._receive()
        self._reader.feed(self._buffer, 0, size)
        return size

    def open_array(self) -> int:
        """Wait for the head of an array reply; return the array's length, or -1 for a null array.

        ``replies`` then returns the items of the array.  No other reply may be pending.

        Raises:
            RedisError: as ``read``, or the reply is an error.
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
        """Break the connection, even while a thread waits for a reply."""
        link = driver_socket(self._connection)
        if link is not None:
            with suppress(OSError):  # the socket is already closed
                link.shutdown(socket.SHUT_RDWR)


def driver_socket(connection: Any) -> socket.socket | None:
    """Return the socket of a redis-py connection; None after redis-py has closed it.

    redis-py (6 to 8) keeps the socket in ``_sock`` without a public name; its own parsers use
    ``_sock``.  Only this function does so in memctl.
    """
    return cast("socket.socket | None", connection._sock)


def error_code(error: exceptions.RedisError) -> str:
    """Return the error code of a Redis error reply, its first word, such as ``OOM``.

    redis-py removes the word from some replies; the class of the error then tells the code.
    """
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
    """Encode a command as pieces of bytes; a command with a large value is not copied."""
    if max(map(len, command)) <= _LARGE_BYTES:
        return [pack_command(cast(Any, command))]
    pieces = [b"*%d\r\n" % len(command)]
    for value in command:
        pieces += (b"$%d\r\n" % len(value), value, b"\r\n")
    return pieces


def _join_small(pieces: Iterable[bytes]) -> list[bytes]:
    """Join adjacent small pieces; return the joined and the large pieces, in order."""
    joined: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) <= _LARGE_BYTES:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    return [*joined, b"".join(small)]
