"""The contract between ``compress`` and summarizers: a model, a program, or no model at all.

A summarizer makes one summary per call and allows concurrent calls.  It knows nothing of stores.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from msgspec import Struct, field

from memctl.inference.model import Model
from memctl.inference.settings import Usage
from memctl.inference.summary import Summary
from memctl.inference.tokens import estimate


class Turn(NamedTuple):
    """A message as text, with descriptions of tool calls and placeholders for media such as images.

    ``speaker`` is a line such as ``user Anna, 2026-01-31 12:00:00``.  ``role`` is ``user``,
    ``assistant``, ``system``, ``tool`` (a tool result), or ``summary`` (of earlier messages).
    """

    role: str
    speaker: str
    text: str


class Excerpt(Struct, frozen=True):
    """A part of a conversation to summarize: turns in order, and the summary of earlier turns.

    The new summary replaces ``earlier``, which is empty without an earlier summary.
    """

    turns: list[Turn]
    earlier: str = ""


_TRIAL = Excerpt(
    [
        Turn("user", "user", "Please book a table for two in Kyoto, for Friday evening."),
        Turn("assistant", "assistant", "It is booked: Friday at 19:00, in the name of Ada."),
    ]
)
"""A short conversation to summarize for a check."""


class Answer(Struct, frozen=True):
    """A summary, with the tokens used to make it, and the number of requests, as ``calls``.

    The summary is a text, without fields, if a program returns no fields.
    """

    summary: Summary | str
    usage: Usage = field(default_factory=Usage)
    calls: int = 1


class Summarizer(Model):
    """Makes summaries of conversations; opened as an async context manager.

    ::

        summarizer = make_summarizer(EXTRACTIVE)
        async with summarizer:
            answer = await summarizer.summarize(excerpt)
    """

    window: int
    """The tokens of one request: excerpt, prompt and reply together."""
    overhead: int
    """The tokens of the window for the prompt and the reply."""
    max_retries: int = 0
    """The maximum number of retries of a request."""

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, exact or estimated; see ``counted_by``."""
        return estimate(text)

    @property
    def counted_by(self) -> str:
        """The name of the tokenizer that ``count`` uses; ``estimate`` without a tokenizer."""
        return "estimate"

    async def check(self) -> None:
        """Check by the summary of two messages, without a retry, that the summarizer works.

        Raises:
            ModelError: the model answers, but makes no summary.
            Unreachable, Unauthorised: the model does not answer, or refuses access.
        """
        await self.summarize(_TRIAL)

    @abstractmethod
    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return a summary of an excerpt, made without a retry.

        Raises:
            ModelError: the model made no summary.
            TooLong: the excerpt must be split.
            Unreachable, Unauthorised: the model does not answer, or refuses access.
        """
