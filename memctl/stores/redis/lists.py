"""Lists of ids as they were at one moment, and what makes them other lists.

A list is never made anew where some of it stays: it keeps its expiry, and is at no time empty.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from memctl.stores.catalog import IdSet
from memctl.stores.redis.link import Command

_FEW = 8
"""So many ids are taken off a list one by one, each of which Redis looks for in all of it."""

Chunks = Iterator[list[bytes]]
Place = tuple[bytes | None, bytes]
"""What an id is to stand behind, None for the beginning, and the id."""


class Listing:
    """A list of ids: the first of them in hand, more of them in a file."""

    def __init__(self, key: bytes, chunks: Iterable[list[bytes]]) -> None:
        self.key = key
        self.ids = IdSet()
        self.count = 0
        self._first: list[bytes] = []
        self._starts: list[int] = []
        for chunk in chunks:
            self.ids.add(chunk)
            if self.count:
                self._keep(chunk)
            else:
                self._first = chunk
            self.count += len(chunk)

    def _keep(self, chunk: list[bytes]) -> None:
        if not self._starts:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._starts.append(self._file.tell())
        pickle.dump(chunk, self._file)

    def chunks(self) -> Chunks:
        """The ids in order, some at a time.  Several may read at once."""
        if self._first:
            yield self._first
        for start in self._starts:
            self._file.seek(start)
            yield pickle.load(self._file)

    def close(self) -> None:
        """Lets go of the file."""
        if self._starts:
            self._file.close()


def without(chunks: Chunks, drops: Callable[[bytes], bool]) -> Chunks:
    """The ids but for some."""
    for chunk in chunks:
        yield [id for id in chunk if not drops(id)]


def merged(chunks: Chunks, places: Iterator[Place]) -> Chunks:
    """The ids with others put in, those of one place in order.

    ``places`` come in the order of the list; from the first on that does not, they go to the end.
    """
    place = next(places, None)
    beginning = []
    while place is not None and place[0] is None:
        beginning.append(place[1])
        place = next(places, None)
    yield beginning
    for chunk in chunks:
        if place is None:
            yield chunk
            continue
        found = []
        for id in chunk:
            found.append(id)
            while place is not None and place[0] == id:
                found.append(place[1])
                place = next(places, None)
        yield found
    if place is not None:
        rest = chain((place[1],), (id for _, id in places))
        yield from iter(lambda: list(islice(rest, 1000)), [])


def unplaced(chunks: Chunks, places: Iterator[Place]) -> bytes | None:
    """The first id for which ``merged`` finds no place; None where there is a place for each."""
    place = next(places, None)
    while place is not None and place[0] is None:
        place = next(places, None)
    for chunk in chunks:
        if place is None:
            return None
        for id in chunk:
            while place is not None and place[0] == id:
                place = next(places, None)
    return None if place is None else place[1]


def rewritten(old: Listing, new: Callable[[], Chunks]) -> Iterator[Command]:
    """Commands that make another list of a list, of which only what differs is written."""
    same = _same(old, new())
    if same == old.count:
        yield from _pushed(old.key, new(), same)
    elif same:
        yield (b"LTRIM", old.key, b"0", b"%d" % (same - 1))
        yield from _pushed(old.key, new(), same)
    elif any(new()):
        yield from _pushed(old.key, new(), 0)
        yield (b"LTRIM", old.key, b"%d" % old.count, b"-1")
    else:
        yield (b"UNLINK", old.key)


def thinned(old: Listing, drops: Callable[[bytes], bool]) -> Iterator[Command]:
    """Commands that take some ids off a list."""
    found = (id for id in chain.from_iterable(old.chunks()) if drops(id))
    some = list(islice(found, _FEW + 1))
    if len(some) > _FEW:
        yield from rewritten(old, lambda: without(old.chunks(), drops))
        return
    for id in dict.fromkeys(some):
        yield (b"LREM", old.key, b"0", id)


def _pushed(key: bytes, chunks: Chunks, skipped: int) -> Iterator[Command]:
    for chunk in chunks:
        if skipped < len(chunk):
            yield (b"RPUSH", key, *chunk[skipped:])
        skipped = max(0, skipped - len(chunk))


def _same(old: Listing, new: Chunks) -> int:
    """How many ids at the beginning stay where they are."""
    count = 0
    fresh = chain.from_iterable(new)
    for chunk in old.chunks():
        its = list(islice(fresh, len(chunk)))
        if its != chunk:
            pairs = zip(chunk, its, strict=False)
            return count + next((n for n, (a, b) in enumerate(pairs) if a != b), len(its))
        count += len(chunk)
    return count
