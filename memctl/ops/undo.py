"""Undo the changes of a run.

The recorded changes of the run are read twice.  The first pass checks that everything that the run
changed in a memory is still as after the run.  The second pass plans the reverse changes.  Messages
that are newer than the run stay in place.  A memory that the run did not reach, or that was undone
before, stays unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import Any

from memctl import jsonio
from memctl.dialects.registry import DIALECTS
from memctl.errors import BadData, Failure
from memctl.journal import runs
from memctl.journal.changes import read_changes
from memctl.journal.repairs import REPAIRS, quarantine_of
from memctl.journal.runs import Note
from memctl.model import Change, Edit, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.apply import ChangeReport
from memctl.ops.change import ChangeRun, RunOptions
from memctl.ops.delete import removal
from memctl.ops.doctor.repair import revert_repairs
from memctl.ops.evidence import refuse_recreated
from memctl.ops.select import places, select_with_anchors
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.wrappers.converted import shown_as

GROUP_CHANGES = 50_000
"""The approximate number of recorded changes that are checked against the store at once."""

Marks = tuple[str, ...]
Ends = tuple[Marks | None, Marks | None]
"""The marks of a message before and after the run; None if the message did not exist."""
UndoConflicts = list[tuple[MemoryKey, Failure]]
"""Memories that cannot be undone, with the reasons."""


async def plan_undo(
    store: Store,
    parts: Sequence[Path],
    where: Selection,
    refused: UndoConflicts,
    notes: Callable[[MemoryKey], Note] = lambda _: Note(),
) -> AsyncGenerator[Edit]:
    """Yield edits that undo a run in the memories that ``where`` selects.

    ``parts`` are the files with the changes of the run, in the order of writing.  If several files
    have changes of a memory, only the changes in the last file were made: the store refused the
    earlier changes with the code ``changed``.  A memory that cannot be undone is added to
    ``refused``.  ``notes`` returns the note that the store made on a memory during the run.

    Raises:
        BadData: a file is damaged.
        MemctlError: as ``Store.read``.
    """
    for number, path in enumerate(reversed(parts), 1):
        done: set[MemoryKey] = set()
        async with aclosing(_reversals(store, path, where, refused, done, notes)) as edits:
            async for edit in edits:
                if edit.offset == 0:
                    note = notes(edit.memory.key)
                    shared_ids = frozenset(note.shared_ids)
                    yield replace(edit, before=note.before, shared_ids=shared_ids)
                else:
                    yield edit
        if number < len(parts):
            where = where.without(frozenset(done))


async def _reversals(
    store: Store,
    path: Path,
    where: Selection,
    refused: UndoConflicts,
    done: set[MemoryKey],
    notes: Callable[[MemoryKey], Note],
) -> AsyncGenerator[Edit]:
    for group in _groups(path, where, notes):
        done.update(group)
        await _look(store, group)
        await _compare_replaced(store, path, group)
        for key, case in group.items():
            if case.unseen:
                case.seen |= await store.find_places(key, case.unseen)
        for key in [key for key, case in group.items() if case.is_half_done]:
            yield _summarised(Edit(Memory(key), []), group)
            del group[key]
        facts = store.dialect.facts
        keys = {key for key, case in group.items() if case.verdict(refused, key, facts=facts)}
        added = frozenset(key for key in keys if group[key].only_adds)
        if added:
            own = {key: group[key].ends.keys() for key in added}
            ids = frozenset(id for some in own.values() for id in some)
            pages = select_with_anchors(store, Selection(keys=added, ids=ids, own_ids=own))
            async with aclosing(pages):
                async for page in pages:
                    found = group[page.memory.key].added(page)
                    yield _summarised(removal(found, places(store, found)), group)
        for edit in _reversed(path, keys - added):
            yield group[edit.memory.key].placed(edit)


class _RunEffect:
    """The recorded changes of a run in one memory, compared with the present memory."""

    def __init__(self, edit: Edit, note: Note) -> None:
        """``edit`` is the run's first edit of the memory, ``note`` the store's note on the memory.

        The changes of ``edit`` must be passed to ``add`` as well.
        """
        self.shared_ids = note.shared_ids
        """The ids of deleted messages, with the number of remaining messages that share the id."""
        self.noted = bool(note.before)
        self._owner = edit.memory.owner
        self.found = False
        self._stays: str | None = None
        """The id of the last message so far that the run did not add; None if there is none."""
        self._behind: str | None = None
        """The anchor of ``_stays``; messages with this anchor get the anchor ``_stays`` instead."""
        self._next = 0
        """The index after the last message that was passed to ``added``."""
        self.ends: dict[str, list[Ends]] = {}
        """The marks before and after the run of each changed message, by id, in recorded order."""
        self.anchors: set[str] = set()
        """The ids of the messages that deleted messages followed."""
        self._anchored: Counter[str] = Counter()
        """The number of present messages with each id in ``anchors``."""
        self._marked: dict[int, tuple[str, Marks]] = {}
        """The id and the old marks of each message with changed marks, by index in the memory."""
        self._unmarked: set[int] = set()
        """The indexes of ``_marked`` at which the present message has the old marks."""
        self._put: dict[int, str] = {}
        """The ids of inserted messages by index in the memory, if the index was recorded."""
        self._stayed: Counter[str] = Counter()
        """The number of inserted messages with each id that are still at their index."""
        self._passed: Counter[str] = Counter()
        """The number of messages with each id in ``ends`` that were passed to ``added``."""
        self._replaced: dict[str, _Replaced] = {}
        """The digests of replaced messages, by id."""
        self.summary = (edit.summary, edit.memory.summary)
        """The summaries before and after the run; the second is None if the run changed none."""
        self.there: dict[str, list[Marks]] = {}
        """The marks of the present messages with each id in ``ends``."""
        self.seen: set[str] = set()
        """The ids in ``anchors`` that a present message has."""
        self.now: str | None = None
        """The present summary; None if the store has no place for summaries, or no such memory."""
        self.changes = 0
        """The number of changes that the run made in the memory."""

    def add(self, edit: Edit) -> None:
        """Add the changes of the run's next edit of the memory."""
        self.changes += len(edit.changes)
        for change in edit.changes:
            self.ends.setdefault(change.id, []).append((change.old, change.new))
            at = change.to if change.at is None else change.at  # an undo records only one
            if at is not None and change.old is not None and change.new is not None:
                self._marked[at] = change.id, change.old
            if change.to is not None and change.old is None:
                self._put[change.to] = change.id
            if change.new is None and change.after is not None:
                self.anchors.add(change.after)

    def replaced(self) -> frozenset[str]:
        """Return the ids of messages that the run deleted and inserted again with another text."""
        return frozenset(
            id
            for id, some in self.ends.items()
            if len(some) > 1 and any(old is None for old, _ in some)
            if any(new is None for _, new in some)
        )

    def compare(self, replaced: dict[str, _Replaced]) -> None:
        """Set the digests of the replaced messages, by message id, for the later verdict."""
        self._replaced = replaced

    def look(self, page: Page) -> None:
        """Note the summary, ids and marks of a page of the present memory, for the later verdict.

        All pages of the memory must be passed, in order; their messages may be empty.
        """
        self.found = True
        self.now = page.memory.summary
        for at, entry in zip(page.places, page.messages, strict=True):
            if entry.id in self.ends:
                self.there.setdefault(entry.id, []).append(entry.marks)
                id, marks = self._marked.get(at, ("", ()))
                if id == entry.id and set(marks) == set(entry.marks):
                    self._unmarked.add(at)
                self._stayed[entry.id] += self._put.get(at) == entry.id
            if entry.id in self.anchors:
                self.seen.add(entry.id)
                self._anchored[entry.id] += 1

    def added(self, page: Page) -> Page:
        """Return the page with only the messages that the run added.

        Messages that the run did not add become anchors of the added messages.  The page contains
        them because they share an id with an added message, perhaps of another memory.
        """
        messages: list[StoredMessage] = []
        anchors: list[str | None] = []
        indexes: list[int] = []
        found = zip(page.messages, page.anchors or repeat(None), page.places, strict=False)
        for one, behind, at in found:
            if page.indexes is not None and at > self._next:  # unread messages are in between
                self._stays = self._behind = behind
            self._next = at + 1
            if self._is_added(one.id, at):
                messages.append(one)
                anchors.append(self._stays if behind == self._behind else behind)
                indexes.append(at)
            else:
                self._stays, self._behind = one.id, behind
        memory = replace(page.memory, owner=self._owner)
        return replace(page, memory=memory, messages=messages, anchors=anchors, indexes=indexes)

    def _is_added(self, id: str, at: int) -> bool:
        """Return whether the run added the next message, which has this id, at index ``at``.

        If inserted messages with the id have moved since, the last messages with the id count as
        added.
        """
        if id not in self.ends:
            return False
        if self._stayed[id] == len(self.ends[id]):
            return self._put.get(at) == id
        self._passed[id] += 1
        return self._passed[id] > len(self.there.get(id, ())) - len(self.ends[id])

    def placed(self, edit: Edit) -> Edit:
        """Return the edit without the indexes ``at`` and ``to`` of messages with unique ids.

        Newer insertions and deletions may have moved these messages.  Messages that share an id
        keep ``at`` and ``to``.
        """
        changes = [one if self._shares_its_id(one) else _unplaced(one) for one in edit.changes]
        return replace(edit, changes=changes)

    def _shares_its_id(self, change: Change) -> bool:
        others = len(self.there.get(change.id, ())) - (change.old is not None)
        shares = max(others, len(self.ends[change.id]) - 1, self.shared_ids.get(change.id, 0))
        follows = change.after is not None and self._anchored[change.after] > 1
        return shares > 0 or follows

    @property
    def unseen(self) -> frozenset[str]:
        """Return the ids of messages that deleted messages followed, but that do not exist now."""
        return frozenset(self.anchors - self.seen)

    @property
    def only_adds(self) -> bool:
        """Return whether the run inserted messages in the memory, and changed no other message."""
        return bool(self.ends) and all(
            old is None for some in self.ends.values() for old, _ in some
        )

    def verdict(self, refused: UndoConflicts, key: MemoryKey, *, facts: bool) -> bool:
        """Return whether the run can and must be undone in the memory ``key``.

        False if the memory is as before the run, or if it changed since the run.  In the second
        case, the conflict is added to ``refused``.  ``facts`` is True if the messages are facts.
        """
        if self._is_as_before():
            return False
        # Facts need no check: they do not follow one another, and the store compares each fact.
        why = "" if facts else self._misfit()
        if why:
            refused.append((key, Failure("conflict", why)))
            return False
        return True

    @property
    def is_half_done(self) -> bool:
        """Return whether the present memory has the run's new summary, but the old messages.

        A killed run leaves such a memory: a summary in a separate session state is written before
        the messages.
        """
        before, after = self.summary
        changed = after is not None and after != (before or "") and self.now == after
        return changed and bool(self.ends) and self._messages_are_as_before()

    def _is_as_before(self) -> bool:
        """Return whether the changed messages and the summary are as before the run."""
        before, after = self.summary
        if after is not None and (self.now or "") != (before or ""):
            return False
        if not self.ends and self.noted and self.found:
            return False  # the run created a memory without messages
        return self._messages_are_as_before()

    def _messages_are_as_before(self) -> bool:
        return (
            all(one.old <= one.now for one in self._replaced.values())
            and all(
                at in self._unmarked
                or len(self.there.get(id, ())) < 2  # a message with the same id may have its marks
                for at, (id, _) in self._marked.items()
            )
            and all(
                self._fits(id, [old for old, _ in some], len(some))
                for id, some in self.ends.items()
            )
        )

    def _fits(self, id: str, wanted: list[Marks | None], more: int = 0) -> bool:
        """Return whether the present messages with the id have the wanted marks.

        ``wanted`` has the marks of one message each; None stands for no message.  If
        ``shared_ids`` has a number of remaining messages with the id, at least ``more`` messages
        must exist in addition to them; if ``more`` is zero, none may.
        """
        there = self.there.get(id, [])
        shared = self.shared_ids.get(id)
        if shared is not None and (len(there) < shared + more if more else len(there) > shared):
            return False
        expected = Counter(frozenset(marks) for marks in wanted if marks is not None)
        if not expected:
            return shared is not None or not there
        return expected <= Counter(map(frozenset, there))

    def _misfit(self) -> str:
        """Return the reason why the run cannot be undone in this memory; empty if it can."""
        for id, some in self.ends.items():
            here = self.there.get(id, [])
            after = [new for _, new in some]
            if not self._fits(id, after):
                if not here:
                    return f"the message {id!r} was deleted since"
                if after == [None] * len(after):
                    return f"a message {id!r} exists"
                return f"the marks of the message {id!r} changed since"
        for id, one in self._replaced.items():
            if not one.new <= one.now:
                return f"the message {id!r} changed since"
        if self.summary[1] is not None and (self.now or "") != self.summary[1]:
            return "its summary changed since"
        for id in self.unseen:
            return f"the message {id!r}, which others followed, was deleted since"
        return ""


