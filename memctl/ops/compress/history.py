"""Which messages of a memory are to be summed up, decided while they pass.

As ``_compress_memory_if_needed`` of AgentScope (``agent/_react_agent.py`` of 1.0.21) decides: the
newest stay, and the results of tools stay with their calls.  Two things differ.  A memory that has
no more than the newest is left alone, where AgentScope would sum up all of it; and a result whose
call is not there counts as any other message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from memctl.errors import BadData
from memctl.model import Memory, StoredMessage
from memctl.ops.compress.plan import Case, Kind, Line, Mode, Wanted
from memctl.ops.compress.transcript import Said, said
from memctl.ops.known_marks import COMPRESSED, SUMMARY
from memctl.selection import Selection

PER_MESSAGE = 4
"""Tokens that a message takes beside its text."""


class History:
    """The messages of one memory.  Of each, some bytes are kept until its end."""

    def __init__(
        self, memory: Memory, where: Selection, wanted: Wanted, count: Callable[[str], int]
    ) -> None:
        self._memory = memory
        self._where = where
        self._wanted = wanted
        self._count = count
        self._tokens = array("q")
        self._candidates = bytearray()
        """For each position, whether it is OLD."""
        self._breaks: list[int] = []
        """Positions before which no tool call waits for a result."""
        self._calls: dict[str, int] = {}
        """Where each call was made, the last one of its id: a call may have several results."""
        self._pairs: list[tuple[int, int]] = []
        """Calls and results of which one half may not be selected."""
        self._earlier = memory.summary or ""
        self._gone = 0

    def take(self, entry: StoredMessage) -> Line:
        """What the next message is.

        Raises:
            BadData: it is not JSON.
        """
        replacing = self._wanted.mode is not Mode.MARK
        kept = entry.message if self._wanted.mode is Mode.REPLACE else b""
        if COMPRESSED in entry.marks:
            self._gone += self._wanted.mode is Mode.REPLACE
            return Line(Kind.SPENT, entry.id, entry.marks, entry.position, -1, None, kept)
        found = self._said(entry)
        if replacing and SUMMARY in entry.marks:
            self._earlier = "\n\n".join(filter(None, [self._earlier, found.turn.text]))
            self._gone += 1
            return Line(
                Kind.SUMMARY, entry.id, entry.marks, entry.position, -1, None, entry.message
            )
        chosen = self._where.matches(entry)
        position = self._add(found, chosen=chosen)
        if not chosen:
            return Line(Kind.STAYS, entry.id, entry.marks, entry.position, position)
        turn = found.turn
        if SUMMARY in entry.marks:
            turn = turn._replace(role="summary")
        return Line(Kind.OLD, entry.id, entry.marks, entry.position, position, turn, kept)

    def _said(self, entry: StoredMessage) -> Said:
        try:
            return said(entry.message)
        except ValueError as error:
            raise BadData(
                f"the message {entry.id!r} of {self._memory.key} is not JSON: {error}",
                "memctl doctor finds such messages",
            ) from error

    def _add(self, found: Said, *, chosen: bool) -> int:
        position = len(self._tokens)
        self._breaks.append(position)
        for id in set(found.results).difference(found.calls) if found.results else ():
            called = self._calls.get(id)
            if called is None:
                continue
            while self._breaks and self._breaks[-1] > called:
                self._breaks.pop()
            if not self._where.whole:
                self._pairs.append((called, position))
        if found.calls:
            self._calls.update(dict.fromkeys(found.calls, position))
        turn = found.turn
        self._tokens.append(self._count(f"{turn.speaker}\n{turn.text}") + PER_MESSAGE)
        self._candidates.append(chosen)
        return position

    def case(self) -> Case | None:
        """What is to become of the memory at its end; None where it stays as it is."""
        if len(self._breaks) < self._wanted.keep_recent:
            return None
        cut = self._breaks[-self._wanted.keep_recent]
        spared = self._spared(cut)
        messages = tokens = 0
        for position in range(cut):
            if self._candidates[position] and position not in spared:
                messages += 1
                tokens += self._tokens[position]
        if not messages or not self._wanted.triggers(messages, tokens):
            return None
        earlier = self._earlier
        before = sum(self._tokens) + (self._count(earlier) if earlier else 0)
        sizes = messages, tokens, before
        return Case(self._memory, earlier, cut, *sizes, frozenset(spared), self._gone)

    def _spared(self, cut: int) -> set[int]:
        """The messages that share a tool call with one that stays, directly or by others."""
        others: dict[int, list[int]] = {}
        for call, result in self._pairs:
            if call < cut:
                others.setdefault(call, []).append(result)
                others.setdefault(result, []).append(call)
        staying = [one for one in others if not self._candidates[one]]
        spared: set[int] = set()
        while staying:
            for other in others[staying.pop()]:
                if self._candidates[other] and other not in spared:
                    spared.add(other)
                    staying.append(other)
        return spared
