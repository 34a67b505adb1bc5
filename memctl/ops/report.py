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
"""Messages above this size are not to be held several times."""


class Total(NamedTuple):
    """The amount to be done."""

    memories: int
    messages: int


class Progress(Protocol):
    """A listener to the progress of an operation."""

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """So many more memories, messages and bytes are done."""


class SilentProgress:
    """A listener that ignores the progress."""

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """Do nothing."""


async def count_all(store: Store, where: Selection, progress: Progress) -> Total | None:
    """Return the amount that is about to be read, if somebody watches and counting is cheap.

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
        """So many more memories are done and tokens summarized; ``cost`` is that of all so far."""


class SilentSummaryProgress:
    """A listener that ignores the progress."""

    def advance(self, *, memories: int, tokens: int, cost: float | None) -> None:
        """Do nothing."""


DOCTOR = "run memctl doctor to list the damage, and what --repair can do about it"


def only_damage(failures: Sequence[tuple[MemoryKey, Failure]]) -> bool:
    """Return whether all of them are memories that are damaged."""
    return all(failure.code == "damaged" for _, failure in failures)


def damage(left_out: Mapping[MemoryKey, Failure], *, others: bool) -> MemctlError:
    """Return the error of a run that left out damaged memories; ``others`` if any were read."""
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
    """Memories or messages, by what became of them."""

    selected: int = 0
    written: int = 0
    unchanged: int = 0
    skipped: int = 0
    deleted: int = 0
    failed: int = 0


class Lost(NamedTuple):
    """A kind of loss in a copy: in how many memories, and one of them."""

    kind: str
    memories: int
    example: MemoryKey


@dataclass(slots=True)
class CopyReport:
    """The result of a copy.

    ``messages.skipped`` counts messages that the target held already or that were left out by
    choice; ``messages.deleted`` what ``--on-conflict replace`` took away.
    """

    memories: Counts = field(default_factory=Counts)
    messages: Counts = field(default_factory=Counts)
    noun: str = "message"
    """The word for a message of the source."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    uneven: set[MemoryKey] = field(default_factory=set)
    """Memories that the target now holds in another form than the source, as was asked for."""
    settled: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of source messages of each memory that is done with, well or not."""
    largest: int = 0
    """Bytes of the messages of the largest page that was read."""
    warnings: list[str] = field(default_factory=list)
    embedding: EmbeddingReport = field(default_factory=EmbeddingReport)
    """The vectors of facts that were made anew."""
    losses: list[Lost] = field(default_factory=list)
    """The kinds of what the target has no place for."""
    total: Total | None = None
    """The total of the selection, where outlines gave it beforehand."""
    verified: bool | None = None
    """True if source and target were compared afterwards and are the same; None if not compared."""
    rounds: int = 0
    """The number of copies, where the source is followed."""

    @property
    def ordinary(self) -> bool:
        """Return whether all that was selected was read, and no message of it was huge."""
        return self.messages.written == self.messages.selected and self.largest <= HUGE_BYTES

    def damage(self) -> BadData | None:
        """Return the error of a copy that found nothing but damaged memories."""
        failures = self.failures
        if not failures or len(failures) != self.memories.selected or not only_damage(failures):
            return None
        key, failure = failures[0]
        return BadData(f"{key} is damaged: {failure.message}", DOCTOR)

    def settle(self, key: MemoryKey, messages: int) -> None:
        """Record that nothing is left to do for a memory, of which the source has ``messages``.

        A memory that comes again, because the source goes on, counts with what is new.
        """
        before = self.settled.get(key)
        self.settled[key] = messages
        self.memories.selected += before is None
        self.messages.selected += max(0, messages - (before or 0))

    def try_again(self) -> None:
        """Forget what failed, for the next copy of the same run."""
        self.failures.clear()
        self.memories.failed = self.messages.failed = 0

    def fail(self, key: MemoryKey, failure: Failure, messages: int = 0) -> None:
        """Record a memory that was left as it was."""
        self.failures.append((key, failure))
        self.memories.failed += 1
        self.messages.failed += messages