@dataclass(slots=True)
class _Replaced:
    """Digests of the messages with one id: before the run, after the run, and at present."""

    old: Counter[bytes] = field(default_factory=Counter)
    new: Counter[bytes] = field(default_factory=Counter)
    now: Counter[bytes] = field(default_factory=Counter)


async def _compare_replaced(store: Store, path: Path, group: dict[MemoryKey, _RunEffect]) -> None:
    """Read the replaced messages of the group from ``path`` and from the store, and set digests.

    The ids and marks of a replaced message do not show whether the text changed.
    """
    ids = {key: some for key, case in group.items() if (some := case.replaced())}
    if not ids:
        return
    found = {key: {id: _Replaced() for id in some} for key, some in ids.items()}
    for edit in read_changes(path):
        there = found.get(edit.memory.key, {})
        for change in edit.changes:
            if (one := there.get(change.id)) is not None:
                texts = one.old if change.new is None else one.new
                texts[_digest(change.message)] += 1
    every = frozenset(id for some in ids.values() for id in some)
    async with aclosing(store.read(Selection(keys=frozenset(ids), ids=every))) as pages:
        async for page in pages:
            there = found[page.memory.key]
            for entry in page.messages:
                if (one := there.get(entry.id)) is not None:
                    one.now[_digest(entry.message)] += 1
    for key, compared in found.items():
        group[key].compare(compared)


