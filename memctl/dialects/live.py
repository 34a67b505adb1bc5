"""The messages of a memory as a framework reads them, and sends them to a model.

This depends on the whole memory: a later message takes earlier ones back, stands for them, answers
a call, or replaces a result; a call without a result may wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Container, Iterable, Sequence
from contextlib import aclosing
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

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
from memctl.machine.spool import ItemSpool
from memctl.model import Memory, MemoryInfo, Page, StoredMessage

_TAG = "not read: "
_OF_STEP = (ToolCallBlock, ToolResultBlock, ThinkingBlock)
"""The blocks of items that belong to one step of OpenAI's API."""


class WaitingCalls:
    """The calls of one memory that wait for a person or another program.

    A call at which the framework has stopped (``ToolCallBlock.waits``) waits until the result
    comes.  In a memory that waits (``Dialect.waits``) or may wait (``Dialect.may_wait``), all calls
    after the last message that is no result wait, too.
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
        """The names without calls on which an agent may be at work (``Dialect.may_wait``)."""
        return self._stopped | self._last if self._waits else self._stopped


class Sent(NamedTuple):
    """A message as a framework sends it to a model: the view of its speaker, and its blocks."""

    view: MessageView
    blocks: list[Block]


def live(dialect: Dialect, entries: Sequence[StoredMessage]) -> Live:
    """Return which messages of a whole memory the framework reads.

    A message that is not a JSON object says nothing.
    """
    memory = _Memory(dialect)
    memory.add(entries)
    return memory.live()


class _Memory:
    """The parts of messages that decide which messages of a memory the framework reads."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._views: list[MessageView] = []
        self._number = 0
        self._compressed: list[int] = []

    def add(self, entries: Sequence[StoredMessage]) -> None:
        """Add the next messages of the memory."""
        for number, entry in enumerate(entries, self._number):
            if self._dialect.leaves_out:
                self._views.append(self._view(entry.message))
            if COMPRESSED in entry.marks:
                self._compressed.append(number)
        self._number += len(entries)

    def _view(self, text: bytes) -> MessageView:
        try:
            return self._dialect.live_view(text)
        except (ValueError, RecursionError):
            return self._dialect.view_of({})

    def live(self) -> Live:
        """Return which of the messages the framework reads."""
        found = Live(range(self._number), {})
        if self._dialect.leaves_out:
            found = self._dialect.live(self._views)
        for at in self._compressed:
            found.unread.setdefault(at, Unread.COMPACTED)
        return Live([at for at in found.order if at not in found.unread], found.unread)

    def unread(self, last: Page) -> dict[int, str]:
        """Return ``Page.unread`` for the pages of the messages, of which ``last`` is the last."""
        start = last.offset + len(last.messages) - self._number
        return {start + at: reason for at, reason in self.live().unread.items()}


def not_read(info: MemoryInfo) -> dict[str, int]:
    """Return the numbers of messages that the framework does not read, by reason."""
    compressed = info.marks.get(COMPRESSED)
    return info.unread | ({Unread.COMPACTED: compressed} if compressed else {})


def tags(marks: tuple[str, ...], unread: str) -> tuple[str, ...]:
    """Return the marks of a message to show, with the reason ``unread``, if the marks lack it."""
    if not unread or COMPRESSED in marks:
        return marks
    return (*marks, _TAG + unread)


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

    The pages of a memory come together if messages decide which others the framework reads: until
    the last one comes, the others are in a temporary file.  Pages of selected messages pass as they
    are.
    """
    waits_for_all = dialect.leaves_out and dialect.depends_on_later
    memory, earlier = _Memory(dialect), None
    try:
        async with aclosing(pages):
            async for page in pages:
                memory.add(page.messages)
                if waits_for_all and not page.last:
                    earlier = ItemSpool[Page]() if earlier is None else earlier
                    earlier.add(page)
                    del page  # free a large page before the next read
                    continue
                unread = None if page.indexes is not None else memory.unread(page)
                memory = _Memory(dialect)
                for one in chain(earlier or (), (page,)):
                    yield one if unread is None else replace(one, unread=unread)
                if earlier is not None:
                    earlier.close()
                    earlier = None
                del page, one
    finally:
        if earlier is not None:
            earlier.close()


def sent(
    dialect: Dialect,
    memory: Memory,
    views: Sequence[MessageView],
    read: Live,
    made: Collection[int] = (),
) -> dict[int, Sent]:
    """Return the messages that a framework sends of a memory by their indexes, in its order.

    ``read`` says which messages the framework reads.  The first of several results has the blocks
    of the last.  ``waits`` is True for the calls that wait, and False for all others.  ``made`` has
    the indexes of messages that memctl made of messages of another framework: notes restore these,
    and the blocks stay.
    """
    waiting = WaitingCalls(dialect, memory)
    blocks = [view.blocks for view in views]
    for at, some in enumerate(blocks):
        if read.unread.get(at) is not Unread.REWOUND:
            waiting.add(some)
    ids = waiting.names.keys()
    first: dict[str, tuple[list[Block], int]] = {}
    """The place of the first result of each call so far: the blocks of a message, and an index."""
    found: dict[int, Sent] = {}
    superseded = dialect.superseded(views, read.order).difference(made)
    for at in read.order:
        if at in superseded:
            continue
        kept: list[Block] = []
        for block in blocks[at]:
            if at in made:
                pass
            elif isinstance(block, ToolCallBlock):
                first.pop(block.id, None)
                block = block._replace(waits=block.id in ids)
            elif isinstance(block, ToolResultBlock) and block.id:
                if dialect.last_result_counts and block.id in first:
                    there, place = first[block.id]
                    there[place] = block
                    continue
                first[block.id] = kept, len(kept)
            kept.append(block)
        if kept or not blocks[at]:
            found[at] = Sent(views[at], kept)
    return _in_steps(dialect, found, made)


def _in_steps(dialect: Dialect, found: dict[int, Sent], made: Container[int]) -> dict[int, Sent]:
    """Move each late result to the step of the call.

    So does ADK (``flows/llm_flows/tools/_rearranger.py`` of google-adk 2.13).
    """
    of_step = _OF_STEP if dialect.holds_items else ToolResultBlock
    steps: dict[int, int] = {}
    """The number of the step to which each message belongs."""
    called: dict[str, int] = {}
    """The step of each call so far."""
    step = fixed = 0
    for at, one in found.items():
        step += not all(isinstance(block, of_step) for block in one.blocks)
        fixed = step if at in made else fixed
        results = [block.id for block in one.blocks if isinstance(block, ToolResultBlock)]
        known = [called[id] for id in results if id in called]
        moves = at not in made and known and known[0] >= fixed
        steps[at] = known[0] if moves else step
        called |= {block.id: step for block in one.blocks if isinstance(block, ToolCallBlock)}
    return {at: found[at] for at in sorted(found, key=steps.__getitem__)}


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
