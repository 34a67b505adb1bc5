"""Reading AgentScope's Redis memory: heads of many memories at once, then their payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from memctl import codec
from memctl.errors import Unavailable
from memctl.model import Entry, Memory, Page
from memctl.selection import Selection
from memctl.store import Pacer
from memctl.stores._id_set import IdSet
from memctl.stores._pages import paged
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, decode
from memctl.stores.redis.scan import Named, exists, list_pages
from memctl.stores.redis.wire import AHEAD, WRONG_TYPE, Command, Wire

_SMALL = 100
"""Memories of so many messages are read together."""
_TOGETHER = 128

Marks = tuple[str, ...]


class Head(NamedTuple):
    """What is known of a memory before its messages are read."""

    base: bytes
    memory: Memory
    messages: int
    ids: list[bytes]
    """The first ones."""
    marks: list[bytes]
    """The names of its mark lists, sorted."""


class Wanted(NamedTuple):
    """A message whose payload is to be read."""

    base: bytes
    id: bytes
    marks: Marks


class LeftOut:
    """Messages that a reading had to leave out."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._first = ""

    def add(self, wanted: Wanted) -> None:
        """Counts one."""
        self._first = self._first or f"{decode(wanted.id)!r} of {decode(wanted.base)!r}"
        self._count += 1

    def lines(self) -> list[str]:
        """The warning, if there is any."""
        if not self._count:
            return []
        return [f"left out {self._count} {self._what} (the first: {self._first})"]


