"""Writing AgentScope's Redis memory: every memory in one transaction.

The writer watches and probes the lists of a memory, and changes the memory in MULTI/EXEC.  Redis
refuses the transaction if another client has changed a list.  A memory of many pages is staged
first: its payloads get names that belong to no memory, and the transaction renames the payloads.
(Queued commands count against ``client-query-buffer-limit``, 1 GB, so large payloads cannot all be
queued.)
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import ABSENT, WRONG_TYPE, Command, PackedCommands, Pipeline
from memctl.engines.redis.text import decode, encode
from memctl.errors import Failure
from memctl.json import jsonio
from memctl.layouts.redis.keys import (
    LEASE,
    MARK,
    MARKS_INDEX,
    MESSAGES,
    PAYLOAD,
    RAW_SURROGATES,
    Keys,
    canonical_mark,
    count_payloads,
    mark_aliases,
    with_aliases,
)
from memctl.machine.spool import ItemSpool
from memctl.model import LARGEST_MESSAGE, Memory, MemoryKey, StoredMessage, WriteMode, WriteResult
from memctl.storekit.batching import Large, Small
from memctl.storekit.catalog import IdSet
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope1.redis.before import (
    KEPT_EXPIRIES,
    KEPT_IDS,
    MemoryBefore,
    other_expiries,
)
from memctl.stores.agentscope1.redis.snapshot import list_pages

T = TypeVar("T")

_TRIES = 10
_HEAD = 100
"""The number of ids that a probe reads from the beginning of a list."""
_LARGE_BYTES = 64 * 1024
_KEYS = 500


class Named(Protocol):
    """An object with the key of a memory."""

    key: MemoryKey


N = TypeVar("N", bound=Named)


def attempt_together(
    attempt: Callable[[Sequence[N]], list[WriteResult] | None], memories: Sequence[N]
) -> Iterator[WriteResult]:
    """Write all memories in one transaction with ``attempt``; yield a result for each memory.

    ``attempt`` returns None if another client changed a memory meanwhile.  Then each memory is
    written alone, with several attempts.
    """
    done = attempt(memories)
    if done is not None:
        yield from done
        return
    failure = Failure("changed", "another client keeps changing it")
    for one in memories:
        attempts = (attempt([one]) for _ in range(_TRIES))
        yield from next(filter(None, attempts), [WriteResult(one.key, failure=failure)])


class TargetState(NamedTuple):
    """The current contents of the keys of a memory to write."""

    held: int
    ttl: int | None
    ids: list[bytes]
    """The first ids of the list of messages."""
    known: int
    """The number of messages to add that already have a payload."""
    indexed: frozenset[bytes]
    """The names in ``marks_index``."""
    marks: dict[bytes, list[bytes]]
    """The first ids of each mark list, by alias; includes the lists to be created."""


_NOTHING = TargetState(0, None, [], 0, frozenset(), {})


class Writer:
    """A single call of ``Store.write``, for use in a thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        side: Pipeline,
        marks: dict[bytes, tuple[bytes, ...]],
        mode: WriteMode,
        about_to_commit: Callable[[Iterable[WriteResult]], None],
    ) -> None:
        """``marks`` has the names of known mark lists, by base (prefix of a memory's keys).

        ``side`` is a second connection, which reads while a transaction runs on ``pipeline``.
        ``about_to_commit`` is the method of the store.
        """
        self._about_to_commit = about_to_commit
        self._pipeline = pipeline
        self._side = side
        self._marks = marks
        self._mode = mode

    def write(self, memories: Sequence[PendingMemory]) -> Iterator[WriteResult]:
        """Write the memories; yield a result for each memory.

        All are written in one transaction, unless another client interferes.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        return attempt_together(self._attempt, memories)

    def _attempt(self, memories: Sequence[PendingMemory]) -> list[WriteResult] | None:
        """Write memories in one transaction; None if another client interferes."""
        results = []
        good: list[tuple[PendingMemory, TargetState]] = []
        for one, state in zip(memories, self._probe(memories), strict=True):
            try:
                if isinstance(state, Rejected):
                    raise state
                self._check(one, state)
                before = self._before(one, state)
                if not min(self._pipeline.stream(one.prepare(_ttl(one, state))), default=1):
                    raise Rejected("changed", "staged messages expired or were evicted")
            except Rejected as refusal:
                results.append(WriteResult(one.key, failure=refusal.failure))
            else:
                good.append((one, state))
                deleted = state.held if self._mode is WriteMode.REPLACE else 0
                results.append(WriteResult(one.key, one.count, deleted, before=before))
        if not good:
            self._pipeline.execute([(b"UNWATCH",)])
        else:
            self._about_to_commit(results)
            if not self._commit(good):
                return None
        for one, _ in good:
            one.published = True
        return results

    # The target

    def _probe(self, memories: Sequence[PendingMemory]) -> list[TargetState | Rejected]:
        """Watch the keys of the memories, and return the current state of each memory.

        The state is a refusal if a key has the wrong type.  Reads only the first ids of each list,
        because most lists are empty.
        """
        keys = [key for one in memories for key in self._known_keys(one)]
        _, present = self._pipeline.execute([(b"WATCH", *keys), (b"EXISTS", *keys)])
        known = self._known_payloads(memories)
        if not (present or any(known)):
            return [_NOTHING] * len(memories)
        questions = [_probe_commands(one) for one in memories]
        replies = iter(self._pipeline.execute(chain(*questions), tolerate=WRONG_TYPE))
        answers = [list(islice(replies, len(some))) for some in questions]
        names = [
            self._mark_lists(one, some[0]) for one, some in zip(memories, answers, strict=True)
        ]
        lists = iter(
            self._pipeline.execute(_probe_mark_commands(memories, names), tolerate=WRONG_TYPE)
        )
        states: list[TargetState | Rejected] = []
        for some, marks, payloads in zip(answers, names, known, strict=True):
            heads = list(islice(lists, len(marks) + 1))[1:] if marks else []
            wrong = next((r for r in (*some, *heads) if isinstance(r, ResponseError)), None)
            if wrong is not None:
                text = f"one of its keys holds another kind of value ({wrong})"
                states.append(Rejected("refused", text))
                continue
            index, held, ttl, ids = some
            left = max(ttl, 1) if held and ttl >= 0 else None
            by_mark = dict(zip(marks, heads, strict=True))
            states.append(TargetState(held, left, ids, payloads, frozenset(index), by_mark))
        return states

    def _known_payloads(self, memories: Sequence[PendingMemory]) -> list[int]:
        asked: deque[int] = deque()
        found = [0] * len(memories)

        def commands() -> Iterator[Command]:
            for number, one in enumerate(memories):
                for some in one.id_chunks():
                    asked.append(number)
                    yield count_payloads(one.base, some.ids)

        for count in self._pipeline.stream(commands()):
            found[asked.popleft()] += count
        return found

    def _known_keys(self, one: PendingMemory) -> Iterator[bytes]:
        yield one.base + MESSAGES
        yield one.base + MARKS_INDEX
        for mark in one.marks.union(self._marks.get(one.base, ())):
            yield one.base + MARK + mark

    def _mark_lists(self, one: PendingMemory, index: Any) -> list[bytes]:
        names = one.marks.union(self._marks.get(one.base, ()))
        return sorted(
            with_aliases(names if isinstance(index, ResponseError) else names.union(index))
        )

    def _check(self, one: PendingMemory, state: TargetState) -> None:
        """Check that the stored memory has ``offset`` messages, unless the mode is REPLACE.

        Raises:
            Rejected: the number differs, or an id to add already exists.
        """
        if self._mode is WriteMode.REPLACE:
            return
        if state.held != one.offset and self._readable(one.base, state.held) != one.offset:
            raise Rejected("changed", f"the target holds {state.held} messages, not {one.offset}")
        if one.offset and (state.known or state.held != one.offset):
            self._check_repeats(one)

    def _readable(self, base: bytes, held: int) -> int:
        """Return how many ids on the list of messages have a payload; 0 if ``held`` is 0.

        ``held`` is the length of the list.
        """
        count = 0
        for ids in list_pages(self._pipeline, base + MESSAGES) if held else ():
            count += sum(self._pipeline.execute([count_payloads(base, ids)]))
        return count

    def _check_repeats(self, one: PendingMemory) -> None:
        listed = IdSet()
        for ids in list_pages(self._pipeline, one.base + MESSAGES):
            listed.add(ids)
        for id in chain.from_iterable(some.ids for some in one.id_chunks()):
            if id in listed:
                raise Rejected("repeated-id", f"the message id {decode(id)!r} already exists")

    # State for undo

    def _before(self, one: PendingMemory, state: TargetState) -> str:
        """Return ``WriteResult.before``: what an undo must restore besides messages, as JSON.

        Empty if there is nothing to record.

        Raises:
            Rejected: an undo could not restore the memory, because RedisMemory never writes a
                memory like this.
        """
        fresh = self._mode is WriteMode.REPLACE or not one.offset
        if fresh and state.held and self._readable(one.base, state.held) < state.held:
            raise without_payload()
        if state.known:
            listed = IdSet()
            for ids in self._all_ids(one.base + MESSAGES, state.ids):
                listed.add(ids)
            new = ([id for id in some.ids if id not in listed] for some in one.id_chunks())
            refuse_strays(self._side, one.base, new)
        if fresh:
            return self._replaced(one.base, state) if state.held else self._left_over(one, state)
        lists = self._stale_lists(one, state)
        if lists or self._unindexed(one, state):
            return MemoryBefore(lists, state.indexed, sorted(state.marks)).dump()
        return ""

    def _stale_lists(
        self, one: PendingMemory, state: TargetState
    ) -> dict[bytes, list[bytes] | None]:
        """Return the mark lists that have the id of a new message already."""
        found: dict[bytes, list[bytes] | None] = {}
        for name, first in state.marks.items():
            key = one.base + MARK + name
            if any(id in one.ids for id in chain.from_iterable(self._all_ids(key, first))):
                found[name] = [*chain.from_iterable(self._all_ids(key, first))]
        return found

    def _left_over(self, one: PendingMemory, state: TargetState) -> str:
        keys = {name: one.base + MARK + name for name, ids in state.marks.items() if ids}
        if not (keys or state.indexed):
            return ""
        lists: dict[bytes, list[bytes] | None] = {
            name: [*chain.from_iterable(self._all_ids(key, state.marks[name]))]
            for name, key in keys.items()
        }
        names = [MARKS_INDEX, *(MARK + name for name in keys)]
        ttls = self._side.execute((b"PTTL", one.base + name) for name in names)
        expiries = other_expiries(names, ttls, ABSENT)
        return MemoryBefore(lists, state.indexed, sorted(state.marks), expiries=expiries).dump()

    def _unindexed(self, one: PendingMemory, state: TargetState) -> set[bytes]:
        """Return the stored mark lists that the write must add to ``marks_index``."""
        filled = {name for name, ids in state.marks.items() if ids} - state.indexed
        return filled & one.marks if state.indexed or not one.marks else filled

    def _replaced(self, base: bytes, state: TargetState) -> str:
        """Return what an undo of REPLACE must restore besides messages, as JSON.

        Empty if there is nothing to record.  Long lists are left out, because of their size.
        """
        lists = self._unusual_lists(base, state)
        expiries = self._expiries(base, state)
        indexed = with_aliases(name for name, ids in state.marks.items() if ids)
        if not (lists or expiries) and indexed == state.indexed:
            return ""
        names = sorted(state.marks)
        return MemoryBefore(lists, state.indexed, names, expiries=expiries).dump()

    def _unusual_lists(self, base: bytes, state: TargetState) -> dict[bytes, list[bytes] | None]:
        """Return the mark lists that memctl would write differently, by name.

        A list is out of the order of the messages, or lacks an id that another list of the same
        mark has.
        """
        filled = [name for name, ids in state.marks.items() if ids]
        keys = [base + MESSAGES, *(base + MARK + name for name in filled)]
        if sum(self._side.execute((b"LLEN", key) for key in keys)) > KEPT_IDS:
            return {}
        found: dict[bytes, list[bytes] | None] = {}
        messages = list(chain.from_iterable(self._all_ids(base + MESSAGES, state.ids)))
        for mark in set(map(canonical_mark, filled)):
            pages = {
                name: self._all_ids(base + MARK + name, state.marks[name])
                for name in mark_aliases(mark)
            }
            held = {name: list(chain.from_iterable(some)) for name, some in pages.items()}
            marked = set(chain.from_iterable(held.values()))
            usual = [id for id in messages if id in marked]
            if any(ids != usual for ids in held.values()):
                found |= held
        return found

    def _expiries(self, base: bytes, state: TargetState) -> dict[bytes, int]:
        """Return the keys that expire at another time than their memory, with their PTTL.

        A key is without the prefix ``base``.  A PTTL of -1 stands for no expiry.  Empty if there
        are too many such keys.
        """
        lists = [MARK + name for name, ids in state.marks.items() if ids]
        payloads = (
            [PAYLOAD + id for id in ids] for ids in self._all_ids(base + MESSAGES, state.ids)
        )
        found: dict[bytes, int] = {}
        for names in chain([[MARKS_INDEX, *lists]], payloads):
            *ttls, expected = self._pipeline.execute(
                (b"PTTL", base + name) for name in [*names, MESSAGES]
            )
            if len(found) <= KEPT_EXPIRIES:
                found |= other_expiries(names, ttls, expected)
        return {} if len(found) > KEPT_EXPIRIES else found

    # Changing

    def _commit(self, good: Sequence[tuple[PendingMemory, TargetState]]) -> bool:
        """Run the changes in one transaction.

        Returns False, and changes nothing, if another client has changed a watched key.

        Raises:
            Unavailable: the server refuses a command, and with it the transaction.
        """
        changes = chain.from_iterable(self._changes(one, state) for one, state in good)
        return self._pipeline.commit(changes)

    def _changes(
        self, one: PendingMemory, state: TargetState
    ) -> Iterator[Command | PackedCommands]:
        fresh = self._mode is WriteMode.REPLACE or not one.offset
        ttl = _ttl(one, state)
        yield from self._clear(one, state) if fresh else self._unmark(one, state)
        yield from one.payload_commands()
        for listed in one.id_chunks():
            yield (b"RPUSH", one.base + MESSAGES, *listed.ids)
            for mark, ids in listed.marked.items():
                yield (b"RPUSH", one.base + MARK + mark, *ids)
        if one.marks:
            names = one.marks if fresh else one.marks | self._unindexed(one, state)
            yield (b"SADD", one.base + MARKS_INDEX, *sorted(names))
        if ttl is not None and (one.count or (one.offset and one.ttl is not None)):
            yield from self._expire(one, state, ttl, fresh=fresh)

    def _clear(self, one: PendingMemory, state: TargetState) -> Iterator[Command]:
        lists = [one.base + MARK + mark for mark, ids in state.marks.items() if ids]
        if state.held or state.indexed or lists:
            yield (b"UNLINK", one.base + MESSAGES, one.base + MARKS_INDEX, *lists)
        for ids in self._all_ids(one.base + MESSAGES, state.ids):
            yield (b"UNLINK", *(one.base + PAYLOAD + id for id in ids))

    def _unmark(self, one: PendingMemory, state: TargetState) -> Iterator[Command]:
        for mark, first in state.marks.items():
            key = one.base + MARK + mark
            for ids in self._all_ids(key, first):
                for id in set(ids):
                    if id in one.ids:
                        yield (b"LREM", key, b"0", id)

    def _expire(
        self, one: PendingMemory, state: TargetState, ttl: int, *, fresh: bool
    ) -> Iterator[Command]:
        """Yield the commands that set the TTL of keys, like AgentScope's ``_refresh_session_ttl``.

        All keys of the memory get the TTL.  If ``one.ttl`` is None, existing keys keep their
        expiry.  ``fresh`` is True if the whole memory is written, not only new messages.
        """
        keeps = not fresh and one.ttl is None
        marks = one.marks if fresh or keeps else state.marks
        keys = [one.base + MARK + mark for mark in marks if not (keeps and state.marks[mark])]
        if (marks or state.indexed) and not (keeps and state.indexed):
            keys.append(one.base + MARKS_INDEX)
        if fresh or one.ttl is not None:
            keys.append(one.base + MESSAGES)
        for key in keys:
            yield (b"PEXPIRE", key, b"%d" % ttl)
        if not fresh and one.ttl is not None:
            for ids in self._all_ids(one.base + MESSAGES, state.ids):
                for id in ids:
                    yield (b"PEXPIRE", one.base + PAYLOAD + id, b"%d" % ttl)

    def _all_ids(self, key: bytes, first: list[bytes]) -> Iterator[list[bytes]]:
        if first:
            yield first
        if len(first) == _HEAD:
            yield from list_pages(self._side, key, _HEAD)


def refuse_strays(pipeline: Pipeline, base: bytes, new: Iterable[list[bytes]]) -> None:
    """Refuse to overwrite payloads (texts of messages) whose ids the list of messages lacks.

    ``new`` has the ids of the messages to write that are not on the list, in chunks.

    Raises:
        Rejected: a payload with one of these ids exists.
        Lost: the connection broke.
        Unavailable: the server refuses a command.
    """
    counts = pipeline.stream(count_payloads(base, ids) for ids in new if ids)
    if count := sum(counts):
        text = f"the texts of {count:,} earlier messages with its ids are left over in no list"
        raise _unrestorable(text)


def without_payload() -> Rejected:
    """Return the refusal of a memory whose list of messages has ids without a payload."""
    return _unrestorable("its list holds ids without a message")


def _unrestorable(what: str) -> Rejected:
    return Rejected(
        "unrestorable",
        f"{what}, which undo could not restore: repair the store with memctl doctor --repair",
    )


def _ttl(one: PendingMemory, state: TargetState) -> int | None:
    return state.ttl if one.ttl is None else one.ttl


def _probe_commands(one: PendingMemory) -> list[Command]:
    messages = one.base + MESSAGES
    return [
        (b"SMEMBERS", one.base + MARKS_INDEX),
        (b"LLEN", messages),
        (b"PTTL", messages),
        (b"LRANGE", messages, b"0", b"%d" % (_HEAD - 1)),
    ]


def _probe_mark_commands(
    memories: Sequence[PendingMemory], names: Sequence[list[bytes]]
) -> Iterator[Command]:
    for one, marks in zip(memories, names, strict=True):
        keys = [one.base + MARK + mark for mark in marks]
        if keys:
            yield (b"WATCH", *keys)
        for key in keys:
            yield (b"LRANGE", key, b"0", b"%d" % (_HEAD - 1))


# Payloads to write


class Payloads(ABC):
    """The payloads (texts) of messages, to be stored in a later transaction."""

    @abstractmethod
    def prepare(self, ttl: int | None) -> Iterator[Command]:
        """Yield commands that prepare the payloads to be stored.

        Redis replies to each command with 1, or with 0 if the payload is lost.  ``ttl`` is the TTL
        of the payloads in milliseconds; None for no expiry.
        """

    @abstractmethod
    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command | PackedCommands]:
        """Yield the Redis commands that store the payloads under the keys ``names``, in chunks."""


class InlinePayloads(Payloads):
    """A few payloads, which the transaction contains."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self._ttl: int | None = None

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        self._ttl = ttl
        yield from ()

    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command | PackedCommands]:
        messages = iter(self._messages)
        for some in names:
            texts = list(islice(messages, len(some)))
            if self._ttl is not None:
                yield from _set_commands(some, texts, b"%d" % self._ttl)
            elif some:
                yield _mset_command(some, texts)


