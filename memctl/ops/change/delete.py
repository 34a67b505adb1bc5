"""Delete the selected messages; if asked, tool calls together with their results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence, Set
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from msgspec import Struct, field

from memctl.dialects.live import live
from memctl.dialects.view import Dialect, ToolSide, Unread
from memctl.model import Change, Edit, MemoryKey, Page, StoredMessage, ToolPairPolicy
from memctl.ops.change.change import ChangeRun
from memctl.ops.select import (
    in_whole_memories,
    observed,
    places,
    reads_all,
    select_with_anchors,
    whole_memories,
)
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count


class Consequences(Struct):
    """The consequences of a deletion for messages that are not selected.

    These are the tool calls of which only the call or only the result is selected, and the messages
    that the framework reads again once the selected messages are gone.
    """

    number: int = 0
    """The number of split tool calls in memories of which all messages were read."""
    unsure: dict[MemoryKey, dict[str, ToolSide]] = field(default_factory=dict)
    """Ids of perhaps split tool calls, with the selected half, in memories read only in part."""
    markers: int = 0
    """The number of selected messages that stay: they take back messages that are not selected."""
    read_again: int = 0
    """The number of messages that the framework reads again, since their summary is selected."""


class ToolPairTracker:
    """A collection of the tool calls and results in messages of one memory."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._seen: dict[str, frozenset[ToolSide]] = {}

    def add(self, messages: list[StoredMessage]) -> None:
        """Collect the tool calls and results of the next messages."""
        for message in messages:
            for side, id in self._dialect.tool_sides(message.message):
                self._seen[id] = self._seen.get(id, frozenset()) | {side}

    def clear(self) -> None:
        """Forget all messages, before the first message of another memory."""
        self._seen.clear()

    def single(self) -> dict[str, ToolSide]:
        """Map the id of each tool call to its half, if only one half of it was added."""
        return {id: min(sides) for id, sides in self._seen.items() if len(sides) == 1}


async def plan_deletions(
    store: Store,
    where: Selection,
    pairs: ToolPairPolicy = ToolPairPolicy.SPLIT,
    effects: Consequences | None = None,
) -> AsyncGenerator[Edit]:
    """Yield edits that delete the selected messages; see ``in_whole_memories``.

    ``pairs`` says what happens if only a tool call or only its result is selected: keep both,
    delete both, or delete the selected half.  If halves are deleted, their tool calls are added to
    ``effects``.  A selected marker stays if it takes back messages that are not selected.

    Raises:
        MemctlError: as ``Store.read``.
    """
    where = await in_whole_memories(store, where)
    effects = effects or Consequences()
    splits = pairs is ToolPairPolicy.SPLIT
    uneven = {} if splits else await _paired(store, where, pairs)
    if store.dialect.leaves_out and store.dialect.depends_on_later and not where.whole:
        uneven |= await _without_markers(store, where, uneven, effects)
    selections = [where.without(frozenset(uneven))]
    for key, ids in uneven.items():
        if ids:
            selections.append(Selection(keys=frozenset({key}), ids=frozenset(ids)))
    for selection in selections:
        found = effects if splits else Consequences()
        async with aclosing(_removals(store, selection, found)) as edits:
            async for edit in edits:
                yield edit


async def _without_markers(
    store: Store, where: Selection, uneven: dict[MemoryKey, set[str]], effects: Consequences
) -> dict[MemoryKey, set[str]]:
    """Map memories with markers that stay to the ids of the messages to delete.

    ``uneven`` has such ids for some memories already.
    """
    changed: dict[MemoryKey, set[str]] = {}
    entries: list[StoredMessage] = []
    selected: set[str] = set()

    def see(page: Page) -> None:
        if page.offset == 0:
            entries.clear()
            selected.clear()
        entries.extend(page.messages)

    whole = observed(store.read(whole_memories(where)), see)
    async with aclosing(where.apply(whole, store.dialect)) as pages:
        async for page in pages:
            key = page.memory.key
            selected.update(entry.id for entry in page.messages)
            if page.last:
                ids = uneven.get(key, selected)
                markers, again = _read_again(store.dialect, entries, ids)
                if markers:
                    changed[key] = ids - markers
                effects.markers += len(markers)
                effects.read_again += again
            del page  # free a large page before the next read
    return changed


