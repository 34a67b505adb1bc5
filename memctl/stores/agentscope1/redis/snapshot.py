"""Snapshots of memories in Redis: the lists, their order, the marks and the expiry at one moment.

RedisMemory makes each change in one transaction (its pipelines are MULTI and EXEC), and lists a
whole memory whenever it adds or reads messages.  A snapshot in one transaction is therefore a
state that the agent had, and costs the server no more than a read by the agent.  Before a change,
the lists are watched instead: Redis refuses the change if the lists changed since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import ABSENT, WRONG_TYPE, Command, Pipeline
from memctl.engines.redis.text import decode
from memctl.errors import Lost
from memctl.layouts.redis.keys import (
    MARK,
    MARKS_INDEX,
    MESSAGES,
    canonical_mark,
    with_aliases,
)
from memctl.machine.spool import ItemSpool
from memctl.model import Memory
from memctl.storekit.catalog import IdSet, span
from memctl.stores.agentscope1.redis.scan import MemoryRef

Marks = tuple[str, ...]
IdChunks = Iterator[list[bytes]]


_TRIES = 20
_SMALL = 1000
"""Memories whose lists have fewer ids are listed together."""
_TOGETHER = 4000
_MEMORIES = 128
_CHUNK = 10_000
_PAGE = 1000


class IdList:
    """A list of ids: the first chunk in RAM, further chunks in a temporary file until ``close``."""

    def __init__(self, key: bytes, chunks: Iterable[list[bytes]]) -> None:
        self.key = key
        self.count = 0
        self._first: list[bytes] = []
        self._rest: ItemSpool[list[bytes]] | None = None
        for chunk in chunks:
            if self.count:
                if self._rest is None:
                    self._rest = ItemSpool()
                self._rest.add(chunk)
            else:
                self._first = chunk
            self.count += len(chunk)

    def chunks(self) -> IdChunks:
        """Yield the ids in order, in chunks.  Several iterators may be in use at once."""
        if self._first:
            yield self._first
        if self._rest is not None:
            yield from self._rest

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.chunks())

    @cached_property
    def ids(self) -> IdSet:
        """The ids without their order."""
        found = IdSet()
        for chunk in self.chunks():
            found.add(chunk)
        return found

    def close(self) -> None:
        """Remove the temporary file."""
        if self._rest is not None:
            self._rest.close()


@dataclass
class MemorySnapshot:
    """A memory at one moment."""

    ref: MemoryRef
    taken: float
    """The time of the snapshot, in seconds of ``time.monotonic``."""
    ttl: int
    """PTTL of the list of messages, in milliseconds."""
    index: frozenset[bytes]
    """The names in ``marks_index``."""
    messages: IdList
    marks: dict[bytes, IdList]
    """The lists of marks by alias, sorted by mark; lists may be empty."""
    wrong: ResponseError | None = None
    """The error reply for a list or index of the wrong type, which counts as empty; or None."""
    _merged: dict[str, IdSet] = field(default_factory=dict, repr=False)

    @property
    def exists(self) -> bool:
        """Return whether the memory exists."""
        return bool(self.messages.count)

    @property
    def small(self) -> bool:
        """True if all ids of messages are in a single chunk."""
        return self.messages.count < _SMALL

    @property
    def memory(self) -> Memory:
        """Return the memory without its messages."""
        return Memory(self.ref.key, ttl=self.ttl / 1000 if self.ttl >= 0 else None)

    @cached_property
    def marks_of(self) -> Callable[[bytes], Marks | None]:
        """Return a function that gives the sorted marks of an id; None or () without marks."""
        if all(one.count < _SMALL for one in self.marks.values()):
            found: dict[bytes, Marks] = {}
            for mark, lists in self._by_mark.items():
                one = (mark,)
                for id in dict.fromkeys(chain.from_iterable(lists)):
                    found[id] = found.get(id, ()) + one
            return found.get
        pairs = [(mark, self._ids_with(mark)) for mark in self._by_mark]
        return lambda id: tuple([mark for mark, ids in pairs if id in ids])

    def has_mark(self, mark: str) -> Callable[[bytes], bool]:
        """Return a function that tells whether the message with an id has the mark."""
        return self._ids_with(mark).__contains__

    def _ids_with(self, mark: str) -> IdSet:
        lists = self._by_mark.get(mark, [])
        if len(lists) == 1:
            return lists[0].ids
        if mark not in self._merged:
            merged = self._merged[mark] = IdSet()
            for chunk in chain.from_iterable(one.chunks() for one in lists):
                merged.add(chunk)
        return self._merged[mark]

    @cached_property
    def _by_mark(self) -> dict[str, list[IdList]]:
        found: dict[str, list[IdList]] = {}
        for name, one in self.marks.items():
            if one.count:
                found.setdefault(decode(canonical_mark(name)), []).append(one)
        return found

    def close(self) -> None:
        """Close the files of all lists."""
        for one in (self.messages, *self.marks.values()):
            one.close()


class SnapshotReader:
    """A reader of snapshots of memories, for use in a thread."""

    def __init__(self, pipeline: Pipeline, marks: dict[bytes, tuple[bytes, ...]]) -> None:
        """``marks`` has the names of mark lists, by base (the prefix of all keys of a memory).

        These names may be missing in ``marks_index``.
        """
        self._pipeline = pipeline
        self._marks = marks
        self._more: dict[bytes, set[bytes]] = {}

    def snapshots(self, memories: Iterable[MemoryRef]) -> Iterator[list[MemorySnapshot]]:
        """Yield snapshots of the memories in lists, in order; a large memory is alone in its list.

        Also yields snapshots of memories that do not exist.  The snapshots of a list are closed
        when the next list is requested.

        Raises:
            Lost: the connection broke, or a memory keeps getting new marks.
            Unavailable: the server refuses a command.
        """
        source = iter(memories)
        most = 8
        while some := list(islice(source, most)):
            small: list[MemorySnapshot] = []
            ids = 0
            for ref, taken in zip(some, self._take_small(some), strict=True):
                snapshot = self.take(ref) if taken is None else taken
                ids += _SMALL if taken is None else taken.messages.count
                if snapshot.small:
                    small.append(snapshot)
                    continue
                with closing(snapshot):
                    if small:
                        yield from _closing(small)
                    small = []
                    yield [snapshot]
            if small:
                yield from _closing(small)
            most = max(1, min(_MEMORIES, most * 4, _TOGETHER * len(some) // max(ids, 1)))

    def take(self, ref: MemoryRef) -> MemorySnapshot:
        """Return a snapshot of a memory of any size; the caller must close it.

        Raises:
            Lost: the connection broke, or the memory keeps getting new marks.
            Unavailable: the server refuses a command.
        """
        for _ in range(_TRIES):
            names = self._names(ref.base)
            keys = list_keys(ref.base, names)
            lengths = self._pipeline.execute([(b"LLEN", key) for key in keys], tolerate=WRONG_TYPE)
            commands = chain(_header_commands(ref.base), *map(ranges, keys, lengths))
            replies = self._pipeline.atomic(commands, tolerate=WRONG_TYPE)
            ttl, index = islice(replies, 2)
            taken = time.monotonic()
            lists = _id_lists(keys, lengths, replies)
            if self._is_complete(ref.base, names, index):
                wrong = _first_error((index, *lengths))
                return _snapshot(ref, taken, ttl, index, names, lists, wrong)
            for one in lists:
                one.close()
        raise Lost(f"{ref.key} got new marks while it was read", "try again later")

    def part(self, ref: MemoryRef, start: int, count: int) -> tuple[MemorySnapshot, int, int]:
        """Return a snapshot with the ids of a window only, for ``Store.window``.

        Also returns the index of the first id, and the number of all ids.  The caller closes the
        snapshot.

        Raises:
            Lost, Unavailable: as ``take``.
        """
        for _ in range(_TRIES):
            names = self._names(ref.base)
            listed, *marked = keys = list_keys(ref.base, names)
            lengths = self._pipeline.execute([(b"LLEN", key) for key in keys], tolerate=WRONG_TYPE)
            total, *sizes = lengths
            places = span(length_of(total), start, count)
            commands = chain(
                _header_commands(ref.base),
                [(b"LLEN", listed)],
                [(b"LRANGE", listed, b"%d" % places.start, b"%d" % (places.stop - 1))],
                *map(ranges, marked, sizes),
            )
            replies = self._pipeline.atomic(commands, tolerate=WRONG_TYPE)
            ttl, index, now, ids = islice(replies, 4)
            taken = time.monotonic()
            chunks = [ids_of(ids)] if places else []
            lists = [IdList(listed, chunks), *_id_lists(marked, sizes, replies)]
            if self._is_complete(ref.base, names, index) and length_of(now) == length_of(total):
                wrong = _first_error((index, *lengths))
                snapshot = _snapshot(ref, taken, ttl, index, names, lists, wrong)
                return snapshot, places.start, length_of(total)
            for one in lists:
                one.close()
        raise Lost(f"{ref.key} keeps changing while it is read", "try again later")

    def watch(
        self, memories: Sequence[MemoryRef], marks: Sequence[Iterable[bytes]] = ()
    ) -> list[MemorySnapshot]:
        """Watch the lists of memories, and return snapshots, which the caller must close.

        ``marks`` has, for each memory, names of further mark lists to watch.  These lists need not
        exist.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        more = marks or [()] * len(memories)
        names = [self._names(ref.base, some) for ref, some in zip(memories, more, strict=True)]
        keys = [list_keys(ref.base, aliases) for ref, aliases in zip(memories, names, strict=True)]
        every = [*chain.from_iterable(keys), *(ref.base + MARKS_INDEX for ref in memories)]
        _, there = self._pipeline.execute([(b"WATCH", *every), (b"EXISTS", *every)])
        taken = time.monotonic()
        if not there:  # most memories to write are new
            return [
                _snapshot(ref, taken, ABSENT, (), aliases, [IdList(key, ()) for key in some], None)
                for ref, aliases, some in zip(memories, names, keys, strict=True)
            ]
        begun = self._pipeline.execute(
            chain.from_iterable(_header_commands(ref.base) for ref in memories), tolerate=WRONG_TYPE
        )
        taken = time.monotonic()
        ttls, indexes = begun[::2], begun[1::2]
        names = []
        for ref, index, some in zip(memories, indexes, more, strict=True):
            self._is_complete(ref.base, (), index)
            names.append(self._names(ref.base, some))
        keys = [list_keys(ref.base, aliases) for ref, aliases in zip(memories, names, strict=True)]
        named = set(chain.from_iterable(keys)).difference(every)  # by an index that was just read
        self._pipeline.execute([(b"WATCH", *named)] if named else [])
        counts = ((b"LLEN", key) for key in chain.from_iterable(keys))
        lengths = iter(self._pipeline.execute(counts, tolerate=WRONG_TYPE))
        sizes = [list(islice(lengths, len(some))) for some in keys]
        commands = chain.from_iterable(
            map(ranges, chain.from_iterable(keys), chain.from_iterable(sizes))
        )
        replies = self._pipeline.stream(commands, tolerate=WRONG_TYPE)
        found = []
        for ref, ttl, index, aliases, some, its in zip(
            memories, ttls, indexes, names, keys, sizes, strict=True
        ):
            lists = _id_lists(some, its, replies)
            wrong = _first_error((index, *its))
            found.append(_snapshot(ref, taken, ttl, index, aliases, lists, wrong))
        return found

    def _take_small(self, some: Sequence[MemoryRef]) -> Iterator[MemorySnapshot | None]:
        """Yield a snapshot of each memory; None if a single request cannot read it."""
        names = [self._names(ref.base) for ref in some]
        keys = [list_keys(ref.base, aliases) for ref, aliases in zip(some, names, strict=True)]
        commands = [
            command
            for ref, its in zip(some, keys, strict=True)
            for command in chain(_header_commands(ref.base), map(_head, its))
        ]
        replies = iter(list(self._pipeline.atomic(commands, tolerate=WRONG_TYPE)))
        taken = time.monotonic()
        for ref, aliases, its in zip(some, names, keys, strict=True):
            ttl, index, *heads = islice(replies, 2 + len(its))
            lists = [IdList(key, [ids_of(head)]) for key, head in zip(its, heads, strict=True)]
            whole = max(one.count for one in lists) < _SMALL
            if self._is_complete(ref.base, aliases, index) and whole:
                wrong = _first_error((index, *heads))
                yield _snapshot(ref, taken, ttl, index, aliases, lists, wrong)
            else:
                yield None

    def _names(self, base: bytes, more: Iterable[bytes] = ()) -> list[bytes]:
        """Return the names of the mark lists to read, with all aliases, sorted by mark."""
        names = self._more.get(base, set()).union(self._marks.get(base, ()), more)
        return sorted(with_aliases(names), key=canonical_mark)

    def _is_complete(self, base: bytes, names: Sequence[bytes], index: Any) -> bool:
        """Return whether ``names`` has all names in ``marks_index``."""
        named = () if isinstance(index, ResponseError) else index
        new = with_aliases(named).difference(names)
        if new:
            self._more.setdefault(base, set()).update(new)
        return not new


