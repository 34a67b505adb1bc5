"""Payloads on their way into Redis: in hand, or staged on the server."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from memctl.stores.redis.keys import Keys
from memctl.stores.redis.link import Command, Packed
from memctl.stores.redis.wire import Wire

_LEASE = b"%d" % (6 * 3600 * 1000)
"""How long staged payloads live, in milliseconds, if the run that staged them is killed."""
_LARGE_BYTES = 64 * 1024
_KEYS = 500


class Payloads(ABC):
    """Messages to be put under the names of their payloads, in a transaction to come."""

    @abstractmethod
    def settle(self, ttl: int | None) -> Iterator[Command]:
        """Commands that make the payloads ready, to live for ``ttl`` milliseconds or for ever.

        Each replies with 1, or else a payload is lost.
        """

    @abstractmethod
    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command | Packed]:
        """Commands that put each payload under its name; the names come some at a time."""


class Held(Payloads):
    """Payloads that are few, and go with the transaction."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self._ttl: int | None = None

    def settle(self, ttl: int | None) -> Iterator[Command]:
        self._ttl = ttl
        yield from ()

    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command | Packed]:
        messages = iter(self._messages)
        for some in names:
            texts = list(islice(messages, len(some)))
            if self._ttl is not None:
                yield from _sets(some, texts, b"%d" % self._ttl)
            elif some:
                yield _all_set(some, texts)


class OnServer(Payloads):
    """Payloads that are many: on the server already, under names that belong to this object alone.

    The names fit no pattern of AgentScope's.
    """

    def __init__(self, keys: Keys) -> None:
        self._names = keys.prefix + b"memctl:" + secrets.token_hex(8).encode() + b":"
        self._count = 0
        self._forever = False

    def add(self, wire: Wire, messages: list[bytes]) -> None:
        """Stages some messages.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        first = self._count
        self._count += len(messages)
        names = list(map(self._name, range(first, self._count)))
        deque(wire.stream(_sets(names, messages, _LEASE)), maxlen=0)

    def _name(self, number: int) -> bytes:
        return self._names + b"%d" % number

    def _all_names(self) -> Iterator[bytes]:
        return map(self._name, range(self._count))

    def settle(self, ttl: int | None) -> Iterator[Command]:
        self._forever = ttl is None
        left = _LEASE if ttl is None else b"%d" % ttl
        for name in self._all_names():
            yield (b"PEXPIRE", name, left)

    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command]:
        staged = self._all_names()
        for some in names:
            for name in some:
                yield (b"RENAME", next(staged), name)
                if self._forever:  # not before: what a killed run has staged must expire
                    yield (b"PERSIST", name)

    def discard(self, wire: Wire) -> None:
        """Removes what is staged.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        names = self._all_names()
        commands = iter(lambda: (b"UNLINK", *islice(names, _KEYS)), (b"UNLINK",))
        deque(wire.stream(commands), maxlen=0)


def _all_set(names: list[bytes], messages: list[bytes]) -> Packed:
    """One command that sets strings that live for ever."""
    pairs = [
        b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(text), text)
        for name, text in zip(names, messages, strict=True)
    ]
    head = b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * len(names))
    return Packed(b"".join([head, *pairs]), 1)


def _sets(names: list[bytes], messages: list[bytes], ttl: bytes) -> Iterator[Command | Packed]:
    """Commands that set strings that live for so many milliseconds."""
    if max(map(len, messages), default=0) > _LARGE_BYTES:
        for name, message in zip(names, messages, strict=True):
            yield (b"SET", name, message, b"PX", ttl)
        return
    end = b"$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl), ttl)
    commands = [
        b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b"
        % (len(name), name, len(message), message, end)
        for name, message in zip(names, messages, strict=True)
    ]
    yield Packed(b"".join(commands), len(commands))