def _read_again(
    dialect: Dialect, entries: Sequence[StoredMessage], ids: Set[str]
) -> tuple[set[str], int]:
    """Return the ids of the markers that must stay, and a number of messages.

    ``entries`` is a whole memory, and ``ids`` are those of the selected messages.  If all but the
    markers are deleted, the framework reads so many messages again.
    """
    before = live(dialect, entries)
    if not before.unread:
        return set(), 0
    read = {entries[at].id for at in before.order}

    def again(without: Set[str]) -> int:
        rest = [one for one in entries if one.id not in without]
        return sum(rest[at].id not in read for at in live(dialect, rest).order)

    number, markers = again(ids), set[str]()
    for at, why in sorted(before.unread.items(), reverse=True):
        id = entries[at].id
        if number and why is Unread.NOT_FOR_MEMORY and id in ids:
            fewer = again(ids - markers - {id})
            if fewer < number:
                markers.add(id)
                number = fewer
    return markers, number


async def _removals(store: Store, where: Selection, parted: Consequences) -> AsyncGenerator[Edit]:
    every, some = ToolPairTracker(store.dialect), ToolPairTracker(store.dialect)

    def see(page: Page) -> None:
        if page.offset == 0:
            every.clear()
        every.add(page.messages)

    seen = reads_all(store, where)
    async with aclosing(select_with_anchors(store, where, see)) as pages:
        async for page in pages:
            if page.offset == 0:
                some.clear()
            some.add(page.messages)
            if page.last and (single := some.single()):
                if seen:
                    parted.number += len(single.keys() - every.single().keys())
                elif not where.whole:
                    parted.unsure[page.memory.key] = single
            yield removal(page, places(store, page))
            del page  # free a large page before the next read


def removal(page: Page, indexes: Iterable[int | None]) -> Edit:
    """Return the edit that deletes messages of a page.

    ``indexes`` has a value of ``Change.at`` for each message, as ``places`` returns.
    """
    after = page.anchors or [None] * len(page.messages)
    changes = [
        Change(
            *(entry.id, entry.marks, None, entry.message, behind, entry.position, entry.shape),
            at=at,
        )
        for entry, behind, at in zip(page.messages, after, indexes, strict=True)
    ]
    memory = page.memory
    kept = replace(memory, summary=None, version=None)
    return Edit(kept, changes, page.offset, page.last)


async def count_split_tool_calls(store: Store, parted: Consequences) -> int:
    """Return the number of tool calls that a deletion splits from their results.

    ``parted`` comes from ``plan_deletions``.  A tool call without a result in the store does not
    count, and a result without a call does not count.

    Raises:
        MemctlError: as ``Store.read``.
    """
    unsure = dict(parted.unsure)  # memories that are planned again meanwhile are not counted twice
    if not unsure:
        return parted.number
    there: set[tuple[MemoryKey, str]] = set()
    others = store.dialect.pair_matcher(
        half for halves in unsure.values() for half in halves.items()
    )
    found = store.find_messages(Selection(keys=frozenset(unsure)), others)
    async with aclosing(found) as entries:
        async for key, entry in entries:
            halves = unsure[key]
            for side, id in store.dialect.tool_sides(entry.message):
                if halves.get(id, side) != side:
                    there.add((key, id))
    return parted.number + len(there)


async def _paired(
    store: Store, where: Selection, pairs: ToolPairPolicy
) -> dict[MemoryKey, set[str]]:
    """Map each memory with split tool calls to the message ids to delete under ``pairs``."""
    keys = await _parting(store, where)
    if not keys:
        return {}
    selected: dict[MemoryKey, set[str]] = {key: set() for key in keys}
    async with aclosing(select_with_anchors(store, where.only(keys))) as pages:
        async for page in pages:
            selected[page.memory.key].update(entry.id for entry in page.messages)
    groups: dict[MemoryKey, MessageGroups] = {key: MessageGroups(store.dialect) for key in keys}
    async with aclosing(store.read(Selection(keys=keys))) as pages:
        async for page in pages:
            for entry in page.messages:
                groups[page.memory.key].add(entry)
    return {key: groups[key].settle(selected[key], pairs) for key in keys}


async def _parting(store: Store, where: Selection) -> frozenset[MemoryKey]:
    """Return the memories in which the selection may split messages that belong together."""
    keys = set()
    leads = store.dialect.holds_items and not where.whole
    calls = ToolPairTracker(store.dialect)
    async with aclosing(select_with_anchors(store, where)) as pages:
        async for page in pages:
            if page.offset == 0:
                calls.clear()
            calls.add(page.messages)
            if page.last and (leads or calls.single()):
                keys.add(page.memory.key)
    return frozenset(keys)


