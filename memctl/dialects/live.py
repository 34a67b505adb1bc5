"""What a framework sends to a model of the tool calls in a memory: a function of the whole memory.

A later message answers a call, or replaces an earlier result; a call without a result may wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from memctl.dialects.view import (
    COMPRESSED,
    Block,
    Dialect,
    Live,
    MessageView,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Unread,
)
from memctl.model import Memory, MemoryInfo, Page, StoredMessage

_TAG = "not read: "
_OF_STEP = (ToolCallBlock, ToolResultBlock, ThinkingBlock)
"""The blocks of items that belong to one step of OpenAI's API."""


class WaitingCalls:
    """The calls of one memory that wait for a person or another program.

    These are the calls at which the framework has stopped (``ToolCallBlock.waits``), until their
    results come.  If the memory waits (``Dialect.waits``), or may wait (``Dialect.may_wait``), all
    calls after the last message that is no result wait, too.
    """

    def __init__(self, dialect: Dialect, memory: Memory) -> None:
        self._waits = dialect.waits(memory)
        self._may_wait = dialect.may_wait
        self._has_items = dialect.holds_items
        self._stopped: dict[str, str] = {}
        self._last: dict[str, str] = {}
        """The calls without a result of the last step, as in ``names``."""

    def add(self, blocks: Sequence[Block]) -> None:
        """Add the blocks of the next message of the memory."""
        calls = [block for block in blocks if isinstance(block, ToolCallBlock) and block.id]
        results = {block.id for block in blocks if isinstance(block, ToolResultBlock)}
        # An item of OpenAI's API is a part of a step: its calls are items of their own.
        goes_on = self._has_items and all(isinstance(block, _OF_STEP) for block in blocks)
        if not goes_on and (calls or not results):
            self._last.clear()
        self._last |= {call.id: call.name for call in calls}
        self._stopped |= {call.id: call.name for call in calls if call.waits}
        for id in results:
            self._stopped.pop(id, None)
            self._last.pop(id, None)

    @property
    def names(self) -> dict[str, str]:
        """The names of the tools of the calls that wait after the messages so far, by call id."""
        return self.certain | self._last if self._may_wait else self.certain

    @property
    def certain(self) -> dict[str, str]:
        """The same without calls that only may wait: an agent may be at work on them."""
        return self._stopped | self._last if self._waits else self._stopped


class Sent(NamedTuple):
    """A message as a framework sends it to a model: the view of its speaker, and its blocks."""

    view: MessageView
    blocks: list[Block]


def live(dialect: Dialect, entries: Sequence[StoredMessage]) -> Live:
    """Return which messages of a whole memory the framework reads.

    A message that is not a JSON object says nothing.
    """
    found = Live(range(len(entries)), {})
    if dialect.leaves_out:
        found = dialect.live([_outlined(dialect, one.message) for one in entries])
    for at, one in enumerate(entries):
        if COMPRESSED in one.marks:
            found.unread.setdefault(at, Unread.COMPACTED)
    return Live([at for at in found.order if at not in found.unread], found.unread)


def _outlined(dialect: Dialect, text: bytes) -> MessageView:
    try:
        return dialect.outline(text)
    except (ValueError, RecursionError):
        return dialect.view_of({})


def not_read(info: MemoryInfo) -> dict[str, int]:
    """Return the numbers of messages that the framework does not read, by reason."""
    compressed = info.marks.get(COMPRESSED)
    return info.unread | ({Unread.COMPACTED: compressed} if compressed else {})


def tags(message: StoredMessage, unread: str) -> tuple[str, ...]:
    """Return the marks of a message to show, with the reason ``unread``, if the marks lack it."""
    if not unread or COMPRESSED in message.marks:
        return message.marks
    return (*message.marks, _TAG + unread)