def _digest(text: bytes) -> bytes:
    """Return a digest of the JSON value of a message, or of a text that cannot be parsed."""
    with suppress(ValueError):  # nested too deep for a value: use the text
        text = jsonio.canonical(text)
    return blake2b(text, digest_size=16).digest()


def _groups(
    path: Path, where: Selection, notes: Callable[[MemoryKey], Note]
) -> Iterator[dict[MemoryKey, _RunEffect]]:
    """Yield the changes recorded in the file ``path``, in groups of several memories.

    All changes of a memory are in one group.  Memories that are not selected, or whose changes the
    store refused, are left out.
    """
    group: dict[MemoryKey, _RunEffect] = {}
    size = 0
    for edit in read_changes(path, messages=False):
        key = edit.memory.key
        if not where.has_key(key):
            continue
        if key not in group:
            note = notes(key)
            if note.unchanged:
                continue
            group[key] = _RunEffect(edit, note)
        group[key].add(edit)
        size += len(edit.changes) + 1
        if edit.last and size >= GROUP_CHANGES:
            yield group
            group, size = {}, 0
    if group:
        yield group


async def _look(store: Store, group: dict[MemoryKey, _RunEffect]) -> None:
    async with aclosing(store.outline(Selection(keys=frozenset(group)))) as pages:
        async for page in pages:
            group[page.memory.key].look(page)


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
    """Reorder the changes in place, and return them: a deletion goes before an insertion.

    Only an insertion and the next change, a deletion of the same id, change places.
    """
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


