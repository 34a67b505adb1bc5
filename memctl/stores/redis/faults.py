"""What is wrong with the keys of memories in Redis: lists that disagree, and lives that differ.

Each memory's lists are taken as of one moment, those of many small memories together.  Then the
payloads are passed once, and those that no list names are looked at again: an agent may have added
them meanwhile.

Source: ``memory/_working_memory/_redis_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from redis.exceptions import ResponseError

from memctl.model import Fault, MemoryKey
from memctl.selection import Selection
from memctl.stores._id_set import IdSet
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, STATE, Keys, decode
from memctl.stores.redis.look import Chunks, ids_of, ranges
from memctl.stores.redis.scan import Named, list_pages
from memctl.stores.redis.wire import WRONG_TYPE, Wire

EXAMPLES = 3

APART = 5000
"""Keys whose lives differ by less, in milliseconds, were given them at once."""

_MEMORIES = 128
_IDS = 10_000
_SUSPECTS = 1000
"""How many payloads of a memory are looked at again: more were not added within a moment."""
_COUNT = b"2000"


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

    def fault(self, code: str, key: MemoryKey | None, detail: str = "") -> Iterator[Fault]:
        """What it makes, if there is any."""
        if self.count:
            yield Fault(code, key, self.count, tuple(self.names), detail)


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
    """The mark lists, and what they name that is in no message list."""


class Examination:
    """One look at some memories, in a thread."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        where: Selection,
        memories: list[Named],
        marks: dict[bytes, tuple[bytes, ...]],
    ) -> None:
        """``marks`` names the mark lists that were found, by base."""
        self._wire = wire
        self._keys = keys
        self._where = where
        self._memories = memories
        self._marks = marks
        self._listed = IdSet()
        """The keys of all payloads that a list names."""

    def faults(self) -> Iterator[list[Fault]]:
        """What is found, some at a time."""
        for lists in self._lists():
            yield list(chain(_repeats(lists), _marks(lists), self._lives(lists)))
        yield list(self._lone_marks())
        yield list(self._strays())

    # Lists

    def _lists(self) -> Iterator[Lists]:
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
                sizes = [_length(length) for length in islice(lengths, len(its))]
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
                self._listed.add(start + id for id in ids)
                yield ids

        ids = Chunks(noted(islice(replies, parts[0])))
        marks = {}
        for mark, count in zip(self._marks.get(named.base, ()), parts[1:], strict=True):
            lone = Some()
            held = 0
            for chunk in islice(replies, count):
                for id in ids_of(chunk):
                    held += 1
                    if id not in listed:
                        lone.add(id)
            if held:  # an empty list is none any more
                marks[mark] = lone
        known = set() if isinstance(index, ResponseError) else set(index)
        return Lists(named, ttl, time.monotonic(), known, ids, listed, marks)

    def _lone_marks(self) -> Iterator[Fault]:
        """Mark lists whose memory is gone."""
        bases = {named.base for named in self._memories}
        for base, marks in self._marks.items():
            if base in bases or (key := self._key(base)) is None:
                continue
            lists = [base + MARK + mark for mark in marks]
            *lengths, there = self._wire.ask(
                [*((b"LLEN", name) for name in lists), (b"EXISTS", base + MESSAGES)],
                tolerate=WRONG_TYPE,
            )
            count = sum(map(_length, lengths))
            if count and not there:
                named = ", ".join(map(repr, map(decode, marks[:EXAMPLES])))
                yield Fault("orphan-mark", key, count, (), f"{named}: the memory is gone")

    # Lives

    def _lives(self, lists: Lists) -> Iterator[Fault]:
        """Keys that do not live as long as the list of messages."""
        named = lists.named
        beside = [named.base + MARK + mark for mark in lists.marks]
        if lists.index:
            beside.append(named.base + MARKS_INDEX)
        payloads = (named.base + PAYLOAD + id for ids in lists.ids.all() for id in ids)
        early, never = Some(), Some()
        for key, ttl in self._ttls(chain(beside, payloads)):
            if ttl == -1 and lists.ttl >= 0:
                never.add(key.removeprefix(named.base + b":"))
            elif ttl >= 0:
                passed = (time.monotonic() - lists.at) * 1000
                if lists.ttl == -1 or ttl + passed < lists.ttl - APART:
                    early.add(key.removeprefix(named.base + b":"))
        yield from early.fault("expires-early", named.key)
        yield from never.fault("never-expires", named.key)

    def _ttls(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
        source = iter(keys)
        while some := list(islice(source, _IDS)):
            yield from zip(some, self._wire.ask((b"PTTL", key) for key in some), strict=True)

    # Payloads

    def _strays(self) -> Iterator[Fault]:
        """Payloads that no list names."""
        bases = {named.base for named in self._memories}
        found: dict[bytes, list[bytes]] = {}
        counts: dict[bytes, int] = {}
        for key in self.scanned():
            if key in self._listed:
                continue
            base = owner(key, bases)
            counts[base] = counts.get(base, 0) + 1
            some = found.setdefault(base, [])
            if len(some) < _SUSPECTS:
                some.append(key)
        for base, keys in found.items():
            name = self._key(base)
            if name is None:
                continue
            if counts[base] < _SUSPECTS:
                keys = list(self.unlisted(base, keys))
                counts[base] = len(keys)
            if keys:
                ids = tuple(decode(key[len(base) + len(PAYLOAD) :]) for key in keys[:EXAMPLES])
                yield Fault("payload-without-id", name, counts[base], ids)

    def scanned(self) -> Iterator[bytes]:
        """The keys that look like payloads of selected memories; some may come twice."""
        pattern = self._keys.pattern(self._where, PAYLOAD + b"*")
        cursor = b"0"
        while True:
            command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _COUNT, b"TYPE", b"string")
            [(cursor, found)] = self._wire.ask([command])
            # The state of a session whose name looks so is none.
            yield from (key for key in found if not key.endswith(STATE))
            if cursor == b"0":
                return

    def unlisted(self, base: bytes, keys: Iterable[bytes]) -> Iterator[bytes]:
        """Those of the payloads that exist and that the memory does not list by now."""
        listed = IdSet()
        for ids in list_pages(self._wire, base + MESSAGES):
            listed.add(base + PAYLOAD + id for id in ids)
        some = list(dict.fromkeys(keys))
        there = self._wire.ask((b"EXISTS", key) for key in some)
        for key, exists in zip(some, there, strict=True):
            if exists and key not in listed:
                yield key

    def _key(self, base: bytes) -> MemoryKey | None:
        """The memory of that base, if it is selected."""
        return next((key for key in self._keys.readings(base) if self._where.has_key(key)), None)


def owner(key: bytes, bases: set[bytes]) -> bytes:
    """What the key of a payload begins with: the longest of the bases, or what looks like one."""
    at = key.rfind(PAYLOAD)
    first = at
    while at >= 0:
        if key[:at] in bases:
            return key[:at]
        first = at
        at = key.rfind(PAYLOAD, 0, at + len(PAYLOAD) - 1)
    return key[:first]


def _repeats(lists: Lists) -> Iterator[Fault]:
    if lists.listed.repeats:
        yield Fault("repeated-id", lists.named.key, lists.listed.repeats)


def _marks(lists: Lists) -> Iterator[Fault]:
    """Marks of messages that do not exist, and marks that the index does not name."""
    key = lists.named.key
    lone, unnamed = Some(), Some()
    for mark, some in lists.marks.items():
        lone.count += some.count
        lone.names = (lone.names + some.names)[:EXAMPLES]
        if mark not in lists.index:
            unnamed.add(mark)
    yield from lone.fault("orphan-mark", key)
    code = "marks-index-stale" if lists.index else "marks-index-missing"
    yield from unnamed.fault(code, key)


def _length(reply: Any) -> int:
    return 0 if isinstance(reply, ResponseError) else reply
