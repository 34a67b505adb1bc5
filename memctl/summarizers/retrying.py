"""A summarizer that retries failed requests of an inner summarizer."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from memctl.inference.retrying import FIRST_PAUSE, RequestRetries
from memctl.summarizer import Answer, Excerpt, Summarizer


class RetryingSummarizer(Summarizer):
    """A wrapper that retries the failed requests of a summarizer, a limited number of times."""

    def __init__(
        self, inner: Summarizer, max_retries: int, first_pause: float = FIRST_PAUSE
    ) -> None:
        self.kind = inner.kind  # type: ignore[misc]  # the kind of the inner summarizer
        self.name = inner.name
        self.window = inner.window
        self.overhead = inner.overhead
        self.concurrency = inner.concurrency
        self.prices = inner.prices
        self._inner = inner
        self._retries = RequestRetries(max_retries, first_pause)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def count(self, text: str) -> int:
        return self._inner.count(text)

    @property
    def counted_by(self) -> str:
        return self._inner.counted_by

    async def check(self) -> None:
        """Check the wrapped summarizer without retries, so that problems are reported at once."""
        await self._inner.check()

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Have the wrapped summarizer summarize an excerpt, with retries; return the answer.

        Its usage and calls include the failed attempts.
        """
        answer, spent, failed = await self._retries.run(lambda: self._inner.summarize(excerpt))
        return Answer(answer.summary, spent.plus(answer.usage), failed + answer.calls)
