"""The report of a compression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from memctl.inference.settings import Usage
from memctl.model import MemoryKey
from memctl.ops.apply import ChangeReport
from memctl.ops.compress.plan import CompressionPlan


class LargestMemory(NamedTuple):
    """A memory with the messages and tokens that its agent reads."""

    key: MemoryKey
    messages: int
    tokens: int


@dataclass(slots=True)
class CompressReport:
    """Tokens, requests and money; ``changes`` are those of the store.

    ``before`` and ``after`` are the tokens of all that agents read of the memories that were
    compressed (or would be), ``summarised`` those of the sources; as ``counted_by`` counts.
    """

    changes: ChangeReport = field(default_factory=ChangeReport)
    counted_by: str = "estimate"
    summarised: int = 0
    before: int = 0
    after: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """None where no prices are known."""
    over_budget: int = 0
    """Memories that were left because of their cost."""
    selected: int = 0
    """Messages that are to be summarized."""
    messages: int = 0
    """Messages that were summarized, and are committed as such."""

    largest: LargestMemory | None = None
    """The memory of the most tokens that was looked at."""

    def see(self, key: MemoryKey, messages: int, tokens: int) -> None:
        """Record a memory that was looked at."""
        if self.largest is None or tokens > self.largest.tokens:
            self.largest = LargestMemory(key, messages, tokens)

    @property
    def ratio(self) -> float | None:
        """The share of the tokens that is left; None where nothing was compressed."""
        return round(self.after / self.before, 4) if self.before and self.after else None

    def plan(self, case: CompressionPlan, *, deleted: bool) -> None:
        """Record a memory that is to be compressed."""
        self.selected += case.messages
        planned = self.changes.planned
        planned.memories += 1
        planned.deleted += case.gone
        if deleted:
            planned.deleted += case.messages
        else:
            planned.marked += case.messages

    def leave(self, case: CompressionPlan, *, deleted: bool) -> None:
        """Take back what ``plan`` has recorded of a memory: the budget does not allow it."""
        self.over_budget += 1
        self.selected -= case.messages
        planned = self.changes.planned
        planned.memories -= 1
        planned.deleted -= case.gone
        if deleted:
            planned.deleted -= case.messages
        else:
            planned.marked -= case.messages

    def estimate(self, case: CompressionPlan, usage: Usage, calls: int) -> None:
        """Record what compressing a memory would take."""
        self.summarised += case.tokens
        self.before += case.before
        self.calls += calls
        self.usage = self.usage.plus(usage)

    def settle(self, case: CompressionPlan, after: int) -> None:
        """Record a memory that is compressed, of which agents read so many tokens from now on."""
        self.messages += case.messages
        self.summarised += case.tokens
        self.before += case.before
        self.after += after
