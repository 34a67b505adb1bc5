"""Undo the changes of a run.

The recorded changes of the run are read twice.  The first pass checks that everything that the run
changed in a memory is still as after the run.  The second pass plans the reverse changes.  Messages
that are newer than the run stay in place.  A memory that the run did not reach, or that was undone
before, stays unchanged.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing, closing, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from memctl.dialects.registry import DIALECTS
from memctl.errors import BadData, Failure
from memctl.journal import runs
from memctl.journal.changes import read_changes, repeats
from memctl.journal.repairs import REPAIRS, quarantine_of
from memctl.journal.runs import Note
from memctl.json import jsonio
from memctl.model import NO_MEMORY, Change, Edit, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.change.change import ChangeRun
from memctl.ops.change.delete import removal
from memctl.ops.doctor.repair import count_records, revert_repairs
from memctl.ops.recreated import refuse_recreated
from memctl.ops.select import places, select_with_anchors
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.storekit.facts import decoded, encoded
from memctl.text.numbers import count
from memctl.wrappers.converted import shown_as

GROUP_CHANGES = 50_000
"""The approximate number of recorded changes that are checked against the store at once."""

Marks = tuple[str, ...]
UndoConflicts = list[tuple[MemoryKey, Failure]]
"""Memories that cannot be undone, with the reasons."""


async def plan_undo(
    store: Store,
    parts: Sequence[Path],
    where: Selection,
    refused: UndoConflicts,
    notes: Callable[[MemoryKey], Note] = lambda _: Note(),
    removing: set[MemoryKey] | None = None,
) -> AsyncGenerator[Edit]:
    """Yield edits that undo a run in the memories that ``where`` selects.

    ``parts`` are the files with the changes of the run, in the order of writing.  If several files
    have changes of a memory, the store refused all but the changes in the last file.  A memory that
    cannot be undone is added to ``refused``.  ``notes`` returns the note that the store made on a
    memory during the run.  A memory from which the edits remove something is added to ``removing``
    before its first edit.

    Raises:
        BadData: a file is damaged.
        MemctlError: as ``Store.read``.
    """
    removing = set() if removing is None else removing
    for number, path in enumerate(reversed(parts), 1):
        done: set[MemoryKey] | None = set() if number < len(parts) else None
        async with aclosing(
            _reversals(store, path, where, refused, done, notes, removing)
        ) as edits:
            async for edit in edits:
                if edit.offset == 0:
                    note = notes(edit.memory.key)
                    shared_ids = frozenset(note.shared_ids)
                    yield structs.replace(edit, before=note.before, shared_ids=shared_ids)
                else:
                    yield edit
        if done is not None:
            where = where.without(frozenset(done))


async def _reversals(
    store: Store,
    path: Path,
    where: Selection,
    refused: UndoConflicts,
    done: set[MemoryKey] | None,
    notes: Callable[[MemoryKey], Note],
    removing: set[MemoryKey],
) -> AsyncGenerator[Edit]:
    """Yield edits that undo the changes in the file ``path``; add their memories to ``done``."""
    for group in _groups(path, where, notes):
        cases = group.cases
        if done is not None:
            done.update(cases)
        await _look(store, group)
        removing.update(key for key, case in cases.items() if case.removes)
        group.compare()
        await _compare_replaced(store, path, cases)
        for key, case in cases.items():
            if case.unseen:
                case.unseen -= await store.find_places(key, frozenset(case.unseen))
        for key in [key for key, case in cases.items() if case.is_half_done]:
            yield _summarised(Edit(Memory(key), []), cases)
            del cases[key]
        facts = store.dialect.facts
        keys = {key for key, case in cases.items() if case.verdict(refused, key, facts=facts)}
        added = frozenset(key for key in keys if cases[key].changes == cases[key].additions > 0)
        if added:
            async with aclosing(select_with_anchors(store, group.selection(added))) as pages:
                async for page in pages:
                    found = cases[page.memory.key].added(page, group.changed(page))
                    yield _summarised(removal(found, places(store, found)), cases)
                    del page, found  # free a large page before the next read
        for edit in _reversed(path, keys - added):
            yield cases[edit.memory.key].placed(edit)
        del group, cases  # free them before the next group is read


@dataclass(slots=True)
class _RunEffect:
    """The recorded changes of a run in one memory, compared with the present memory."""

    number: int
    """The number of the memory in its group."""
    edit: InitVar[Edit]
    """The run's first edit of the memory."""
    note: InitVar[Note]
    """The store's note on the memory."""
    shared_ids: Mapping[str, int] = field(init=False)
    """The ids of deleted messages, with the number of remaining messages that share the id."""
    noted: bool = field(init=False)
    summary: tuple[str | None, str | None] = field(init=False)
    """The summaries before and after the run; the second is None if the run changed none."""
    _owner: str | None = field(init=False)
    found: bool = False
    records: int = 0
    """The number of records of the memory so far."""
    changes: int = 0
    """The number of changes that the run made in the memory."""
    additions: int = 0
    """The number of changes that inserted a message."""
    _now: str | None = None
    """The present summary; None if the store has no place for summaries, or no such memory."""
    _as_before: bool = True
    """True if the changed messages have the marks that they had before the run."""
    _misfit: tuple[int, str] | None = None
    """The number of the first change that does not fit the present messages, and the reason."""
    replaced: list[str] = field(default_factory=list)
    """The ids of messages that the run deleted and inserted again with another text."""
    _replaced: dict[str, _Replaced] = field(default_factory=dict)
    """The digests of replaced messages, by id."""
    unseen: set[str] = field(default_factory=set)
    """The ids of messages that deleted messages followed, but that do not exist now."""
    _shared: dict[str, _SharedId] = field(default_factory=dict)
    """The changed messages that share their id with others, by id."""
    _shared_anchors: set[str] = field(default_factory=set)
    """The ids that deleted messages followed, and that several present messages have."""
    _stays: str | None = None
    """The id of the last message so far that the run did not add; None if there is none."""
    _behind: str | None = None
    """The anchor of the message ``_stays``.

    A message that followed this anchor now follows the message ``_stays``.
    """
    _next: int = 0
    """The index after the last message that was passed to ``added``."""

    def __post_init__(self, edit: Edit, note: Note) -> None:
        self.shared_ids = note.shared_ids
        self.noted = bool(note.before)
        self.summary = (edit.summary, edit.memory.summary)
        self._owner = edit.memory.owner

    def add(self, edit: Edit, *, again: bool) -> None:
        """Count the changes of the run's next edit of the memory.

        ``again`` is True if all edits of the memory count, and False if the last ones count.
        """
        self.records += edit.offset == 0 and not again
        if edit.memory.summary is not None:
            old = edit.summary if self.summary[1] is None else self.summary[0]
            self.summary = (old, edit.memory.summary)
        self.additions += sum(change.old is None for change in edit.changes)
        self.changes += len(edit.changes)

    def look(self, page: Page) -> None:
        """Note from a page that the memory exists, and its summary."""
        self.found = True
        self._now = page.memory.summary

    def compare(self, id: str, rows: Sequence[_Row]) -> None:
        """Compare the changes of messages with one id to the present messages.

        ``rows`` are all rows of the id: those of ``_CHANGED`` in the order in which they were
        recorded, those of ``_PRESENT`` in the order of the memory.
        """
        changed = [row for row in rows if row.kind == _CHANGED]
        if all(row.old is None for row in changed):  # of additions, only those of the last attempt
            changed = [row for row in changed if row.record == changed[-1].record]
        there = [row for row in rows if row.kind == _PRESENT]
        if len(changed) + len(there) < len(rows):
            if not there:
                self.unseen.add(id)
            elif len(there) > 1:
                self._shared_anchors.add(id)
        if not changed:
            return
        olds, news = [row.old for row in changed], [row.new for row in changed]
        marks = [row.old for row in there]
        self._as_before = (
            self._as_before
            and self._fits(id, olds, marks, len(changed))
            and (len(there) < 2 or _have_their_marks(changed, there))
        )
        first = changed[0].number
        if (self._misfit is None or first < self._misfit[0]) and not self._fits(id, news, marks):
            self._misfit = first, _misfit(id, news, marks)
        if len(changed) > 1 and None in olds and None in news:
            self.replaced.append(id)
        others = len(there) - (news[0] is not None)
        if max(others, len(changed) - 1, self.shared_ids.get(id, 0)) > 0:
            put = frozenset(row.at for row in changed if row.old is None and row.at is not None)
            stayed = sum(row.at in put for row in there)
            self._shared[id] = _SharedId(len(changed), len(there), put, stayed)

    def compare_replaced(self, replaced: dict[str, _Replaced]) -> None:
        """Set the digests of the replaced messages, by message id."""
        self._replaced = replaced

    def added(self, page: Page, changed: Set[str]) -> Page:
        """Return the page with only the messages that the run added.

        ``changed`` has the ids of the messages of the page that the run changed.  Messages that the
        run did not add become anchors of the added messages.
        """
        messages: list[StoredMessage] = []
        anchors: list[str | None] = []
        indexes: list[int] = []
        found = zip(page.messages, page.anchors or repeat(None), page.places, strict=False)
        for one, behind, at in found:
            if page.indexes is not None and at > self._next:  # unread messages are in between
                self._stays = self._behind = behind
            self._next = at + 1
            if one.id in changed and self._is_added(one.id, at):
                messages.append(one)
                anchors.append(self._stays if behind == self._behind else behind)
                indexes.append(at)
            else:
                self._stays, self._behind = one.id, behind
        memory = replace(page.memory, owner=self._owner)
        return structs.replace(
            page, memory=memory, messages=messages, anchors=anchors, indexes=indexes
        )

    def _is_added(self, id: str, at: int) -> bool:
        """Return whether the run added the next message with this id, which is at index ``at``."""
        shared = self._shared.get(id)
        if shared is None:
            return True
        if shared.stayed == shared.changes:
            return at in shared.put
        shared.passed += 1
        return shared.passed > shared.present - shared.changes

    def placed(self, edit: Edit) -> Edit:
        """Return the edit without ``at`` and ``to`` for messages with unique ids."""
        changes = [one if self._shares_its_id(one) else _unplaced(one) for one in edit.changes]
        return structs.replace(edit, changes=changes)

    def _shares_its_id(self, change: Change) -> bool:
        return change.id in self._shared or change.after in self._shared_anchors

    def verdict(self, refused: UndoConflicts, key: MemoryKey, *, facts: bool) -> bool:
        """Return whether the run can and must be undone in the memory ``key``.

        False if the memory is as before the run, or if it changed since the run.  A memory that
        changed is added to ``refused``.  ``facts`` is True if the messages are facts.
        """
        if self._is_as_before():
            return False
        # Facts need no check: they do not follow one another, and the store compares each fact.
        why = "" if facts else self._conflict()
        if why:
            refused.append((key, Failure("conflict", why)))
            return False
        return True

    @property
    def removes(self) -> bool:
        """Return whether the undo removes messages, or the memory if the run created it empty."""
        return bool(self.additions) or (self.noted and not self.changes)

    @property
    def is_half_done(self) -> bool:
        """Return whether a killed run wrote the new summary but changed no messages."""
        before, after = self.summary
        changed = after is not None and after != (before or "") and self._now == after
        return changed and bool(self.changes) and self._messages_are_as_before()

    def _is_as_before(self) -> bool:
        before, after = self.summary
        if after is not None and (self._now or "") != (before or ""):
            return False
        if not self.changes and self.noted and self.found:
            return False  # the run created a memory without messages
        return self._messages_are_as_before()

    def _messages_are_as_before(self) -> bool:
        return self._as_before and all(one.old <= one.now for one in self._replaced.values())

    def _fits(
        self, id: str, wanted: list[str | None], there: list[str | None], more: int = 0
    ) -> bool:
        """Return whether the present messages with the id have the wanted marks.

        ``wanted`` and ``there`` have the marks of one message each, wanted and present.  None
        stands for no message.  ``more`` is the number of further messages with the id that must
        exist.
        """
        shared = self.shared_ids.get(id)
        if shared is not None and (len(there) < shared + more if more else len(there) > shared):
            return False
        expected = [marks for marks in wanted if marks is not None]
        if not expected:
            return shared is not None or not there
        if len(expected) == 1:
            return expected[0] in there
        return Counter(expected) <= Counter(there)

    def _conflict(self) -> str:
        """Return why the run cannot be undone in this memory, or ""."""
        if self._misfit is not None:
            return self._misfit[1]
        for id, one in self._replaced.items():
            if not one.new <= one.now:
                return f"the message {id!r} changed since"
        if self.summary[1] is not None and (self._now or "") != self.summary[1]:
            return "its summary changed since"
        for id in self.unseen:
            return f"the message {id!r}, which others followed, was deleted since"
        return ""


