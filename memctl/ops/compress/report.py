"""What a compression tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from memctl.ops.change import ChangeReport
from memctl.ops.compress.plan import Case
from memctl.summarizer import Usage


@dataclass(slots=True)
class CompressReport:
    """Tokens, requests and money; ``changes`` are those of the store.

    ``before`` and ``after`` are the tokens of all that agents read of the memories that were
    compressed (or would be), ``summarised`` those of what was summed up; as ``counted_by`` counts.
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

    def plan(self, case: Case, deleted: bool) -> None:
        """Notes a memory that is to be compressed."""
        planned = self.changes.planned
        planned.memories += 1
        if deleted:
            planned.deleted += case.messages
        else:
            planned.marked += case.messages


class Watching(Protocol):
    """Hears how the summarising gets on."""

    def advance(self, *, memories: int = 0, tokens: int = 0, cost: float = 0.0) -> None:
        """So many more memories are done, tokens are summed up, and so much is spent."""
