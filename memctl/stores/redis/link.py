"""The socket of a connection, with a parser of its own.

redis-py makes the connection and logs in.  Its way of reading replies costs ten times what parsing
them does, for it comes back to Python for each of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, cast

from hiredis import Reader, pack_command
from redis import exceptions

Command = tuple[bytes, ...]

_READ_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024
_MORE = object()


class Packed(NamedTuple):
    """Some commands as they go over the wire."""

    data: bytes
    commands: int


class Link:
    """Bytes to a server, and replies from it; error replies are ``ResponseError`` of redis-py."""

    def __init__(self, connection: Any) -> None:
        """``connection`` is redis-py's; no reply may be on its way."""
        self._connection = connection
        self._buffer = bytearray(_READ_BYTES)
        self._reader: Any = Reader(
            protocolError=exceptions.InvalidResponse,
            replyError=exceptions.ResponseError,
            notEnoughData=_MORE,
        )

    def send(self, pieces: Iterable[bytes]) -> None:
        """Sends bytes.

        Raises:
            RedisError: the connection broke.
        """
        # A health check would take the reply to another command for its own.
        self._connection.send_packed_command(_joined(pieces), check_health=False)

    def replies(self, most: int) -> list[Any]:
        """The replies that have come, at most so many; there may be none."""
        return list(islice(iter(self._reader.gets, _MORE), most))

    def read(self) -> int:
        """Waits for bytes from the server, and says how many came.

        Raises:
            RedisError: the connection broke, or nothing came in time.
        """
        size = self._receive()
        self._reader.feed(self._buffer, 0, size)
        return size

    def open_array(self) -> int:
        """Waits for an array, and says how many items it has: they come as if they were replies.

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
        try:
            size: int = self._connection._sock.recv_into(self._buffer)
        except TimeoutError as error:
            raise exceptions.TimeoutError("Timeout reading from socket") from error
        except (OSError, AttributeError) as error:  # redis-py has no socket once it gave it up
            raise exceptions.ConnectionError(f"Error while reading from socket: {error}") from error
        if not size:
            raise exceptions.ConnectionError("Connection closed by server.")
        return size

    def break_off(self) -> None:
        """Breaks the connection, also under a thread that waits for it."""
        link = self._connection._sock
        if link:
            with suppress(OSError):  # it is closed already
                link.shutdown(socket.SHUT_RDWR)


def packed(command: Command) -> list[bytes]:
    """The command on the wire; large values stay pieces of their own, so that none is copied."""
    if max(map(len, command)) <= _LARGE_BYTES:
        return [pack_command(cast(Any, command))]
    pieces = [b"*%d\r\n" % len(command)]
    for value in command:
        pieces += (b"$%d\r\n" % len(value), value, b"\r\n")
    return pieces


def _joined(pieces: Iterable[bytes]) -> list[bytes]:
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