def list_keys(base: bytes, names: Iterable[bytes]) -> list[bytes]:
    """Return the key of the list of messages, then the keys of the mark lists ``names``.

    ``base`` is the prefix of all keys of the memory.
    """
    return [base + MESSAGES, *(base + MARK + name for name in names)]


def ranges(key: bytes, length: Any) -> list[Command]:
    """Return commands that read a whole list in chunks, even if the list has grown since LLEN.

    ``length`` is the reply to LLEN, which may be an error.
    """
    starts = range(0, max(length_of(length), 1), _CHUNK)
    ends = [*(start - 1 for start in starts[1:]), -1]
    return [
        (b"LRANGE", key, b"%d" % start, b"%d" % end)
        for start, end in zip(starts, ends, strict=True)
    ]


def list_pages(pipeline: Pipeline, key: bytes, start: int = 0) -> IdChunks:
    """Yield the ids of a list in pages, from the position ``start`` on.

    The list may change between the pages.  Yields nothing if the key is not a list.
    """
    while True:
        command = (b"LRANGE", key, b"%d" % start, b"%d" % (start + _PAGE - 1))
        [page] = pipeline.execute([command], tolerate=WRONG_TYPE)
        if isinstance(page, ResponseError) or not page:
            return
        yield page
        if len(page) < _PAGE:
            return
        start += _PAGE