def _have_their_marks(changed: list[_Row], there: list[_Row]) -> bool:
    """Return whether each re-marked message of ``changed`` has its old marks.

    ``there`` are the present messages.
    """
    present = {(row.at, row.old) for row in there}
    return all(
        (row.at, row.old) in present
        for row in changed
        if row.at is not None and row.old is not None and row.new is not None
    )


def _misfit(id: str, wanted: list[str | None], there: list[str | None]) -> str:
    """Return why the messages with the id do not have the wanted marks.

    ``wanted`` and ``there`` have the marks of one message each, as in ``_RunEffect._fits``.
    """
    if not there:
        return f"the message {id!r} was deleted since"
    if wanted == [None] * len(wanted):
        return f"a message {id!r} exists"
    return f"the marks of the message {id!r} changed since"


class _SharedId(Struct):
    """The messages that share an id: how many the run changed, and how many are present.

    ``put`` are the recorded indexes of the messages that the run inserted, ``stayed`` is how many
    of the present messages have such an index.
    """

    changes: int
    present: int
    put: frozenset[int]
    stayed: int
    passed: int = 0
    """The number of messages with the id that were passed to ``added``."""


class _Replaced(Struct):
    """Digests of the messages with one id: before the run, after the run, and at present."""

    old: Counter[bytes] = msgspec.field(default_factory=Counter)
    new: Counter[bytes] = msgspec.field(default_factory=Counter)
    now: Counter[bytes] = msgspec.field(default_factory=Counter)


