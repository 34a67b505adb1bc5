"""Writing AgentScope's Redis memory: every memory in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from memctl.engines.redis.pipeline import Command, PackedCommands, Pipeline
from memctl.engines.redis.text import decode
from memctl.layouts.redis.keys import (
    MARK,
    MARKS_INDEX,
    MESSAGES,
    PAYLOAD,
    Keys,
    mark_aliases,
)
from memctl.model import Memory, StoredMessage, WriteMode, WriteResult
from memctl.storekit.catalog import IdSet
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope1.redis.before import (
    Lists,
    MemoryBefore,
    lists_before,
    other_expiries,
)
from memctl.stores.agentscope1.redis.payloads import (
    check_size,
    lone_surrogate,
    mark_name,
    payload,
)
from memctl.stores.agentscope1.redis.snapshot import IdChunks, IdList, MemorySnapshot
from memctl.stores.agentscope1.redis.transaction import (
    ChangingMemory,
    MemoryTransaction,
    WatchedState,
    refuse_missing,
)


class Writer(MemoryTransaction["PendingMemory"]):
    """A single call of ``Store.write``, for use in a thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        marks: dict[bytes, tuple[bytes, ...]],
        about_to_commit: Callable[[Iterable[WriteResult]], None],
        mode: WriteMode,
    ) -> None:
        super().__init__(pipeline, marks, about_to_commit)
        self._mode = mode

    def _is_fresh(self, one: PendingMemory) -> bool:
        """Return whether the whole memory is written, not only new messages."""
        return self._mode is WriteMode.REPLACE or not one.offset

    def listed(self, one: PendingMemory, snapshot: MemorySnapshot) -> IdChunks:
        return snapshot.messages.chunks() if self._is_fresh(one) else iter(())

    def plan(
        self, one: PendingMemory, state: WatchedState
    ) -> tuple[WriteResult, Iterator[Command | PackedCommands]]:
        self._check(one, state)
        snapshot = state.snapshot
        before = self._before(one, state)
        self.prepare(one.prepare(_ttl(one, snapshot)))
        deleted = snapshot.messages.count if self._mode is WriteMode.REPLACE else 0
        result = WriteResult(one.key, one.count, deleted, before=before)
        return result, self._changes(one, snapshot)

    def _check(self, one: PendingMemory, state: WatchedState) -> None:
        """Check that the stored memory has ``offset`` messages, unless the mode is REPLACE.

        Raises:
            Rejected: the number differs, or an id to add already exists.
        """
        if self._mode is WriteMode.REPLACE:
            return
        messages = state.snapshot.messages
        held = messages.count
        if held != one.offset and self.readable(state.snapshot) != one.offset:
            raise Rejected("changed", f"the target holds {held} messages, not {one.offset}")
        if one.offset and (state.present or held != one.offset):
            for id in chain.from_iterable(one.ids()):
                if id in messages.ids:
                    text = f"the message id {decode(id)!r} already exists"
                    raise Rejected("repeated-id", text)

    # State for undo

    def _before(self, one: PendingMemory, state: WatchedState) -> str:
        """Return ``WriteResult.before``: what an undo must restore besides messages, as JSON.

        Empty if there is nothing to record.

        Raises:
            Rejected: an undo could not restore the memory, because RedisMemory never writes a
                memory like this.
        """
        snapshot = state.snapshot
        refuse_missing(state)
        if state.present:
            listed = snapshot.messages.ids
            new = ([id for id in ids if id not in listed] for ids in one.ids())
            self.refuse_strays(one.base, new)
        if not self._is_fresh(one):
            # The new messages go to the end of all lists, unless a list has their ids already.
            lists: Lists = {name: [*its] for name, its in self._stale_lists(one, snapshot)}
            if lists or _unindexed(one, snapshot):
                return MemoryBefore(lists, snapshot.index, sorted(snapshot.marks)).dump()
            return ""
        found = lists_before(snapshot, snapshot.marks.keys())
        if snapshot.exists or found.index is not None:
            payloads = snapshot.messages.chunks()
            found.expiries.update(other_expiries(self.pipeline, snapshot, payloads))
        return found.dump()

    # Changing

    def _changes(
        self, one: PendingMemory, snapshot: MemorySnapshot
    ) -> Iterator[Command | PackedCommands]:
        fresh = self._is_fresh(one)
        ttl = _ttl(one, snapshot)
        yield from _clear(snapshot) if fresh else self._unmark(one, snapshot)
        yield from one.payload_commands()
        for listed in one.id_chunks():
            yield (b"RPUSH", one.base + MESSAGES, *listed.ids)
            for mark, ids in listed.marked.items():
                yield (b"RPUSH", one.base + MARK + mark, *ids)
        if one.marks:
            names = one.marks if fresh else one.marks | _unindexed(one, snapshot)
            yield (b"SADD", one.base + MARKS_INDEX, *sorted(names))
        if ttl is not None and (one.count or (one.offset and one.ttl is not None)):
            yield from _expire(one, snapshot, ttl, fresh=fresh)

    def _stale_lists(
        self, one: PendingMemory, snapshot: MemorySnapshot
    ) -> Iterator[tuple[bytes, IdList]]:
        """Yield the mark lists that have the id of a new message already."""
        for name, its in snapshot.marks.items():
            if any(id in one.put for id in its):
                yield name, its

    def _unmark(self, one: PendingMemory, snapshot: MemorySnapshot) -> Iterator[Command]:
        for _, its in self._stale_lists(one, snapshot):
            for id in dict.fromkeys(its):
                if id in one.put:
                    yield (b"LREM", its.key, b"0", id)


