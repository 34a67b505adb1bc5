"""Writing AgentScope's Redis memory: every memory in one transaction.

The keys that say what a memory holds are watched, looked at, and changed in MULTI/EXEC, which Redis
refuses if another client changed them since.  A memory that comes in many pages is staged first:
its payloads go under names that belong to no memory, and the transaction renames them.  (Queued
commands count against ``client-query-buffer-limit``, 1 GB, so payloads cannot all be queued.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from memctl.errors import Failure
from memctl.model import WriteMode, WriteResult
from memctl.stores.catalog import IdSet
from memctl.stores.redis.incoming import Incoming, Refused
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, decode
from memctl.stores.redis.link import Command, Packed
from memctl.stores.redis.scan import exists, list_pages
from memctl.stores.redis.spellings import every
from memctl.stores.redis.wire import WRONG_TYPE, Wire

_TRIES = 5
_HEAD = 100
"""So many ids of a list are read along with others; the rest only if there are more."""


class State(NamedTuple):
    """What there is under the name of a memory."""

    held: int
    ttl: int | None
    ids: list[bytes]
    """The first ones of those that are held."""
    known: int
    """How many of the messages to be added have a payload already."""
    indexed: bool
    marks: dict[bytes, list[bytes]]
    """The first ids of each mark list, those that are to come included."""


_NOTHING = State(0, None, [], 0, False, {})


class Writer:
    """One ``write``, in a thread."""

    def __init__(
        self, wire: Wire, side: Wire, marks: dict[bytes, tuple[bytes, ...]], mode: WriteMode
    ) -> None:
        """``side`` reads while a transaction is under way on ``wire``; ``marks`` names the mark
        lists that were found, by base, for they may not be in an index."""
        self._wire = wire
        self._side = side
        self._marks = marks
        self._mode = mode

    def write(self, memories: Sequence[Incoming]) -> list[WriteResult]:
        """Writes the memories, in one transaction unless another client gets into the way.

        Raises:
            Unavailable: see ``Wire.stream``.
        """
        done = self._attempt(memories)
        return [self._alone(one) for one in memories] if done is None else done

    def _alone(self, one: Incoming) -> WriteResult:
        for _ in range(_TRIES):
            done = self._attempt([one])
            if done is not None:
                return done[0]
        return WriteResult(one.key, failure=Failure("changed", "another client keeps changing it"))

    def _attempt(self, memories: Sequence[Incoming]) -> list[WriteResult] | None:
        """What became of the memories; None if another client changed one of them."""
        tallies = []
        good: list[tuple[Incoming, State]] = []
        for one, state in zip(memories, self._look(memories), strict=True):
            try:
                if isinstance(state, Refused):
                    raise state
                self._object(one, state)
                if not min(self._wire.stream(one.settle(_ttl(one, state))), default=1):
                    raise Refused("changed", "staged messages expired or were evicted")
            except Refused as refused:
                tallies.append(WriteResult(one.key, failure=refused.failure))
            else:
                good.append((one, state))
                deleted = state.held if self._mode is WriteMode.REPLACE else 0
                tallies.append(WriteResult(one.key, one.count, deleted))
        if not good:
            self._wire.ask([(b"UNWATCH",)])
        elif not self._commit(good):
            return None
        for one, _ in good:
            one.published = True
        return tallies

    # Looking

    def _look(self, memories: Sequence[Incoming]) -> list[State | Refused]:
        """Watches the keys of the memories and says what they hold."""
        keys = [key for one in memories for key in self._keys(one)]
        _, present = self._wire.ask([(b"WATCH", *keys), (b"EXISTS", *keys)])
        if not present:
            return [_NOTHING] * len(memories)
        questions = [_questions(one) for one in memories]
        replies = iter(self._wire.ask(chain(*questions), tolerate=WRONG_TYPE))
        answers = [list(islice(replies, len(some))) for some in questions]
        names = [self._names(one, some[0]) for one, some in zip(memories, answers, strict=True)]
        lists = iter(self._wire.ask(_about_marks(memories, names), tolerate=WRONG_TYPE))
        states: list[State | Refused] = []
        for some, marks in zip(answers, names, strict=True):
            heads = list(islice(lists, len(marks) + 1))[1:] if marks else []
            wrong = next((r for r in (*some, *heads) if isinstance(r, ResponseError)), None)
            if wrong is not None:
                text = f"one of its keys holds another kind of value ({wrong})"
                states.append(Refused("refused", text))
                continue
            index, held, ttl, ids, *known = some
            left = max(ttl, 1) if held and ttl >= 0 else None
            by_mark = dict(zip(marks, heads, strict=True))
            states.append(State(held, left, ids, sum(known), bool(index), by_mark))
        return states

    def _keys(self, one: Incoming) -> Iterator[bytes]:
        """The keys that may exist already, but for payloads and marks that only the index names."""
        yield one.base + MESSAGES
        yield one.base + MARKS_INDEX
        for mark in one.marks.union(self._marks.get(one.base, ())):
            yield one.base + MARK + mark

    def _names(self, one: Incoming, index: Any) -> list[bytes]:
        """The names of the mark lists that there are, or will be."""
        names = one.marks.union(self._marks.get(one.base, ()))
        return sorted(every(names if isinstance(index, ResponseError) else names.union(index)))

    def _object(self, one: Incoming, state: State) -> None:
        """Raises Refused if the memory is not what the writer was told to add to."""
        if self._mode is WriteMode.REPLACE:
            return
        if state.held != one.offset and self._readable(one.base, state.held) != one.offset:
            raise Refused("changed", f"the target holds {state.held} messages, not {one.offset}")
        if one.offset and (state.known or state.held != one.offset):
            self._object_to_repeats(one)

    def _readable(self, base: bytes, held: int) -> int:
        """How many messages a reader sees: ids whose payload expired are no messages."""
        count = 0
        for ids in list_pages(self._wire, base + MESSAGES) if held else ():
            count += sum(self._wire.ask([exists(base, ids)]))
        return count

    def _object_to_repeats(self, one: Incoming) -> None:
        listed = IdSet()
        for ids in list_pages(self._wire, one.base + MESSAGES):
            listed.add(ids)
        for id in chain.from_iterable(some.ids for some in one.listed()):
            if id in listed:
                raise Refused("repeated-id", f"the message id {decode(id)!r} is there already")

    # Changing

    def _commit(self, good: Sequence[tuple[Incoming, State]]) -> bool:
        """Makes the changes, all or none; False if another client was faster.

        Raises:
            Unavailable: the server refuses a command, and so all.
        """
        changes = chain.from_iterable(self._changes(one, state) for one, state in good)
        return self._wire.commit(changes)

    def _changes(self, one: Incoming, state: State) -> Iterator[Command | Packed]:
        fresh = self._mode is WriteMode.REPLACE or not one.offset
        ttl = _ttl(one, state)
        yield from self._clear(one, state) if fresh else self._unmark(one, state)
        yield from one.payloads()
        for listed in one.listed():
            yield (b"RPUSH", one.base + MESSAGES, *listed.ids)
            for mark, ids in listed.marked.items():
                yield (b"RPUSH", one.base + MARK + mark, *ids)
        if one.marks:
            yield (b"SADD", one.base + MARKS_INDEX, *sorted(one.marks))
        if ttl is not None and (one.count or (one.offset and one.ttl is not None)):
            yield from self._expire(one, state, ttl, fresh=fresh)

    def _clear(self, one: Incoming, state: State) -> Iterator[Command]:
        """Deletes the memory, or what is left over of one."""
        lists = [one.base + MARK + mark for mark, ids in state.marks.items() if ids]
        if state.held or state.indexed or lists:
            yield (b"UNLINK", one.base + MESSAGES, one.base + MARKS_INDEX, *lists)
        for ids in self._all(one.base + MESSAGES, state.ids):
            yield (b"UNLINK", *(one.base + PAYLOAD + id for id in ids))

    def _unmark(self, one: Incoming, state: State) -> Iterator[Command]:
        """Takes new ids off mark lists that have kept them from a message of the past."""
        for mark, first in state.marks.items():
            key = one.base + MARK + mark
            for ids in self._all(key, first):
                for id in set(ids):
                    if id in one.ids:
                        yield (b"LREM", key, b"0", id)

    def _expire(self, one: Incoming, state: State, ttl: int, *, fresh: bool) -> Iterator[Command]:
        """Lets all keys of the memory expire together, as AgentScope's ``_refresh_session_ttl``.

        With no new expiry, those that are not touched keep theirs.
        """
        marks = one.marks if fresh or one.ttl is None else state.marks
        keys = [one.base + MARK + mark for mark in marks]
        if marks or state.indexed:
            keys.append(one.base + MARKS_INDEX)
        if fresh or one.ttl is not None:
            keys.append(one.base + MESSAGES)
        for key in keys:
            yield (b"PEXPIRE", key, b"%d" % ttl)
        if not fresh and one.ttl is not None:
            for ids in self._all(one.base + MESSAGES, state.ids):
                for id in ids:
                    yield (b"PEXPIRE", one.base + PAYLOAD + id, b"%d" % ttl)

    def _all(self, key: bytes, first: list[bytes]) -> Iterator[list[bytes]]:
        """The items of a list whose first ones are known."""
        if first:
            yield first
        if len(first) == _HEAD:
            yield from list_pages(self._side, key, _HEAD)


def _ttl(one: Incoming, state: State) -> int | None:
    return state.ttl if one.ttl is None else one.ttl


def _questions(one: Incoming) -> list[Command]:
    messages = one.base + MESSAGES
    added = one.listed() if one.offset else ()
    return [
        (b"SMEMBERS", one.base + MARKS_INDEX),
        (b"LLEN", messages),
        (b"PTTL", messages),
        (b"LRANGE", messages, b"0", b"%d" % (_HEAD - 1)),
        *(exists(one.base, listed.ids) for listed in added),
    ]


def _about_marks(memories: Sequence[Incoming], names: Sequence[list[bytes]]) -> Iterator[Command]:
    for one, marks in zip(memories, names, strict=True):
        keys = [one.base + MARK + mark for mark in marks]
        if keys:
            yield (b"WATCH", *keys)
        for key in keys:
            yield (b"LRANGE", key, b"0", b"%d" % (_HEAD - 1))
