"""Changes of a memory of Redis, on their way there: in hand, or staged."""

from __future__ import annotations

import pickle
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Change, Edit, Memory
from memctl.stores.batching import LARGE_BYTES
from memctl.stores.catalog import IdSet
from memctl.stores.redis.incoming import half_a_pair, mark_of, object_to_size
from memctl.stores.redis.keys import PAYLOAD, Keys, encode
from memctl.stores.redis.link import Command, Packed
from memctl.stores.redis.lists import Place
from memctl.stores.redis.payloads import Held, OnServer, Payloads
from memctl.stores.redis.spellings import spellings
from memctl.stores.redis.wire import Wire

Marks = frozenset[bytes]


class Group(NamedTuple):
    """Messages of which the same is to become."""

    old: Marks | None
    new: Marks | None
    ids: list[bytes]


class Chunk(NamedTuple):
    """Some changes, grouped, and the places of the messages that are put in, in order."""

    groups: list[Group]
    places: list[Place]


class Changes(ABC):
    """The changes of one memory."""

    texts: Payloads
    """What is put in."""

    def __init__(self, base: bytes, memory: Memory, ttl: int | None) -> None:
        """``ttl`` is how long the memory is to live if it is made anew, in milliseconds."""
        self.base = base
        self.key = memory.key
        self.ttl = ttl
        self.published = False
        self.written = self.deleted = self.new = self.there = 0
        """How many messages are changed or put in, go, are put in, and must be there for that."""
        self.put = IdSet()
        self.gone = IdSet()
        self.marked: dict[bytes, IdSet] = {}
        """The ids that come under a mark, by the name of each of its lists."""
        self.unmarked: dict[bytes, IdSet] = {}
        """The ids that go from under a mark, likewise."""

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """The changes in order, some at a time.  One such iterator is used at a time."""

    def places(self) -> Iterator[Place]:
        """The places of the messages that are put in, in order."""
        for chunk in self.chunks():
            yield from chunk.places

    def ids(self) -> Iterator[list[bytes]]:
        """The ids of messages that must be there, some at a time."""
        for chunk in self.chunks():
            for group in chunk.groups:
                if group.old is not None:
                    yield group.ids

    def payloads(self) -> Iterator[Command | Packed]:
        """Commands that remove payloads, and put in others."""
        prefix = self.base + PAYLOAD
        for chunk in self.chunks() if self.deleted else ():
            for group in chunk.groups:
                if group.new is None:
                    yield (b"UNLINK", *(prefix + id for id in group.ids))
        if self.new:
            names = ([prefix + id for _, id in chunk.places] for chunk in self.chunks())
            yield from self.texts.put(names)

    def _noted(self, changes: list[Change]) -> Chunk:
        """What is to be done for some changes.

        Raises:
            Refused: Redis cannot hold what they make.
        """
        grouped: dict[tuple[tuple[str, ...] | None, tuple[str, ...] | None], list[str]] = {}
        for change in changes:
            grouped.setdefault((change.old, change.new), []).append(change.id)
        try:
            groups = [
                Group(_marks(old, encode), _marks(new, mark_of), list(map(encode, ids)))
                for (old, new), ids in grouped.items()
            ]
            places = [
                (None if change.after is None else encode(change.after), encode(change.id))
                for change in changes
                if change.old is None
            ]
        except UnicodeEncodeError as error:
            raise half_a_pair(error) from error
        for change in changes if places else ():
            object_to_size(change.id, change.message)
        for group in groups:
            self._note(group)
        return Chunk(groups, places)

    def _note(self, group: Group) -> None:
        old, new, ids = group
        if old is None:
            self.put.add(ids)
            self.new += len(ids)
        else:
            self.there += len(ids)
        if new is None:
            self.gone.add(ids)
            self.deleted += len(ids)
        else:
            self.written += len(ids)
        before, after = old or frozenset(), new or frozenset()
        for mark in after - before:
            _under(self.marked, mark).add(ids)
        for mark in before - after:
            _under(self.unmarked, mark).add(ids)


class Few(Changes):
    """Changes that go with the transaction."""

    def __init__(self, base: bytes, memory: Memory, ttl: int | None, changes: list[Change]) -> None:
        """Raises Refused if Redis cannot hold what they make."""
        super().__init__(base, memory, ttl)
        self._chunk = self._noted(changes)
        self.texts = Held([change.message for change in changes if change.old is None])

    def chunks(self) -> Iterator[Chunk]:
        yield self._chunk


class Many(Changes):
    """Changes in a local file; what they put in is on the server."""

    def __init__(self, keys: Keys, base: bytes, memory: Memory, ttl: int | None) -> None:
        super().__init__(base, memory, ttl)
        self.texts = self._texts = OnServer(keys)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._starts: list[int] = []

    def add(self, wire: Wire, changes: list[Change]) -> None:
        """Stages some changes.

        Raises:
            Refused: Redis cannot hold what they make.
            Unavailable: see ``Wire.stream``.
        """
        chunk = self._noted(changes)
        self._texts.add(wire, [change.message for change in changes if change.old is None])
        self._starts.append(self._file.tell())
        pickle.dump(chunk, self._file)

    def chunks(self) -> Iterator[Chunk]:
        for start in self._starts:
            self._file.seek(start)
            yield pickle.load(self._file)

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


def _marks(names: tuple[str, ...] | None, as_bytes: Callable[[str], bytes]) -> Marks | None:
    return None if names is None else frozenset(map(as_bytes, names))


def _under(lists: dict[bytes, IdSet], mark: bytes) -> IdSet:
    """The ids under a mark, the same for each of its lists."""
    if mark not in lists:
        lists.update(dict.fromkeys(spellings(mark), IdSet()))
    return lists[mark]


class Whole(NamedTuple):
    """All changes of a memory."""

    memory: Memory
    changes: list[Change]


class Parts(NamedTuple):
    """Many changes of a memory.  ``changes`` must be consumed to the end."""

    memory: Memory
    changes: AsyncGenerator[list[Change]]


async def grouped(
    edits: AsyncGenerator[Edit], most: int = PAGE_ENTRIES
) -> AsyncGenerator[list[Whole] | Parts]:
    """Memories with few changes, about so many changes together, and others one by one."""
    batch: list[Whole] = []
    size = count = 0
    async for edit in edits:
        changes = edit.changes
        last = edit.last
        added = _size(changes)
        while not last and added < PAGE_BYTES and len(changes) < most:
            more = await anext(edits)
            changes = changes + more.changes
            last = more.last
            added += _size(more.changes)
        if last and added <= LARGE_BYTES:
            batch.append(Whole(edit.memory, changes))
            size += added
            count += len(changes)
            if size < PAGE_BYTES and count < most and len(batch) < most:
                continue
        if batch:
            yield batch
            batch, size, count = [], 0, 0
        if not last or added > LARGE_BYTES:
            parts = Parts(edit.memory, _parts([changes], last, edits))
            del edit, changes  # one message may be most of the memory in use
            yield parts
    if batch:
        yield batch


def _size(changes: list[Change]) -> int:
    return sum([len(change.message) for change in changes])


async def _parts(
    held: list[list[Change]], last: bool, edits: AsyncGenerator[Edit]
) -> AsyncGenerator[list[Change]]:
    yield held.pop()
    while not last:
        edit = await anext(edits)
        last = edit.last
        held.append(edit.changes)
        del edit
        yield held.pop()