class StagedPayloads(Payloads):
    """Many payloads, staged on the server under unique names.

    AgentScope uses no such names.
    """

    def __init__(self, keys: Keys) -> None:
        self._prefix = keys.prefix + b"memctl:" + secrets.token_hex(8).encode() + b":"
        self._count = 0
        self._forever = False

    def add(self, pipeline: Pipeline, messages: list[bytes]) -> None:
        """Store payloads on the server under unique names, until ``put`` renames them.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        first = self._count
        self._count += len(messages)
        names = list(map(self._name, range(first, self._count)))
        deque(pipeline.stream(_set_commands(names, messages, LEASE)), maxlen=0)

    def _name(self, number: int) -> bytes:
        return self._prefix + b"%d" % number

    def _all_names(self) -> Iterator[bytes]:
        return map(self._name, range(self._count))

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        self._forever = ttl is None
        left = LEASE if ttl is None else b"%d" % ttl
        for name in self._all_names():
            yield (b"PEXPIRE", name, left)

    def put(self, names: Iterable[list[bytes]]) -> Iterator[Command]:
        staged = self._all_names()
        for some in names:
            for name in some:
                yield (b"RENAME", next(staged), name)
                if self._forever:  # only now: staged payloads of a killed run must expire
                    yield (b"PERSIST", name)

    def discard(self, pipeline: Pipeline) -> None:
        """Remove the staged payloads from the server.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        names = self._all_names()
        commands = iter(lambda: (b"UNLINK", *islice(names, _KEYS)), (b"UNLINK",))
        deque(pipeline.stream(commands), maxlen=0)