async def _compare_replaced(store: Store, path: Path, cases: dict[MemoryKey, _RunEffect]) -> None:
    """Compare the replaced messages in ``path`` with those in the store, by digests."""
    found = {
        key: {id: _Replaced() for id in case.replaced}
        for key, case in cases.items()
        if case.replaced
    }
    if not found:
        return
    _add_replaced(path, found)
    every = frozenset(id for some in found.values() for id in some)
    async with aclosing(store.read(Selection(keys=frozenset(found), ids=every))) as pages:
        async for page in pages:
            there = found[page.memory.key]
            for entry in page.messages:
                if (one := there.get(entry.id)) is not None:
                    one.now[_digest(entry.message)] += 1
    for key, compared in found.items():
        cases[key].compare_replaced(compared)


def _add_replaced(path: Path, found: Mapping[MemoryKey, Mapping[str, _Replaced]]) -> None:
    """Add the digests of the messages that the run replaced, as they were before and after it."""
    for edit in read_changes(path):
        there = found.get(edit.memory.key, {})
        for change in edit.changes:
            if (one := there.get(change.id)) is not None:
                texts = one.old if change.new is None else one.new
                texts[_digest(change.message)] += 1


def _digest(text: bytes) -> bytes:
    """Return a digest of a message's JSON value or invalid text."""
    with suppress(ValueError):  # nested too deep for a value: use the text
        text = jsonio.canonical(text)
    return blake2b(text, digest_size=16).digest()


