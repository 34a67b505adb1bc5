"""Reports of operations: plain data, rendered by ``memctl.output``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from memctl.embedder import EmbeddingReport
from memctl.errors import BadData, Failure, MemctlError, Partial
from memctl.model import MemoryKey
from memctl.selection import Selection

if TYPE_CHECKING:
    from memctl.store import Store

HUGE_BYTES = 8 * 1024 * 1024
"""The size in bytes above which a message must not be in RAM several times."""


class Total(NamedTuple):
    """The amount of work."""

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
    """Return the amount to read; None if nobody watches, or if counting is slow.

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
        """Add finished memories and summarized tokens; ``cost`` is the total cost so far."""


class SilentSummaryProgress:
    """A listener that ignores the progress."""

    def advance(self, *, memories: int, tokens: int, cost: float | None) -> None:
        """Do nothing."""


DOCTOR = "run memctl doctor to list the damage, and what --repair can do about it"


def only_damage(failures: Sequence[tuple[MemoryKey, Failure]]) -> bool:
    """Return whether all failures are damaged memories."""
    return all(failure.code == "damaged" for _, failure in failures)


def damage(left_out: Mapping[MemoryKey, Failure], *, others: bool) -> MemctlError:
    """Return the error of a run that left out damaged memories.

    ``others`` says whether the run read undamaged memories.
    """
    key, failure = next(iter(left_out.items()))
    more = len(left_out) - 1
    kind = Partial if others else BadData
    return kind(
        f"{key} is damaged and left out: {failure.message}"
        + (f"; and {more:,} more" if more else ""),
        DOCTOR,
    )


@dataclass(slots=True)
class Counts:
    """Memories or messages by outcome."""

    selected: int = 0
    written: int = 0
    unchanged: int = 0
    skipped: int = 0
    deleted: int = 0
    failed: int = 0


class Lost(NamedTuple):
    """A kind of loss in a copy: the number of affected memories, with an example."""

    kind: str
    memories: int
    example: MemoryKey


@dataclass(slots=True)
class CopyReport:
    """The result of a copy.

    ``messages.skipped`` counts messages that the target held already, and messages left out by
    choice.  ``messages.deleted`` counts messages that ``--on-conflict replace`` removed.
    """

    memories: Counts = field(default_factory=Counts)
    messages: Counts = field(default_factory=Counts)
    noun: str = "message"
    """The word for a message of the source."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    uneven: set[MemoryKey] = field(default_factory=set)
    """Memories that differ in the target on purpose, as the options asked."""
    settled: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of source messages of each finished memory, copied or failed."""
    largest: int = 0
    """The bytes of the messages of the largest page."""
    warnings: list[str] = field(default_factory=list)
    embedding: EmbeddingReport = field(default_factory=EmbeddingReport)
    """The vectors of facts that were made for the target."""
    losses: list[Lost] = field(default_factory=list)
    """The kinds of data that the target has no place for."""
    total: Total | None = None
    """The total of the selection, if outlines gave the total beforehand."""
    verified: bool | None = None
    """True if source and target are equal after the copy, False if not; None if not compared."""
    rounds: int = 0
    """The number of copies, if the source is followed."""

    @property
    def ordinary(self) -> bool:
        """Return whether all selected messages were written, and none was huge."""
        return self.messages.written == self.messages.selected and self.largest <= HUGE_BYTES

    def damage(self) -> BadData | None:
        """Return the error of a copy that found only damaged memories, or None."""
        failures = self.failures
        if not failures or len(failures) != self.memories.selected or not only_damage(failures):
            return None
        key, failure = failures[0]
        return BadData(f"{key} is damaged: {failure.message}", DOCTOR)

    def settle(self, key: MemoryKey, messages: int) -> None:
        """Record a finished memory, of which the source has ``messages``.

        If the memory was settled before, because the source has grown, only its new messages count.
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
        """Record a memory that was left unchanged."""
        self.failures.append((key, failure))
        self.memories.failed += 1
        self.messages.failed += messages
