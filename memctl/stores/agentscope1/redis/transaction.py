"""Transactions that change memories of AgentScope's Redis memory, each whole or not at all.

A transaction watches the lists of its memories, decides from snapshots what to do, and changes the
memories in MULTI/EXEC.  Redis refuses the transaction if another client has changed a list.
Watching the lists is enough: RedisMemory adds or removes a payload only together with its id, in
one transaction, and notes every mark in ``marks_index`` when it creates the mark's list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from memctl.engines.redis.pipeline import Command, PackedCommands, Pipeline
from memctl.errors import Failure
from memctl.layouts.redis.keys import Keys, count_payloads
from memctl.machine.spool import ItemSpool
from memctl.model import MemoryKey, WriteResult
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope1.redis.payloads import InlinePayloads, Payloads, StagedPayloads
from memctl.stores.agentscope1.redis.scan import MemoryRef
from memctl.stores.agentscope1.redis.snapshot import IdChunks, MemorySnapshot, SnapshotReader

T = TypeVar("T")

_TRIES = 10


class ChangingMemory(ABC, Generic[T]):
    """A memory that a transaction writes or edits.

    The parts of a memory of many pages are staged: the payloads on the server, the rest in a local
    file.
    """

    def __init__(self, base: bytes, key: MemoryKey, ttl: int | None, staged: Keys | None) -> None:
        """``base`` is the prefix of all keys of the memory, ``ttl`` in milliseconds.

        ``staged`` are the keys of the store if the parts are staged, else None.
        """
        self.base = base
        self.key = key
        self.ttl = ttl
        self.published = False
        """True after the transaction."""
        self.payloads: Payloads = InlinePayloads() if staged is None else StagedPayloads(staged)
        self.parts: list[T] | ItemSpool[T] = [] if staged is None else ItemSpool()

    def keep(self, pipeline: Pipeline, part: T, payloads: list[bytes]) -> None:
        """Add a part of the memory, such as ids and marks, and the payloads of its messages.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self.payloads.add(pipeline, payloads)
        (self.parts.append if isinstance(self.parts, list) else self.parts.add)(part)

    def close(self) -> None:
        """Remove the local file."""
        if isinstance(self.parts, ItemSpool):
            self.parts.close()

    @abstractmethod
    def lists(self) -> Iterable[bytes]:
        """Return the names of the mark lists that may change."""

    @abstractmethod
    def ids(self) -> IdChunks:
        """Yield the ids of which the transaction must know whether they have a payload."""


M = TypeVar("M", bound=ChangingMemory[Any])


class WatchedState(NamedTuple):
    """The state of a memory, read while all lists of the memory are watched."""

    snapshot: MemorySnapshot
    present: int
    """The number of payloads of ``ChangingMemory.ids``."""
    missing: int
    """The number of ids without a payload among ``MemoryTransaction.listed``."""