def _mset_command(names: list[bytes], messages: list[bytes]) -> PackedCommands:
    pairs = [
        b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(text), text)
        for name, text in zip(names, messages, strict=True)
    ]
    head = b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * len(names))
    return PackedCommands(b"".join([head, *pairs]), 1)


def _set_commands(
    names: list[bytes], messages: list[bytes], ttl: bytes
) -> Iterator[Command | PackedCommands]:
    if max(map(len, messages), default=0) > _LARGE_BYTES:
        for name, message in zip(names, messages, strict=True):
            yield (b"SET", name, message, b"PX", ttl)
        return
    end = b"$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl), ttl)
    commands = [
        b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b"
        % (len(name), name, len(message), message, end)
        for name, message in zip(names, messages, strict=True)
    ]
    yield PackedCommands(b"".join(commands), len(commands))


class Staging(Generic[T]):
    """A large memory before the transaction: payloads on the server, ids in a local file."""

    payloads: Payloads

    def __init__(self, keys: Keys) -> None:
        self.payloads = self._payloads = StagedPayloads(keys)
        self.staged: ItemSpool[T] = ItemSpool()

    def stage(self, pipeline: Pipeline, item: T, payloads: list[bytes]) -> None:
        """Store payloads on the server under unique names, and append ``item`` to the local file.

        ``item`` describes the messages of the payloads, such as their ids and marks.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self._payloads.add(pipeline, payloads)
        self.staged.add(item)

    def discard(self, pipeline: Pipeline) -> None:
        """Remove the staged payloads from the server.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self._payloads.discard(pipeline)

    def close(self) -> None:
        """Remove the local file."""
        self.staged.close()