def _summarised(edit: Edit, group: dict[MemoryKey, _RunEffect]) -> Edit:
    """Return the edit; if the run changed the summary, the edit restores the old summary."""
    old, new = group[edit.memory.key].summary
    if new is None:
        return edit
    return replace(edit, memory=replace(edit.memory, summary=old), summary=new)


class UndoRun(ChangeRun):
    """A run that reverses an earlier run: its edits, and the repairs that the store made itself."""

    mode = OpenMode.RESTORE

    def __init__(
        self,
        record: runs.Run,
        where: Selection,
        parts: Sequence[Path],
        folder: Path,
        options: RunOptions,
        report: ChangeReport | None = None,
        notes: runs.Notes | None = None,
        *,
        undone: runs.Run | None = None,
        skips_damage: bool = False,
    ) -> None:
        """``record`` is the record of the undo itself.

        ``folder`` is the folder of the run to undo, ``parts`` are the files of changes there, and
        ``notes`` are the notes of the store on the changed memories.  ``undone`` is the record of
        that run, or None to insert messages also into a store that was recreated since.
        ``skips_damage`` is True if the run to undo was a repair: a repair changes memories that
        hold further damage.
        """
        of = notes.of if notes is not None else lambda _: runs.Note()
        report = report or ChangeReport()
        super().__init__(
            record,
            where,
            lambda store, some: plan_undo(store, parts, some, report.failures, of),
            options,
            report,
        )
        self._folder = folder
        self._undone = undone
        self._repaired = (folder / REPAIRS).exists()
        self._skips_damage = skips_damage
        self._reverted: int | None = None

    @property
    def nothing(self) -> str:
        if self._repaired and self._reverted is None:
            return "only repairs of the store itself to undo"
        return "no other change to undo" if self._reverted else "nothing to undo"

    def details(self) -> dict[str, Any]:
        """Return the number of undone repairs of the store under ``unmended``; empty if none ran.

        The number counts restored keys, rows or ids.
        """
        return {} if self._reverted is None else {"unmended": self._reverted}

    async def plan(self, store: Store) -> bool:
        """Plan the reverse edits; return False if there is nothing to undo, not even a repair."""
        if quarantine := quarantine_of(self._folder):
            self._observer.note(f"damaged data that the repair moved stay in {quarantine}")
        if self._repaired and self.where.named:
            self._observer.warn(
                "repairs of the store itself belong to no single user: they are kept"
            )
            self._repaired = False
        if self._skips_damage:
            store.skip_damage()
        something = await super().plan(as_recorded(store, self.record))
        return something or self._repaired

    async def check(self, store: Store) -> None:
        """Refuse to insert messages into a store that was recreated since the run."""
        if self._undone is not None and self.report.planned.restored:
            await refuse_recreated(store, self._undone)

    async def carry_out(self, store: Store) -> None:
        """Undo the repairs that the store made itself, which came last, then the edits."""
        if self._repaired:
            await self._revert(store)
        if self.report.planned.memories:
            await super().carry_out(as_recorded(store, self.record))

    async def _revert(self, store: Store) -> None:
        self.begin()
        self._reverted = await revert_repairs(store, self._folder)
        if self._reverted:
            self._observer.note(
                f"repairs of the store itself undone: {self._reverted:,} keys, rows or ids restored"
            )


def as_recorded(store: Store, record: runs.Run) -> Store:
    """Return the store, shown in the dialect in which the run of ``record`` recorded its changes.

    A record without a dialect leaves the store as given.

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
