"""The contract between ``compress`` and summarizers: a model, a program, or no model at all.

A summarizer makes one summary at a time, many at once.  It knows nothing of stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from memctl.errors import Unavailable, UsageError
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
class Usage:
    """Tokens that a call used; ``exact`` where the model itself has counted."""

    tokens_in: int = 0
    tokens_out: int = 0
    exact: bool = False

    def plus(self, other: Usage) -> Usage:
        """Return the sum; it is exact where both are."""
        empty, other_empty = self == Usage(), other == Usage()
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            (self.exact or empty) and (other.exact or other_empty) and not (empty and other_empty),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A summary, in fields or (from a program that gives no fields) as text, and its usage."""

    summary: Summary | str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in the operator's currency."""

    tokens_in: float = 0.0
    tokens_out: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the cost of a call."""
        return (usage.tokens_in * self.tokens_in + usage.tokens_out * self.tokens_out) / 1e6


@dataclass(frozen=True, slots=True)
class Settings:
    """A ``[summarizers.NAME]`` of the configuration, its secrets not resolved.

    The methods return an option with its type checked, and raise UsageError where it has another::

        settings = Settings("night", "openai", {"model": "qwen-plus", "timeout": 60})
        settings.seconds("timeout", 120.0)  # 60.0
    """

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    secret_variables: frozenset[str] = frozenset()
    """Variables that a program is not given, unless the option ``environment`` names them."""

    def value(self, key: str) -> Any:
        """Return what is configured, or None."""
        return self.options.get(key)

    def text(self, key: str) -> str | None:
        """Return a text that is not empty, or None."""
        value = self.value(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self.invalid(key, "a text")

    def required(self, key: str, hint: str) -> str:
        """Return a text that must be configured."""
        value = self.text(key)
        if value is None:
            raise UsageError(f"summarizers.{self.name} has no {key}", hint)
        return value

    def path(self, key: str) -> Path | None:
        """Return a path, or None; ``~`` is the user's home."""
        value = self.text(key)
        return None if value is None else Path(value).expanduser()

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return a whole number, no smaller than ``least``."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise self.invalid(key, f"a whole number of {least} or more")

    def seconds(self, key: str, default: float) -> float:
        """Return a time in seconds, more than 0."""
        value = self._number(key, "a number of seconds")
        if value is None:
            return default
        if value > 0:
            return value
        raise self.invalid(key, "more than 0 seconds")

    def choice(self, key: str, default: str, choices: Iterable[str]) -> str:
        """Return one of the choices."""
        value = self.value(key)
        if value is None:
            return default
        if value in (known := list(choices)):
            return str(value)
        raise self.invalid(key, f"one of {', '.join(known)}")

    def texts(self, key: str) -> list[str]:
        """Return a list of strings, empty where there is none."""
        value = self.value(key)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return value
        raise self.invalid(key, "a list of strings")

    def table(self, key: str) -> dict[str, Any]:
        """Return a table, empty where there is none."""
        value = self.value(key)
        if value is None:
            return {}
        if isinstance(value, dict):
            return dict(value)
        raise self.invalid(key, "a table")

    def prices(self) -> Prices | None:
        """Return ``input_price`` and ``output_price``, or None where neither is configured."""
        expected = "a number of 0 or more: what a million tokens cost"
        values = [self._number(key, expected) for key in ("input_price", "output_price")]
        if values == [None, None]:
            return None
        for key, value in zip(("input_price", "output_price"), values, strict=True):
            if value is not None and value < 0:
                raise self.invalid(key, expected)
        return Prices(values[0] or 0.0, values[1] or 0.0)

    def invalid(self, key: str, expected: str) -> UsageError:
        """Return the error of a value that is not what is expected; the value is not shown."""
        return UsageError(
            f"summarizers.{self.name}: {key} must be {expected}",
            "see the configuration of summarizers in the documentation",
        )

    def _number(self, key: str, expected: str) -> float | None:
        value = self.value(key)
        if value is None:
            return None
        # A bool is an int to Python; infinity and nan are floats to TOML.
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
            raise self.invalid(key, expected)
        if value != value:
            raise self.invalid(key, expected)
        return float(value)


class SummaryError(Exception):
    """A failure to make a summary.  ``code`` is stable: scripts may test it.

    ``bad-reply`` (it does not fit the schema), ``refused`` (by the model), ``timeout``,
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
        """``retry`` where a retry may help, after no less than ``after`` seconds if it is set.

        ``usage`` is that of the reply that was no summary.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
        self.after = after
        self.usage = usage or Usage()


class TooLong(SummaryError):
    """An excerpt longer than the model's window, whatever was configured."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__("too-long", message, usage=usage)


class Unreachable(Unavailable):
    """An address of a model at which nothing answers."""


class Unauthorised(Unavailable):
    """A key that is refused, a model that is not known, or an account without credit.

    No other memory can be summarized either.
    """


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
            SummaryError: it answers, but makes no summary.
            Unreachable, Unauthorised: no model answers, or access is refused.
        """
        await self.summarize(Excerpt([Turn("user", "user", "Is anybody there? Please say yes.")]))

    @abstractmethod
    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return a summary, without a retry.

        Raises:
            SummaryError: it made no summary.
            TooLong: the excerpt must be split.
            Unreachable, Unauthorised: no model answers, or access is refused.
        """