# Memories to write


class PendingIds(NamedTuple):
    """The ids of messages to write, and the ids of the messages with each mark."""

    ids: list[bytes]
    marked: dict[bytes, list[bytes]]
    """The ids by alias of their marks."""


class PendingMemory(ABC):
    """A memory to write, or messages to append to an existing memory if ``offset`` is not 0."""

    ids: IdSet | set[bytes]
    marks: set[bytes]
    """The aliases of the marks."""
    count: int
    payloads: Payloads

    def __init__(self, base: bytes, memory: Memory, offset: int, ttl: int | None) -> None:
        """``ttl`` is the TTL to set in milliseconds; None keeps the expiry of the memory."""
        self.published = False
        self.base = base
        self.key = memory.key
        self.offset = offset
        self.ttl = ttl

    @abstractmethod
    def id_chunks(self) -> Iterator[PendingIds]:
        """Yield the ids in order, in chunks.  Only one iterator may be in use at a time."""

    @abstractmethod
    def prepare(self, ttl: int | None) -> Iterator[Command]:
        """Yield commands that prepare the payloads to be stored.

        Redis replies to each command with 1, or with 0 if the payload is lost.  ``ttl`` is the TTL
        of the payloads in milliseconds; None for no expiry.

        Raises:
            Rejected: an id is repeated.
        """

    def payload_commands(self) -> Iterator[Command | PackedCommands]:
        """Yield the commands that store the payloads under their names."""
        prefix = self.base + PAYLOAD
        yield from self.payloads.put([prefix + id for id in some.ids] for some in self.id_chunks())