def _ttl(one: PendingMemory, snapshot: MemorySnapshot) -> int | None:
    if one.ttl is not None:
        return one.ttl
    return max(snapshot.ttl, 1) if snapshot.exists and snapshot.ttl >= 0 else None


def _unindexed(one: PendingMemory, snapshot: MemorySnapshot) -> set[bytes]:
    """Return the stored mark lists that the write must add to ``marks_index``."""
    filled = {name for name, its in snapshot.marks.items() if its.count} - snapshot.index
    return filled & one.marks if snapshot.index or not one.marks else filled


def _clear(snapshot: MemorySnapshot) -> Iterator[Command]:
    base = snapshot.ref.base
    lists = [its.key for its in snapshot.marks.values() if its.count]
    if snapshot.exists or snapshot.index or lists:
        yield (b"UNLINK", base + MESSAGES, base + MARKS_INDEX, *lists)
    for ids in snapshot.messages.chunks():
        yield (b"UNLINK", *(base + PAYLOAD + id for id in ids))


def _expire(
    one: PendingMemory, snapshot: MemorySnapshot, ttl: int, *, fresh: bool
) -> Iterator[Command]:
    """Yield the commands that set the TTL of keys, like AgentScope's ``_refresh_session_ttl``.

    All keys of the memory get the TTL.  If ``one.ttl`` is None, existing keys keep their expiry.
    ``fresh`` is True if the whole memory is written, not only new messages.
    """
    keeps = not fresh and one.ttl is None
    marks = one.marks if fresh or keeps else snapshot.marks
    keys = [one.base + MARK + mark for mark in marks if not (keeps and snapshot.marks[mark].count)]
    if (marks or snapshot.index) and not (keeps and snapshot.index):
        keys.append(one.base + MARKS_INDEX)
    if fresh or one.ttl is not None:
        keys.append(one.base + MESSAGES)
    for key in keys:
        yield (b"PEXPIRE", key, b"%d" % ttl)
    if not fresh and one.ttl is not None:
        for id in snapshot.messages:
            yield (b"PEXPIRE", one.base + PAYLOAD + id, b"%d" % ttl)


# Memories to write


class PendingIds(NamedTuple):
    """The ids of messages to write, and the ids of the messages with each mark."""

    ids: list[bytes]
    marked: dict[bytes, list[bytes]]
    """The ids by alias of their marks."""


class PendingMemory(ChangingMemory[PendingIds]):
    """A memory to write, or messages to append to an existing memory if ``offset`` is not 0.

    ``ttl`` is the TTL to set in milliseconds; None keeps the expiry of the memory.
    """

    def __init__(
        self, base: bytes, memory: Memory, offset: int, ttl: int | None, staged: Keys | None = None
    ) -> None:
        super().__init__(base, memory.key, ttl, staged)
        self.offset = offset
        self.count = 0
        self.put = IdSet()
        """The ids of the messages."""
        self.marks: set[bytes] = set()
        """The aliases of the marks."""

    def add(self, pipeline: Pipeline, messages: list[StoredMessage]) -> None:
        """Add messages.

        Raises:
            Rejected: Redis cannot hold a message, or an id is repeated in a memory of one page.
        """
        if not messages:
            return
        chunk = _pending_ids(messages)
        self.put.add(chunk.ids)
        self.marks.update(chunk.marked)
        self.count += len(messages)
        self.keep(pipeline, chunk, [payload(one.message, one.shape) for one in messages])
        if isinstance(self.parts, list) and self.put.duplicates:
            [(id, _)] = Counter(message.id for message in messages).most_common(1)
            raise Rejected("repeated-id", f"the message id {id!r} occurs twice")

    def id_chunks(self) -> Iterator[PendingIds]:
        """Yield the ids in order, in chunks.  Only one iterator may be in use at a time."""
        return iter(self.parts)

    def ids(self) -> IdChunks:
        return (some.ids for some in self.parts)

    def lists(self) -> Iterable[bytes]:
        return self.marks

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        """Yield the commands of ``Payloads.prepare``.

        Raises:
            Rejected: an id is repeated.
        """
        if self.put.duplicates:
            raise Rejected("repeated-id", "a message id occurs twice")
        return self.payloads.prepare(ttl)

    def payload_commands(self) -> Iterator[Command | PackedCommands]:
        """Yield the commands that store the payloads under their names."""
        prefix = self.base + PAYLOAD
        yield from self.payloads.put([prefix + id for id in ids] for ids in self.ids())


def _pending_ids(messages: list[StoredMessage]) -> PendingIds:
    """Return the ids and marks of messages.

    Raises:
        Rejected: Redis cannot hold a message.
    """
    marked: dict[bytes, list[bytes]] = {}
    try:
        ids = [message.id.encode("utf-8", "surrogateescape") for message in messages]
        for id, message in zip(ids, messages, strict=True):
            for name in _aliases_of(message.marks) if message.marks else ():
                marked.setdefault(name, []).append(id)
    except UnicodeEncodeError as error:
        raise lone_surrogate(error) from error
    for message in messages:
        check_size(message.id, message.message)
    return PendingIds(ids, marked)


@lru_cache
def _aliases_of(marks: tuple[str, ...]) -> tuple[bytes, ...]:
    """Return the names of all lists for the marks of a message.

    Raises:
        Rejected: RedisMemory uses the name of a mark for the list of another mark.
    """
    return tuple(
        chain.from_iterable(mark_aliases(mark_name(name)) for name in dict.fromkeys(marks))
    )
