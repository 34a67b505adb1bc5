"""Editing memories in AgentScope 1.x's tables: rows, marks and positions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import AsyncExitStack, aclosing
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import retry_while_locked
from memctl.engines.sql.executor import Executor, Refused
from memctl.engines.sql.syntax import MAX_PUSHED_VALUES, pieces
from memctl.errors import Failure
from memctl.layouts.sql import name_failure, of_shape
from memctl.model import Change, Edit, MemoryKey, StoredMessage, WriteResult
from memctl.storekit.edits import LargeEdit, batch_edits
from memctl.stores.agentscope1.sql.locks import (
    UNOWNED,
    MessageRow,
    lock_messages,
    lock_rows,
    lock_selected,
    lock_session_content,
    lock_sessions,
    remove_empty,
    row_pages,
    session_owners,
)
from memctl.stores.agentscope1.sql.positions import InsertRun, PositionAllocator, Shift
from memctl.stores.agentscope1.sql.tables import MemoryTables
from memctl.stores.agentscope1.sql.write import Rows

BATCH_CHANGES = 10_000
"""The maximum number of changes of a small edit.  Large edits are applied in pieces."""


NO_MARKS: frozenset[str] = frozenset()

_USER_REMOVED = "guest"
"""The note of an undo that deleted the row of the user."""

_KEPT_SHIFTS = 1000
"""The maximum number of shifts of a memory in the notes of a result."""


class SqlEditor(Executor[Edit, LargeEdit]):
    """A single call of ``Store.edit``."""

    _database: MemoryTables

    def __init__(self, database: MemoryTables) -> None:
        super().__init__(database)
        self._foreign: set[str] = set()
        """The sessions known to have foreign row ids; see ``Statements.is_foreign_id``."""
        self._looked: Set[str] | None = frozenset()
        """The sessions searched for foreign row ids; None for all sessions."""

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Carry out edits (``Store.edit``)."""
        most = self._database.batch_changes
        batches = batch_edits(edits, large=BATCH_CHANGES, most_changes=most, most=most)
        return self.execute(batches)

    def failure(self, task: Edit | LargeEdit) -> Failure | None:
        key = task.memory.key
        return name_failure(key) or self._database.damaged.get(key)

    async def _find_foreign(self, connection: AsyncConnection, sessions: set[str]) -> None:
        """Find which sessions have row ids other than ``{user}-{session}-{message id}``."""
        if self._looked is None or sessions <= self._looked:
            return
        statements = self._database.statements
        sql = (
            f"SELECT DISTINCT m.session_id FROM {statements.source()} "
            f"WHERE {statements.is_foreign_id()} = 1"
        )
        few = not self._looked and len(sessions) <= MAX_PUSHED_VALUES
        if few:
            sql += " AND m.session_id IN :sessions"
        values = {"sessions": sorted(sessions)} if few else {}
        async with self._database.read_transaction(connection):
            rows = await self._database.fetch_all(connection, sql, values)
        self._foreign |= {row[0] for row in rows}
        self._looked = sessions if few else None

    async def commit(self, connection: AsyncConnection, batch: list[Edit]) -> list[WriteResult]:
        await self._find_foreign(connection, {_key(edit).session for edit in batch})
        async with self._database.transaction(connection):
            transaction = EditTransaction(self._database, connection, self._foreign)
            for some in _split_by_session(batch):
                undone = [(_key(edit), edit.before) for edit in some]
                await transaction.apply(some)
                for key, before in undone:
                    await transaction.shift_back(key, before)
            transaction.finish()
            await transaction.remove_made({_key(edit): edit.before for edit in batch})
            results = [
                WriteResult(
                    _key(edit), *_count(edit.changes), before=transaction.before(_key(edit))
                )
                for edit in batch
            ]
            self._database.about_to_commit(results)
        return results

    async def commit_alone(
        self, connection: AsyncConnection, batch: list[Edit]
    ) -> list[WriteResult]:
        return await retry_while_locked(lambda: self.commit(connection, batch))

    async def commit_large(self, connection: AsyncConnection, large: LargeEdit) -> WriteResult:
        written = deleted = 0
        key = large.memory.key
        await self._find_foreign(connection, {key.session})
        transaction = EditTransaction(self._database, connection, self._foreign)
        async with await retry_while_locked(lambda: self._begin(transaction, key)):
            async for changes in large.pieces:
                added, removed = _count(changes)
                written += added
                deleted += removed
                edits = [replace(large.edit, changes=changes)]
                del changes  # do not hold a huge message during the insertion of its row
                await transaction.apply(edits)
            transaction.finish()
            await transaction.shift_back(key, large.edit.before)
            await transaction.remove_made({key: large.edit.before})
            result = WriteResult(key, written, deleted, before=transaction.before(key))
            self._database.about_to_commit([result])
        return result

    async def _begin(self, transaction: EditTransaction, key: MemoryKey) -> AsyncExitStack:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._database.transaction(transaction.connection))
            await transaction.lock_session(key.session)
            return stack.pop_all()


