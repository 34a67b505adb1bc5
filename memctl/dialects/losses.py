"""The losses of the messages of one memory in another dialect, found message by message."""

from __future__ import annotations

from collections import Counter

from memctl.dialects.conversion import described
from memctl.dialects.live import WaitingCalls
from memctl.dialects.roles import ROLES, role_of
from memctl.dialects.view import (
    TOOL,
    Dialect,
    MessageView,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
    Unread,
)
from memctl.model import Memory


class Losses:
    """The losses of the messages of a memory: how many of each name."""

    def __init__(self, source: Dialect, target: Dialect, memory: Memory) -> None:
        self.contents: Counter[str] = Counter()
        """The blocks that no message of the target can hold, by their kinds."""
        self.roles: Counter[str] = Counter()
        """The roles that memctl does not know, of messages that say something."""
        self.unread = False
        """True if there are messages that the framework does not read."""
        self._source = source
        self._target = target
        self._restored = 0
        """The number of further messages that the note of an earlier message restores."""
        self._waits = source.waits(memory)
        self._calls = WaitingCalls(source, memory)

    def add(self, text: bytes, unread: str = "") -> None:
        """Add the next message of the memory.

        Of a message that stays in a note, since the framework does not read it, only a call that
        waits is lost.  ``unread`` is the reason.

        Raises:
            ValueError: the text is not a JSON object.
        """
        self.unread = self.unread or bool(unread)
        if self._restored:
            self._restored -= 1
        elif self._target.name in (notes := described(text)):
            self._restored = notes[self._target.name] - 1
        elif self._source.may_be_lost(text):
            view = self._source.outline(text)
            if unread != Unread.REWOUND:
                self._calls.add(view.blocks)
            if not unread:
                self._count(view)

    def _count(self, view: MessageView) -> None:
        role = role_of(view.role) or "none"
        says = False
        for block in view.blocks:
            place, inner = role, [block]
            if isinstance(block, ToolResultBlock):
                place, inner = TOOL, block.output
            for one in inner:
                if isinstance(one, UnknownBlock) and one.value is None:
                    continue  # an encrypted message is a loss of its own
                if isinstance(one, ToolCallBlock):
                    continue  # counted by ``waiting``
                if kind := self._target.not_held(one, place):
                    self.contents[kind] += 1
                else:
                    says = says or place != TOOL
        if says and role not in ROLES:
            self.roles[role] += 1

    @property
    def waiting(self) -> Counter[str]:
        """The calls that wait, by the names of the tools, after all messages."""
        found = Counter(self._calls.certain.values())
        return found or Counter({"a run": 1} if self._waits else {})

    @property
    def open_calls(self) -> int:
        """The number of calls for which an agent may still bring the results."""
        return len(self._calls.names.keys() - self._calls.certain.keys())
