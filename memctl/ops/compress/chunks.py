"""Summarize a history of any length: first chunks that fit the model, then their summaries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from memctl.errors import UsageError
from memctl.inference.errors import ModelError, TooLong, Unreachable
from memctl.inference.retrying import RequestRetries
from memctl.inference.settings import Usage
from memctl.inference.summary import Summary
from memctl.ops.compress.plan import PER_MESSAGE
from memctl.summarizer import Excerpt, Summarizer, Turn

LEAST_ROOM = 1000
"""The smallest number of tokens of a conversation that a request must have room for."""
SHORT = 4000
"""The largest number of tokens that are divided without a thread, which takes time to start."""
DEEPEST = 12
"""The largest number of times to halve a history that the model refuses as too long."""


class ChunkedSummarizer:
    """Summarizes a history of any length, in chunks if one request is not enough."""

    def __init__(self, summarizer: Summarizer, spend: Callable[[Usage, int], None]) -> None:
        """``spend`` is called with the usage and number of requests, even of failed ones.

        Raises:
            UsageError: the context window of the summarizer is too small for a conversation.
        """
        self._summarizer = summarizer
        self._spend = spend
        self._retries = RequestRetries(summarizer.max_retries)
        self._room = summarizer.window - summarizer.overhead
        if self._room < LEAST_ROOM:
            raise UsageError(
                f"the context_window of {summarizer.name!r} is too small for a conversation",
                f"raise it: the prompt and the reply take {summarizer.overhead} tokens",
            )

    async def summarise(
        self, turns: Iterable[Turn], earlier: str, tokens: int = SHORT + 1
    ) -> Summary | str:
        """Return one summary of the turns and of the earlier summary, which may be empty.

        ``tokens`` is the approximate number of tokens of the turns.

        Raises:
            ModelError, Unavailable: as ``Summarizer.summarize``.
        """
        if earlier and self._summarizer.count(earlier) > self._piece:
            # A long earlier summary would fill every request: it becomes a turn.
            turns = chain([Turn("summary", "summary of what came before", earlier)], turns)
            earlier = ""
        source = self._short_enough(turns)
        waiting: list[Turn] = []
        found: list[Summary | str] = []
        while part := await self._part(source, waiting, earlier, short=tokens <= SHORT):
            if not found and not waiting:
                return await self._ask(Excerpt(part, earlier))
            found.append(await self._ask(Excerpt(part)))
        return await self.summarise(map(self._cut, _as_turns(found)), earlier)

    def calls(self, tokens: int) -> int:
        """Return the approximate number of requests for a history of so many tokens."""
        parts = -(-tokens // self._room)
        return parts if parts <= 1 else parts + 1

    @property
    def _piece(self) -> int:
        """The largest number of tokens of a turn, so that two turns fit a request."""
        return self._room // 3

    async def _part(
        self, turns: Iterator[Turn], waiting: list[Turn], earlier: str, *, short: bool
    ) -> list[Turn]:
        if short:
            return self._next(turns, waiting, earlier)
        return await asyncio.to_thread(self._next, turns, waiting, earlier)

    def _next(self, turns: Iterator[Turn], waiting: list[Turn], earlier: str) -> list[Turn]:
        """Return the turns that fit the next request together with the summary ``earlier``.

        ``waiting`` has the turn that did not fit the last request, and gets the first turn that
        does not fit this request.
        """
        room = self._room - (self._summarizer.count(earlier) if earlier else 0)
        part = list(waiting)
        waiting.clear()
        size = sum(map(self._size, part))
        for turn in turns:
            size += self._size(turn)
            if size > room and part:
                waiting.append(turn)
                break
            part.append(turn)
        return part

    def _size(self, turn: Turn) -> int:
        return self._summarizer.count(f"{turn.speaker}\n{turn.text}") + PER_MESSAGE

    def _short_enough(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """Yield the turns in pieces that fit a request."""
        for turn in turns:
            pieces = -(-self._size(turn) // self._piece)
            if pieces == 1:
                yield turn
                continue
            length = -(-len(turn.text) // pieces) or 1
            for start in range(0, len(turn.text) or 1, length):
                yield from self._halved(turn._replace(text=turn.text[start : start + length]))

    def _halved(self, turn: Turn) -> Iterator[Turn]:
        halves = _halves([turn]) if self._size(turn) > self._piece else None
        if halves is None:
            yield turn
            return
        for [half] in halves:
            yield from self._halved(half)

    def _cut(self, turn: Turn) -> Turn:
        """Return the turn, cut at the end to fit a request."""
        while (size := self._size(turn)) > self._piece and turn.text:
            turn = turn._replace(text=turn.text[: len(turn.text) * self._piece // size])
        return turn

    async def _ask(self, excerpt: Excerpt, depth: int = 0) -> Summary | str:
        try:
            request = partial(self._summarizer.summarize, excerpt)
            answer, spent, failed = await self._retries.run(request)
        except TooLong as error:
            self._spend(error.usage, error.calls)
            halves = _halves(excerpt.turns)
            if halves is None or depth == DEEPEST:
                raise
            # The next memory would be too long, too: lower the limit.
            tokens = sum(map(self._size, excerpt.turns)) + self._summarizer.count(excerpt.earlier)
            self._room = max(LEAST_ROOM, min(self._room, tokens * 3 // 4))
        except (ModelError, Unreachable) as error:
            self._spend(error.usage, error.calls)
            raise
        else:
            self._spend(spent.plus(answer.usage), failed + answer.calls)
            return answer.summary
        found = [await self._ask(Excerpt(half), depth + 1) for half in halves]
        turns = list(map(self._cut, _as_turns(found)))
        return await self._ask(Excerpt(turns, excerpt.earlier), depth + 1)


def _halves(turns: list[Turn]) -> tuple[list[Turn], list[Turn]] | None:
    """Return two halves of the turns; halve a single turn, or return None if it is too short."""
    if len(turns) > 1:
        middle = len(turns) // 2
        return turns[:middle], turns[middle:]
    [turn] = turns
    middle = len(turn.text) // 2
    if not middle:
        return None
    return [turn._replace(text=turn.text[:middle])], [turn._replace(text=turn.text[middle:])]


def _as_turns(parts: list[Summary | str]) -> list[Turn]:
    """Return the summaries of chunks as turns, which can be summarized again."""
    return [
        Turn("summary", f"summary of part {number} of {len(parts)}", _text(part))
        for number, part in enumerate(parts, 1)
    ]


def _text(part: Summary | str) -> str:
    return part if isinstance(part, str) else part.labelled()
