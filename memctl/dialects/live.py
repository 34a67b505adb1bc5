"""The tool calls and results of a memory as a framework sends them to a model.

This depends on the whole memory: a later message answers a call, or replaces an earlier result; a
call without a result may wait.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from memctl.dialects.view import (
    Block,
    Dialect,
    MessageView,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.model import Memory

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


def sent(
    dialect: Dialect, memory: Memory, views: Sequence[MessageView], made: Container[int] = ()
) -> list[list[Block] | None]:
    """Return the blocks of each message of a memory as the framework sends them to a model.

    None stands for a message that the framework does not send: a request to a person or another
    program (``Dialect.is_request``), the answer to one, or a result that replaces an earlier one.
    The replaced result gets the blocks of the last result.  ``waits`` is True for the calls that
    wait, and False for all others.  ``made`` has the indexes of messages that memctl made of
    messages of another framework: notes restore these, and the blocks stay.
    """
    waiting = WaitingCalls(dialect, memory)
    blocks = [view.blocks for view in views]
    for some in blocks:
        waiting.add(some)
    ids = waiting.names.keys()
    requests: set[str] = set()
    first: dict[str, tuple[list[Block], int]] = {}
    """The place of the first result of each call so far: the blocks of a message, and an index."""
    found: list[list[Block] | None] = []
    for at, some in enumerate(blocks):
        if at in made:
            found.append(some)
            continue
        kept: list[Block] = []
        for block in some:
            if isinstance(block, ToolCallBlock):
                first.pop(block.id, None)
                if dialect.is_request(block):
                    requests.add(block.id)
                    continue
                block = block._replace(waits=block.id in ids)
            elif isinstance(block, ToolResultBlock) and block.id:
                if block.id in requests:
                    continue
                if dialect.last_result_counts and block.id in first:
                    there, place = first[block.id]
                    there[place] = block
                    continue
                first[block.id] = kept, len(kept)
            kept.append(block)
        found.append(kept if kept or not some else None)
    return found


def order_sent(
    dialect: Dialect, found: Sequence[list[Block] | None], made: Container[int] = ()
) -> list[int]:
    """Return the indexes of the messages of a memory in the order in which a model gets them.

    A result behind other messages moves to the step of the call, as in ADK
    (``flows/llm_flows/tools/_rearranger.py`` of google-adk 2.13).  ``found`` is the result of
    ``sent``.  The messages in ``made``, as for ``sent``, keep their places.
    """
    of_step = _OF_STEP if dialect.holds_items else ToolResultBlock
    steps: list[int] = []
    """The number of the step to which each message belongs."""
    called: dict[str, int] = {}
    """The step of each call so far."""
    step = fixed = 0
    for at, some in enumerate(found):
        sides = some or ()
        step += not all(isinstance(one, of_step) for one in sides)
        fixed = step if at in made else fixed
        results = [one.id for one in sides if isinstance(one, ToolResultBlock) and one.id in called]
        moves = at not in made and results and called[results[0]] >= fixed
        steps.append(called[results[0]] if moves else step)
        called |= {one.id: step for one in sides if isinstance(one, ToolCallBlock)}
    return sorted(range(len(steps)), key=steps.__getitem__)
