"""Change marks, as AgentScope's ``update_messages_mark`` does, and the marks with a meaning.

Source: ``memory/_working_memory/_in_memory_memory.py`` of agentscope 1.0.21: with a new mark alone
it is added where it is missing, with an old one alone that is removed where it is, with both the
new one takes the place of the old where that is.
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
"""AgentScope's mark of what is for one step of reasoning only (``agent/_react_agent.py``)."""
COMPRESSED = "compressed"
"""AgentScope's mark of messages that a summary stands for (``agent/_react_agent.py``)."""
SUMMARY = "summary"
"""memctl's mark of a message that is such a summary."""


Marks = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MarkChange:
    """A mark to add, one to take away, or both: then only messages with the old one change."""

    new: str | None = None
    old: str | None = None

    def __call__(self, marks: Marks) -> Marks:
        """The marks of a message afterwards."""
        if self.old is not None and self.old not in marks:
            return marks
        left = tuple(mark for mark in marks if mark != self.old)
        if self.new is None or self.new in left:
            return left
        return (*left, self.new)


def require_mark(store: Store, mark: str) -> None:
    """Check that messages of the store can have a mark.

    Raises:
        UsageError: they cannot have it, or any.
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
        UsageError: the messages of the store cannot have the new mark, or any.
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
    """The selected messages, or as many of them as the old mark is on."""
    if where.spare is not None:
        return where.apply(store.outline(whole_memories(where)), store.dialect)
    if remark.old is not None and not where.marks and where.last is None:
        return store.read(replace(where, marks=frozenset({remark.old})))
    if where.looks_inside or where.marks or where.ids:
        return store.read(where)
    # Where ids and marks tell, messages need not be read.
    return where.apply(store.outline(whole_memories(where)), store.dialect)