class Reader:
    """One pass over some memories, in a thread."""

    def __init__(self, wire: Wire, marks: dict[bytes, tuple[bytes, ...]], where: Selection) -> None:
        """``marks`` names the known mark lists by base; ``where`` may spare payloads."""
        self._wire = wire
        self._marks = marks
        # What is left of it can be told without the payload.
        self._where = Selection(marks=where.marks, exclude_marks=where.exclude_marks, ids=where.ids)
        self._missing = LeftOut("message ids without payload")
        self._broken = LeftOut("payloads that are not a JSON object")

    def warnings(self) -> list[str]:
        """What was left out so far."""
        return self._missing.lines() + self._broken.lines()

    def heads(self, memories: Iterable[Named]) -> Iterator[list[Head]]:
        """The heads of the memories that exist, many at a time."""
        source = iter(memories)
        while some := list(islice(source, _TOGETHER)):
            commands = (command for named in some for command in _look(named.base))
            replies = iter(self._wire.ask(commands, tolerate=WRONG_TYPE))
            heads = (self._head(named, *islice(replies, 4)) for named in some)
            yield [head for head in heads if head is not None]

    def _head(self, named: Named, count: Any, ttl: int, ids: Any, index: Any) -> Head | None:
        if isinstance(count, ResponseError) or not count:
            return None
        marks = set(self._marks.get(named.base, ()))
        if not isinstance(index, ResponseError):
            marks.update(index)
        memory = Memory(named.key, ttl=ttl / 1000 if ttl >= 0 else None)
        return Head(named.base, memory, count, ids, sorted(marks))

    def with_messages(self, heads: Sequence[Head]) -> Iterator[Head]:
        """Those of which any id leads to a payload."""
        counts = self._wire.ask(exists(head.base, head.ids) for head in heads)
        for head, count in zip(heads, counts, strict=True):
            if count or any(True for _ in self._large(head)):
                yield head

    def pages(self, memories: Iterable[Named]) -> Iterator[Page]:
        """The memories, but for messages whose id and marks rule them out."""
        for heads in self.heads(memories):
            small: list[Head] = []
            for head in heads:
                if head.messages <= _SMALL:
                    small.append(head)
                else:
                    yield from self._small(small)
                    yield from self._large(head)
                    small = []
            yield from self._small(small)

    def _small(self, heads: Sequence[Head]) -> Iterator[Page]:
        """Memories whose ids are all known: their marks in one go, then their payloads."""
        commands = [(head.base, mark) for head in heads for mark in head.marks]
        lists = iter(
            self._wire.ask(
                ((b"LRANGE", base + MARK + mark, b"0", b"-1") for base, mark in commands),
                tolerate=WRONG_TYPE,
            )
        )
        groups = []
        for head in heads:
            marked = _marked(zip(head.marks, islice(lists, len(head.marks)), strict=True))
            groups.append(self._wanted(head.base, head.ids, marked))
        entries = self._fetch([wanted for group in groups for wanted in group])
        doubtful = []
        for head, group in zip(heads, groups, strict=True):
            messages = list(filter(None, islice(entries, len(group))))
            if len(messages) < len(group):
                doubtful.append((head, messages))
            else:
                yield from paged(head.memory, messages, empty=False)
        for head, messages in doubtful:
            self._assert_there(head)
            yield from paged(head.memory, messages, empty=False)

    def _large(self, head: Head) -> Iterator[Page]:
        """A memory whose ids come in pages."""
        sets = [(decode(mark), self._ids(head.base + MARK + mark)) for mark in head.marks]

        def marks_of(id: bytes) -> Marks:
            return tuple(mark for mark, ids in sets if id in ids)

        def entries() -> Iterator[Entry | None]:
            count = 0
            for ids in list_pages(self._wire, head.base + MESSAGES):
                count += len(ids)
                missing = False
                for entry in self._fetch(self._wanted(head.base, ids, marks_of)):
                    missing = missing or entry is None
                    yield entry
                if missing:
                    self._assert_there(head)
            if count < head.messages:
                raise _overtaken(head)

        yield from paged(head.memory, filter(None, entries()), empty=False)

    def _assert_there(self, head: Head) -> None:
        """Tells a payload that is missing from a memory that is being deleted.

        Raises:
            Unavailable: the memory is no longer there.
        """
        [there] = self._wire.ask([(b"EXISTS", head.base + MESSAGES)])
        if not there:
            raise _overtaken(head)

    def _ids(self, key: bytes) -> IdSet:
        ids = IdSet()
        for page in list_pages(self._wire, key):
            ids.add(page)
        return ids

    def _wanted(
        self, base: bytes, ids: Iterable[bytes], marks_of: Callable[[bytes], Marks]
    ) -> list[Wanted]:
        found = [Wanted(base, id, marks_of(id)) for id in ids]
        if self._where.whole:
            return found
        matches = self._where.matches
        return [one for one in found if matches(Entry(decode(one.id), b"", one.marks))]

    def _fetch(self, wanted: Sequence[Wanted]) -> Iterator[Entry | None]:
        """The messages, None for those that must be left out."""
        pacer = Pacer()
        commands = ((b"GET", one.base + PAYLOAD + one.id) for one in wanted)
        replies = self._wire.stream(
            commands, tolerate=WRONG_TYPE, ahead=lambda: min(AHEAD, pacer.rows)
        )
        for one, payload in zip(wanted, replies, strict=True):
            if not isinstance(payload, bytes):
                self._missing.add(one)
                yield None
                continue
            pacer.saw(1, len(payload))
            message = _message(payload)
            if message is None:
                self._broken.add(one)
            yield None if message is None else Entry(decode(one.id), message, one.marks)


def _overtaken(head: Head) -> Unavailable:
    return Unavailable(
        f"messages of {head.memory.key} were deleted while they were read",
        "run again: what was written is whole, and what is gone is not read",
    )


def _look(base: bytes) -> Iterator[Command]:
    messages = base + MESSAGES
    yield (b"LLEN", messages)
    yield (b"PTTL", messages)
    yield (b"LRANGE", messages, b"0", b"%d" % (_SMALL - 1))
    yield (b"SMEMBERS", base + MARKS_INDEX)


def _marked(lists: Iterable[tuple[bytes, Any]]) -> Callable[[bytes], Marks]:
    """What gives the marks of an id, of lists of ids by sorted marks."""
    marks: dict[bytes, Marks] = {}
    for mark, ids in lists:
        name = (decode(mark),)
        for id in set() if isinstance(ids, ResponseError) else set(ids):
            marks[id] = marks.get(id, ()) + name
    return lambda id: marks.get(id, ())


def _message(payload: bytes) -> bytes | None:
    """The payload as a message; None where it is not a JSON object."""
    try:
        message = codec.utf8(payload)
        return message if isinstance(codec.outline(message), dict) else None
    except ValueError:
        return None
