"""Which memories a Redis database holds, and which marks each has.

One SCAN finds the lists that hold memories (``:messages``) and those that hold marks (``:mark:``).
Whether a mark is named in ``marks_index`` does not matter: AgentScope 1.0.15 began the index with
the first mark that it added itself, so in sessions that are older, the index lacks older marks.

Names are taken apart by these rules:

- A user ends at the first ``:session:``, unless the selection names a user, session or key that
  another split gives, or this store wrote the memory under another name.
- A list named ``...:mark:...:messages`` is a memory if it owns a payload, otherwise a mark.
- A mark list that fits several memories belongs to the one with the longest name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from redis.exceptions import ResponseError

from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.stores.redis.keys import MARK, MESSAGES, PAYLOAD, Keys
from memctl.stores.redis.link import Command
from memctl.stores.redis.wire import WRONG_TYPE, Wire

_LIST_PAGE = 1000
_LISTS = b":m[ae]*"
"""Suffixes of lists, and few others: payloads begin with ``:msg:``."""
_COUNT = b"2000"
_LOOKED_AT = 100
_BATCH = 500


class Named(NamedTuple):
    """A memory and what its keys begin with."""

    base: bytes
    key: MemoryKey


class Catalogue:
    """The memories and marks of one database, as far as they were scanned."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._marks: dict[bytes, dict[bytes, tuple[bytes, ...]]] = {}
        self._claimed: dict[bytes, MemoryKey] = {}

    def memories(self, wire: Wire, where: Selection) -> list[Named]:
        """The selected memories, sorted by their bases.  Those of ``where.keys`` may not exist.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        if where.keys is not None:
            return sorted(self._exactly(where))
        bases = self._scan(wire, where)
        named = ((base, self._name(base, where)) for base in bases)
        return sorted(Named(base, key) for base, key in named if key is not None)

    def _exactly(self, where: Selection) -> Iterator[Named]:
        for key in where.keys or ():
            base = self._keys.base_or_none(key)
            if base is not None and not key.part and where.has_key(key):
                yield Named(base, key)

    def _name(self, base: bytes, where: Selection) -> MemoryKey | None:
        claimed = self._claimed.get(base)
        if claimed is not None:
            return claimed if where.has_key(claimed) else None
        return next((key for key in self._keys.readings(base) if where.has_key(key)), None)

    def claim(self, base: bytes, key: MemoryKey) -> bool:
        """Notes the name of a memory that is written; False if its keys belong to another name."""
        readings = list(islice(self._keys.readings(base), 2))
        return len(readings) == 1 or self._claimed.setdefault(base, key) == key

    def marks(self, wire: Wire, where: Selection) -> dict[bytes, tuple[bytes, ...]]:
        """The names of the mark lists by base, of all memories that may be selected.

        Scanned once for each narrowing of users and sessions: a mark that comes later is in
        ``marks_index``.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        for pattern in (self._pattern(Selection()), self._pattern(where)):
            if pattern in self._marks:
                return self._marks[pattern]
        self._scan(wire, where)
        return self._marks[self._pattern(where)]

    def _pattern(self, where: Selection) -> bytes:
        return self._keys.pattern(where, _LISTS)

    def _scan(self, wire: Wire, where: Selection) -> set[bytes]:
        """The bases of all memories that fit the pattern; keeps the marks."""
        bases: set[bytes] = set()
        marks: dict[bytes, tuple[bytes, ...]] = {}
        unclear: set[bytes] = set()
        known: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}

        def add(base: bytes, mark: bytes) -> None:
            before = marks.get(base, ())
            if mark not in before:
                names = (*before, mark)
                marks[base] = known.setdefault(names, names)

        for key in _scanned(wire, self._pattern(where)):
            count = key.count(MARK)
            is_memory = key.endswith(MESSAGES)
            if count == 0 and is_memory:
                bases.add(key.removesuffix(MESSAGES))
            elif count == 1 and not is_memory:
                base, _, mark = key.partition(MARK)
                add(base, mark)
            elif count:
                unclear.add(key)
        candidates = [key.removesuffix(MESSAGES) for key in unclear if key.endswith(MESSAGES)]
        owning = _owning(wire, candidates)
        bases |= owning
        for key in unclear:
            if key.removesuffix(MESSAGES) not in owning:
                owner = _longest(key, bases)
                if owner is not None:
                    add(owner, key[len(owner) + len(MARK) :])
        self._marks[self._pattern(where)] = marks
        return bases


def _scanned(wire: Wire, pattern: bytes) -> Iterator[bytes]:
    """The lists that match; some may come twice."""
    cursor = b"0"
    while True:
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _COUNT, b"TYPE", b"list")
        [(cursor, found)] = wire.ask([command])
        yield from found
        if cursor == b"0":
            return


def _owning(wire: Wire, bases: list[bytes]) -> set[bytes]:
    """Those under which there is a payload of their list."""
    owning: set[bytes] = set()
    for start in range(0, len(bases), _BATCH):
        some = bases[start : start + _BATCH]
        lists = wire.ask((b"LRANGE", base + MESSAGES, b"0", b"%d" % _LOOKED_AT) for base in some)
        pairs = [(base, ids) for base, ids in zip(some, lists, strict=True) if ids]
        counts = wire.ask(exists(base, ids) for base, ids in pairs)
        owning |= {base for (base, _), count in zip(pairs, counts, strict=True) if count}
    return owning


def exists(base: bytes, ids: Iterable[bytes]) -> Command:
    """Counts the payloads of some messages, at least one."""
    return (b"EXISTS", *(base + PAYLOAD + id for id in ids))


def list_pages(wire: Wire, key: bytes, start: int = 0) -> Iterator[list[bytes]]:
    """The items of a list from a position on, a page at a time; none if it is no list."""
    while True:
        command = (b"LRANGE", key, b"%d" % start, b"%d" % (start + _LIST_PAGE - 1))
        [page] = wire.ask([command], tolerate=WRONG_TYPE)
        if isinstance(page, ResponseError) or not page:
            return
        yield page
        if len(page) < _LIST_PAGE:
            return
        start += _LIST_PAGE


def _longest(key: bytes, bases: set[bytes]) -> bytes | None:
    """The longest base to which the key is a mark."""
    at = key.rfind(MARK)
    while at >= 0:
        if key[:at] in bases:
            return key[:at]
        at = key.rfind(MARK, 0, at + len(MARK) - 1)
    return None