def _key(edit: Edit) -> MemoryKey:
    return edit.memory.key


def _count(changes: list[Change]) -> tuple[int, int]:
    deleted = sum([change.new is None for change in changes])
    return len(changes) - deleted, deleted


def _split_by_session(batch: list[Edit]) -> list[list[Edit]]:
    """Split edits into lists with at most one edit for each session.

    Edits that undo shifts of rows come first, in reverse order: other edits may insert messages at
    the positions that the shifted rows had.
    """
    shifted = [edit for edit in batch if '"shifts"' in edit.before]
    others = [edit for edit in batch if '"shifts"' not in edit.before]
    lists: list[list[Edit]] = []
    times: dict[str, int] = {}
    for edit in [*reversed(shifted), *others]:
        session = _key(edit).session
        number = times.get(session, 0)
        times[session] = number + 1
        if number == len(lists):
            lists.append([])
        lists[number].append(edit)
    return lists


# One transaction


class EditTransaction:
    """A transaction that changes memories in pieces: read, compare, delete, mark, insert.

    The rows of messages and marks are locked before they are compared with the edit.  To add a
    mark, an agent needs a lock on the row of the message, because of the foreign key.  To remove a
    mark, an agent needs a lock on the row of the mark.  So no agent can change the rows until the
    transaction ends.  Marks are read after the messages, because no agent can add a mark to a
    locked message.

    The transaction does not wait for rows that other programs have locked.  In a deadlock, the
    database would roll back the smaller transaction, usually the transaction of the agent.
    """

    def __init__(
        self, database: MemoryTables, connection: AsyncConnection, foreign: Set[str] = frozenset()
    ) -> None:
        """``foreign`` are sessions with row ids other than ``{user}-{session}-{message id}``."""
        self.connection = connection
        self._foreign = foreign
        self._database = database
        self._no_wait = database.statements.no_wait
        self._scans: dict[MemoryKey, SessionScan] = {}
        self._last: dict[MemoryKey, tuple[str | None, int]] = {}
        """By memory, the message before the last insertion, and the last inserted index."""
        self._made: dict[MemoryKey, str] = {}
        """The notes of new rows of sessions and users, by memory."""
        self._users_removed: set[MemoryKey] = set()
        """The memories for which an undo has deleted the row of the user."""
        self._shifts: dict[MemoryKey, list[list[Shift]]] = {}
        """By memory, the steps of shifts that made room for messages."""
        self._back: dict[MemoryKey, list[list[Shift]]] = {}
        """By memory, the steps of undone shifts."""
        self._waiting: dict[str, tuple[MemoryKey, StoredMessage]] = {}
        """By row id, the messages to insert after the deletion of the row with the same id."""

    async def lock_session(self, session: str) -> None:
        """Lock all messages and marks of a session before a change in many steps.

        Raises:
            Contended: other programs hold some of the rows.
        """
        if not self._database.statements.row_lock:
            return
        await lock_session_content(self._database, self.connection, [session], self._lock)
        # Now other programs can lock only new rows, and the transaction can wait for new rows.
        self._no_wait = ""

    async def apply(self, edits: list[Edit]) -> None:
        """Carry out the edits.  Only one edit of a session may insert messages.

        Empties the list ``edits``, so that its messages can be freed before the insertion.

        Raises:
            Refused: memories are not as the edits expect.  The caller must roll back the
                transaction.
            Contended: other programs hold rows.  The caller must roll back the transaction.
        """
        for edit in edits:
            await self._shift_again(_key(edit), edit.before)
        edits[:] = map(_among_shifted, edits)
        stored = await self._find(edits)
        resolved = _resolve_all(edits, stored)
        edits.clear()
        await self._delete(resolved)
        await self._mark(resolved.values())
        rows, shifts = await self._allocate(resolved, stored)
        del resolved
        await shift_rows(self._database, self.connection, shifts, self._lock)
        await rows.insert(self._database, self.connection)

    def before(self, key: MemoryKey) -> str:
        """Return ``WriteResult.before`` for a memory: what an undo must revert besides the changes.

        The JSON text names rows that were created for the session and the user, and shifts of rows.
        Empty if there are none.
        """
        found = of_shape(self._made.get(key, ""))
        if key in self._users_removed:
            found[_USER_REMOVED] = None
        for name, shifts in (("shifts", self._shifts), ("back", self._back)):
            steps = shifts.get(key, [])
            if 0 < sum(map(len, steps)) <= _KEPT_SHIFTS:
                found[name] = steps
        return json.dumps(found) if found else ""

    async def shift_back(self, key: MemoryKey, before: str) -> None:
        """Undo the shifts of rows that ``before``, the ``Edit.before`` of an undo, names."""
        for step in reversed(_steps(of_shape(before).get("shifts"))):
            await self._shift_back(key, step)

    async def remove_made(self, befores: Mapping[MemoryKey, str]) -> None:
        """Delete the rows of sessions and of users that ``befores`` notes as new, if unused.

        ``befores`` maps the memories of an undo to their ``Edit.before``.
        """
        made = {key: of_shape(before) for key, before in befores.items()}
        self._users_removed |= await remove_empty(self._database, self.connection, made)

    async def _shift_back(self, key: MemoryKey, step: list[Shift]) -> None:
        """Undo a step of shifts, unless the freed positions are taken."""
        statements = self._database.statements
        sql = (
            f"SELECT 1 FROM message m WHERE m.session_id IN :sessions "
            f"AND {statements.index} >= :low AND {statements.index} < :high LIMIT 1"
        )
        passed = 0
        for shift in step:
            room = {"low": shift.low + passed, "high": shift.low + shift.by}
            values = {"sessions": [key.session], **room}
            if await self._database.fetch_all(self.connection, sql, values):
                return
            passed = shift.by
        back = [(key.session, Shift(one.low + one.by, -one.by)) for one in step]
        await shift_rows(self._database, self.connection, back, self._lock)
        self._back.setdefault(key, []).insert(0, step)

    async def _shift_again(self, key: MemoryKey, before: str) -> None:
        """Repeat the shifts that an undone undo had reversed; ``before`` is ``Edit.before``."""
        if key in self._shifts or '"back"' not in before:
            return
        self._shifts[key] = _steps(of_shape(before).get("back"))
        for step in self._shifts[key]:
            shifts = [(key.session, shift) for shift in step]
            await shift_rows(self._database, self.connection, shifts, self._lock)

    def finish(self) -> None:
        """Check that no message still waits for the deletion of a row with the same id.

        Raises:
            Refused: messages to insert already exist.
        """
        if self._waiting:
            raise Refused(
                {
                    key: Failure("changed", f"the message {message.id!r} already exists")
                    for key, message in self._waiting.values()
                }
            )

    @property
    def _lock(self) -> str:
        return f"{self._database.statements.row_lock} {self._no_wait}".strip()

    # Look

    async def _find(self, edits: Sequence[Edit]) -> dict[MemoryKey, dict[str, StoredRow]]:
        """Lock the messages that the edits name; return their rows by memory and message id.

        Also locks the sessions of inserted messages, or creates these sessions.

        Raises:
            Refused: a session has messages and no row.
        """
        growing = {_key(edit) for edit in edits if any(one.old is None for one in edit.changes)}
        guests = {_key(edit).user for edit in edits if _USER_REMOVED in of_shape(edit.before)}
        owners = session_owners(edit.memory for edit in edits)
        await self._lock_sessions(growing, guests, owners)
        wanted = {_key(edit): _ids(edit.changes) for edit in edits}
        row_ids = [_prefix(key) + id for key in wanted for id in wanted[key]]
        rows = await self._lock_messages(row_ids)
        # The row ids of each message: several if rows share a message id.
        named: dict[MessageName, list[str]] = {}
        missing: set[MessageName] = set()
        for key, ids in wanted.items():
            prefix = _prefix(key)
            for id in ids:
                row = rows.get(prefix + id)
                if row and (row.session, row.user) == (key.session, key.user):
                    named[MessageName(key, id)] = [prefix + id]
                    if key.session not in self._foreign:
                        continue
                missing.add(MessageName(key, id))
        others = await self._scan(missing, growing)
        for name, foreign in others.items():
            named[name] = named.get(name, []) + foreign
        rows |= await self._lock_messages([row_id for some in others.values() for row_id in some])
        marks = await self._marks(list(rows) if others else row_ids)
        found: dict[MemoryKey, dict[str, StoredRow]] = {key: {} for key in wanted}
        unowned: dict[MemoryKey, Failure] = {}
        for (key, id), found_ids in named.items():
            # A row can be deleted between the scan and the lock.
            if present := [row_id for row_id in found_ids if row_id in rows]:
                first, *more = present
                row = rows[first]
                others_of_id = tuple((rows[row_id].position, row_id) for row_id in more)
                found[key][id] = StoredRow(
                    first, row.position, marks.get(first, NO_MARKS), others_of_id
                )
                if not row.owned:
                    unowned[key] = UNOWNED
        if unowned:
            raise Refused(unowned)
        return found

    async def _lock_sessions(
        self, keys: set[MemoryKey], guests: set[str], owners: Mapping[str, str]
    ) -> None:
        """Lock the sessions of the memories ``keys``, or create them.

        ``owners`` has the owners of sessions of other users.  ``guests`` are users who get a row
        although other users own the sessions.

        Raises:
            Refused: a session has messages and no row.
        """
        new = sorted(keys - self._scans.keys())
        if new:
            locked = await lock_sessions(
                *(self._database, self.connection, new, self._lock),
                owners_only=True,
                guests=guests,
                given=owners,
            )
            self._scans |= {key: SessionScan() for key in new if key.session not in locked.known}
            self._made |= {key: before for key in new if (before := locked.before(key))}

    async def _lock_messages(self, row_ids: list[str]) -> dict[str, MessageRow]:
        if not row_ids:
            return {}
        return await lock_messages(self._database, self.connection, row_ids, self._lock)

    async def _scan(
        self, missing: set[MessageName], growing: set[MemoryKey]
    ) -> dict[MessageName, list[str]]:
        """Search the sessions for ``missing`` messages under row ids of another form.

        Return these row ids by message.  Also note the positions in the sessions of ``growing``,
        the memories to insert into.
        """
        keys = {name.key for name in missing} | growing
        known = {key for key, scan in self._scans.items() if not scan.has_other_ids}
        if keys <= known:
            return {}
        scans, others = await scan_sessions(self._database, self.connection, keys - known, missing)
        self._scans |= scans
        return others

    async def _marks(self, row_ids: list[str]) -> dict[str, frozenset[str]]:
        if not row_ids:
            return {}
        found = self._database.statements.keyed_rows("message_mark", "msg_id")
        sql = f"SELECT t.msg_id, t.mark FROM {found} {self._lock}"
        marks: dict[str, frozenset[str]] = {}
        shared: dict[str, frozenset[str]] = {}
        for row_id, mark in await self._database.for_rows(self.connection, sql, row_ids):
            one = shared.setdefault(mark, frozenset((mark,)))
            marks[row_id] = marks[row_id] | one if row_id in marks else one
        return marks

    # Change

    async def _delete(self, resolved: Mapping[MemoryKey, ResolvedChanges]) -> None:
        deleted = [row_id for one in resolved.values() for row_id in one.deleted]
        unmarked = deleted + [row_id for one in resolved.values() for row_id in one.unmarked]
        for table, column, row_ids in (
            ("message_mark", "msg_id", unmarked),
            ("message", "id", deleted),
        ):
            if row_ids:
                await self._database.delete_rows(self.connection, table, column, row_ids)
        for key, one in resolved.items():
            if one.freed and key in self._scans:
                self._scans[key].positions.remove(one.freed)

    async def _mark(self, resolved: Iterable[ResolvedChanges]) -> None:
        marks = [pair for one in resolved for pair in one.marks]
        if marks:
            columns = ["msg_id", "mark"]
            await self._database.insert(self.connection, "message_mark", columns, marks)

    async def _allocate(
        self,
        resolved: Mapping[MemoryKey, ResolvedChanges],
        stored: Mapping[MemoryKey, Mapping[str, StoredRow]],
    ) -> tuple[Rows, list[tuple[str, Shift]]]:
        """Return the rows to insert, and the shifts that make room for them.

        ``stored`` has the stored messages by memory and id.
        """
        rows = Rows()
        shifts: list[tuple[str, Shift]] = []
        for key, one in resolved.items():
            messages = self._unblocked(one.deleted)
            if one.insertions:
                parts = one.in_order(stored[key], self._last.get(key))
                runs = [part.run for part in parts]
                shifted: list[Shift] = []
                if await self._fits(key, parts, stored[key]):
                    allocated = [[index or 0 for index in run.wanted] for run in runs]
                else:
                    allocated, shifted = self._insert(key, runs)
                shifts += [(key.session, shift) for shift in shifted]
                if shifted:
                    self._shifts.setdefault(key, []).append(shifted)
                self._last[key] = (parts[-1].after, allocated[-1][-1])
                for part, indexes in zip(parts, allocated, strict=True):
                    for message, index in zip(part.messages, indexes, strict=True):
                        placed = message._replace(position=index)
                        if message.id in one.blocked:
                            self._waiting[one.blocked[message.id]] = (key, placed)
                        else:
                            messages.append(placed)
            for message in messages:
                rows.add(key, [message], -1 if message.position is None else message.position - 1)
        return rows, shifts

    def _insert(
        self, key: MemoryKey, runs: Sequence[InsertRun]
    ) -> tuple[list[list[int]], list[Shift]]:
        try:
            return self._scans[key].positions.insert(runs)
        except OverflowError:
            text = "no index is left above the highest in the session"
            raise Refused({key: Failure("refused", text)}) from None

    async def _fits(
        self, key: MemoryKey, parts: Sequence[Insertion], stored: Mapping[str, StoredRow]
    ) -> bool:
        """Return whether the inserted messages ``parts`` may get their former indexes.

        ``stored`` has the stored messages of the memory by id.
        """
        if any(part.run.low is not None or None in part.run.wanted for part in parts):
            return False
        positions = self._scans[key].positions
        wanted = [index for part in parts for index in part.run.wanted if index is not None]
        rows = [stored[part.after] for part in parts if part.after is not None]
        shared = positions.shared(wanted, 1) | positions.shared([row.position for row in rows], 2)
        ties = await self._ties(key, sorted(shared)) if shared else {}
        named = bool(shared) or len(set(wanted)) < len(wanted)
        for part in parts:
            places = [
                (index or 0, self._row_id(key, one) if named else b"")
                for index, one in zip(part.run.wanted, part.messages, strict=True)
            ]
            if part.after is None:
                fits = positions.follows(None, places, ties)
            else:
                row = stored[part.after]
                fits = any(
                    positions.follows((at, row_id.encode() if named else b""), places, ties)
                    for at, row_id in ((row.position, row.row_id), *row.others_of_id)
                )
            if not fits:
                return False
        return True

    @staticmethod
    def _row_id(key: MemoryKey, message: StoredMessage) -> bytes:
        row: str = of_shape(message.shape).get("row", _prefix(key) + message.id)
        return row.encode()

    async def _ties(self, key: MemoryKey, indexes: list[int]) -> dict[int, list[bytes]]:
        statements = self._database.statements
        found: dict[int, list[bytes]] = {}
        sql = (
            f"SELECT {statements.index}, m.id, {statements.user} FROM {statements.source()} "
            f"WHERE m.session_id IN :sessions AND {statements.index} IN :indexes"
        )
        for some in pieces(indexes):
            values = {"sessions": [key.session], "indexes": some}
            for index, row_id, user in await self.connection.execute(
                sql, statements.bound(sql, values)
            ):
                if user == key.user:
                    found.setdefault(index, []).append(row_id.encode())
        return found

    def _unblocked(self, deleted: list[str]) -> list[StoredMessage]:
        return [self._waiting.pop(row_id)[1] for row_id in deleted if row_id in self._waiting]


