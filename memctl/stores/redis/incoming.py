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
from memctl.stores.redis.link import Command
from memctl.stores.redis.wire import Wire

_LEASE = b"%d" % (6 * 3600 * 1000)
"""How long staged payloads live, in milliseconds, if the run that staged them is killed."""
_LARGEST = 512 * 1024 * 1024
"""What a Redis string can hold, in bytes."""
_SET_BYTES = 64 * 1024
_KEYS = 500


class Refused(Exception):
    """A memory that cannot be written as it is; ``failure`` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code, message)


class Item(NamedTuple):
    """A message to be listed."""

    id: bytes
    marks: tuple[bytes, ...]


class Incoming(ABC):
    """A memory to write, or a tail of one."""

    ids: IdSet
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
    def items(self) -> Iterator[list[Item]]:
        """The messages in order, some at a time.  One such iterator is used at a time."""

    @abstractmethod
    def settle(self, ttl: int | None) -> Iterator[Command]:
        """Commands that make the payloads ready, to live for ``ttl`` milliseconds or for ever.

        Each replies with 1, or else a payload is lost.

        Raises:
            Refused: an id is repeated.
        """

    @abstractmethod
    def payloads(self) -> Iterator[Command]:
        """Commands that put each payload under its name."""


class InHand(Incoming):
    """A memory that came in one page."""

    def __init__(self, base: bytes, small: Small, ttl: int | None) -> None:
        """Raises Refused if Redis cannot hold it."""
        super().__init__(base, small.memory, small.offset, ttl)
        self._items = [_item(entry) for entry in small.entries]
        self._messages = [entry.message for entry in small.entries]
        self._ttl: int | None = None
        self.count = len(self._items)
        self.marks = {mark for item in self._items for mark in item.marks}
        self.ids = IdSet()
        self.ids.add(item.id for item in self._items)
        if self.ids.repeats:
            [(id, _)] = Counter(entry.id for entry in small.entries).most_common(1)
            raise Refused("repeated-id", f"the message id {id!r} occurs twice")

    def items(self) -> Iterator[list[Item]]:
        if self._items:
            yield self._items

    def settle(self, ttl: int | None) -> Iterator[Command]:
        self._ttl = ttl
        yield from ()

    def payloads(self) -> Iterator[Command]:
        pairs = (
            (self.base + PAYLOAD + item.id, message)
            for item, message in zip(self._items, self._messages, strict=True)
        )
        if self._ttl is not None:
            for name, message in pairs:
                yield (b"SET", name, message, b"PX", b"%d" % self._ttl)
            return
        some: list[bytes] = []
        size = 0
        for pair in pairs:
            some += pair
            size += len(pair[1])
            if size >= _SET_BYTES:
                yield (b"MSET", *some)
                some, size = [], 0
        if some:
            yield (b"MSET", *some)


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
        self.ids = IdSet()
        self.marks = set()
        self.count = 0

    def add(self, wire: Wire, entries: list[Entry]) -> None:
        """Stages some messages.

        Raises:
            Refused: Redis cannot hold one of them.
            Unavailable: see ``Wire.stream``.
        """
        items = [_item(entry) for entry in entries]
        self.ids.add(item.id for item in items)
        self.marks.update(*(item.marks for item in items))
        first = self.count
        self.count += len(items)
        commands = (
            (b"SET", self._name(number), entry.message, b"PX", _LEASE)
            for number, entry in enumerate(entries, first)
        )
        deque(wire.stream(commands), maxlen=0)
        pickle.dump(items, self._file)
        self._pages += 1

    def _name(self, number: int) -> bytes:
        return self._names + b"%d" % number

    def _all_names(self) -> Iterable[bytes]:
        return map(self._name, range(self.count))

    def items(self) -> Iterator[list[Item]]:
        self._file.seek(0)
        for _ in range(self._pages):
            yield pickle.load(self._file)

    def settle(self, ttl: int | None) -> Iterator[Command]:
        if self._settled:
            return
        self._settled = True
        if self.ids.repeats:
            raise Refused("repeated-id", "a message id occurs twice")
        self._forever = ttl is None
        left = _LEASE if ttl is None else b"%d" % ttl
        for name in self._all_names():
            yield (b"PEXPIRE", name, left)

    def payloads(self) -> Iterator[Command]:
        names = iter(self._all_names())
        for items in self.items():
            for item in items:
                payload = self.base + PAYLOAD + item.id
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


def _item(entry: Entry) -> Item:
    try:
        marks = tuple(encode(mark) for mark in dict.fromkeys(entry.marks))
        item = Item(encode(entry.id), marks)
    except UnicodeEncodeError as error:
        raise Refused(
            "refused", f"Redis cannot hold {error.object!r}, which has half of a surrogate pair"
        ) from error
    if len(entry.message) > _LARGEST:
        raise Refused("refused", f"the message {entry.id!r} is larger than the 512 MiB of Redis")
    return item