class _Row(NamedTuple):
    """A row of the table of a group.

    ``record`` numbers the records of the memory: a copy that was repeated after an error recorded a
    memory again.  If an added message is in several records, the last record counts.

    A row of ``_CHANGED`` has the marks of a message before and after the run; None if the message
    did not exist.  ``at`` is the index of a message that the run inserted or re-marked, if the
    index was recorded.  A row of ``_PRESENT`` has the marks and the index of a present message in
    ``old`` and ``at``.
    """

    memory: int
    id: bytes
    kind: int
    number: int
    record: int
    old: str | None
    new: str | None
    at: int | None


_CHANGED, _ANCHOR, _PRESENT = range(3)
"""Kinds of rows: a change of the run, the predecessor of a deleted message, a present message."""
_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE message (
    memory INTEGER, id BLOB, kind INTEGER, record INTEGER, old TEXT, new TEXT, at INTEGER
);
"""
_INSERT = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?)"
_IN_ORDER = """
SELECT memory, id, kind, rowid, record, old, new, at FROM message ORDER BY 1, 2, 3, 4
"""
_INDEX = f"CREATE INDEX IF NOT EXISTS changed ON message (memory, id) WHERE kind = {_CHANGED}"
_IDS = f"SELECT DISTINCT id FROM message WHERE memory = ? AND kind = {_CHANGED}"
_IS_CHANGED = f"SELECT 1 FROM message WHERE memory = ? AND id = ? AND kind = {_CHANGED} LIMIT 1"
_FILTER = 1 << 20


class _Group:
    """The changes of a run in several memories, and the present messages with the same ids.

    The messages are in an unnamed temporary file.
    """

    def __init__(self, *, again: bool) -> None:
        """``again`` is as in ``_RunEffect.add``."""
        self.cases: dict[MemoryKey, _RunEffect] = {}
        self._again = again
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._known = bytearray(_FILTER)
        """True at the hash values of all ids in the file; few other ids have such hash values."""

    def close(self) -> None:
        """Close and remove the temporary file."""
        self._database.close()

    def fill(
        self, edits: Iterator[Edit], where: Selection, notes: Callable[[MemoryKey], Note]
    ) -> bool:
        """Add the changes of memories until the group is full; return False if no edit is left.

        Memories that are not selected, or whose changes the store refused, are skipped.
        """
        size = 0
        for edit in edits:
            key = edit.memory.key
            if not where.has_key(key):
                continue
            if key not in self.cases:
                note = notes(key)
                if note.unchanged:
                    continue
                self.cases[key] = _RunEffect(len(self.cases), edit, note)
            self._add(self.cases[key], edit)
            size += len(edit.changes) + 1
            if edit.last and size >= GROUP_CHANGES and not self._again:
                return True
        return False

    def _add(self, case: _RunEffect, edit: Edit) -> None:
        case.add(edit, again=self._again)
        rows: list[tuple[Any, ...]] = []
        after: str | None = None
        for one in edit.changes:
            at = None
            if one.old is None:
                at = one.to
            elif one.new is not None:
                at = one.to if one.at is None else one.at  # an undo records only one
            elif one.after not in (None, after):
                after = one.after
                rows.append(self._row(case, after, _ANCHOR))
            rows.append(self._row(case, one.id, _CHANGED, _text(one.old), _text(one.new), at))
        self._database.executemany(_INSERT, rows)

    def _row(
        self,
        case: _RunEffect,
        id: str,
        kind: int,
        old: str | None = None,
        new: str | None = None,
        at: int | None = None,
    ) -> tuple[Any, ...]:
        self._known[hash(id) % _FILTER] = True
        return case.number, encoded(id), kind, case.records, old, new, at

    def look(self, page: Page) -> None:
        """Add the messages of the next page of a present memory; their texts may be empty."""
        case = self.cases[page.memory.key]
        case.look(page)
        rows = [
            (case.number, encoded(one.id), _PRESENT, 0, _text(one.marks), None, at)
            for at, one in zip(page.places, page.messages, strict=True)
            if self._known[hash(one.id) % _FILTER]
        ]
        self._database.executemany(_INSERT, rows)

    def compare(self) -> None:
        """Compare the changes of each memory to its present messages."""
        cases = list(self.cases.values())
        rows = map(_Row._make, self._database.execute(_IN_ORDER))
        for (memory, id), some in groupby(rows, itemgetter(0, 1)):
            cases[memory].compare(decoded(id), list(some))

    def selection(self, keys: frozenset[MemoryKey]) -> Selection:
        """Return a selection of the changed messages of memories.

        If these are too many, the selection is of the whole memories.
        """
        self._database.execute(_INDEX)
        if sum(self.cases[key].changes for key in keys) > 2 * GROUP_CHANGES:
            return Selection(keys=keys)
        own = {
            key: {decoded(id) for (id,) in self._database.execute(_IDS, (self.cases[key].number,))}
            for key in keys
        }
        ids = frozenset(id for some in own.values() for id in some)
        return Selection(keys=keys, ids=ids, own_ids=own)

    def changed(self, page: Page) -> frozenset[str]:
        """Return the ids of the messages of a page that the run changed."""
        memory = self.cases[page.memory.key].number
        ids = (one.id for one in page.messages if self._known[hash(one.id) % _FILTER])
        find = self._database.execute
        return frozenset(id for id in ids if find(_IS_CHANGED, (memory, encoded(id))).fetchone())


@lru_cache
def _text(marks: Marks | None) -> str | None:
    """Return a text that is the same for the same marks in any order."""
    return None if marks is None else json.dumps(sorted(set(marks)))


def _groups(path: Path, where: Selection, notes: Callable[[MemoryKey], Note]) -> Iterator[_Group]:
    """Yield the changes in the file ``path``, in groups of whole memories."""
    edits, again = read_changes(path, messages=False), repeats(path)
    more = True
    while more:
        with closing(_Group(again=again)) as group:
            more = group.fill(edits, where, notes)
            if group.cases:
                yield group


async def _look(store: Store, group: _Group) -> None:
    async with aclosing(store.outline(Selection(keys=frozenset(group.cases)))) as pages:
        async for page in pages:
            group.look(page)


def _reversed(path: Path, keys: Iterable[MemoryKey]) -> Iterator[Edit]:
    """Yield edits that reverse the changes in the file ``path``, for the memories ``keys``."""
    wanted = set(keys)
    if not wanted:
        return
    for edit in read_changes(path):
        if edit.memory.key in wanted:
            memory = edit.memory
            back = replace(memory, summary=edit.summary)
            changes = _in_order([_reverse(change) for change in edit.changes])
            yield Edit(back, changes, edit.offset, edit.last, memory.summary)


def _in_order(changes: list[Change]) -> list[Change]:
    """Put each deletion before an insertion of the same id; return the list."""
    for at in range(1, len(changes)):
        one, other = changes[at - 1 : at + 1]
        if one.id == other.id and one.old is None and other.new is None:
            changes[at - 1 : at + 1] = other, one
    return changes


def _reverse(change: Change) -> Change:
    return change._replace(
        old=change.new,
        new=change.old,
        was=change.shape,
        shape=change.was,
        at=change.to,
        to=change.at,
    )


def _unplaced(change: Change) -> Change:
    if change.at is None and change.to is None:
        return change
    return change._replace(at=None, to=None)


def _summarised(edit: Edit, cases: dict[MemoryKey, _RunEffect]) -> Edit:
    old, new = cases[edit.memory.key].summary
    if new is None:
        return edit
    return structs.replace(edit, memory=replace(edit.memory, summary=old), summary=new)


@dataclass(eq=False)
class UndoRun(ChangeRun):
    """A run that reverses an earlier run: its edits, and the repairs that the store made itself."""

    mode = OpenMode.RESTORE

    kept: runs.Runs
    undone: runs.Run
    """The run of ``kept`` to undo; ``record`` is the record of the undo itself."""
    notes: runs.Notes
    """The notes of the store on the memories that ``undone`` changed."""
    _: KW_ONLY
    named: bool
    """True to insert messages even into a store that was recreated since the run."""

    def __post_init__(self) -> None:
        """Find the files of the run to undo.

        Raises:
            BadData: as ``Runs.parts``.
        """
        super().__post_init__()
        self._parts = self.kept.parts(self.undone)
        self._planned: set[MemoryKey] = set()
        """The memories with a change to undo."""
        self._removing: set[MemoryKey] = set()
        """The memories of which the undo removes or replaces something."""
        self._folder = self.kept.folder / self.undone.id
        self._origin = self.kept.origin(self.undone)
        """The run in the chain of undos that is no undo itself."""
        self._repaired = (self._folder / REPAIRS).exists()
        self._reverted: int | None = None

    async def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        failures = self.report.failures
        edits = plan_undo(store, self._parts, where, failures, self.notes.of, self._removing)
        async with aclosing(edits):
            async for edit in edits:
                self._planned.add(edit.memory.key)
                yield edit
                del edit  # free a large edit before the next read

    def removes(self, key: MemoryKey) -> bool:
        return key in self._removing

    def messages(self) -> int:
        origin = self._origin
        if origin.command in ("offload", "rehydrate") or origin.counts.keys() == {"replaced"}:
            return self.seen().deleted  # each is deleted and restored with another text
        return super().messages()

    @property
    def concerned(self) -> Selection:
        return Selection(keys=frozenset(self._planned))

    @property
    def nothing(self) -> str:
        if self._repaired and self._reverted is None:
            return "only repairs of the store itself to undo"
        return "no other change to undo" if self._reverted else "nothing to undo"

    def done(self) -> str:
        """Return the numbers of changed memories and of undone repairs as a text.

        The text is empty if both are zero.
        """
        reverted = count(self._reverted, "repair") + " undone" if self._reverted else ""
        return " and ".join(filter(None, [super().done(), reverted]))

    def left(self) -> str:
        """Return the number of memories, and whether repairs are left to undo, which come first."""
        if not self._repaired or self._reverted is not None:
            return super().left()
        memories = str(self.report.planned.memories or "")
        return " and ".join(filter(None, [memories, "repairs of the store"]))

    def details(self) -> dict[str, Any]:
        """Return the undone run, and the number of undone repairs of the store as ``unmended``.

        The number counts restored keys, rows or ids; zero is left out.
        """
        unmended = {} if self._reverted is None else {"unmended": self._reverted}
        return {"undoes": self.undone.id} | unmended

    async def plan(self, store: Store) -> bool:
        """Plan the reverse edits; return False if there is nothing to undo, not even a repair."""
        if quarantine := quarantine_of(self._folder):
            self._observer.note(f"damaged data that the repair moved stay in {quarantine}")
        if self._repaired and self.where.named:
            self._observer.warn(
                "repairs of the store itself belong to no single user: they are kept"
            )
            self._repaired = False
        self._leave_repairs(store)
        if self._origin.command == "doctor":  # the memories may have further damage
            store.skip_damage()
        something = await super().plan(shown_as_recorded(store, self.record))
        return something or self._repaired

    def _leave_repairs(self, store: Store) -> None:
        """Leave the repairs of the store as they are if there is any hold on it."""
        if self._repaired and (failure := self.held(store)(None)) is not None:
            self.report.failures.append((NO_MEMORY, failure))
            self._repaired = False

    async def check(self, store: Store) -> None:
        """Refuse to insert messages into a store that was recreated since the run."""
        if not self.named and self.report.planned.restored:
            await refuse_recreated(store, self.undone)

    async def carry_out(self, store: Store) -> None:
        """Undo the repairs that the store made itself, then the edits."""
        self._leave_repairs(store)
        if self._repaired:
            await self._revert(store)
        if self.report.planned.memories:
            await super().carry_out(shown_as_recorded(store, self.record))

    async def _revert(self, store: Store) -> None:
        self.begin()
        self._reverted = await revert_repairs(store, self._folder)
        if self._reverted:
            indexes = await asyncio.to_thread(count_records, self._folder, "no-session-index")
            rest = self._reverted - indexes
            done = ["the index on session_id removed"] if indexes else []
            if rest:
                done.append(
                    f"{rest:,} {'key, row or id' if rest == 1 else 'keys, rows or ids'} restored"
                )
            self._observer.note(f"repairs of the store itself undone: {', '.join(done)}")


def shown_as_recorded(store: Store, record: runs.Run) -> Store:
    """Return the store, with messages in the dialect in which a run recorded its changes.

    ``record`` is the record of the run.  If it has no dialect, the store is returned as given.

    Raises:
        BadData: this version of memctl does not know the dialect.
    """
    if not record.dialect:
        return store
    if record.dialect not in DIALECTS:
        raise BadData(
            f"the run was recorded in another dialect, {record.dialect!r}",
            f"upgrade memctl: this version reads {', '.join(DIALECTS)}",
        )
    return shown_as(store, DIALECTS[record.dialect])