def _steps(noted: Any) -> list[list[Shift]]:
    return [[Shift(*one) for one in step] for step in noted or ()]


def _among_shifted(edit: Edit) -> Edit:
    """Return the edit with the positions of inserted messages shifted as ``Edit.before`` says.

    The shifts have already moved the stored rows.  ``shift_back`` will move all rows back, also the
    rows of the inserted messages.
    """
    steps = _steps(of_shape(edit.before).get("shifts")) if '"shifts"' in edit.before else []
    if not steps:
        return edit
    changes = [
        one
        if one.position is None or one.old is not None
        else one._replace(position=_shifted_index(one.position, steps))
        for one in edit.changes
    ]
    return replace(edit, changes=changes)


def _shifted_index(index: int, steps: Sequence[Sequence[Shift]]) -> int:
    for step in steps:
        index += max([shift.by for shift in step if shift.low <= index], default=0)
    return index


def _prefix(key: MemoryKey) -> str:
    return f"{key.user}-{key.session}-"


def _ids(changes: Sequence[Change]) -> dict[str, None]:
    ids = dict.fromkeys([change.id for change in changes])
    after = [one.after for one in changes if one.after is not None and one.old is None]
    return ids | dict.fromkeys(after)


# Changes compared with stored messages; no I/O


class StoredRow(NamedTuple):
    """The row of a stored message."""

    row_id: str
    position: int
    marks: frozenset[str]
    others_of_id: tuple[tuple[int, str], ...] = ()
    """The positions and row ids of further rows with the same message id."""


