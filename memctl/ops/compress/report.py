"""The report of a compression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from memctl.inference.settings import Usage
from memctl.model import MemoryKey
from memctl.ops.change.apply import ChangeCounts, ChangeReport
from memctl.ops.compress.plan import CompressionPlan, CompressMode


class LargestMemory(NamedTuple):
    """A memory, with the numbers of messages and tokens that its agent sends to a model."""

    key: MemoryKey
    messages: int
    tokens: int


@dataclass(slots=True)
class CompressReport:
    """The result of a compression: changes of the store, tokens, requests and costs.

    ``before`` and ``after`` are the numbers of tokens of the compressed memories that agents send
    to a model, before and after the compression.  ``summarised`` is the number of tokens of the
    summarized messages.  In a dry run, both ``before`` and ``summarised`` cover the memories to
    compress.  ``counted_by`` names the way in which tokens are counted.  ``calls`` is the number of
    requests that the model answered, with retries.
    """

    changes: ChangeReport = field(default_factory=ChangeReport)
    counted_by: str = "estimate"
    summarised: int = 0
    before: int = 0
    after: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """The cost of the requests; None if prices are unknown."""
    over_budget: int = 0
    """The number of memories that were not compressed because of the limit of the cost."""
    selected: int = 0
    """The number of messages to summarize."""
    messages: int = 0
    """The number of summarized messages whose summary is in the store."""
    not_smaller: int = 0
    """The number of compressed memories of which agents send no fewer tokens than before."""
    largest: LargestMemory | None = None
    """The memory with the most tokens, of all memories that were read."""

    def see(self, key: MemoryKey, messages: int, tokens: int) -> None:
        """Record the size of a memory that was read; the report keeps the largest."""
        if self.largest is None or tokens > self.largest.tokens:
            self.largest = LargestMemory(key, messages, tokens)

    @property
    def ratio(self) -> float | None:
        """``after`` as a share of ``before``; None if nothing was compressed."""
        return round(self.after / self.before, 4) if self.before and self.after else None

    def plan(self, case: CompressionPlan, mode: CompressMode) -> None:
        """Add a memory to compress to the planned changes."""
        self.selected += case.messages
        self.changes.planned.merge(_changes(case, mode))

    def leave(self, case: CompressionPlan, mode: CompressMode) -> None:
        """Move a memory from the planned changes to those beyond the limit of the cost."""
        self.over_budget += 1
        self.selected -= case.messages
        self.changes.planned.merge(_changes(case, mode), -1)

    def estimate(self, case: CompressionPlan, usage: Usage, calls: int) -> None:
        """Add the estimated tokens and requests of a memory, in a dry run."""
        self.summarised += case.tokens
        self.before += case.before
        self.calls += calls
        self.usage = self.usage.plus(usage)

    def settle(self, case: CompressionPlan, after: int) -> None:
        """Add a compressed memory; its agents send ``after`` tokens from now on."""
        self.messages += case.messages
        self.summarised += case.tokens
        self.before += case.before
        self.after += after
        self.not_smaller += after >= case.before


def _changes(case: CompressionPlan, mode: CompressMode) -> ChangeCounts:
    marked = 0 if mode is CompressMode.REPLACE else case.messages
    return ChangeCounts(1, case.deleted(mode), marked)
