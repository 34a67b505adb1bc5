"""Memories on their way into Redis: in hand, or staged."""

from __future__ import annotations

import pickle
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from types import TracebackType
from typing import NamedTuple, Self

from memctl.errors import Failure
from memctl.model import Memory, StoredMessage
from memctl.stores.batching import Large, Small
from memctl.stores.catalog import IdSet
from memctl.stores.redis.keys import PAYLOAD, Keys, decode, encode
from memctl.stores.redis.link import Command, Packed
from memctl.stores.redis.payloads import Held, OnServer, Payloads
from memctl.stores.redis.spellings import plain, spellings
from memctl.stores.redis.wire import Wire

_LARGEST = 512 * 1024 * 1024
"""What a Redis string can hold, in bytes."""


class Refused(Exception):
    """A memory that cannot be written as it is; ``failure`` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code, message)


class Listed(NamedTuple):
    """What is to be listed of some messages."""

    ids: list[bytes]
    marked: dict[bytes, list[bytes]]
    """The ids by the name of the list of a mark."""


class Incoming(ABC):
    """A memory to write, or a tail of one."""

    ids: IdSet | set[bytes]
    marks: set[bytes]
    """The names of the lists of the marks."""
    count: int
    texts: Payloads

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

    def payloads(self) -> Iterator[Command | Packed]:
        """Commands that put each payload under its name."""
        prefix = self.base + PAYLOAD
        yield from self.texts.put([prefix + id for id in some.ids] for some in self.listed())


class InHand(Incoming):
    """A memory that came in one page."""

    def __init__(self, base: bytes, small: Small, ttl: int | None) -> None:
        """Raises Refused if Redis cannot hold it."""
        super().__init__(base, small.memory, small.offset, ttl)
        self._listed = _listed(small.entries)
        self.texts = Held([entry.message for entry in small.entries])
        self.count = len(small.entries)
        self.marks = set(self._listed.marked)
        self.ids = set(self._listed.ids)
        if len(self.ids) < self.count:
            [(id, _)] = Counter(entry.id for entry in small.entries).most_common(1)
            raise Refused("repeated-id", f"the message id {id!r} occurs twice")

    def listed(self) -> Iterator[Listed]:
        if self.count:
            yield self._listed

    def settle(self, ttl: int | None) -> Iterator[Command]:
        return self.texts.settle(ttl)


class Staged(Incoming):
    """A memory that came in many pages: payloads on the server, ids and marks in a local file."""

    def __init__(self, keys: Keys, base: bytes, large: Large, ttl: int | None) -> None:
        super().__init__(base, large.memory, large.offset, ttl)
        self.texts = self._texts = OnServer(keys)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._pages = 0
        self._settled = False
        self._ids = IdSet()
        self.ids = self._ids
        self.marks = set()
        self.count = 0

    def add(self, wire: Wire, entries: list[StoredMessage]) -> None:
        """Stages some messages.

        Raises:
            Refused: Redis cannot hold one of them.
            Unavailable: see ``Wire.stream``.
        """
        listed = _listed(entries)
        self._ids.add(listed.ids)
        self.marks.update(listed.marked)
        self.count += len(entries)
        self._texts.add(wire, [entry.message for entry in entries])
        pickle.dump(listed, self._file)
        self._pages += 1

    def listed(self) -> Iterator[Listed]:
        self._file.seek(0)
        for _ in range(self._pages):
            yield pickle.load(self._file)

    def settle(self, ttl: int | None) -> Iterator[Command]:
        if self._settled:
            return
        self._settled = True
        if self._ids.duplicates:
            raise Refused("repeated-id", "a message id occurs twice")
        yield from self.texts.settle(ttl)

    def discard(self, wire: Wire) -> None:
        """Removes what is staged.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        self._texts.discard(wire)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _listed(entries: list[StoredMessage]) -> Listed:
    """Raises Refused if Redis cannot hold one of the messages."""
    marked: dict[bytes, list[bytes]] = {}
    try:
        ids = [entry.id.encode("utf-8", "surrogateescape") for entry in entries]
        for id, entry in zip(ids, entries, strict=True):
            for name in _lists_of(entry.marks) if entry.marks else ():
                marked.setdefault(name, []).append(id)
    except UnicodeEncodeError as error:
        raise half_a_pair(error) from error
    for entry in entries:
        object_to_size(entry.id, entry.message)
    return Listed(ids, marked)


@lru_cache
def _lists_of(marks: tuple[str, ...]) -> tuple[bytes, ...]:
    """The names of all lists of some marks; raises what ``mark_of`` does."""
    return tuple(chain.from_iterable(spellings(mark_of(name)) for name in dict.fromkeys(marks)))


def mark_of(name: str) -> bytes:
    """The bytes of a mark that a message is to have.

    Raises:
        Refused: RedisMemory lists another mark under that name.
        UnicodeEncodeError: see ``encode``.
    """
    mark = encode(name)
    if plain(mark) != mark:
        text = f"RedisMemory lists the mark {decode(plain(mark))!r} under the name {name!r}"
        raise Refused("refused", f"{text}: the mark with that name must be renamed first")
    return mark


def object_to_size(id: str, message: bytes) -> None:
    """Raises Refused if Redis cannot hold a message of that size."""
    if len(message) > _LARGEST:
        raise Refused("refused", f"the message {id!r} is larger than the 512 MiB of Redis")


def half_a_pair(error: UnicodeEncodeError) -> Refused:
    """What to say of a name that no bytes stand for."""
    return Refused(
        "refused", f"Redis cannot hold {error.object!r}, which has half of a surrogate pair"
    )