class Insertion(NamedTuple):
    """Messages to insert after the message with the id ``after``; None for the beginning."""

    after: str | None
    run: InsertRun
    messages: list[StoredMessage]


class ResolvedChanges(Struct):
    """The changes of a memory as changes of rows."""

    deleted: list[str] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)
    """The positions of the deleted rows."""
    unmarked: list[str] = field(default_factory=list)
    """Rows that lose a mark.  memctl deletes all marks of the row and inserts the kept marks."""
    marks: list[tuple[str, str]] = field(default_factory=list)
    insertions: dict[str | None, list[Change]] = field(default_factory=dict)
    """The insertions, by the id of the preceding message."""
    blocked: dict[str, str] = field(default_factory=dict)
    """By message id, the row ids of messages to insert that already exist.

    memctl must delete the existing row before the insertion.
    """

    def in_order(
        self, stored: Mapping[str, StoredRow], last: tuple[str | None, int] | None
    ) -> list[Insertion]:
        """Return the insertions in the order of the memory.

        ``stored`` has the stored messages by id.  ``last`` describes the previous insertion: the id
        of the message before it, and its last index.
        """
        found = []
        for after, changes in self.insertions.items():
            at = None if after is None else stored[after].position
            low = last[1] if last and last[0] == after else None
            run = InsertRun(at, low, [change.position for change in changes])
            messages = [
                StoredMessage(one.id, one.message, one.new or (), None, one.shape)
                for one in changes
            ]
            found.append(Insertion(after, run, messages))
        return sorted(found, key=lambda one: (one.run.after is not None, one.run.after or 0))


