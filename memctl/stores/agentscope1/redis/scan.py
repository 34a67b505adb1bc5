"""The memories of a Redis database and their marks, found by SCAN.

A single SCAN finds the lists of messages (``:messages``) and the lists of marks (``:mark:``).  A
mark need not be named in ``marks_index``: since version 1.0.15, AgentScope indexes the marks that
it adds, so the indexes of older sessions lack older marks.

Keys are parsed by these rules:

- A user ends at the first ``:session:``, unless the selection names a user, session or key that
  results from a later split, or this store wrote the memory under another name.
- A list named ``...:mark:...:messages`` is a memory if a payload belongs to the list, or else a
  mark.
- A mark list that fits several memories belongs to the memory with the longest name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from memctl.engines.redis.pipeline import Pipeline, scan
from memctl.layouts.redis.keys import MARK, MESSAGES, Keys, count_payloads
from memctl.model import MemoryKey
from memctl.selection import Selection

LISTS = b":m[ae]*"
"""A pattern for the suffixes of lists.  Few other keys match: payloads begin with ``:msg:``."""
KEYS = b":m[aes][rsg]*"
"""A pattern for the suffixes of all keys of memories; few other keys match."""
_PROBED = 100
_BATCH = 500


class MemoryRef(NamedTuple):
    """A memory, with the prefix (base) of all its Redis keys."""

    base: bytes
    key: MemoryKey


class Catalogue:
    """The memories and mark lists that scans of a Redis database have found."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._marks: dict[bytes, dict[bytes, tuple[bytes, ...]]] = {}
        self._claimed: dict[bytes, MemoryKey] = {}

    def memories(self, pipeline: Pipeline, where: Selection) -> list[MemoryRef]:
        """Return the selected memories, sorted by base (the prefix of all keys of a memory).

        If ``where.keys`` names the memories, nothing is scanned, and the memories need not exist.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        if where.keys is not None:
            return sorted(self._keyed(where))
        bases = self._scan(pipeline, where)
        named = ((base, self.name(base, where)) for base in bases)
        return sorted(MemoryRef(base, key) for base, key in named if key is not None)

    def _keyed(self, where: Selection) -> Iterator[MemoryRef]:
        for key in where.keys or ():
            base = self._keys.base_or_none(key)
            if base is not None and not key.part and where.has_key(key):
                yield MemoryRef(base, key)

    def name(self, base: bytes, where: Selection) -> MemoryKey | None:
        """Return the selected memory with this base (prefix of its keys); None if not selected."""
        claimed = self._claimed.get(base)
        if claimed is not None:
            return claimed if where.has_key(claimed) else None
        return next((key for key in self._keys.parse_base(base) if where.has_key(key)), None)

    def claim(self, base: bytes, key: MemoryKey) -> bool:
        """Note the name of a memory to write; return False if another memory has the same keys.

        Two memories have the same keys if their names have the same base.
        """
        readings = list(islice(self._keys.parse_base(base), 2))
        return len(readings) == 1 or self._claimed.setdefault(base, key) == key

    def marks(self, pipeline: Pipeline, where: Selection) -> dict[bytes, tuple[bytes, ...]]:
        """Return the names of mark lists, by base (the prefix of all keys of a memory).

        The result has at least the mark lists of the selected memories.  Each set of users and
        sessions is scanned once.  Marks that agents add later are named by ``marks_index``.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        for pattern in (self._pattern(Selection()), self._pattern(where)):
            if pattern in self._marks:
                return self._marks[pattern]
        self._scan(pipeline, where)
        return self._marks[self._pattern(where)]

    def _pattern(self, where: Selection) -> bytes:
        return self._keys.pattern(where, LISTS)

    def _scan(self, pipeline: Pipeline, where: Selection) -> set[bytes]:
        """Return the bases of the memories of the selected users and sessions."""
        bases: set[bytes] = set()
        marks: dict[bytes, tuple[bytes, ...]] = {}
        unclear: set[bytes] = set()
        known: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}

        def add(base: bytes, mark: bytes) -> None:
            before = marks.get(base, ())
            if mark not in before:
                names = (*before, mark)
                marks[base] = known.setdefault(names, names)

        for key in scan(pipeline, self._pattern(where), b"list"):
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
        memories = with_payload(pipeline, candidates)
        bases |= memories
        for key in unclear:
            if key.removesuffix(MESSAGES) not in memories:
                owner = _longest_base(key, bases)
                if owner is not None:
                    add(owner, key[len(owner) + len(MARK) :])
        self._marks[self._pattern(where)] = marks
        return bases


def with_payload(pipeline: Pipeline, bases: list[bytes]) -> set[bytes]:
    """Return those of ``bases`` whose list of messages has an id with an existing payload.

    Checks only the first ids of each list.
    """
    memories: set[bytes] = set()
    for start in range(0, len(bases), _BATCH):
        some = bases[start : start + _BATCH]
        lists = pipeline.execute(
            (b"LRANGE", base + MESSAGES, b"0", b"%d" % _PROBED) for base in some
        )
        pairs = [(base, ids) for base, ids in zip(some, lists, strict=True) if ids]
        counts = pipeline.execute(count_payloads(base, ids) for base, ids in pairs)
        memories |= {base for (base, _), count in zip(pairs, counts, strict=True) if count}
    return memories


def _longest_base(key: bytes, bases: set[bytes]) -> bytes | None:
    at = key.rfind(MARK)
    while at >= 0:
        if key[:at] in bases:
            return key[:at]
        at = key.rfind(MARK, 0, at + len(MARK) - 1)
    return None
