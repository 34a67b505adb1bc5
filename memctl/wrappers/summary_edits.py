"""Edits of memories whose summaries are kept beside: the summary first, then the messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from memctl.errors import Failure, MemctlError
from memctl.model import Edit, Memory, MemoryKey, WriteResult
from memctl.store import Store


class SummaryEdits:
    """One ``edit``: changes summaries as the edits pass on their way to the messages.

    Each summary that was changed waits until ``done`` tells what became of the messages.
    """

    def __init__(self, states: Store, find: Callable[[MemoryKey], Awaitable[Memory]]) -> None:
        """``find`` tells under which key the states hold a memory, and its summary."""
        self._states = states
        self._find = find
        self._settled: list[WriteResult] = []
        self._waiting: dict[MemoryKey, tuple[Memory, str]] = {}
        """The states as they were, and their new summaries."""

    async def passed_on(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[Edit]:
        """The edits that change messages; the others, and those that failed, are ``settled``."""
        begun = passing = False
        async for edit in edits:
            if not begun:
                failure = await self._change(edit)
                passing = not failure and bool(edit.changes or not edit.last)
                if not passing:
                    self._waiting.pop(edit.memory.key, None)
                    self._settled.append(WriteResult(edit.memory.key, failure=failure))
            begun = not edit.last
            if passing:
                yield replace(edit, memory=replace(edit.memory, summary=None), summary=None)

    def settled(self) -> list[WriteResult]:
        """What became since the last call of memories whose messages are not to be changed."""
        settled, self._settled = self._settled, []
        return settled

    async def done(self, tally: WriteResult) -> WriteResult:
        """Puts the summary back where the messages failed; the tally says so where that fails."""
        waiting = self._waiting.pop(tally.key, None)
        if waiting is None or tally.failure is None:
            return tally
        failure = await self._set(*waiting)
        if failure is None:
            return tally
        why = f"{tally.failure.message}; its new summary stays: {failure.message}"
        return replace(tally, failure=Failure(tally.failure.code, why))

    async def undo(self) -> list[str]:
        """Puts back the summaries that still wait; a line for each that cannot be."""
        lines = []
        for key, waiting in self._waiting.items():
            try:
                failure = await self._set(*waiting)
                why = failure.message if failure else ""
            except MemctlError as error:  # another error ended the run, and tells more
                why = error.message
            if why:
                lines.append(f"the new summary of {key} stays, although its messages do: {why}")
        self._waiting.clear()
        return lines

    async def _change(self, edit: Edit) -> Failure | None:
        memory = edit.memory
        if memory.summary is None and edit.summary is None:
            return None
        found = await self._find(memory.key)
        there = found.summary or ""
        if edit.summary is not None and edit.summary != there:
            return Failure("changed", "the summary is another one")
        if memory.summary is None or memory.summary == there:
            return None
        state = replace(memory, key=found.key)
        failure = await self._set(state, there)
        if failure is None:
            self._waiting[memory.key] = replace(state, summary=there), memory.summary
        return failure

    async def _set(self, state: Memory, there: str) -> Failure | None:
        """Gives a state its summary, if it has the one that is there."""

        async def one() -> AsyncGenerator[Edit]:
            yield Edit(state, [], summary=there)

        failure = None
        async with aclosing(self._states.edit(one())) as tallies:
            async for tally in tallies:
                failure = tally.failure
        return failure