class MessageGroups:
    """Groups of messages of one memory that must be deleted together, or not at all.

    A tool call belongs to its result, and reasoning to the next message of the assistant.  Messages
    that share a tool call, directly or through further messages, form one group.  If a call has a
    result, a later call with the same id begins a new group.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._group: dict[str, str] = {}
        """The parent of each message in the tree of its group; the root is its own parent."""
        self._of_call: dict[str, str] = {}
        """The id of the first message with a tool call, by the id of the call."""
        self._answered: set[str] = set()
        """The ids of tool calls that have a result."""
        self._leading: list[str] = []
        """The ids of the latest messages, if these are reasoning that belongs to the next one."""

    def add(self, entry: StoredMessage) -> None:
        """Add the next message of the memory to its group."""
        for side, id in self._dialect.tool_sides(entry.message):
            if side is ToolSide.RESULT:
                self._answered.add(id)
            elif id in self._answered:
                self._answered.discard(id)
                self._of_call[id] = entry.id
            self._join(entry.id, self._of_call.setdefault(id, entry.id))
        if not self._dialect.holds_items:
            return
        view = self._dialect.outline(entry.message)
        if self._dialect.leads(view):
            self._leading.append(entry.id)
            return
        for id in self._leading if view.role == "assistant" else ():
            self._join(id, entry.id)
        self._leading.clear()

    def _join(self, id: str, other: str) -> None:
        self._group[self._root(id)] = self._root(other)

    def _root(self, id: str) -> str:
        while (above := self._group.setdefault(id, id)) != id:
            id = above
        return id

    def settle(self, selected: set[str], pairs: ToolPairPolicy) -> set[str]:
        """Return the ids of the messages to delete, so that no group is deleted in part.

        ``selected`` are the ids of the selected messages.  If only some messages of a group are
        selected, the policy DELETE deletes the whole group, and KEEP keeps it.
        """
        groups: dict[str, set[str]] = {}
        for id in list(self._group):
            groups.setdefault(self._root(id), set()).add(id)
        found = set(selected)
        for group in groups.values():
            if group & selected and not group <= selected:
                found = found | group if pairs is ToolPairPolicy.DELETE else found - group
        return found


@dataclass(eq=False)
class DeleteRun(ChangeRun):
    """A run that deletes the selected messages."""

    pairs: ToolPairPolicy = ToolPairPolicy.SPLIT
    """The policy for split tool calls."""
    _: KW_ONLY
    warn_parted: bool = False
    """True to count the tool calls that the deletion splits from their results, and warn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counts_staying = self.dry_run or self.options.approve is not None
        """True to count the messages that stay in the planned memories, for the report."""
        self._effects = Consequences()
        self._parted_tool_calls = 0

    def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        return plan_deletions(store, where, self.pairs, self._effects)

    def details(self) -> dict[str, Any]:
        """Return the number of split tool calls for the report; empty if there are none."""
        parted = self._parted_tool_calls
        return {"parted_tool_calls": parted} if parted else {}

    async def check(self, store: Store) -> None:
        """Work out ``most``, the largest number of messages to delete, from ``--max-delete``.

        With ``counts_staying``, also count the messages that stay, in ``report.staying``.
        """
        planned = self.report.planned_by_memory
        if self.counts_staying and planned:
            named = Selection(keys=frozenset(planned))
            async with aclosing(store.list_memories(named)) as infos:
                async for info in infos:
                    self.report.staying[info.key] = info.messages - planned[info.key]
        self.most = await self.most_allowed(store)

    async def after_plan(self, store: Store) -> None:
        """Warn of a program that only marks rows, and of the side effects of the deletion.

        Without ``warn_parted``, tool calls are not counted.
        """
        if store.dialect.soft_deletion and self.report.planned.deleted:
            self._observer.warn(
                f"the program of {store.label} reads the rows with {store.dialect.soft_deletion}, "
                "and marks others: memctl deletes rows"
            )
        if self._effects.markers:
            self._observer.warn(
                f"{count(self._effects.markers, 'marker')} will stay: the messages that they take "
                "back are not selected, and agents would read these again"
            )
        if self._effects.read_again:
            self._observer.warn(
                f"agents will read {count(self._effects.read_again, 'message')} again, since a "
                "summary is selected and the messages for which it stands are not"
            )
        if self.warn_parted and (number := await count_split_tool_calls(store, self._effects)):
            self._parted_tool_calls = number
            calls = count(number, "tool call")
            self._observer.warn(
                f"the selection separates {calls} from the result: keep both with "
                "--keep-tool-pairs, delete both with --with-tool-pairs"
            )
