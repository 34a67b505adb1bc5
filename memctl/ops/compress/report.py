"""The report of a compression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from memctl.inference.settings import Usage
from memctl.model import MemoryKey
from memctl.ops.apply import ChangeReport
from memctl.ops.compress.plan import CompressionPlan


class LargestMemory(NamedTuple):
    """A memory, with the messages and tokens for its agent."""

    key: MemoryKey
    messages: int
    tokens: int


@dataclass(slots=True)
class CompressReport:
    """Tokens, requests and money; ``changes`` has the changes of the store.

    ``before`` and ``after`` are the tokens that agents read of the compressed memories; in a dry
    run, ``before`` covers the memories to compress.  ``summarised`` are the tokens of the
    summarized messages.  ``counted_by`` names the way of counting.
    """

    changes: ChangeReport = field(default_factory=ChangeReport)
    counted_by: str = "estimate"
    summarised: int = 0
    before: int = 0
    after: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """None if prices are unknown."""
    over_budget: int = 0
    """The number of memories left out because of the cost."""
    selected: int = 0
    """The number of messages to summarize."""
    messages: int = 0
    """The number of messages with a committed summary."""

    largest: LargestMemory | None = None
    """The examined memory with the most tokens."""

    def see(self, key: MemoryKey, messages: int, tokens: int) -> None:
        """Record an examined memory."""
        if self.largest is None or tokens > self.largest.tokens:
            self.largest = LargestMemory(key, messages, tokens)

    @property
    def ratio(self) -> float | None:
        """The remaining share of the tokens; None if nothing was compressed."""
        return round(self.after / self.before, 4) if self.before and self.after else None

    def plan(self, case: CompressionPlan, *, deleted: bool) -> None:
        """Record a memory to compress."""
        self.selected += case.messages
        planned = self.changes.planned
        planned.memories += 1
        planned.deleted += case.gone
        if deleted:
            planned.deleted += case.messages
        else:
            planned.marked += case.messages

    def leave(self, case: CompressionPlan, *, deleted: bool) -> None:
        """Revert ``plan`` for a memory that the budget does not allow."""
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
        """Record the estimated work of a memory."""
        self.summarised += case.tokens
        self.before += case.before
        self.calls += calls
        self.usage = self.usage.plus(usage)

    def settle(self, case: CompressionPlan, after: int) -> None:
        """Record a compressed memory, of which agents read ``after`` tokens from now on."""
        self.messages += case.messages
        self.summarised += case.tokens
        self.before += case.before
        self.after += after
