"""What there is of memories of Redis, each as of one moment.

RedisMemory makes each of its changes in one transaction (its pipelines are MULTI and EXEC), and
lists a whole memory whenever it adds or reads.  So what one transaction lists is what the agent
had at that moment (ids, marks and expiry), at no more cost to the server than the agent's own.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from memctl.errors import Lost
from memctl.model import Memory
from memctl.stores.catalog import IdSet
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, decode
from memctl.stores.redis.link import Command
from memctl.stores.redis.scan import Named
from memctl.stores.redis.spellings import every, plain
from memctl.stores.redis.wire import WRONG_TYPE, Wire

Marks = tuple[str, ...]

_TRIES = 20
_FEW = 1000
"""Lists of fewer ids come together with those of other memories."""
_TOGETHER = 4000
_MEMORIES = 128
_CHUNK = 10_000
_NONE: frozenset[bytes] = frozenset()


class Sight(NamedTuple):
    """A memory at one moment."""

    named: Named
    memory: Memory
    few: bool
    """Whether one chunk holds all ids."""
    chunks: Callable[[], Iterator[list[bytes]]]
    """The ids in order, some at a time; to be called once, where they are not few."""
    marks: Callable[[bytes], Marks | None]
    """The sorted marks of an id; None or nothing where it has none."""
    under: Callable[[str], Callable[[bytes], bool]]
    """Whether an id has a mark, by mark."""


class Looker:
    """Looks at memories, in a thread."""

    def __init__(self, wire: Wire, marks: dict[bytes, tuple[bytes, ...]]) -> None:
        """``marks`` names the mark lists that were found, by base, for they may be in no index."""
        self._wire = wire
        self._marks = marks
        self._more: dict[bytes, set[bytes]] = {}

    def sights(self, memories: Iterable[Named]) -> Iterator[list[Sight]]:
        """The memories that exist, in order: small ones together, large ones alone.

        Raises:
            Lost: the connection broke, or a memory gets new marks all the time.
            Unavailable: the server refuses a command.
        """
        source = iter(memories)
        most = 8
        while some := list(islice(source, most)):
            small: list[Sight] = []
            ids = 0
            for reply in self._together(some):
                ids += len(reply.ids)
                sight = self._few(reply) if self._is_whole(reply) else self.look(reply.named)
                if sight is not None and sight.few:
                    small.append(sight)
                elif sight is not None:
                    if small:
                        yield small
                    small = []
                    yield [sight]
            if small:
                yield small
            most = max(1, min(_MEMORIES, most * 4, _TOGETHER * len(some) // max(ids, 1)))

    def look(self, named: Named) -> Sight | None:
        """One memory of any size; None if it does not exist.

        Raises:
            Lost, Unavailable: as ``sights``.
        """
        messages = named.base + MESSAGES
        for _ in range(_TRIES):
            names = self._names(named.base)
            lists = [messages, *(named.base + MARK + mark for mark in names)]
            lengths = self._wire.ask([(b"LLEN", key) for key in lists], tolerate=WRONG_TYPE)
            some = list(map(ranges, lists, lengths))
            commands = chain(_about(named.base), *some)
            replies = self._wire.atomic(commands, tolerate=WRONG_TYPE)
            ttl, index = islice(replies, 2)
            chunks = Chunks(islice(replies, len(some[0])))
            sets: dict[str, IdSet] = {}
            for name, its in zip(names, some[1:], strict=True):
                ids = sets.setdefault(decode(plain(name)), IdSet())
                for reply in islice(replies, len(its)):
                    ids.add(ids_of(reply))
            if not self._learn(named.base, names, index):
                continue
            if not chunks.ids:
                return None
            memory = _memory(named, ttl)
            return Sight(named, memory, chunks.few, chunks.all, _marks_in(sets), _under(sets))
        raise Lost(f"{named.key} gets new marks while it is read", "try again later")

    def _together(self, some: Sequence[Named]) -> Iterator[_Reply]:
        """What there is of each of some memories, if it is little."""
        names = [self._names(named.base) for named in some]
        commands = [
            command
            for named, marks in zip(some, names, strict=True)
            for command in (*_about(named.base), *_heads(named.base, marks))
        ]
        replies = iter(list(self._wire.atomic(commands, tolerate=WRONG_TYPE)))
        for named, marks in zip(some, names, strict=True):
            ttl, index, ids, *lists = islice(replies, 3 + len(marks))
            yield _Reply(named, ttl, index, ids_of(ids), marks, list(map(ids_of, lists)))

    def _is_whole(self, reply: _Reply) -> bool:
        """Whether nothing of the memory is missing in the reply."""
        known = self._learn(reply.named.base, reply.names, reply.index)
        return known and max(map(len, (reply.ids, *reply.lists))) < _FEW

    def _few(self, reply: _Reply) -> Sight | None:
        if not reply.ids:
            return None
        sets: dict[str, frozenset[bytes]] = {}
        for name, ids in zip(reply.names, reply.lists, strict=True):
            mark = decode(plain(name))
            sets[mark] = sets.get(mark, _NONE).union(ids)
        marks: dict[bytes, Marks] = {}
        for mark, found in sets.items():
            one = (mark,)
            for id in found:
                marks[id] = marks.get(id, ()) + one
        memory = _memory(reply.named, reply.ttl)
        chunks = partial(iter, [reply.ids])
        return Sight(reply.named, memory, True, chunks, marks.get, _under(sets))

    def _names(self, base: bytes) -> list[bytes]:
        """The names of the lists to ask for, sorted by their marks."""
        names = self._more.get(base, set()).union(self._marks.get(base, ()))
        return sorted(every(names), key=plain)

    def _learn(self, base: bytes, names: list[bytes], index: Any) -> bool:
        """Whether the names are all that the index holds; it is asked for those in it, too."""
        new = every(() if isinstance(index, ResponseError) else index).difference(names)
        if new:
            self._more.setdefault(base, set()).update(new)
        return not new


class _Reply(NamedTuple):
    """The beginnings of the lists of a memory."""

    named: Named
    ttl: int
    index: Any
    ids: list[bytes]
    names: list[bytes]
    lists: list[list[bytes]]


class Chunks:
    """Ids that came in chunks: in a file, where they are many."""

    def __init__(self, chunks: Iterator[Any]) -> None:
        first = ids_of(next(chunks))
        self.ids = len(first)
        self.few = self.ids < _FEW
        self._first = first if self.few else []
        self._count = 0
        if self.few:
            return
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was read
        for chunk in chain([first], chunks):
            pickle.dump(chunk, self._file)
            self._count += 1

    def all(self) -> Iterator[list[bytes]]:
        if self.few:
            yield self._first
            return
        with self._file as file:
            file.seek(0)
            for _ in range(self._count):
                yield pickle.load(file)


def _about(base: bytes) -> list[Command]:
    return [(b"PTTL", base + MESSAGES), (b"SMEMBERS", base + MARKS_INDEX)]


def _heads(base: bytes, marks: list[bytes]) -> Iterator[Command]:
    for key in (base + MESSAGES, *(base + MARK + mark for mark in marks)):
        yield (b"LRANGE", key, b"0", b"%d" % (_FEW - 1))


def ranges(key: bytes, length: Any) -> list[Command]:
    """Commands that list all of a list, however it grows meanwhile."""
    count = 0 if isinstance(length, ResponseError) else length
    starts = range(0, max(count, 1), _CHUNK)
    ends = [*(start - 1 for start in starts[1:]), -1]
    return [
        (b"LRANGE", key, b"%d" % start, b"%d" % end)
        for start, end in zip(starts, ends, strict=True)
    ]


def ids_of(reply: Any) -> list[bytes]:
    """The ids of a list; none where the key holds something else."""
    return [] if isinstance(reply, ResponseError) else reply


def _marks_in(sets: dict[str, IdSet]) -> Callable[[bytes], Marks]:
    pairs = list(sets.items())
    return lambda id: tuple([mark for mark, ids in pairs if id in ids])


def _under(
    sets: Mapping[str, IdSet | frozenset[bytes]],
) -> Callable[[str], Callable[[bytes], bool]]:
    return lambda mark: sets.get(mark, _NONE).__contains__


def _memory(named: Named, ttl: int) -> Memory:
    return Memory(named.key, ttl=ttl / 1000 if ttl >= 0 else None)