class BufferedMemory(PendingMemory):
    """A memory to write that came in one page."""

    def __init__(self, base: bytes, small: Small, ttl: int | None) -> None:
        """``ttl`` is the TTL to set in milliseconds; None keeps the expiry of the memory.

        Raises:
            Rejected: Redis cannot hold a message, or an id is repeated.
        """
        super().__init__(base, small.memory, small.offset, ttl)
        self._chunk = _pending_ids(small.entries)
        self.payloads = InlinePayloads([_payload(one) for one in small.entries])
        self.count = len(small.entries)
        self.marks = set(self._chunk.marked)
        self.ids = set(self._chunk.ids)
        if len(self.ids) < self.count:
            [(id, _)] = Counter(message.id for message in small.entries).most_common(1)
            raise Rejected("repeated-id", f"the message id {id!r} occurs twice")

    def id_chunks(self) -> Iterator[PendingIds]:
        if self.count:
            yield self._chunk

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        return self.payloads.prepare(ttl)


class StagedMemory(PendingMemory, Staging[PendingIds]):
    """A memory to write that came in many pages.

    Its payloads are on the server, its ids and marks in a local file.
    """

    def __init__(self, keys: Keys, base: bytes, large: Large, ttl: int | None) -> None:
        PendingMemory.__init__(self, base, large.memory, large.offset, ttl)
        Staging.__init__(self, keys)
        self._prepared = False
        self.ids = self._ids = IdSet()
        self.marks = set()
        self.count = 0

    def add(self, pipeline: Pipeline, messages: list[StoredMessage]) -> None:
        """Store the texts of messages on the server, and their ids and marks in the local file.

        Raises:
            Rejected: Redis cannot hold a message.
        """
        chunk = _pending_ids(messages)
        self._ids.add(chunk.ids)
        self.marks.update(chunk.marked)
        self.count += len(messages)
        self.stage(pipeline, chunk, [_payload(one) for one in messages])

    def id_chunks(self) -> Iterator[PendingIds]:
        return iter(self.staged)

    def prepare(self, ttl: int | None) -> Iterator[Command]:
        if self._prepared:
            return
        self._prepared = True
        if self._ids.duplicates:
            raise Rejected("repeated-id", "a message id occurs twice")
        yield from self.payloads.prepare(ttl)


