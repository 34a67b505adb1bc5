"""Change marks, as AgentScope's ``update_messages_mark`` does.

Source: ``memory/_working_memory/_in_memory_memory.py`` of agentscope 1.0.21.  A new mark alone is
added to each message.  An old mark alone is removed.  With both, the new mark replaces the old mark
in messages with the old mark.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from memctl.errors import UsageError
from memctl.model import Change, Edit, Page
from memctl.ops.select import places, whole_memories
from memctl.selection import Selection
from memctl.store import Store, refuse_facts

HINT = "hint"
"""AgentScope's mark of messages for one step of reasoning (``agent/_react_agent.py``)."""
COMPRESSED = "compressed"
"""AgentScope's mark of messages that a summary replaces (``agent/_react_agent.py``)."""
SUMMARY = "summary"
"""memctl's mark of a message that holds a summary."""


Marks = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MarkChange:
    """A mark to add, to remove, or to replace; ``new`` replaces ``old`` if both are given."""

    new: str | None = None
    old: str | None = None

    def __call__(self, marks: Marks) -> Marks:
        """Return the changed marks of a message."""
        if self.old is not None and self.old not in marks:
            return marks
        left = tuple(mark for mark in marks if mark != self.old)
        if self.new is None or self.new in left:
            return left
        return (*left, self.new)


def require_mark(store: Store, mark: str) -> None:
    """Check that messages of the store can have a mark.

    Raises:
        UsageError: the messages cannot have this mark.
    """
    possible = store.features.marks
    if possible is not None and mark not in possible:
        known = f"its only mark is {', '.join(sorted(possible))}" if possible else ""
        raise UsageError(
            f"the messages of {store.label} cannot be marked {mark!r}",
            known or "its messages have no marks",
        )


async def plan_marks(store: Store, where: Selection, remark: MarkChange) -> AsyncGenerator[Edit]:
    """Yield edits that change the marks of the selected messages.

    Raises:
        UsageError: the messages of the store cannot have the new mark.
        MemctlError: as ``Store.read``.
    """
    refuse_facts(store, "marks")
    if remark.new is not None:
        require_mark(store, remark.new)
    async with aclosing(_selected(store, where, remark)) as pages:
        async for page in pages:
            changes = [
                Change(entry.id, entry.marks, new, was=entry.shape, at=at)
                for entry, at in zip(page.messages, places(store, page), strict=True)
                if (new := remark(entry.marks)) != entry.marks
            ]
            memory = page.memory
            kept = replace(memory, summary=None, version=None)
            yield Edit(kept, changes, page.offset, page.last)


def _selected(store: Store, where: Selection, remark: MarkChange) -> AsyncGenerator[Page]:
    """Yield the selected messages; with an old mark, perhaps only the messages with this mark."""
    if where.spare is not None:
        return where.apply(store.outline(whole_memories(where)), store.dialect)
    if remark.old is not None and not where.marks and where.last is None:
        return store.read(replace(where, marks=frozenset({remark.old})))
    if where.looks_inside or where.marks or where.ids:
        return store.read(where)
    # An outline has the ids and marks that select these messages.
    return where.apply(store.outline(whole_memories(where)), store.dialect)