def resolve_changes(
    changes: Sequence[Change], stored: Mapping[str, StoredRow]
) -> ResolvedChanges | Failure:
    """Compare changes with the stored messages of a memory; return the changes of rows.

    ``stored`` has the stored messages by id.  Returns a failure if the stored messages do not match
    the changes.
    """
    resolved = ResolvedChanges()
    done: set[str] = set()
    for change in changes:
        if change.old is None:
            resolved.insertions.setdefault(change.after, []).append(change)
            continue
        row = stored.get(change.id)
        if row is None or change.id in done:
            return Failure("changed", f"the message {change.id!r} no longer exists")
        if row.marks != set(change.old):
            return Failure("changed", f"the marks of the message {change.id!r} differ")
        if row.others_of_id or of_shape(change.was).get("row", row.row_id) != row.row_id:
            return Failure("repeated-id", f"two messages have the id {change.id!r}")
        done.add(change.id)
        if change.new is None:
            resolved.deleted.append(row.row_id)
            resolved.freed.add(row.position)
        else:
            _resolve_marks(resolved, row, change.new)
    return _check_insertions(resolved, stored) or resolved


def _resolve_marks(resolved: ResolvedChanges, row: StoredRow, new: tuple[str, ...]) -> None:
    wanted = dict.fromkeys(new)
    if row.marks <= wanted.keys():
        added = [mark for mark in wanted if mark not in row.marks]
    else:
        resolved.unmarked.append(row.row_id)
        added = list(wanted)
    resolved.marks += [(row.row_id, mark) for mark in added]


