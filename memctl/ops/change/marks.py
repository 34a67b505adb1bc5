"""Change the marks of messages, as AgentScope's ``update_messages_mark`` does.

Source: ``memory/_working_memory/_in_memory_memory.py`` of agentscope 1.0.21.  A new mark without an
old mark is added to each message.  An old mark without a new mark is removed.  If both are given,
the new mark replaces the old mark in messages with the old mark.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from msgspec import Struct

from memctl.errors import UsageError
from memctl.model import Change, Edit, Page
from memctl.ops.select import places, whole_memories
from memctl.selection import Selection
from memctl.store import Store, refuse_facts

Marks = tuple[str, ...]


class MarkChange(Struct, frozen=True):
    """A change of marks: add ``new``, remove ``old``, or with both, replace ``old`` by ``new``."""

    new: str | None = None
    old: str | None = None

    def __call__(self, marks: Marks) -> Marks:
        """Return the marks of a message after the change, which may be equal to ``marks``."""
        if self.old is not None and self.old not in marks:
            return marks
        left = tuple(mark for mark in marks if mark != self.old)
        if self.new is None or self.new in left:
            return left
        return (*left, self.new)


def require_mark(store: Store, mark: str, way_out: str = "") -> None:
    """Refuse a mark that messages of the store cannot have; ``way_out`` is added to the hint.

    Raises:
        UsageError: the messages of the store cannot have the mark.
    """
    possible = store.features.marks
    if possible is not None and mark not in possible:
        known = f"its only mark is {', '.join(sorted(possible))}" if possible else ""
        raise UsageError(
            f"the messages of {store.label} cannot be marked {mark!r}",
            (known or "its messages have no marks") + (way_out and f"; {way_out}"),
        )


async def plan_marks(store: Store, where: Selection, remark: MarkChange) -> AsyncGenerator[Edit]:
    """Yield edits that apply the change ``remark`` to the marks of the selected messages.

    Raises:
        UsageError: the messages of the store cannot have the new mark, or are facts.
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
    """Yield the selected messages, with at least those that have the old mark of ``remark``."""
    if where.spare is not None:
        return where.apply(store.outline(whole_memories(where)), store.dialect)
    if remark.old is not None and not where.marks and where.last is None:
        return store.read(replace(where, marks=frozenset({remark.old})))
    if where.looks_inside or where.marks or where.ids:
        return store.read(where)
    # An outline has the ids and marks that select these messages.
    return where.apply(store.outline(whole_memories(where)), store.dialect)
