"""Plan the compression of a memory while its messages are read.

The plan follows ``_compress_memory_if_needed`` of AgentScope (``agent/_react_agent.py`` of 1.0.21):
the newest messages stay, and tool results stay with their calls.  There are two differences.  A
memory with only the newest messages is left alone; AgentScope would summarize all of it.  A result
without its call counts as an ordinary message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import COMPRESSED, SUMMARY, Dialect
from memctl.errors import BadData, Loss
from memctl.inference.summary import TEMPLATE
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.ops.compress.transcript import TranscriptMessage, transcribe
from memctl.selection import Selection, Verdict
from memctl.store import Store
from memctl.summarizer import Turn


class CompressMode(StrEnum):
    """Where the summary is stored, and what happens to the summarized messages."""

    MARK = "mark"
    """Store the summary as the memory's summary; mark the messages ``compressed``."""
    MESSAGE = "message"
    """Insert the summary as the first message; mark the summarized messages ``compressed``."""
    REPLACE = "replace"
    """Insert the summary as the first message; delete the summarized messages."""


def mode_of(store: Store, wanted: CompressMode | None) -> CompressMode:
    """Return the mode for a store: if none is wanted, MARK if it holds summaries, else MESSAGE.

    Raises:
        Loss: MARK is wanted, and the store cannot hold summaries.
    """
    if wanted is CompressMode.MARK and not store.features.summaries:
        raise Loss(
            f"{store.label} cannot store summaries",
            "add ?state=FOLDER or ?state=redis, or use --mode message",
        )
    return wanted or (CompressMode.MARK if store.features.summaries else CompressMode.MESSAGE)


class CompressOptions(Struct, frozen=True):
    """The options of a compression.

    ::

        CompressOptions(CompressMode.MARK, keep_recent=20, trigger_tokens=8000)

    The newest ``keep_recent`` messages of a memory stay unchanged.  A memory is compressed if the
    messages to summarize exceed ``trigger_tokens`` or ``trigger_messages``.  If both are None, one
    message to summarize is enough.  The run compresses at most ``max_memories``, at a cost of at
    most ``max_cost``.  ``jobs`` is the number of concurrent requests.  ``template`` is the form of
    the written summary.
    """

    mode: CompressMode
    keep_recent: int = 3
    trigger_tokens: int | None = None
    trigger_messages: int | None = None
    max_memories: int | None = None
    max_cost: float | None = None
    jobs: int = 1
    template: str = TEMPLATE

    def triggers(self, messages: int, tokens: int) -> bool:
        """Return whether a memory with so many messages and tokens to summarize is compressed."""
        if self.trigger_tokens is None and self.trigger_messages is None:
            return messages > 0
        return (self.trigger_tokens is not None and tokens > self.trigger_tokens) or (
            self.trigger_messages is not None and messages > self.trigger_messages
        )


Permits = Callable[[MemoryKey, StoredMessage], bool]
"""Returns whether a message of a memory may be summarized or deleted."""


class MessageStatus(StrEnum):
    """The status of a message in a compression."""

    SELECTED = "selected"
    """To summarize, unless the message is among the newest messages."""
    UNSELECTED = "unselected"
    """Not selected: the message stays."""
    COMPRESSED = "compressed"
    """Summarized by an earlier compression: the message has the mark ``compressed``."""
    SUMMARY = "summary"
    """The message is the summary of an earlier compression."""


class PlannedMessage(NamedTuple):
    """A message of a memory in the spool.

    ``place`` is ``StoredMessage.position``.  ``position`` is the number of earlier messages that
    agents send to a model; -1 for a message that they do not send.  ``turn`` is set for a message
    to summarize, ``message`` for a message that may be deleted.  ``behind`` is the id of the
    preceding message of the memory, if that message is not in the spool.  ``at`` is ``Change.at``.
    """

    kind: MessageStatus
    id: str
    marks: tuple[str, ...]
    place: int | None
    position: int
    turn: Turn | None = None
    message: bytes = b""
    behind: str | None = None
    shape: str = ""
    at: int | None = None


class CompressionPlan(Struct, frozen=True):
    """The plan for a memory to compress.

    The messages with ``MessageStatus.SELECTED`` before position ``cut`` are summarized, except at
    the positions in ``spared``: these messages have tool calls or results whose other half stays.
    ``earlier`` is the text of earlier summaries, empty if there are none.  ``messages`` and
    ``tokens`` are the numbers of summarized messages and of their tokens.  ``before`` is the number
    of tokens of all messages and summaries that agents send to a model, ``rest`` that of the
    messages that they continue to send.  ``gone`` counts deleted summaries, and deleted messages
    that were summarized earlier.  ``stay`` counts the messages that
    agents continue to send.  The messages of the memory are in the spool from byte ``start`` to
    ``end``.
    """

    memory: Memory
    earlier: str
    cut: int
    messages: int
    tokens: int
    before: int
    rest: int = 0
    spared: frozenset[int] = field(default=frozenset())
    gone: int = 0
    stay: int = 0
    start: int = 0
    end: int = 0

    def deleted(self, mode: CompressMode) -> int:
        """Return the number of messages that a compression in this mode deletes."""
        return self.gone + (self.messages if mode is CompressMode.REPLACE else 0)

    def removes(self, mode: CompressMode) -> bool:
        """Return whether a compression in this mode deletes messages or replaces a summary."""
        return bool(self.deleted(mode) or self.memory.summary)

    def goes(self, line: PlannedMessage) -> bool:
        """Return whether the new summary stands for the message from now on."""
        if line.kind is MessageStatus.SELECTED:
            return line.position < self.cut and line.position not in self.spared
        return line.kind in (MessageStatus.COMPRESSED, MessageStatus.SUMMARY)