def _payload(message: StoredMessage) -> bytes:
    return payload(message.message, message.shape)


def payload(message: bytes, shape: str) -> bytes:
    """Return the payload of a message; the shape tells how AgentScope wrote lone surrogates."""
    return jsonio.raw_surrogates(message) if shape == RAW_SURROGATES else message


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


def mark_name(name: str) -> bytes:
    """Return the name of a mark as bytes.

    Raises:
        Rejected: RedisMemory uses the name for the list of another mark.
        UnicodeEncodeError: the name has half of a surrogate pair.
    """
    mark = encode(name)
    if canonical_mark(mark) != mark:
        text = (
            f"RedisMemory lists the mark {decode(canonical_mark(mark))!r} under the name {name!r}"
        )
        raise Rejected("refused", f"{text}: the mark with that name must be renamed first")
    return mark


def check_size(id: str, message: bytes) -> None:
    """Refuse a message that is too large for Redis.

    Raises:
        Rejected: the message, whose id is ``id``, is too large.
    """
    if len(message) > LARGEST_MESSAGE:
        raise Rejected("refused", f"the message {id!r} is larger than the 512 MiB of Redis")


def lone_surrogate(error: UnicodeEncodeError) -> Rejected:
    """Return the refusal of an id, name or mark with a lone surrogate, by the ``error`` for it."""
    return Rejected(
        "refused", f"Redis cannot hold {error.object!r}, which has half of a surrogate pair"
    )