def _check_insertions(resolved: ResolvedChanges, stored: Mapping[str, StoredRow]) -> Failure | None:
    """Return why the insertions fail; None if they can be made.

    A message whose id another row already has does not fail: its id is added to
    ``resolved.blocked``.
    """
    deleted = set(resolved.deleted)
    ids: set[str] = set()
    for after, changes in resolved.insertions.items():
        if after is not None and (after not in stored or stored[after].row_id in deleted):
            return Failure("changed", f"there is no message {after!r} to insert others after")
        for change in changes:
            if change.id in ids:
                return Failure("changed", f"the message {change.id!r} would be inserted twice")
            ids.add(change.id)
            row = stored.get(change.id)
            if row and row.row_id not in deleted:
                resolved.blocked[change.id] = row.row_id
    return None


def _resolve_all(
    edits: Sequence[Edit], stored: Mapping[MemoryKey, Mapping[str, StoredRow]]
) -> dict[MemoryKey, ResolvedChanges]:
    """Return the changes of rows for each edit, by memory.

    ``stored`` has the stored messages by memory and id.

    Raises:
        Refused: stored messages of a memory do not match the edit.
    """
    resolved: dict[MemoryKey, ResolvedChanges] = {}
    failures: dict[MemoryKey, Failure] = {}
    for edit in edits:
        key = _key(edit)
        found = resolve_changes(edit.changes, stored[key])
        if isinstance(found, Failure):
            failures[key] = found
        else:
            resolved[key] = found
    if failures:
        raise Refused(failures)
    return resolved


