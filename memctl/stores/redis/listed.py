"""The lists of memories, each as of one moment, and what they say of one another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from redis.exceptions import ResponseError

from memctl.model import Finding, MemoryKey
from memctl.stores.catalog import IdSet
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, decode
from memctl.stores.redis.look import Chunks, ids_of, ranges
from memctl.stores.redis.scan import Named
from memctl.stores.redis.spellings import others
from memctl.stores.redis.wire import WRONG_TYPE, Wire

EXAMPLES = 3

_MEMORIES = 128
_IDS = 10_000


@dataclass(slots=True)
class Some:
    """How many there are of something, and a few names."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, name: bytes) -> None:
        """Counts one more."""
        self.count += 1
        if len(self.names) < EXAMPLES:
            self.names.append(decode(name))

    def fault(self, code: str, key: MemoryKey | None, detail: str = "") -> Iterator[Finding]:
        """What it makes, if there is any."""
        if self.count:
            yield Finding(code, key, self.count, tuple(self.names), detail)


@dataclass(slots=True)
class Lists:
    """The lists of a memory at one moment."""

    named: Named
    ttl: int
    """As PTTL tells it, for the list of messages."""
    at: float
    """When that was, in seconds of ``time.monotonic``."""
    index: set[bytes]
    ids: Chunks
    listed: IdSet
    marks: dict[bytes, Some]
    """The mark lists, and what they name that is in no message list; what two lists of one mark
    name counts once."""


class Lister:
    """Looks at the lists of some memories, in a thread: of many small ones together."""

    def __init__(
        self, wire: Wire, memories: list[Named], marks: dict[bytes, tuple[bytes, ...]]
    ) -> None:
        """``marks`` names the mark lists that were found, by base."""
        self._wire = wire
        self._memories = memories
        self._marks = marks
        self.listed = IdSet()
        """The keys of all payloads that a list names."""

    def all(self) -> Iterator[Lists]:
        """The lists, memory after memory.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        for some in self._groups():
            commanded = [[ranges(key, size) for key, size in keys] for _, keys in some]
            commands = chain.from_iterable(
                (
                    (b"PTTL", named.base + MESSAGES),
                    (b"SMEMBERS", named.base + MARKS_INDEX),
                    *chain.from_iterable(each),
                )
                for (named, _), each in zip(some, commanded, strict=True)
            )
            replies = self._wire.atomic(commands, tolerate=WRONG_TYPE)
            found = [
                self._taken(named, replies, [len(part) for part in each])
                for (named, _), each in zip(some, commanded, strict=True)
            ]
            yield from found

    def _groups(self) -> Iterator[list[tuple[Named, list[tuple[bytes, int]]]]]:
        """Memories with their lists and the lengths of these: one that is large, or many."""
        source = iter(self._memories)
        while some := list(islice(source, _MEMORIES)):
            keys = [
                [named.base + MESSAGES]
                + [named.base + MARK + mark for mark in self._marks.get(named.base, ())]
                for named in some
            ]
            asked = ((b"LLEN", key) for key in chain.from_iterable(keys))
            lengths = iter(self._wire.ask(asked, tolerate=WRONG_TYPE))
            group: list[tuple[Named, list[tuple[bytes, int]]]] = []
            held = 0
            for named, its in zip(some, keys, strict=True):
                sizes = [length_of(length) for length in islice(lengths, len(its))]
                if group and held + sum(sizes) > _IDS:
                    yield group
                    group, held = [], 0
                group.append((named, list(zip(its, sizes, strict=True))))
                held += sum(sizes)
            yield group

    def _taken(self, named: Named, replies: Iterator[Any], parts: list[int]) -> Lists:
        """The lists of a memory, of their replies in turn."""
        ttl, index = islice(replies, 2)
        listed = IdSet()
        start = named.base + PAYLOAD

        def noted(chunks: Iterator[Any]) -> Iterator[Any]:
            for chunk in chunks:
                ids = ids_of(chunk)
                listed.add(ids)
                self.listed.add(start + id for id in ids)
                yield ids

        ids = Chunks(noted(islice(replies, parts[0])))
        marks = {}
        all_lone: dict[bytes, IdSet] = {}
        for mark, count in zip(self._marks.get(named.base, ()), parts[1:], strict=True):
            lone = Some()
            counted = others(mark, all_lone)
            its = all_lone[mark] = IdSet()
            held = 0
            for chunk in islice(replies, count):
                for id in ids_of(chunk):
                    held += 1
                    if id in listed:
                        continue
                    its.add((id,))
                    if not any(id in some for some in counted):
                        lone.add(id)
            if held:  # an empty list is none any more
                marks[mark] = lone
        known = set() if isinstance(index, ResponseError) else set(index)
        return Lists(named, ttl, time.monotonic(), known, ids, listed, marks)


def length_of(reply: Any) -> int:
    """How long a list is; nothing where the key holds something else."""
    return 0 if isinstance(reply, ResponseError) else reply
