"""The contract between ``compress`` and summarizers: a model, a program, or no model at all.

A summarizer makes one summary at a time, many at once.  It knows nothing of stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from memctl.inference.settings import Prices, Usage
from memctl.summary import Summary
from memctl.tokens import estimate


class Turn(NamedTuple):
    """A message as text: images and the like are placeholders, tool calls are described.

    ``speaker`` is a line such as ``user Anna, 2026-01-31 12:00:00``; ``role`` is ``user``,
    ``assistant``, ``system``, ``tool`` (the result of one), or ``summary`` (of an earlier part).
    """

    role: str
    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a conversation to be summarized: turns in order, and a summary of those before.

    ``earlier`` is the summary that the new one replaces, empty where there is none.
    """

    turns: list[Turn]
    earlier: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A summary, in fields or (from a program that gives no fields) as text, and its usage."""

    summary: Summary | str
    usage: Usage = field(default_factory=Usage)


class Summarizer(ABC):
    """A maker of summaries, many at once.  Opened as an async context manager.

    ::

        summarizer = make_summarizer(EXTRACTIVE)
        async with summarizer:
            answer = await summarizer.summarize(excerpt)
    """

    kind: ClassVar[str]
    name: str
    window: int
    """Tokens that one request may hold: excerpt, prompt and reply together."""
    overhead: int
    """Tokens of the window that the prompt and the reply need."""
    concurrency: int = 4
    """Default number of requests at once."""
    prices: Prices | None = None

    async def __aenter__(self) -> Self:
        """Open connections and load data.

        Raises:
            UsageError: something it needs is not configured or not installed.
            Unavailable: it cannot be reached.
        """
        return self

    async def __aexit__(  # noqa: B027 - some hold nothing
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release every connection and process."""

    def count(self, text: str) -> int:
        """Return the tokens of a text, exact or estimated; see ``counted_by``."""
        return estimate(text)

    @property
    def counted_by(self) -> str:
        """``estimate``, or the name of the tokenizer that ``count`` uses."""
        return "estimate"

    async def check(self) -> None:
        """Check that it answers and may be used, as cheaply as possible, without a retry.

        Raises:
            ModelError: it answers, but makes no summary.
            Unreachable, Unauthorised: no model answers, or access is refused.
        """
        await self.summarize(Excerpt([Turn("user", "user", "Is anybody there? Please say yes.")]))

    @abstractmethod
    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return a summary, without a retry.

        Raises:
            ModelError: it made no summary.
            TooLong: the excerpt must be split.
            Unreachable, Unauthorised: no model answers, or access is refused.
        """