# Scans of sessions: the table has no index on ``session_id``


class MessageName(NamedTuple):
    """The memory and the id of a message."""

    key: MemoryKey
    id: str


class SessionScan(Struct):
    """The positions of the messages in the session of a memory.

    ``has_other_ids`` is True if row ids of the memory do not begin with ``{user}-{session}-``.
    """

    positions: PositionAllocator = field(default_factory=PositionAllocator)
    has_other_ids: bool = False


async def scan_sessions(
    database: MemoryTables,
    connection: AsyncConnection,
    keys: Set[MemoryKey],
    missing: Set[MessageName],
) -> tuple[dict[MemoryKey, SessionScan], dict[MessageName, list[str]]]:
    """Read the sessions of the memories ``keys`` in a single pass.

    Returns the scans by memory.  Also returns row ids that do not begin with ``{user}-{session}-``,
    by the message of ``missing`` that they belong to.  Message ids are the same as in
    ``SqlReader``.
    """
    statements = database.statements
    scans = {key: SessionScan() for key in keys}
    others: dict[MessageName, list[str]] = defaultdict(list)
    by_session = defaultdict(list)
    for key in keys:
        by_session[key.session].append(key)
    sql = (
        f"SELECT m.session_id, {statements.user}, {statements.index}, "
        f"CASE WHEN {statements.is_plain_id()} THEN NULL ELSE m.id END, "
        f"CASE WHEN {statements.is_plain_id()} THEN NULL ELSE {statements.field('id')} END "
        f"FROM {statements.source()} WHERE m.session_id IN :sessions"
    )
    rows = database.rows(connection, sql, {"sessions": sorted(by_session)})
    async with aclosing(rows) as partitions:
        async for some in partitions:
            for session, user, index, row_id, id in some:
                for key in by_session.get(session, ()):
                    own = key.user == user
                    positions = scans[key].positions
                    if type(index) is int:  # in a damaged memory SQLite holds any type
                        (positions.own if own else positions.others).append(index)
                    # A row id that is not a text belongs to a damaged row.
                    if own and isinstance(row_id, str) and not row_id.startswith(_prefix(key)):
                        scans[key].has_other_ids = True
                        name = MessageName(key, id or row_id)
                        if name in missing:
                            others[name].append(row_id)
    for scan in scans.values():
        scan.positions.sort()
    return scans, others