def untagged(marks: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the marks that ``tags`` was given, and the reason; the reverse of ``tags``."""
    own, reason = [], ""
    for mark in marks:
        if mark.startswith(_TAG):
            reason = mark.removeprefix(_TAG)
            continue
        own.append(mark)
        if mark == COMPRESSED:
            reason = Unread.COMPACTED
    return tuple(own), reason


async def understood(pages: AsyncGenerator[Page], dialect: Dialect) -> AsyncGenerator[Page]:
    """Yield the pages of whole memories with ``Page.unread``.

    The pages of a memory whose messages say which of them the framework reads come together.
    Pages of selected messages pass as they are.
    """
    held: list[Page] = []
    async with aclosing(pages):
        async for page in pages:
            held.append(page)
            if dialect.leaves_out and not page.last:
                continue
            if page.indexes is None:
                messages = [one for some in held for one in some.messages]
                found, first = live(dialect, messages).unread, held[0].offset
                unread = {first + at: reason for at, reason in found.items()}
                held = [replace(one, unread=unread) for one in held]
            for one in held:
                yield one
            held = []


def sent(
    dialect: Dialect,
    memory: Memory,
    views: Sequence[MessageView],
    read: Live,
    made: Container[int] = (),
) -> dict[int, Sent]:
    """Return the messages that a framework sends of a memory, in its order.

    ``read`` says which messages the framework reads.  The key of a message is its index: of a
    result in several messages, the index of the first.  Of all calls, only those that wait have
    ``waits``.  ``made`` has the indexes of messages that memctl made of those of another framework:
    notes restore them, and their blocks stay.
    """
    waiting = WaitingCalls(dialect, memory)
    blocks = [view.blocks for view in views]
    for at, some in enumerate(blocks):
        if read.unread.get(at) is not Unread.REWOUND:
            waiting.add(some)
    ids = waiting.names.keys()
    found = {
        at: Sent(views[at], [_as_waiting(block, ids) for block in blocks[at]]) for at in read.order
    }
    return _paired(found, made) if dialect.last_result_counts else found


def _as_waiting(block: Block, ids: Container[str]) -> Block:
    if not isinstance(block, ToolCallBlock):
        return block
    return block._replace(waits=block.id in ids)


def _paired(found: dict[int, Sent], made: Container[int]) -> dict[int, Sent]:
    """Put the last result of each call behind the call."""
    calls: dict[str, int] = {}
    """The index of the last message with a call, by the id of the call."""
    results: dict[tuple[int, str], list[tuple[int, Block]]] = {}
    """The results of each call, by the index of its message and its id."""
    answers: set[int] = set()
    """The indexes of the messages with these results."""
    for at, one in found.items():
        for block in one.blocks:
            if isinstance(block, ToolCallBlock):
                calls[block.id] = at
                results[at, block.id] = []
            elif isinstance(block, ToolResultBlock) and block.id in calls and at not in made:
                results[calls[block.id], block.id].append((at, block))
                answers.add(at)
    done: dict[int, Sent] = {}
    for at, one in found.items():
        if at in answers:
            continue
        done[at] = one
        ids = dict.fromkeys(block.id for block in one.blocks if isinstance(block, ToolCallBlock))
        given = [some for id in ids if (some := results[at, id])]
        if given:
            others: list[Block] = [
                block
                for place in dict.fromkeys(some[-1][0] for some in given)
                for block in found[place].blocks
                if not isinstance(block, ToolResultBlock)
            ]
            first = min(some[0][0] for some in given)
            done[first] = Sent(found[first].view, [*(some[-1][1] for some in given), *others])
    return done


def without_lone(found: dict[int, Sent]) -> dict[int, Sent]:
    """Return messages without calls that have no result and do not wait, and results alone."""
    calls: set[str] = set()
    results: set[str] = set()
    for one in found.values():
        for block in one.blocks:
            if isinstance(block, ToolCallBlock):
                calls.add(block.id)
            elif isinstance(block, ToolResultBlock):
                results.add(block.id)
    pairs = (calls & results) | {""}

    def stays(block: Block) -> bool:
        match block:
            case ToolCallBlock(id=id, waits=waits):
                return waits or id in pairs
            case ToolResultBlock(id=id):
                return id in pairs
        return True

    kept = {at: Sent(one.view, [*filter(stays, one.blocks)]) for at, one in found.items()}
    return {at: one for at, one in kept.items() if one.blocks}