def ids_of(reply: Any) -> list[bytes]:
    """Return the ids in a reply to LRANGE; empty if the key is not a list."""
    return [] if isinstance(reply, ResponseError) else reply


def length_of(reply: Any) -> int:
    """Return the length of a reply to LLEN; 0 if the key is not a list."""
    return 0 if isinstance(reply, ResponseError) else reply


def _id_lists(keys: list[bytes], lengths: list[Any], replies: Iterator[Any]) -> list[IdList]:
    return [
        IdList(key, map(ids_of, islice(replies, len(ranges(key, length)))))
        for key, length in zip(keys, lengths, strict=True)
    ]


def _first_error(replies: Iterable[Any]) -> ResponseError | None:
    return next((reply for reply in replies if isinstance(reply, ResponseError)), None)


def _snapshot(
    ref: MemoryRef,
    taken: float,
    ttl: int,
    index: Any,
    names: list[bytes],
    lists: list[IdList],
    wrong: ResponseError | None,
) -> MemorySnapshot:
    messages, *marks = lists
    named = frozenset[bytes]() if isinstance(index, ResponseError) else frozenset(index)
    by_alias = dict(zip(names, marks, strict=True))
    return MemorySnapshot(ref, taken, ttl, named, messages, by_alias, wrong)


def _closing(snapshots: list[MemorySnapshot]) -> Iterator[list[MemorySnapshot]]:
    try:
        yield snapshots
    finally:
        for one in snapshots:
            one.close()


def _header_commands(base: bytes) -> list[Command]:
    return [(b"PTTL", base + MESSAGES), (b"SMEMBERS", base + MARKS_INDEX)]


def _head(key: bytes) -> Command:
    return (b"LRANGE", key, b"0", b"%d" % (_SMALL - 1))
