"""Changing AgentScope's Redis memory: every memory in one transaction.

As in ``write``, the keys that say what a memory holds are watched, looked at, and changed in
MULTI/EXEC, which Redis refuses if another client changed them since.  Watching the lists is enough:
RedisMemory puts and removes no payload without changing the list of ids in the same transaction,
and notes every mark in ``marks_index`` when it makes its list.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from memctl.errors import Failure
from memctl.model import WriteResult
from memctl.stores.redis.changed import Changed, Sight
from memctl.stores.redis.changes import Changes
from memctl.stores.redis.incoming import Refused
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES
from memctl.stores.redis.link import Command
from memctl.stores.redis.lists import Listing
from memctl.stores.redis.look import ranges
from memctl.stores.redis.scan import exists
from memctl.stores.redis.spellings import every
from memctl.stores.redis.wire import WRONG_TYPE, Wire

_TRIES = 10
_TOGETHER = 50_000
"""So many ids of several memories are looked at together."""


class Editor:
    """One ``edit``, in a thread."""

    def __init__(self, wire: Wire, marks: dict[bytes, tuple[bytes, ...]]) -> None:
        """``marks`` names the mark lists that were found, by base, for they may be in no index."""
        self._wire = wire
        self._marks = marks

    def edit(self, memories: Sequence[Changes]) -> Iterator[WriteResult]:
        """Changes the memories; small ones share a transaction, unless another client is faster.

        Raises:
            Unavailable: see ``Wire.stream``; what was changed before has its WriteResult.
        """
        for some in self._split(memories):
            done = self._attempt(some)
            yield from map(self._alone, some) if done is None else done

    def _split(self, memories: Sequence[Changes]) -> Iterator[list[Changes]]:
        """The memories in order, those together that are small together."""
        lengths = self._wire.ask(
            [(b"LLEN", one.base + MESSAGES) for one in memories], tolerate=WRONG_TYPE
        )
        some: list[Changes] = []
        ids = 0
        for one, length in zip(memories, lengths, strict=True):
            count = 0 if isinstance(length, ResponseError) else length
            if some and ids + count > _TOGETHER:
                yield some
                some, ids = [], 0
            some.append(one)
            ids += count
        yield some

    def _alone(self, one: Changes) -> WriteResult:
        for _ in range(_TRIES):
            done = self._attempt([one])
            if done is not None:
                return done[0]
        return WriteResult(one.key, failure=Failure("changed", "another client keeps changing it"))

    def _attempt(self, memories: Sequence[Changes]) -> list[WriteResult] | None:
        """What became of the memories; None if another client changed one of them."""
        tallies = []
        good: list[Changed] = []
        with ExitStack() as files:
            for one, sight in zip(memories, self._look(memories, files), strict=True):
                try:
                    good.append(self._good(one, sight))
                    tallies.append(WriteResult(one.key, one.written, one.deleted))
                except Refused as refused:
                    tallies.append(WriteResult(one.key, failure=refused.failure))
            if not good:
                self._wire.ask([(b"UNWATCH",)])
            elif not self._wire.commit(chain.from_iterable(each.commands() for each in good)):
                return None
        for each in good:
            each.changes.published = True
        return tallies

    def _good(self, one: Changes, sight: Sight | Refused) -> Changed:
        """What is to be done; raises Refused if it cannot be."""
        if isinstance(sight, Refused):
            raise sight
        changed = Changed(one, sight)
        changed.object()
        if not min(self._wire.stream(one.texts.settle(changed.ttl)), default=1):
            raise Refused("changed", "staged messages expired or were evicted")
        return changed

    def _look(self, memories: Sequence[Changes], files: ExitStack) -> list[Sight | Refused]:
        """Watches the keys of the memories and says what they hold; ``files`` lets go of that."""
        begun = list(self._begin(memories))
        commands = chain.from_iterable(one.lists() for one in begun)
        replies = self._wire.stream(commands)
        sights: list[Sight | Refused] = []
        for one in begun:
            if one.wrong is not None:
                text = f"one of its keys holds another kind of value ({one.wrong})"
                sights.append(Refused("refused", text))
                continue
            listings = []
            for key, length in zip(one.keys, one.lengths, strict=True):
                listing = Listing(key, islice(replies, len(ranges(key, length))))
                files.callback(listing.close)
                listings.append(listing)
            marks = dict(zip(one.names, listings[1:], strict=True))
            there = sum(islice(replies, one.questions))
            sights.append(Sight(listings[0], marks, frozenset(one.indexed), one.ends, there))
        return sights

    def _begin(self, memories: Sequence[Changes]) -> Iterator[_Begun]:
        """Watches the keys of the memories and says how long their lists are."""
        about = self._wire.ask(chain.from_iterable(map(self._about, memories)), tolerate=WRONG_TYPE)
        now = time.monotonic()
        indexes, ttls = about[1::3], about[2::3]
        names = [self._names(one, index) for one, index in zip(memories, indexes, strict=True)]
        commands = chain.from_iterable(map(_lengths, memories, names))
        replies = iter(self._wire.ask(commands, tolerate=WRONG_TYPE))
        for one, marks, index, ttl in zip(memories, names, indexes, ttls, strict=True):
            lengths = list(islice(replies, len(marks) + 2))[1:]
            wrong = next((r for r in (index, *lengths) if isinstance(r, ResponseError)), None)
            ends = now + ttl / 1000 if ttl >= 0 else None
            yield _Begun(one, marks, lengths, index, ends, wrong)

    def _about(self, one: Changes) -> Iterator[Command]:
        messages, index = one.base + MESSAGES, one.base + MARKS_INDEX
        yield (b"WATCH", messages, index)
        yield (b"SMEMBERS", index)
        yield (b"PTTL", messages)

    def _names(self, one: Changes, index: Any) -> list[bytes]:
        """The names of the mark lists that there are, or may come to be."""
        names = {*one.marked, *one.unmarked, *self._marks.get(one.base, ())}
        return sorted(every(names if isinstance(index, ResponseError) else names.union(index)))


class _Begun(NamedTuple):
    """A memory whose keys are watched, of which little is known yet."""

    changes: Changes
    names: list[bytes]
    """Those of the lists of marks."""
    lengths: list[Any]
    """Of the list of messages, and of those of the marks."""
    indexed: Any
    ends: float | None
    wrong: ResponseError | None

    @property
    def keys(self) -> list[bytes]:
        """The keys of the lists."""
        base = self.changes.base
        return [base + MESSAGES, *(base + MARK + mark for mark in self.names)]

    @property
    def questions(self) -> int:
        """How many replies count the messages that must be there."""
        return sum(1 for _ in self.changes.ids())

    def lists(self) -> Iterator[Command]:
        """Commands that list the lists, and count messages that must be there."""
        if self.wrong is None:
            yield from chain.from_iterable(map(ranges, self.keys, self.lengths))
            for ids in self.changes.ids():
                yield exists(self.changes.base, ids)


def _lengths(one: Changes, marks: list[bytes]) -> Iterator[Command]:
    keys = [one.base + MESSAGES, *(one.base + MARK + mark for mark in marks)]
    yield (b"WATCH", *keys)
    for key in keys:
        yield (b"LLEN", key)
