"""What is asked of a compression, and what is to become of one memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from memctl.model import Memory
from memctl.summarizer import Turn
from memctl.summary import TEMPLATE


class Mode(StrEnum):
    """Where the summary goes, and what becomes of the messages that it stands for."""

    MARK = "mark"
    """To the place for summaries; they are marked ``compressed``."""
    MESSAGE = "message"
    """Into a message in front of all others; they are marked ``compressed``."""
    REPLACE = "replace"
    """Into such a message; they are deleted."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    The newest ``keep_recent`` messages of a memory stay as they are.  A memory is compressed when
    more than ``trigger_tokens`` or more than ``trigger_messages`` are to be summed up; without
    either, when anything is.  At most ``max_memories`` are compressed, for at most ``max_cost``.
    """

    mode: Mode
    keep_recent: int = 3
    trigger_tokens: int | None = None
    trigger_messages: int | None = None
    max_memories: int | None = None
    max_cost: float | None = None
    jobs: int = 1
    template: str = TEMPLATE

    def triggers(self, messages: int, tokens: int) -> bool:
        """Whether so much is enough."""
        if self.trigger_tokens is None and self.trigger_messages is None:
            return messages > 0
        return (self.trigger_tokens is not None and tokens > self.trigger_tokens) or (
            self.trigger_messages is not None and messages > self.trigger_messages
        )


class Kind(StrEnum):
    """What a message is to a compression."""

    OLD = "old"
    """To be summed up, if it is none of the newest."""
    STAYS = "stays"
    """Not selected."""
    SPENT = "spent"
    """Summed up before."""
    SUMMARY = "summary"
    """The summary of what was summed up before."""


class Line(NamedTuple):
    """A message on its way through the spool.

    ``position`` counts the messages that agents read of the memory; ``turn`` is there where it is
    to be summed up, ``message`` where it is to be deleted.  ``behind`` is the message right before
    it where that one is not in the spool.
    """

    kind: Kind
    id: str
    marks: tuple[str, ...]
    place: int | None
    position: int
    turn: Turn | None = None
    message: bytes = b""
    behind: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One memory that is to be compressed; its lines are in the spool from ``start`` to ``end``.

    What is OLD goes before position ``cut``, but for the positions of ``spared``: tool calls of
    which one half stays.  ``tokens`` are those of what goes, ``before`` of all that agents read.
    ``gone`` counts the messages that go beside: earlier summaries, and what these stood for.
    """

    memory: Memory
    earlier: str
    cut: int
    messages: int
    tokens: int
    before: int
    spared: frozenset[int] = field(default=frozenset())
    gone: int = 0
    start: int = 0
    end: int = 0

    def goes(self, line: Line) -> bool:
        """Whether a message is among those that the summary stands for."""
        if line.kind is Kind.OLD:
            return line.position < self.cut and line.position not in self.spared
        return line.kind in (Kind.SPENT, Kind.SUMMARY)
