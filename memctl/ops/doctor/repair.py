"""Repair the findings of ``check``: by a plan of edits, or by repairs of the store itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Set
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

from msgspec import structs

from memctl.dialects.live import understood
from memctl.dialects.view import (
    COMPRESSED,
    INTERRUPTED,
    Block,
    Dialect,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.errors import Failure, UsageError
from memctl.journal.repairs import (
    QUARANTINE,
    REPAIRS,
    Record,
    RecordWriter,
    quarantine_of,
    read_records,
)
from memctl.json import jsonio
from memctl.model import (
    NO_MEMORY,
    Change,
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
)
from memctl.ops.change.apply import Held
from memctl.ops.change.change import ChangeRun
from memctl.ops.data_subject import readings
from memctl.ops.doctor.check import (
    ANSWERED,
    UNMARKED,
    Limits,
    MemoryExaminer,
    MemoryRepairs,
    MessageRepair,
    examinations,
    examiner,
    is_better,
    without_mark,
)
from memctl.ops.doctor.findings import KINDS, ORDER, RepairMethod
from memctl.ops.select import places
from memctl.ops.side_effects import refuse_side_effects
from memctl.selection import Selection
from memctl.store import Deletion, Store

EDITED = frozenset(code for code, kind in KINDS.items() if kind.repair is RepairMethod.EDIT)
"""The codes of the findings that edits of messages repair."""

QUARANTINED = frozenset(
    code for code, kind in KINDS.items() if kind.repair is RepairMethod.QUARANTINE
)
"""The codes of the findings whose repair moves damaged data into the quarantine file of the run."""

_ADDING = frozenset({"no-session-index"})
"""The codes of the findings whose repair by the store removes and replaces nothing."""

_AFTER = timedelta(microseconds=1)


class RepairPlanner:
    """A planner of edits that repair findings; a ``Planner`` for ``ChangeRun``.

    A memory is repaired only if a second examination, after the repair, would find no new problem
    and plan no further repair.
    """

    def __init__(self, codes: frozenset[str], limits: Limits) -> None:
        """``codes`` are the codes of the findings to repair; codes without edits are ignored."""
        self._codes = codes & EDITED
        self._limits = limits
        self.repaired_by_key: dict[MemoryKey, Counter[str]] = {}
        """The number of planned repairs by code of the finding, for each memory."""
        self.deleted: Counter[MemoryKey] = Counter()
        """The number of messages to delete in each memory, without those to rewrite."""
        self.left: set[MemoryKey] = set()
        """The memories that stay as they are, because a repair would lead to other findings."""

    async def __call__(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        """Yield the edits that repair the selected memories.

        The first pass over the store examines the memories.  The second pass tries the repairs, the
        third plans the edits; both read only memories with repairs.

        Raises:
            MemctlError: as ``Store.read``.
        """
        examined = await self._examine(store, where)
        found = await self._tried(store, where, examined) if examined else {}
        self.left |= examined.keys() - found.keys()
        if not found:
            return
        async with aclosing(store.read(where.only(frozenset(found)))) as pages:
            plan: _Plan | None = None
            async for page in pages:
                if page.offset == 0 or plan is None:
                    plan = _Plan(page.memory, found[page.memory.key], store.dialect)
                    self.repaired_by_key[page.memory.key] = plan.repaired
                edit = plan.edit(page, places(store, page))
                self.deleted[page.memory.key] = plan.deleted
                if edit.changes or (edit.last and edit.offset):
                    yield edit
                if page.last:
                    plan = None
                del page, edit  # free a large page before the next read

    async def _examine(
        self, store: Store, where: Selection
    ) -> dict[MemoryKey, tuple[MemoryRepairs, Counter[str]]]:
        """Return the planned repairs of each memory to repair, and its findings by code."""
        found: dict[MemoryKey, tuple[MemoryRepairs, Counter[str]]] = {}
        examined = examinations(store, where, self._limits, treated=self._codes)
        async with aclosing(examined) as memories:
            async for memory in memories:
                if isinstance(memory, MemoryExaminer):
                    counts = _counts(memory)
                    if memory.repairs.needed:
                        found[memory.key] = memory.repairs, counts
        return found

    async def _tried(
        self,
        store: Store,
        where: Selection,
        examined: dict[MemoryKey, tuple[MemoryRepairs, Counter[str]]],
    ) -> dict[MemoryKey, MemoryRepairs]:
        """Return the repairs that cause no new findings.

        The repairs are tried on the messages, without a change of the store.
        """
        found: dict[MemoryKey, MemoryRepairs] = {}
        pages = understood(store.read(where.only(frozenset(examined))), store.dialect)
        async with aclosing(pages):
            plan: _Plan | None = None
            after: MemoryExaminer | None = None
            ids, repeated = set[int](), set[int]()
            async for page in pages:
                repairs, counts = examined[page.memory.key]
                if page.offset == 0 or plan is None or after is None:
                    plan = _Plan(page.memory, repairs, store.dialect)
                    made = examiner(store, page.memory, limits=self._limits, treated=self._codes)
                    assert isinstance(made, MemoryExaminer)
                    after = made
                    ids, repeated = set(), set()
                plan.edit(page, places(store, page))
                for one in map(hash, (entry.id for entry in plan.left)):
                    (repeated if one in ids else ids).add(one)
                after.take(structs.replace(page, messages=plan.left))
                if page.last:
                    is_good = is_better(counts, _counts(after)) and plan.put.isdisjoint(repeated)
                    if is_good and after.repairs.codes() == plan.undone:
                        found[page.memory.key] = repairs
                    plan = after = None
                del page  # free a large page before the next read
        return found


def _counts(memory: MemoryExaminer) -> Counter[str]:
    return Counter({one.code: one.count for one in memory.faults()})


class _Plan:
    """The edits that repair one memory, made page by page."""

    def __init__(self, memory: Memory, repairs: MemoryRepairs, dialect: Dialect) -> None:
        self._dialect = dialect
        self._memory = replace(memory, summary=None)
        self._repairs = repairs
        self._kept: str | None = None
        """The id of the last message so far that stays in the memory."""
        self._behind: str | None = None
        """The id of the last message so far that was not read; see ``Page.anchors``."""
        self._planned = 0
        """The number of changes so far."""
        self._left = 0
        """The number of messages so far that the memory has after the edits."""
        self.deleted = 0
        """The number of messages so far that are gone after the edits."""
        self.repaired: Counter[str] = Counter()
        """The number of repaired findings, by code."""
        self.undone: Counter[str] = Counter()
        """The number of findings, by code, that stay because a message cannot be rewritten."""
        self.put: set[int] = set()
        """Hashes of the ids of inserted messages."""
        self.left: list[StoredMessage] = []
        """The messages of the last page, as they are after the edits."""

    def edit(self, page: Page, indexes: Iterable[int | None]) -> Edit:
        changes: list[Change] = []
        self.left = []
        anchors = page.anchors or repeat(None)
        entries = zip(page.messages, indexes, anchors, strict=False)
        for place, (entry, at, behind) in enumerate(entries, page.offset):
            if behind != self._behind:
                self._kept = self._behind = behind
            changes += self._changes(entry, place, at)
        edit = Edit(self._memory, changes, self._planned, page.last)
        self._planned += len(changes)
        return edit

    def _changes(self, entry: StoredMessage, place: int, at: int | None) -> list[Change]:
        repair = self._repairs.messages.get(place)
        # An edit needs an id; and a message that changed meanwhile was not examined.
        if not entry.id or (repair and (repair.id, repair.digest) != _seen(entry)):
            repair = None
        if repair is not None and repair.goes:
            self.repaired.update(code for code in repair.goes if code)
            self.deleted += 1
            return [self._removal(entry, at)]
        if repair is not None and (repair.removed or repair.answered):
            changes = self._rewriting(entry, repair, at)
            if changes:
                return changes
            self.undone.update(repair.removed.values())
            if self._dialect.answers_within:
                self.undone[ANSWERED] += len(repair.answered)
        self._kept = entry.id
        self._left += 1
        changes = []
        marks = self._marks(entry, repair)
        if marks != entry.marks:
            changes.append(Change(entry.id, entry.marks, marks, was=entry.shape, at=at))
        self.left.append(entry._replace(marks=marks))
        if repair is not None and repair.answered and not self._dialect.answers_within:
            changes += self._answers(entry, repair, at)
        return changes

    def _put(
        self, id: str, entry: StoredMessage, at: int | None, marks: tuple[str, ...] = ()
    ) -> Change:
        """Return the change that inserts ``entry`` after the last message that stays.

        ``id`` is the id of the inserted message.  ``at`` is None if ids are unique in the store.
        """
        self._left += 1
        self.left.append(StoredMessage(id, entry.message, marks))
        self.put.add(hash(id))
        return Change(
            *(id, None, marks, entry.message, self._kept, entry.position),
            shape=entry.shape,
            to=None if at is None else self._left - 1,
        )

    def _removal(self, entry: StoredMessage, at: int | None) -> Change:
        return Change(
            *(entry.id, entry.marks, None, entry.message, self._kept),
            *(entry.position, entry.shape),
            at=at,
        )

    def _rewriting(
        self, entry: StoredMessage, repair: MessageRepair, at: int | None
    ) -> list[Change]:
        """Return the changes that replace or delete a message; empty if it cannot be rewritten."""
        if self._dialect.other_texts(entry.shape):  # the model and the reports read different texts
            return []
        text: bytes | None = entry.message
        if repair.removed:
            text = _without_blocks(entry.message, repair.removed, self._dialect)
            if text is None:
                return []
        if text and repair.answered and self._dialect.answers_within:
            results = [_result(tool) for tool in repair.answered]
            text = self._dialect.answer(text, results)
            self.repaired[ANSWERED] += len(results)
        if text == entry.message:
            return []
        self.repaired.update(repair.removed.values())
        changes = [self._removal(entry, at)]
        if text:
            id = self._dialect.message_id(jsonio.loads(text)) or entry.id
            changes.append(self._put(id, entry._replace(message=text), at, entry.marks))
            if not self._dialect.answers_within:
                changes += self._answers(entry, repair, at)
        else:
            self.deleted += 1
        return changes

    def _answers(self, entry: StoredMessage, repair: MessageRepair, at: int | None) -> list[Change]:
        """Return the changes that insert missing results of tool calls."""
        self.repaired[ANSWERED] += len(repair.answered)
        moment = self._dialect.outline(entry.message).moment or datetime.now()
        changes = []
        for tool in repair.answered:
            moment += _AFTER  # some stores order messages by time
            id, message = self._dialect.author("system", "system", [_result(tool)], moment)
            changes.append(self._put(id, StoredMessage(id, message), at))
        return changes

    def _marks(self, entry: StoredMessage, repair: MessageRepair | None) -> tuple[str, ...]:
        if self._repairs.unmarked:
            if COMPRESSED in entry.marks:
                self.repaired[UNMARKED] += 1
            return without_mark(entry.marks)
        if repair is None or repair.compressed is None:
            return entry.marks
        code, compressed = repair.compressed
        self.repaired[code] += 1
        marks = without_mark(entry.marks)
        return (*marks, COMPRESSED) if compressed else marks


def _seen(entry: StoredMessage) -> tuple[str, int]:
    return entry.id, hash(entry.message)


def _result(tool: ToolCallBlock) -> ToolResultBlock:
    """Return a result that says that a tool call was interrupted."""
    return ToolResultBlock(tool.id, tool.name, lambda: [TextBlock(f"{INTERRUPTED}.")])


def _without_blocks(text: bytes, gone: Iterable[int], dialect: Dialect) -> bytes | None:
    """Return a message without the blocks at the indexes ``gone``.

    Empty if no content would remain.  None if other blocks would change.
    """
    view = dialect.parse(text)
    blocks = view.blocks
    kept = [block for index, block in enumerate(blocks) if index not in set(gone)]
    if not view.unread and not any(map(_says_something, kept)):
        return b""
    removed = {id(blocks[index].value) for index in gone}
    value = _without_values(view.value, removed)
    message = jsonio.dumps(value)
    left = dialect.parse(message).blocks
    return message if list(map(_name, left)) == list(map(_name, kept)) else None


def _says_something(block: Block) -> bool:
    return not isinstance(block, TextBlock) or bool(block.text.strip())


def _name(block: Block) -> tuple[str, str]:
    """Return the type of a block, and the id of its tool call or ""."""
    called = block.id if isinstance(block, ToolCallBlock | ToolResultBlock) else ""
    return type(block).__name__, called


def _without_values(value: Any, gone: set[int]) -> Any:
    """Return a JSON value without list items whose ``id()`` is in ``gone``."""
    if isinstance(value, dict):
        return {name: _without_values(one, gone) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_values(one, gone) for one in value if id(one) not in gone]
    return value


class StoreRepairs:
    """The repairs that the store makes itself, with their planned and finished numbers by code."""

    def __init__(self, codes: frozenset[str]) -> None:
        self._codes = codes
        self._found: dict[MemoryKey | None, Counter[str]] = {}
        """The planned repairs of each memory, by code; for None, of data of no known memory."""
        self.done: Counter[str] = Counter()
        self.ended = False
        """True if the planned repairs were made, as far as the data had not changed since."""
        self.noted = 0
        """The number of parts recorded for undo, each of which may have been repaired since."""

    @property
    def planned(self) -> Counter[str]:
        """The number of planned repairs, by code."""
        return sum(self._found.values(), Counter[str]())

    @property
    def quarantined(self) -> int:
        """The number of damaged data that planned repairs move into the quarantine file."""
        planned = self.planned
        return sum(planned[code] for code in QUARANTINED)

    async def plan(self, store: Store, where: Selection) -> bool:
        """Count the repairs to make in ``planned``; return False if there are none.

        The selected memories must have been read from the store before.

        Raises:
            MemctlError: as ``Maintenance.check``.
        """
        self._found.clear()
        async with aclosing(store.maintenance().check(where)) as findings:
            async for finding in findings:
                if finding.code in self._codes & store.features.repairs:
                    self._found.setdefault(finding.key, Counter())[finding.code] += finding.count
        return bool(self._found)

    def leave_held(self, held: Held) -> list[tuple[MemoryKey, Failure]]:
        """Drop the planned repairs that remove or replace something held; return the failures.

        Damaged data of no known memory may be those of any hold: then all data with this code stay.
        """
        failures: list[tuple[MemoryKey, Failure]] = []
        nameless: Set[str] = frozenset()
        for key in sorted(self._found, key=lambda key: key is not None):  # None first
            codes = self._found[key]
            touched = codes.keys() - _ADDING
            asked = NO_MEMORY if key is None and not touched & QUARANTINED else key
            failure = held(asked) if touched - nameless else None
            if failure is not None:
                failures.append((key or NO_MEMORY, failure))
                nameless = touched if key is None else nameless
            for code in touched if failure is not None else nameless:
                codes.pop(code, None)
        self._found = {key: codes for key, codes in self._found.items() if codes}
        return failures

    async def carry_out(self, store: Store, where: Selection, folder: Path) -> None:
        """Have the store make the planned repairs.

        Each part of a repair is recorded in ``folder``, the folder of the run, before the store is
        changed durably.

        Raises:
            MemctlError: as ``Maintenance.repair``; each recorded part is either repaired or
                unchanged.
        """
        planned = self.planned
        repairs, quarantine = RecordWriter(folder / REPAIRS), RecordWriter(folder / QUARANTINE)
        with repairs, quarantine:

            async def note(record: Record) -> None:
                writer = quarantine if record["code"] in QUARANTINED else repairs
                await asyncio.to_thread(writer.add, record)
                self.noted += 1

            for code in KINDS:  # marks before the expiries of their lists
                if code in planned:
                    self.done[code] += await store.maintenance().repair(code, where, note)
        self.ended = True


async def revert_repairs(store: Store, folder: Path) -> int:
    """Undo the repairs that the store made itself in a run.

    Return the number of restored keys, rows or ids.  ``folder`` is the folder of the run.  Damaged
    data in the quarantine file of the folder are not restored.

    Raises:
        MemctlError: as ``Maintenance.revert``.
    """

    async def records() -> AsyncGenerator[Record]:
        found: Iterator[Record] = read_records(folder / REPAIRS)
        while (record := await asyncio.to_thread(next, found, None)) is not None:
            yield record

    return await store.maintenance().revert(records())


def count_records(folder: Path, code: str) -> int:
    """Return how many repairs with this code the run in ``folder`` recorded."""
    return sum(record["code"] == code for record in read_records(folder / REPAIRS))


@dataclass(eq=False)
class RepairRun(ChangeRun):
    """A run that repairs the findings with the given codes: by edits, and by the store itself."""

    codes: frozenset[str]
    limits: Limits

    def __post_init__(self) -> None:
        super().__post_init__()
        self._repairs = RepairPlanner(self.codes, self.limits)
        self._store_repairs = StoreRepairs(self.codes)
        self.report.changed = set()

    def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        return self._repairs(store, where)

    @property
    def planned(self) -> int:
        """The number of planned changes of messages and repairs of the store."""
        return self.report.planned.messages + self._store_repairs.planned.total()

    @property
    def deleted(self) -> int:
        """The number of messages to delete, and of damaged data to move out of the store."""
        return self._repairs.deleted.total() + self._store_repairs.quarantined

    @property
    def noun(self) -> str:
        return "item" if self._store_repairs.quarantined else self.report.noun

    def repaired(self) -> list[Finding]:
        """Return a finding for each code, with the number of its repairs.

        In a dry run, these are the planned repairs.
        """
        if self.dry_run:
            return self.repairable()
        changed = self.report.changed or set()
        edited = {
            key: codes for key, codes in self._repairs.repaired_by_key.items() if key in changed
        }
        return _sorted(edited, self._store_repairs.done)

    def repairable(self) -> list[Finding]:
        """Return the findings that the plan repairs, each with their number."""
        return _sorted(self._repairs.repaired_by_key, self._store_repairs.planned)

    async def plan(self, store: Store) -> bool:
        """Plan the edits and the repairs of the store; return False if there are none."""
        store.refuse_edits()
        store.skip_damage()  # damage must not stop its repair
        something = await super().plan(store)
        if left := len(self._repairs.left):
            memories = "1 memory is" if left == 1 else f"{left:,} memories are"
            self._observer.warn(
                f"{memories} left as found: after a repair of some findings there would be others"
            )
        if await self._store_repairs.plan(store, self.where) and self._leave_held(store):
            await refuse_side_effects(store, self.where, Deletion.REPAIRS)
            something = True
        if self._store_repairs.quarantined and not self.options.backup:
            raise UsageError(
                "--no-backup cannot be combined with a repair that moves damaged data",
                "leave out --no-backup: the quarantine file is a part of the backup",
            )
        # A message that is rewritten is deleted and restored.
        more = self.report.planned.deleted - self.deleted
        self.most = await self.most_allowed(store) + more
        return something

    async def carry_out(self, store: Store) -> None:
        """Edit the messages, then have the store make its own repairs."""
        if self.report.planned.memories:
            await super().carry_out(store)
        if not self._leave_held(store):
            return
        self.begin()
        with self._observer.progress("repairing"):
            await self._store_repairs.carry_out(store, self.where, self.journal.folder)

    def _leave_held(self, store: Store) -> bool:
        """Leave held memories as they are; return whether repairs of the store are left to do."""
        failures = self._store_repairs.leave_held(self.held(store))
        self.report.failures += failures
        held = (one for key, _ in failures for one in readings(store.kind, key))
        self.where = self.where.without(frozenset(held))
        return bool(self._store_repairs.planned)

    @property
    def quarantine(self) -> Path | None:
        """The file with damaged data that were moved out of the store; None if there is none."""
        return None if self.dry_run else quarantine_of(self.journal.folder)

    def done(self) -> str:
        """Return the numbers of changed memories and of repairs of the store as a text.

        The text is empty if both are zero.
        """
        repairs, repaired = self._store_repairs, ""
        if repairs.noted:
            number = repairs.done.total()
            some = f"at least {number:,}" if number else "perhaps some"
            repaired = f"{some} repairs of the store"
        return " and ".join(filter(None, [super().done(), repaired]))

    def left(self) -> str:
        """Return the number of memories, and whether repairs of the store are left to do."""
        repairs = self._store_repairs
        waiting = bool(repairs.planned) and not repairs.ended
        return " and ".join(filter(None, [super().left(), "repairs of the store" * waiting]))

    def counts(self) -> dict[str, int]:
        """Return the numbers of changed messages, and of repairs of the store, for the journal."""
        repaired = self._store_repairs.done.total()
        return super().counts() | ({"mended": repaired} if repaired else {})


def _sorted(
    edited: Mapping[MemoryKey, Mapping[str, int]], repairs: Mapping[str, int]
) -> list[Finding]:
    """Return the numbers of repairs as findings, in the order of reports."""
    found = [
        Finding(code, key, number)
        for key, codes in edited.items()
        for code, number in codes.items()
        if number
    ]
    found += [Finding(code, None, number) for code, number in repairs.items() if number]
    return sorted(found, key=lambda one: (ORDER[one.code], one.key or ("", "", "")))