PER_MESSAGE = 4
"""The number of tokens of a message in addition to the tokens of its text."""


def message_tokens(found: TranscriptMessage, count: Callable[[str], int]) -> int:
    """Return the number of tokens of a message that an agent sends to a model."""
    return count(f"{found.turn.speaker}\n{found.turn.text}") + PER_MESSAGE


@dataclass
class CompressionPlanner:
    """A planner of the compression of one memory, which keeps only a few bytes of each message.

    ``take`` is called with each message in order, then ``case`` returns the plan.
    """

    memory: Memory
    where: Selection
    options: CompressOptions
    count: Callable[[str], int]
    dialect: Dialect = AGENTSCOPE1
    permits: Permits | None = None
    """None if every message may be summarized."""

    def __post_init__(self) -> None:
        self._tokens = array("q")
        self._candidates = bytearray()
        """A byte for each position: 1 if the message is selected, else 0."""
        self._breaks: list[int] = []
        """The positions before which every tool call has its result."""
        self._calls: dict[str, int] = {}
        """The position of the last tool call with each id; a call may have several results."""
        self._pairs: list[tuple[int, int]] = []
        """The positions of each tool call and its result, if messages may be unselected."""
        self._earlier = self.memory.summary or ""
        self._earlier_tokens = self.count(self._earlier) if self._earlier else 0
        self._gone = 0
        self._untimed = 0

    def take(self, entry: StoredMessage) -> PlannedMessage:
        """Add the next message of the memory to the plan; return it with its status.

        Raises:
            BadData: the message is not JSON.
        """
        permitted = self.permits is None or self.permits(self.memory.key, entry)
        mode = self.options.mode
        kept = entry.message if mode is CompressMode.REPLACE else b""
        same = entry.id, entry.marks, entry.position
        if COMPRESSED in entry.marks and not permitted:
            return PlannedMessage(MessageStatus.UNSELECTED, entry.id, entry.marks, None, -1)
        if COMPRESSED in entry.marks:
            self._gone += mode is CompressMode.REPLACE
            return PlannedMessage(MessageStatus.COMPRESSED, *same, -1, None, kept)
        found = self._transcribe(entry)
        if mode is not CompressMode.MARK and SUMMARY in entry.marks and permitted:
            self._earlier = "\n\n".join(filter(None, [self._earlier, found.turn.text]))
            self._earlier_tokens += message_tokens(found, self.count)
            self._gone += 1
            return PlannedMessage(MessageStatus.SUMMARY, *same, -1, None, entry.message)
        verdict = self.where.judge(entry, self.dialect)
        if verdict is Verdict.UNTIMED:
            self._untimed += 1
            self.where.untimed.note(self.memory.key, self._untimed, self.dialect.noun)
        chosen = permitted and verdict is Verdict.SELECTED
        position = self._add(found, chosen=chosen)
        if not chosen:
            return PlannedMessage(MessageStatus.UNSELECTED, *same, position)
        turn = found.turn
        if SUMMARY in entry.marks:
            turn = turn._replace(role="summary")
        return PlannedMessage(MessageStatus.SELECTED, *same, position, turn, kept)

    def _transcribe(self, entry: StoredMessage) -> TranscriptMessage:
        try:
            return transcribe(entry.message, self.dialect)
        except ValueError as error:
            raise BadData(
                f"the message {entry.id!r} of {self.memory.key} is not JSON: {error}",
                "find such messages with: memctl doctor",
            ) from error

    def _add(self, found: TranscriptMessage, *, chosen: bool) -> int:
        position = len(self._tokens)
        self._breaks.append(position)
        for id in set(found.results).difference(found.calls) if found.results else ():
            called = self._calls.get(id)
            if called is None:
                continue
            while self._breaks and self._breaks[-1] > called:
                self._breaks.pop()
            if self.permits is not None or not self.where.whole:
                self._pairs.append((called, position))
        if found.calls:
            self._calls.update(dict.fromkeys(found.calls, position))
        self._tokens.append(message_tokens(found, self.count))
        self._candidates.append(chosen)
        return position

    def size(self) -> tuple[int, int]:
        """Return the numbers of messages and tokens so far that agents send to a model."""
        return len(self._tokens), sum(self._tokens)

    def case(self) -> CompressionPlan | None:
        """Return the plan after the last message; None if the memory will not be compressed."""
        if len(self._breaks) < self.options.keep_recent:
            return None
        cut = self._breaks[-self.options.keep_recent]
        spared = self._bound_to_staying(cut)
        messages = tokens = 0
        for position in range(cut):
            if self._candidates[position] and position not in spared:
                messages += 1
                tokens += self._tokens[position]
        if not messages or not self.options.triggers(messages, tokens):
            return None
        before = sum(self._tokens) + self._earlier_tokens
        stay = len(self._tokens) - messages
        return CompressionPlan(
            *(self.memory, self._earlier, cut, messages, tokens, before),
            rest=before - self._earlier_tokens - tokens,
            spared=frozenset(spared),
            gone=self._gone,
            stay=stay,
        )

    def _bound_to_staying(self, cut: int) -> set[int]:
        """Return the positions of selected messages that must stay with unselected messages.

        A tool call and its result must not be separated: if one message stays, the other stays too.
        All messages from the position ``cut`` stay in any case, and are not in the result.
        """
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