class MemoryTransaction(ABC, Generic[M]):
    """A single call of ``Store.write`` or ``Store.edit``, for use in a thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        marks: dict[bytes, tuple[bytes, ...]],
        about_to_commit: Callable[[Iterable[WriteResult]], None],
    ) -> None:
        """``marks`` has the names of mark lists, by base (the prefix of all keys of a memory).

        These names may be missing in ``marks_index``.  ``about_to_commit`` is the method of the
        store.
        """
        self.pipeline = pipeline
        self._snapshots = SnapshotReader(pipeline, marks)
        self._about_to_commit = about_to_commit

    @abstractmethod
    def listed(self, one: M, snapshot: MemorySnapshot) -> IdChunks:
        """Yield the ids on the list of messages whose payloads must exist."""

    @abstractmethod
    def plan(
        self, one: M, state: WatchedState
    ) -> tuple[WriteResult, Iterator[Command | PackedCommands]]:
        """Return the result and the commands of the change of a memory.

        Raises:
            Rejected: the memory is not as expected, or cannot be changed.
        """

    def run(self, memories: Sequence[M]) -> Iterator[WriteResult]:
        """Change the memories in one transaction; yield a result for each memory.

        If another client changes a memory meanwhile, each memory is changed alone, with several
        attempts.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.  Each memory changed before has a result.
        """
        done = self._attempt(memories)
        if done is not None:
            yield from done
            return
        failure = Failure("changed", "another client keeps changing it")
        for one in memories:
            attempts = (self._attempt([one]) for _ in range(_TRIES))
            yield from next(filter(None, attempts), [WriteResult(one.key, failure=failure)])

    def _attempt(self, memories: Sequence[M]) -> list[WriteResult] | None:
        """Change memories in one transaction; None if another client interferes."""
        results: list[WriteResult] = []
        good: list[M] = []
        changes: list[Iterator[Command | PackedCommands]] = []
        with ExitStack() as files:
            for one, state in zip(memories, self._watch(memories, files), strict=True):
                try:
                    if state.snapshot.wrong is not None:
                        text = (
                            f"one of its keys holds another kind of value ({state.snapshot.wrong})"
                        )
                        raise Rejected("refused", text)
                    result, commands = self.plan(one, state)
                except Rejected as refusal:
                    results.append(WriteResult(one.key, failure=refusal.failure))
                else:
                    results.append(result)
                    good.append(one)
                    changes.append(commands)
            if not good:
                self.pipeline.execute([(b"UNWATCH",)])
                return results
            self._about_to_commit(results)
            if not self.pipeline.commit(chain.from_iterable(changes)):
                return None
        for one in good:
            one.published = True
        return results

    def _watch(self, memories: Sequence[M], files: ExitStack) -> list[WatchedState]:
        """Watch the lists of memories; ``files`` closes temporary files."""
        refs = [MemoryRef(one.base, one.key) for one in memories]
        snapshots = self._snapshots.watch(refs, [one.lists() for one in memories])
        for snapshot in snapshots:
            files.callback(snapshot.close)
        pairs = list(zip(memories, snapshots, strict=True))
        there = iter(
            self._counts(
                (one.base, ids)
                for one, snapshot in pairs
                for ids in (one.ids(), self.listed(one, snapshot))
            )
        )
        return [
            WatchedState(snapshot, count, without)
            for snapshot, (count, _), (_, without) in zip(snapshots, there, there, strict=True)
        ]

    def _counts(self, asked: Iterable[tuple[bytes, IdChunks]]) -> list[tuple[int, int]]:
        """Return for each base how many of the ids have a payload, and how many have none."""
        found: list[tuple[int, int]] = []
        open_: deque[tuple[int, int]] = deque()

        def commands() -> Iterator[Command]:
            for base, chunks in asked:
                found.append((0, 0))
                for ids in chunks:
                    open_.append((len(found) - 1, len(ids)))
                    yield count_payloads(base, ids)

        for count in self.pipeline.stream(commands()):
            number, size = open_.popleft()
            present, missing = found[number]
            found[number] = present + count, missing + size - count
        return found

    def readable(self, snapshot: MemorySnapshot) -> int:
        """Return how many ids on the list of messages have a payload."""
        [(present, _)] = self._counts([(snapshot.ref.base, snapshot.messages.chunks())])
        return present

    def prepare(self, commands: Iterator[Command]) -> None:
        """Run the commands of ``Payloads.prepare``.

        Raises:
            Rejected: staged payloads are gone.
        """
        if not min(self.pipeline.stream(commands), default=1):
            raise Rejected("changed", "staged messages expired or were evicted")

    def refuse_strays(self, base: bytes, new: Iterable[list[bytes]]) -> None:
        """Refuse to overwrite payloads (texts of messages) whose ids the list of messages lacks.

        ``new`` has the ids of the messages to write that are not on the list, in chunks.

        Raises:
            Rejected: a payload with one of these ids exists.
        """
        [(count, _)] = self._counts([(base, (ids for ids in new if ids))])
        if count:
            text = f"the texts of {count:,} earlier messages with its ids are left over in no list"
            raise _unrestorable(text)


def refuse_missing(state: WatchedState) -> None:
    """Refuse a memory whose list of messages has ids without a payload.

    Raises:
        Rejected: it has.
    """
    if state.missing:
        raise _unrestorable("its list holds ids without a message")


def _unrestorable(what: str) -> Rejected:
    return Rejected(
        "unrestorable",
        f"{what}, which undo could not restore: repair the store with memctl doctor --repair",
    )
