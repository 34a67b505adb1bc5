"""Staying within what a run may cost."""

from __future__ import annotations

from memctl.ops.compress.parts import Parts
from memctl.ops.compress.plan import Case
from memctl.summarizer import Summarizer, Usage

PROMPT_TOKENS = 500
REPLY_TOKENS = 500
"""About what a request takes beside the conversation, and a summary."""


class Budget:
    """Lets a memory begin where what is spent, what goes on and its own estimate fit together."""

    def __init__(self, limit: float | None, summarizer: Summarizer, parts: Parts) -> None:
        """``limit`` is in the currency of the summarizer's prices."""
        self._limit = limit
        self._prices = summarizer.prices
        self._asks = summarizer.kind != "extractive"
        self._parts = parts
        self._going_on: dict[int, float] = {}

    def estimate(self, case: Case) -> Usage:
        """About the tokens that summarising a memory takes."""
        if not self._asks:
            return Usage()
        calls = self._parts.calls(case.tokens)
        read = case.tokens + (calls - 1) * REPLY_TOKENS + (REPLY_TOKENS if case.earlier else 0)
        return Usage(read + calls * PROMPT_TOKENS, calls * REPLY_TOKENS)

    def allows(self, case: Case, spent: float) -> bool:
        """Whether a memory may begin; if so, it goes on from now."""
        if self._limit is None or self._prices is None:
            return True
        cost = self._prices.of(self.estimate(case))
        if spent + sum(self._going_on.values()) + cost > self._limit:
            return False
        self._going_on[case.start] = cost
        return True

    def settle(self, case: Case) -> None:
        """What a memory took is among what is spent."""
        self._going_on.pop(case.start, None)
