"""Memories on their way into Redis: in hand, or staged on the server."""

from __future__ import annotations

import pickle
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Self

from memctl.errors import Failure
from memctl.model import Entry, Memory
from memctl.stores._batches import Large, Small
from memctl.stores._id_set import IdSet
from memctl.stores.redis.keys import PAYLOAD, Keys, encode
from memctl.stores.redis.link import Command, Packed
from memctl.stores.redis.wire import Wire

_LEASE = b"%d" % (6 * 3600 * 1000)
"""How long staged payloads live, in milliseconds, if the run that staged them is killed."""
_LARGEST = 512 * 1024 * 1024
"""What a Redis string can hold, in bytes."""
_LARGE_BYTES = 64 * 1024
_KEYS = 500


class Refused(Exception):
    """A memory that cannot be written as it is; ``failure`` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code, message)


class Listed(NamedTuple):
    """What is to be listed of some messages."""

    ids: list[bytes]
    marked: dict[bytes, list[bytes]]
    """The ids by mark."""


class Incoming(ABC):
    """A memory to write, or a tail of one."""

    ids: IdSet | set[bytes]
    marks: set[bytes]
    count: int

    def __init__(self, base: bytes, memory: Memory, offset: int, ttl: int | None) -> None:
        """``ttl`` is in milliseconds, None to leave the expiry of the memory as it is."""
        self.published = False
        self.base = base
        self.key = memory.key
        self.offset = offset
        self.ttl = ttl

    @abstractmethod
    def listed(self) -> Iterator[Listed]:
        """The messages in order, some at a time.  One such iterator is used at a time."""

    @abstractmethod
    def settle(self, ttl: int | None) -> Iterator[Command]:
        """Commands that make the payloads ready, to live for ``ttl`` milliseconds or for ever.

        Each replies with 1, or else a payload is lost.

        Raises:
            Refused: an id is repeated.
        """

    @abstractmethod
    def payloads(self) -> Iterator[Command | Packed]:
        """Commands that put each payload under its name."""


class InHand(Incoming):
    """A memory that came in one page."""

    def __init__(self, base: bytes, small: Small, ttl: int | None) -> None:
        """Raises Refused if Redis cannot hold it."""
        super().__init__(base, small.memory, small.offset, ttl)
        self._listed = _listed(small.entries)
        self._messages = [entry.message for entry in small.entries]
        self._ttl: int | None = None
        self.count = len(self._messages)
        self.marks = set(self._listed.marked)
        self.ids = set(self._listed.ids)
        if len(self.ids) < self.count:
            [(id, _)] = Counter(entry.id for entry in small.entries).most_common(1)
            raise Refused("repeated-id", f"the message id {id!r} occurs twice")

    def listed(self) -> Iterator[Listed]:
        if self.count:
            yield self._listed

    def settle(self, ttl: int | None) -> Iterator[Command]:
        self._ttl = ttl
        yield from ()

    def payloads(self) -> Iterator[Command | Packed]:
        prefix = self.base + PAYLOAD
        if self._ttl is not None:
            names = [prefix + id for id in self._listed.ids]
            yield from _sets(names, self._messages, b"%d" % self._ttl)
        elif self.count:
            size = len(prefix)
            pairs = [
                b"$%d\r\n%b%b\r\n$%d\r\n%b\r\n" % (size + len(id), prefix, id, len(text), text)
                for id, text in zip(self._listed.ids, self._messages, strict=True)
            ]
            head = b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * self.count)
            yield Packed(b"".join([head, *pairs]), 1)


class Staged(Incoming):
    """A memory that came in many pages: payloads on the server, ids and marks in a local file.

    The server's names of the payloads belong to this object alone, and fit no pattern of
    AgentScope's.
    """

    def __init__(self, keys: Keys, base: bytes, large: Large, ttl: int | None) -> None:
        super().__init__(base, large.memory, large.offset, ttl)
        self._names = keys.prefix + b"memctl:" + secrets.token_hex(8).encode() + b":"
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._pages = 0
        self._settled = False
        self._forever = False
        self._ids = IdSet()
        self.ids = self._ids
        self.marks = set()
        self.count = 0

    def add(self, wire: Wire, entries: list[Entry]) -> None:
        """Stages some messages.

        Raises:
            Refused: Redis cannot hold one of them.
            Unavailable: see ``Wire.stream``.
        """
        listed = _listed(entries)
        self._ids.add(listed.ids)
        self.marks.update(listed.marked)
        first = self.count
        self.count += len(entries)
        names = list(map(self._name, range(first, self.count)))
        commands = _sets(names, [entry.message for entry in entries], _LEASE)
        deque(wire.stream(commands), maxlen=0)
        pickle.dump(listed, self._file)
        self._pages += 1

    def _name(self, number: int) -> bytes:
        return self._names + b"%d" % number

    def _all_names(self) -> Iterable[bytes]:
        return map(self._name, range(self.count))

    def listed(self) -> Iterator[Listed]:
        self._file.seek(0)
        for _ in range(self._pages):
            yield pickle.load(self._file)

    def settle(self, ttl: int | None) -> Iterator[Command]:
        if self._settled:
            return
        self._settled = True
        if self._ids.repeats:
            raise Refused("repeated-id", "a message id occurs twice")
        self._forever = ttl is None
        left = _LEASE if ttl is None else b"%d" % ttl
        for name in self._all_names():
            yield (b"PEXPIRE", name, left)

    def payloads(self) -> Iterator[Command]:
        names = iter(self._all_names())
        for listed in self.listed():
            for id in listed.ids:
                payload = self.base + PAYLOAD + id
                yield (b"RENAME", next(names), payload)
                if self._forever:  # not before: what a killed run has staged must expire
                    yield (b"PERSIST", payload)

    def discard(self, wire: Wire) -> None:
        """Removes what is staged.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        names = iter(self._all_names())
        commands = iter(lambda: (b"UNLINK", *islice(names, _KEYS)), (b"UNLINK",))
        deque(wire.stream(commands), maxlen=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _listed(entries: list[Entry]) -> Listed:
    """Raises Refused if Redis cannot hold one of the messages."""
    marked: dict[bytes, list[bytes]] = {}
    try:
        ids = [entry.id.encode("utf-8", "surrogateescape") for entry in entries]
        for id, entry in zip(ids, entries, strict=True):
            if entry.marks:
                for mark in dict.fromkeys(entry.marks):
                    marked.setdefault(encode(mark), []).append(id)
    except UnicodeEncodeError as error:
        raise Refused(
            "refused", f"Redis cannot hold {error.object!r}, which has half of a surrogate pair"
        ) from error
    for entry in entries:
        if len(entry.message) > _LARGEST:
            raise Refused(
                "refused", f"the message {entry.id!r} is larger than the 512 MiB of Redis"
            )
    return Listed(ids, marked)


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
