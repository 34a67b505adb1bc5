"""The contract between ``compress`` and what summarises: a model, a program, or no model at all.

A summarizer is asked for one summary at a time, many times at once.  It knows nothing of stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from memctl.errors import Unavailable
from memctl.summary import Summary
from memctl.tokens import estimate


class Turn(NamedTuple):
    """What somebody said, as text: images and the like are placeholders, tools are told of.

    ``speaker`` is a line such as ``user Anna, 2026-01-31 12:00:00``; ``role`` is ``user``,
    ``assistant``, ``system``, ``tool`` (the result of one), or ``summary`` (of an earlier part).
    """

    role: str
    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is to be summarised: turns in order, and what was said before them.

    ``earlier`` is the summary that the new one takes the place of, empty where there is none.
    """

    turns: list[Turn]
    earlier: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call took, in tokens; ``exact`` where the model itself has counted."""

    tokens_in: int = 0
    tokens_out: int = 0
    exact: bool = False

    def plus(self, other: Usage) -> Usage:
        """Both together; exact where all of it is."""
        empty, other_empty = self == Usage(), other == Usage()
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            (self.exact or empty) and (other.exact or other_empty) and not (empty and other_empty),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A summary, in fields or (from a program that gives no fields) as text, and what it took."""

    summary: Summary | str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Settings:
    """A ``[summarizers.NAME]`` of the configuration, its secrets not resolved."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in whatever currency the operator counts."""

    tokens_in: float = 0.0
    tokens_out: float = 0.0

    def of(self, usage: Usage) -> float:
        """What a call cost."""
        return (usage.tokens_in * self.tokens_in + usage.tokens_out * self.tokens_out) / 1e6


class SummaryError(Exception):
    """No summary came of it.  ``code`` is stable: scripts may test it.

    ``bad-reply`` (it does not fit the schema), ``refused`` (the model will not), ``timeout``,
    ``rate-limited``, ``server-error``, ``cut-off`` (the reply was too long for the model),
    ``rejected`` (the request was wrong to the model), ``program-failed``.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry: bool = False,
        after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        """``retry`` where trying again may help, not before ``after`` seconds where those are told.

        ``usage`` is what the reply took that was of no use.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
        self.after = after
        self.usage = usage or Usage()


class TooLong(SummaryError):
    """The excerpt is longer than the model's window, whatever was configured."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__("too-long", message, usage=usage)


class Unreachable(Unavailable):
    """Nobody answers at the model's address."""


class Unauthorised(Unavailable):
    """The model's address refuses the key, knows no such model, or the account has nothing left.

    No memory will fare better.
    """


class Summarizer(ABC):
    """Makes summaries, many at once.  Opened as an async context manager."""

    kind: ClassVar[str]
    name: str
    window: int
    """Tokens that one request may hold: excerpt, prompt and reply together."""
    overhead: int
    """Tokens of these that the prompt and the reply need."""
    concurrency: int = 4
    """How many requests it takes at once, where nothing else is asked for."""
    prices: Prices | None = None

    async def __aenter__(self) -> Self:
        """Makes ready.

        Raises:
            UsageError: what it needs is not configured or not installed.
            Unavailable: it cannot be reached.
        """
        return self

    async def __aexit__(  # noqa: B027 - some hold nothing
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Lets go of every connection and process."""

    def count(self, text: str) -> int:
        """Tokens of a text: as the model counts them, or an estimate; see ``counted_by``."""
        return estimate(text)

    @property
    def counted_by(self) -> str:
        """How ``count`` counts: ``estimate``, or the name of the tokenizer."""
        return "estimate"

    async def check(self) -> None:
        """Proves that it is there and may be used, as cheaply as it can; tries once.

        Raises:
            SummaryError: it is there, and does not do what it is for.
            Unreachable, Unauthorised: no model was there, or not for us.
        """
        await self.summarize(Excerpt([Turn("user", "user", "Is anybody there? Please say yes.")]))

    @abstractmethod
    async def summarize(self, excerpt: Excerpt) -> Answer:
        """One summary; tries once.

        Raises:
            SummaryError: no summary came of it.
            TooLong: the excerpt must be split.
            Unreachable, Unauthorised: no model was there, or not for us.
        """
