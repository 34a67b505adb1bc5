"""What is wrong with the keys of memories in Redis: lists that disagree, and lives that differ.

Each memory's lists are taken as of one moment, those of many small memories together.  Then the
payloads are passed once, and those that no list names are looked at again: an agent may have added
them meanwhile.

Source: ``memory/_working_memory/_redis_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.stores.catalog import IdSet
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, STATE, Keys, decode
from memctl.stores.redis.listed import EXAMPLES, Lister, Lists, Some, length_of
from memctl.stores.redis.scan import Named, list_pages
from memctl.stores.redis.spellings import is_indexed, others, plain, spellings
from memctl.stores.redis.wire import WRONG_TYPE, Wire

ABSENT = -2
"""What PTTL says of a key that does not exist."""
APART = 5000
"""Keys whose lives differ by less, in milliseconds, were given them at once."""

_KEYS = 10_000
_SUSPECTS = 1000
"""How many payloads of a memory are looked at again: more were not added within a moment."""
_COUNT = b"2000"


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
        self._lister = Lister(wire, memories, marks)
        self.gaps: list[MemoryKey] = []
        """The memories that list an id without payload, or did a moment ago."""

    def faults(self) -> Iterator[list[Finding]]:
        """What is found, some at a time."""
        for lists in self._lister.all():
            yield list(chain(_repeats(lists), _marks(lists), self._lives(lists)))
        yield list(self._lone_marks())
        yield list(self._strays())

    def marks_of(self, base: bytes) -> tuple[bytes, ...]:
        """The marks of a memory that have a list."""
        return self._marks.get(base, ())

    # Lists

    def _lone_marks(self) -> Iterator[Finding]:
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
            count = sum(map(length_of, lengths))
            if count and not there:
                count -= self._counted_twice(base, marks)
                names = list(dict.fromkeys(map(decode, map(plain, marks))))
                named = ", ".join(map(repr, names[:EXAMPLES]))
                yield Finding("orphan-mark", key, count, (), f"{named}: the memory is gone")

    def _counted_twice(self, base: bytes, names: Iterable[bytes]) -> int:
        """How many ids of a mark stand on another list of the mark, too."""
        seen: dict[bytes, IdSet] = {}
        count = 0
        for name in names:
            if len(spellings(plain(name))) == 1:
                continue
            before = others(name, seen)
            its = seen[name] = IdSet()
            for ids in list_pages(self._wire, base + MARK + name):
                its.add(ids)
                count += sum(any(id in some for some in before) for id in ids)
        return count

    # Lives

    def _lives(self, lists: Lists) -> Iterator[Finding]:
        """Keys that do not live as long as the list of messages."""
        named = lists.named
        beside = [named.base + MARK + mark for mark in lists.marks]
        if lists.index:
            beside.append(named.base + MARKS_INDEX)
        payloads = (named.base + PAYLOAD + id for ids in lists.ids.all() for id in ids)
        early, never = Some(), Some()
        gap = False
        for key, ttl in self._ttls(chain(beside, payloads)):
            gap = gap or ttl == ABSENT
            if ttl == -1 and lists.ttl >= 0:
                never.add(key.removeprefix(named.base + b":"))
            elif ttl >= 0:
                passed = (time.monotonic() - lists.at) * 1000
                if lists.ttl == -1 or ttl + passed < lists.ttl - APART:
                    early.add(key.removeprefix(named.base + b":"))
        if gap:
            self.gaps.append(named.key)
        yield from early.fault("expires-early", named.key)
        yield from never.fault("never-expires", named.key)

    def _ttls(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
        source = iter(keys)
        while some := list(islice(source, _KEYS)):
            yield from zip(some, self._wire.ask((b"PTTL", key) for key in some), strict=True)

    # Payloads

    def _strays(self) -> Iterator[Finding]:
        """Payloads that no list names."""
        found: dict[bytes, tuple[MemoryKey, list[bytes]]] = {}
        counts: dict[bytes, int] = {}
        for base, name, key in self.suspects():
            counts[base] = counts.get(base, 0) + 1
            _, some = found.setdefault(base, (name, []))
            if len(some) < _SUSPECTS:
                some.append(key)
        for base, (name, keys) in found.items():
            if counts[base] < _SUSPECTS:
                keys = list(self.unlisted(base, keys))
                counts[base] = len(keys)
            if keys:
                ids = tuple(decode(key[len(base) + len(PAYLOAD) :]) for key in keys[:EXAMPLES])
                yield Finding("payload-without-id", name, counts[base], ids)

    def suspects(self) -> Iterator[tuple[bytes, MemoryKey, bytes]]:
        """Payloads that no list named: base and memory, and their keys; some may come twice.

        To be asked for behind ``faults``, which looks at the lists.
        """
        bases = {named.base for named in self._memories}
        for key in self._scanned():
            if key not in self._lister.listed:
                base = _owner(key, bases)
                memory = self._key(base)
                if memory is not None:
                    yield base, memory, key

    def _scanned(self) -> Iterator[bytes]:
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


def _owner(key: bytes, bases: set[bytes]) -> bytes:
    """What the key of a payload begins with: the longest of the bases, or what looks like one."""
    at = key.rfind(PAYLOAD)
    first = at
    while at >= 0:
        if key[:at] in bases:
            return key[:at]
        first = at
        at = key.rfind(PAYLOAD, 0, at + len(PAYLOAD) - 1)
    return key[:first]


def _repeats(lists: Lists) -> Iterator[Finding]:
    if lists.listed.duplicates:
        yield Finding("repeated-id", lists.named.key, lists.listed.duplicates)


def _marks(lists: Lists) -> Iterator[Finding]:
    """Marks of messages that do not exist, and marks that the index does not name."""
    key = lists.named.key
    lone, unnamed = Some(), Some()
    for mark, some in lists.marks.items():
        lone.count += some.count
        lone.names = (lone.names + some.names)[:EXAMPLES]
        if not is_indexed(mark, lists.index):
            unnamed.add(mark)
    yield from lone.fault("orphan-mark", key)
    code = "marks-index-stale" if lists.index else "marks-index-missing"
    yield from unnamed.fault(code, key)
