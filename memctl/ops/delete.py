"""Which messages are deleted: the selected ones, tool calls and their results together if asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

from memctl.model import Change, Edit, Entry, Memory, MemoryKey, Page
from memctl.ops.chosen import chosen
from memctl.ops.tools import Calls, tool_blocks, tool_ids
from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing


class Pairs(StrEnum):
    """What to do where the selection parts a tool call from its result."""

    PART = "part"
    KEEP = "keep"
    TAKE = "take"


@dataclass(slots=True)
class Parted:
    """Tool calls whose result is elsewhere, and the reverse, by memory."""

    found: dict[MemoryKey, dict[str, str]] = field(default_factory=dict)
    """The half that is selected of each call of which only one is, or there is only one."""


async def deletions(
    store: Store, where: Selection, pairs: Pairs = Pairs.PART, parted: Parted | None = None
) -> AsyncIterator[Edit]:
    """Edits that take away the selected messages.

    Raises:
        MemctlError: as ``Store.read``.
    """
    if pairs is Pairs.PART:
        async with closing(_removals(chosen(store, where), parted or Parted())) as edits:
            async for edit in edits:
                yield edit
        return
    uneven = await _paired(store, where, pairs)
    rest = where.without(frozenset(uneven))
    async with closing(_removals(chosen(store, rest), Parted())) as edits:
        async for edit in edits:
            yield edit
    for key, ids in uneven.items():
        if ids:
            only = Selection(keys=frozenset({key}), ids=frozenset(ids))
            async with closing(_removals(chosen(store, only), Parted())) as edits:
                async for edit in edits:
                    yield edit


async def _removals(pages: AsyncIterator[Page], parted: Parted) -> AsyncIterator[Edit]:
    calls = Calls()
    async with closing(pages):
        async for page in pages:
            if page.offset == 0:
                calls = Calls()
            for entry in page.entries:
                calls.add(entry)
            if page.last and (single := calls.single()):
                parted.found[page.memory.key] = single
            yield removal(page)


def removal(page: Page) -> Edit:
    """The edit that takes away the messages of a page; nothing else of the memory changes."""
    after = page.after or [None] * len(page.entries)
    changes = [
        Change(entry.id, entry.marks, None, entry.message, behind, entry.index)
        for entry, behind in zip(page.entries, after, strict=True)
    ]
    memory = page.memory
    kept = Memory(memory.key, None, memory.ttl, memory.place)
    return Edit(kept, changes, page.offset, page.last)


async def count_parted(store: Store, parted: Parted) -> int:
    """How many of these tool calls are parted from a result that stays, or the reverse.

    The others never had their other half.

    Raises:
        MemctlError: as ``Store.read``.
    """
    if not parted.found:
        return 0
    there: set[tuple[MemoryKey, str]] = set()
    async with closing(store.read(Selection(keys=frozenset(parted.found)))) as pages:
        async for page in pages:
            key = page.memory.key
            halves = parted.found[key]
            for entry in page.entries:
                for kind, id in tool_blocks(entry):
                    if halves.get(id, kind) != kind:
                        there.add((key, id))
    return len(there)


async def _paired(store: Store, where: Selection, pairs: Pairs) -> dict[MemoryKey, set[str]]:
    """The memories in which the selection parts a pair, with the ids that are to go after all."""
    parted = Parted()
    async with closing(_removals(chosen(store, where), parted)) as edits:
        async for _ in edits:
            pass
    if not parted.found:
        return {}
    keys = frozenset(parted.found)
    selected: dict[MemoryKey, set[str]] = {key: set() for key in keys}
    async with closing(chosen(store, where.only(keys))) as pages:
        async for page in pages:
            selected[page.memory.key].update(entry.id for entry in page.entries)
    groups: dict[MemoryKey, Groups] = {key: Groups() for key in keys}
    async with closing(store.read(Selection(keys=keys))) as pages:
        async for page in pages:
            for entry in page.entries:
                groups[page.memory.key].add(entry)
    return {key: groups[key].settle(selected[key], pairs) for key in keys}


class Groups:
    """Messages of one memory that belong together: they share calls, directly or by others."""

    def __init__(self) -> None:
        self._group: dict[str, str] = {}
        self._of_call: dict[str, str] = {}

    def add(self, entry: Entry) -> None:
        """Takes the next message."""
        for id in tool_ids(entry):
            first = self._of_call.setdefault(id, entry.id)
            self._group[self._root(entry.id)] = self._root(first)

    def _root(self, id: str) -> str:
        while (above := self._group.setdefault(id, id)) != id:
            id = above
        return id

    def settle(self, selected: set[str], pairs: Pairs) -> set[str]:
        """The messages that go, when no group is parted."""
        groups: dict[str, set[str]] = {}
        for id in list(self._group):
            groups.setdefault(self._root(id), set()).add(id)
        found = set(selected)
        for group in groups.values():
            if group & selected and not group <= selected:
                found = found | group if pairs is Pairs.TAKE else found - group
        return found
