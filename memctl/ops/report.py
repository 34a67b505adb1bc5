"""Reports of operations: plain data, rendered by ``memctl.output``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import UNSET, Struct, field

from memctl.errors import BadData, Failure, MemctlError, Partial
from memctl.model import MemoryKey
from memctl.reports.copy import CopiedMemories, CopiedMessages, Embedded
from memctl.reports.report import Maybe
from memctl.selection import Selection

if TYPE_CHECKING:
    from memctl.embedder import EmbeddingReport
    from memctl.store import Store

HUGE_BYTES = 8 * 1024 * 1024
"""The size in bytes above which a message must not be in RAM several times."""


class Total(NamedTuple):
    """The amount of work of an operation: the numbers of memories and messages."""

    memories: int
    messages: int


class Progress(Protocol):
    """A listener to the progress of an operation."""

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """Add finished memories, messages and bytes."""


class SilentProgress:
    """A listener that ignores the progress."""

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """Do nothing."""


async def count_all(store: Store, where: Selection, progress: Progress) -> Total | None:
    """Return the approximate numbers of selected memories and messages, to show progress.

    None if ``progress`` is silent, or if the store cannot count quickly.

    Raises:
        MemctlError: as ``Store.count``.
    """
    if isinstance(progress, SilentProgress):
        return None
    found = await store.count(where)
    return found and Total(*found)


class SummaryProgress(Protocol):
    """A listener to the progress of summarizing."""

    def advance(self, *, memories: int, tokens: int, cost: float | None) -> None:
        """Add finished memories and summarized tokens.

        ``cost`` is the total cost so far, None if unknown.
        """


class SilentSummaryProgress:
    """A listener that ignores the progress."""

    def advance(self, *, memories: int, tokens: int, cost: float | None) -> None:
        """Do nothing."""


DOCTOR = "run memctl doctor to list the damage, and what --repair can do about it"


def only_damage(failures: Sequence[tuple[MemoryKey, Failure]]) -> bool:
    """Return whether each of the failed memories is damaged."""
    return all(failure.code == "damaged" for _, failure in failures)


def damage(
    left_out: Mapping[MemoryKey, Failure], *, others: bool, fate: str = "left out"
) -> MemctlError:
    """Return the error for a run that left out the damaged memories ``left_out``.

    ``fate`` says what became of a memory of which the run read a part.  With ``others``, the run
    read other memories, and the error is ``Partial``.  Without ``others``, the error is
    ``BadData``.
    """
    key, failure = next(iter(left_out.items()))
    more = len(left_out) - 1
    kind = Partial if others else BadData
    return kind(
        f"{key} is damaged and {fate}: {failure.message}"
        + (f"; and {more:,} more" if more else ""),
        DOCTOR,
    )


class Lost(NamedTuple):
    """A kind of data that a copy loses, with the number of affected memories and an example."""

    kind: str
    memories: int
    example: MemoryKey


def _no_vectors() -> EmbeddingReport:
    from memctl.embedder import EmbeddingReport  # only needed to copy

    return EmbeddingReport()


def embedded_row(made: EmbeddingReport) -> Maybe[Embedded]:
    """Return the row about vectors that were made; UNSET if none were."""
    if made.embedder is None or not made.texts:
        return UNSET
    about = made.embedder.name, made.embedder.model
    return Embedded(*about, made.texts, made.usage.tokens_in, made.cost)


class CopyReport(Struct):
    """The result of a copy.

    ``messages.skipped`` counts messages that the target held already, and messages that were left
    out by an option.  ``messages.deleted`` counts messages that ``--on-conflict replace`` removed.
    """

    memories: CopiedMemories = field(default_factory=partial(CopiedMemories, 0, 0, 0, 0, 0))
    messages: CopiedMessages = field(default_factory=partial(CopiedMessages, 0, 0, 0, 0, 0))
    noun: str = "message"
    """What the source calls a message: "message" or "fact"."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    """The memories that were not copied, with the reasons."""
    uneven: set[MemoryKey] = field(default_factory=set)
    """The memories that ``--on-conflict`` or ``--lossy`` leaves different in the target."""
    settled: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of messages in the source of each finished memory, whether copied or failed."""
    largest: int = 0
    """The size in bytes of the messages of the largest page."""
    warnings: list[str] = field(default_factory=list)
    embedding: EmbeddingReport = field(default_factory=_no_vectors)
    """The vectors of facts that were made for the target."""
    removed: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of messages that were removed from each memory of the target that lost any."""
    losses: list[Lost] = field(default_factory=list)
    """The kinds of data that the target has no place for."""
    unread: set[MemoryKey] = field(default_factory=set)
    """The memories with messages that the framework of the source does not read, as they say."""
    total: Total | None = None
    """The numbers of selected memories and messages, if known before the copy."""
    verified: bool | None = None
    """True if source and target are equal after the copy; None if not compared.

    False if they differ, or if memories were not copied.
    """
    rounds: int = 0
    """The number of copies, if the source is followed."""
    run: str = ""
    """The id of the run for ``memctl undo``; empty if nothing can be undone, or not yet known."""

    @property
    def uncompared(self) -> list[str]:
        """The kinds of data, as plural nouns, that were not copied and so are not compared."""
        kinds = {"summary": "summaries", "expiry": "expiries"}
        found = [noun for kind, noun in kinds.items() if kind in {one.kind for one in self.losses}]
        return found + ["vectors"] * self.embedding.dropped

    @property
    def ordinary(self) -> bool:
        """Return whether all selected messages were written, and no page was huge."""
        return self.messages.written == self.messages.selected and self.largest <= HUGE_BYTES

    def damage(self) -> BadData | None:
        """Return the error for a copy if all its memories are damaged; None if some are not."""
        failures = self.failures
        if not failures or len(failures) != self.memories.selected or not only_damage(failures):
            return None
        key, failure = failures[0]
        return BadData(f"{key} is damaged: {failure.message}", DOCTOR)

    def settle(self, key: MemoryKey, messages: int) -> None:
        """Record that a memory is finished; ``messages`` is its number of messages in the source.

        If an earlier copy of the run finished the memory, only messages added since then are
        counted.
        """
        before = self.settled.get(key)
        self.settled[key] = messages
        self.memories.selected += before is None
        self.messages.selected += max(0, messages - (before or 0))

    def try_again(self) -> None:
        """Forget the failures before the next copy of the same run."""
        self.failures.clear()
        self.memories.failed = self.messages.failed = 0

    def fail(self, key: MemoryKey, failure: Failure, messages: int = 0) -> None:
        """Record a memory that could not be copied, with its number of failed messages."""
        self.failures.append((key, failure))
        self.memories.failed += 1
        self.messages.failed += messages