async def shift_rows(
    database: MemoryTables,
    connection: AsyncConnection,
    shifts: Sequence[tuple[str, Shift]],
    lock: str,
) -> None:
    """Change the indexes of messages by shifts, in a single pass over the table ``message``.

    ``shifts`` are pairs of a locked session and a shift.  ``lock`` is SQL to lock rows, empty for a
    database without row locks.
    """
    if not shifts:
        return
    statements = database.statements
    name = statements.index_column
    await connection.exec_driver_sql(
        "CREATE TEMPORARY TABLE IF NOT EXISTS memctl_shifts "
        f"{statements.shifts_key} {statements.temporary_end} "
        f"AS SELECT session_id, {name} AS low, {name} AS distance FROM message WHERE 1 = 0"
    )
    if not statements.shifts_key:
        await connection.exec_driver_sql(
            "CREATE INDEX IF NOT EXISTS memctl_shifts_low ON memctl_shifts (session_id, low)"
        )
    rows = [(session, one.low, one.by) for session, one in shifts]
    await database.insert(connection, "memctl_shifts", ["session_id", "low", "distance"], rows)
    condition = f"m.session_id IN :sessions AND {statements.index} >= :low AND {statements.sound}"
    values = {
        "sessions": sorted({session for session, _ in shifts}),
        "low": min(one.low for _, one in shifts),
    }
    if statements.locks_scanned_rows:
        change = f"UPDATE {statements.keyed_rows('message', 'id')} SET {_shifted('t', name)}"
        async for row_ids in row_pages(database, connection, condition, values):
            await lock_rows(database, connection, row_ids, lock)
            await database.for_rows(connection, change, row_ids)
    else:
        if lock:
            selected = f"SELECT 1 FROM message m WHERE {condition}"
            await lock_selected(database, connection, selected, values, lock)
        counted = f"SELECT COUNT(*) FROM message m WHERE {condition}"
        [[rows]] = await database.fetch_all(connection, counted, values)
        change = f"UPDATE message AS m SET {_shifted('m', name)} WHERE {condition}"
        done = await connection.execute(change, statements.bound(change, values))
        database.check_updated("message", rows, done.rowcount)
    await connection.exec_driver_sql("DELETE FROM memctl_shifts")


def _shifted(row: str, name: str) -> str:
    distance = (
        f"SELECT v.distance FROM memctl_shifts v WHERE v.session_id = {row}.session_id "
        f"AND v.low <= {row}.{name} ORDER BY v.low DESC LIMIT 1"
    )
    # PostgreSQL takes the assigned column only without the name of the table.
    return f"{name} = {row}.{name} + COALESCE(({distance}), 0)"
