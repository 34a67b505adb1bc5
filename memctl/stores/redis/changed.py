"""A memory of Redis as it is, and as its changes make it.

A list of a mark gets ids at their place in the list of messages, so that what comes back under a
mark stands where it stood (RedisMemory gives messages by mark in the order of the mark's list, and
appends to it): an id stands behind the message before it that the list has.  Where a mark has
several lists, an id in any of them has the mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from memctl.stores.redis.changes import Changes, Group
from memctl.stores.redis.incoming import Refused
from memctl.stores.redis.keys import MARKS_INDEX, MESSAGES, decode
from memctl.stores.redis.link import Command, Packed
from memctl.stores.redis.lists import (
    Chunks,
    Listing,
    Place,
    merged,
    rewritten,
    thinned,
    unplaced,
    without,
)
from memctl.stores.redis.spellings import plain, spellings


class Sight(NamedTuple):
    """What there is of a memory, all of it watched."""

    messages: Listing
    marks: dict[bytes, Listing]
    """The lists of every mark that there is, or may come to be, by name."""
    indexed: frozenset[bytes]
    """The names that ``marks_index`` holds."""
    ends: float | None
    """When it expires, by ``time.monotonic``; None for never."""
    there: int
    """How many of the messages that must be there have a payload."""


class Changed:
    """A memory and its changes."""

    def __init__(self, changes: Changes, sight: Sight) -> None:
        self.changes = changes
        self._messages = sight.messages
        self._sight = sight
        self._base = changes.base
        self._anew = not sight.messages.count
        self._indexed = frozenset() if self._anew else sight.indexed
        self._marks = sight.marks
        if self._anew:  # marks that are left over of a memory of the past are not its own
            self._marks = {name: Listing(its.key, ()) for name, its in sight.marks.items()}
        self._by_mark: dict[bytes, list[Listing]] = {}
        for name, its in self._marks.items():
            self._by_mark.setdefault(plain(name), []).append(its)

    @property
    def ttl(self) -> int | None:
        """How long what is put in is to live, in milliseconds."""
        if self._anew:
            return self.changes.ttl
        ends = self._sight.ends
        return None if ends is None else max(1, round((ends - time.monotonic()) * 1000))

    # What is otherwise than the changes say

    def object(self) -> None:
        """Raises Refused if anything is."""
        changes = self.changes
        for chunk in changes.chunks():
            for group in chunk.groups:
                self._object_to(group)
        if self._sight.there < changes.there:
            raise Refused("changed", "the payload of a message is gone")
        if changes.put.duplicates:
            raise Refused("repeated-id", "a message id is put in twice")
        self._object_to_repeats()
        if changes.new:
            id = unplaced(self._left(), changes.places())
            if id is not None:
                text = f"the message that {decode(id)!r} is to stand behind is not there"
                raise Refused("changed", text)

    def _object_to(self, group: Group) -> None:
        listed = self._messages.ids
        if group.old is None:
            _refuse((id for id in group.ids if id in listed), "is there already")
            return
        _refuse((id for id in group.ids if id not in listed), "is not there")
        for mark in group.old.difference(self._by_mark):
            _refuse(iter(group.ids), f"is not marked {decode(mark)!r}")
        for mark, lists in self._by_mark.items():
            filled = [its.ids for its in lists if its.count]
            if mark in group.old:
                missing = (id for id in group.ids if not any(id in ids for ids in filled))
                _refuse(missing, f"is not marked {decode(mark)!r}")
                continue
            for ids in filled:
                _refuse(filter(ids.__contains__, group.ids), f"is marked {decode(mark)!r}")

    def _object_to_repeats(self) -> None:
        """An id that is listed twice names two messages, of which one cannot go alone."""
        if self.changes.deleted and (self._messages.ids.duplicates or self.changes.gone.duplicates):
            left = sum(map(len, self._left()))
            if self._messages.count - left != self.changes.deleted:
                raise Refused("repeated-id", "an id that is to go is not there as often")

    # What comes of it

    def _left(self) -> Chunks:
        chunks = self._messages.chunks()
        return without(chunks, self.changes.gone.__contains__) if self.changes.deleted else chunks

    def _ids(self) -> Chunks:
        """The ids of the messages."""
        return merged(self._left(), self.changes.places()) if self.changes.new else self._left()

    def _dropped(self, name: bytes) -> Callable[[bytes], bool]:
        """Whether an id is to go from a list of a mark.

        A list may have kept an id from a message of the past that had the id of a new one.
        """
        unmarked = self.changes.unmarked.get(name, ())
        if not self.changes.new:
            return unmarked.__contains__
        put, marked = self.changes.put, self.changes.marked.get(name, ())
        return lambda id: id in unmarked or (id in put and id not in marked)

    def _marked(self, name: bytes) -> Chunks:
        """The ids of a list of a mark that some messages get."""
        left = without(self._marks[name].chunks(), self._dropped(name))
        return merged(left, self._places(name))

    def _places(self, name: bytes) -> Iterator[Place]:
        before, wanted = self._marks[name].ids, self.changes.marked[name]
        dropped = self._dropped(name)
        seen: set[bytes] | None = set() if self._messages.ids.duplicates else None
        behind: bytes | None = None
        for id in chain.from_iterable(self._ids()):
            if id in before:
                if not dropped(id):
                    behind = id
            elif id in wanted and (seen is None or id not in seen):
                yield behind, id
                if seen is not None:
                    seen.add(id)

    def commands(self) -> Iterator[Command | Packed]:
        """Commands that change the memory; all are to run at one moment, or none."""
        changes = self.changes
        if not changes.written and not changes.deleted:
            return
        if self._anew:
            yield from self._clear()
        yield from changes.payloads()
        if changes.new:
            yield from rewritten(self._messages, self._ids)
        elif changes.deleted:
            yield from thinned(self._messages, changes.gone.__contains__)
        for name, its in self._marks.items():
            if name in changes.marked:
                yield from rewritten(its, partial(self._marked, name))
            elif changes.new or name in changes.unmarked:
                yield from thinned(its, self._dropped(name))
        yield from self._name_marks()
        yield from self._expire()

    def _clear(self) -> Iterator[Command]:
        """Deletes what is left over of a memory that expired or was deleted."""
        lists = [its.key for its in self._sight.marks.values() if its.count]
        if lists or self._sight.indexed:
            yield (b"UNLINK", self._base + MARKS_INDEX, *lists)

    def _name_marks(self) -> Iterator[Command]:
        """Names new marks in the index, and takes off it those that no message has any more.

        An index that is made names all marks, for RedisMemory knows no others then.
        """
        key = self._base + MARKS_INDEX
        new = self.changes.marked.keys() - self._indexed
        if new and not self._indexed:
            new = {name for name in self._marks if not self._is_empty(name)}
        if new:
            yield (b"SADD", key, *sorted(new))
        touched = self._marks if self.changes.new else self.changes.unmarked
        ended = [
            name
            for name in sorted(self._indexed.intersection(touched))
            if all(map(self._is_empty, spellings(plain(name))))  # agents name only the plain one
        ]
        if ended:
            yield (b"SREM", key, *ended)

    def _is_empty(self, name: bytes) -> bool:
        """Whether no id is left on a list of a mark."""
        if name in self.changes.marked:
            return False
        return not any(without(self._marks[name].chunks(), self._dropped(name)))

    def _expire(self) -> Iterator[Command]:
        """Lets new keys expire with the others; a key that was there keeps its expiry."""
        ttl = self.ttl
        if ttl is None:
            return
        keys = [
            self._marks[name].key for name in self.changes.marked if not self._marks[name].count
        ]
        if self.changes.marked and not self._indexed:
            keys.append(self._base + MARKS_INDEX)
        if self._anew:
            keys.append(self._base + MESSAGES)
        for key in keys:
            yield (b"PEXPIRE", key, b"%d" % ttl)


def _refuse(ids: Iterator[bytes], what: str) -> None:
    """Raises Refused if there is an id."""
    for id in ids:
        raise Refused("changed", f"the message {decode(id)!r} {what}")
