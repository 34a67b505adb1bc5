"""Stores of memories in rows.

A layout is data, its tables, and functions without I/O: they turn the rows of a session into
memories, and a changed memory into rows.  ``RowStore`` does the rest: it reads, locks, compares,
writes, undoes and erases.  The rows of a session are read and changed together.  A session has one
memory, or several parts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec import structs

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Contended, RejectedValue, damage, is_text, shown_name
from memctl.engines.sql.executor import BATCH_MESSAGES, Executor, erase_memories
from memctl.engines.sql.renaming import Named, Renaming
from memctl.engines.sql.rows.added import AddedColumns, Noted, Restored, with_noted, without_noted
from memctl.engines.sql.rows.tables import Delta, Key, Rows, RowTable, RowTables
from memctl.engines.sql.store import SqlStore
from memctl.engines.sql.syntax import (
    EVERY,
    MAX_PUSHED_VALUES,
    Condition,
    pieces,
    session_condition,
)
from memctl.errors import Failure
from memctl.model import (
    PAGE_ENTRIES,
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Deletion
from memctl.storekit.batching import (
    BATCH_BYTES,
    Group,
    Small,
    gather,
    grouped,
    grouped_async,
    paginate,
)
from memctl.storekit.edits import Snapshot, apply_edit, batch_edits, without_summary
from memctl.storekit.simple import CHANGED, Rejected, VersionChanged, part_refusal, written

if TYPE_CHECKING:
    from memctl.engines.sql.columns import Column

ATTEMPTS = 3
"""The number of attempts to write a memory; another run may insert the same rows meanwhile."""


class Listed(NamedTuple):
    """A session in a list: the size of the texts of its ``head``, and the rows of its ``log``."""

    session: Any
    user: Any
    bytes: int = 0
    messages: int = 0

    @property
    def key(self) -> MemoryKey:
        """The key of the session; names that are not text are converted to text."""
        return MemoryKey(shown_name(self.user or ""), shown_name(self.session))

    @property
    def is_named(self) -> bool:
        """True if the names of the session and the user are valid text."""
        names = (self.session, self.user or "")
        return all(isinstance(name, str) and is_text(name) for name in names)


class RowStore(SqlStore):
    """A store of memories in rows.

    A subclass names the tables, which may depend on what ``prepare`` finds, and defines
    ``read_rows`` and ``changed_rows``.  A store that is faster otherwise also overrides
    ``written_rows``.
    """

    tables: tuple[RowTable, ...]
    """The tables, in an order in which rows can be inserted."""
    head: RowTable
    """The table with a row for each session."""
    log: RowTable
    """The table with the rows of messages."""
    erased: tuple[RowTable, ...] = ()
    """Further tables whose rows of a session an erase deletes."""
    own_tables: Collection[str] = ()
    """The names of all tables of the framework."""
    belongs: ClassVar[str] = "the session {!r} belongs to the user {!r}"
    """Why a session is not that of another user."""
    misnamed: str = "its id or its user is not a text"
    """Why a session is damaged whose name or user is not a text."""
    damage_code: ClassVar[str] = "damaged-row"
    """The code of the finding for damage."""

    # Specific to a layout, without I/O

    def session_of(self, key: MemoryKey) -> str:
        """Return the name by which the tables know the session of a memory."""
        return key.session

    def keys_in(self, session: str, rows: Rows) -> list[MemoryKey]:
        """Return the keys of the memories in the rows of a session."""
        at = self.head.at(self.head.owner)
        return [MemoryKey(row[at] or "", session) for row in rows[self.head.name].values()]

    @abstractmethod
    def read_rows(self, key: MemoryKey, rows: Rows, bad: list[str]) -> Snapshot | None:
        """Return a memory; None if it is damaged as a whole.

        Damaged messages are left out.  The reasons are appended to ``bad``.
        """

    @abstractmethod
    def changed_rows(
        self, key: MemoryKey, rows: Rows, there: Snapshot, new: Snapshot, undone: str | None
    ) -> tuple[Rows, str]:
        """Return the rows after the memory ``there`` has become ``new``, and what an undo needs.

        ``rows`` are the present rows.  A table without a change may be missing in the result, and a
        row that stays should be the same object.  The text is ``WriteResult.before``.  ``undone``
        is ``Edit.before``, the text of a change that is undone; None if messages are written.

        Raises:
            Rejected: the tables cannot hold the memory.
        """

    def written_rows(self, small: Small, rows: Rows, mode: WriteMode) -> tuple[Rows, WriteResult]:
        """Return the rows after messages were appended to a memory, or have replaced it.

        Raises:
            Rejected: the tables cannot hold the memory, or the memory is not as ``mode`` expects.
        """
        key, there = small.memory.key, self.there(small.memory.key, rows)
        page = Page(small.memory, small.entries, small.offset)
        try:
            repeats = self.features.duplicate_ids
            new = written(there, page, small.entries, mode, repeats=repeats)
        except VersionChanged:
            raise Rejected(CHANGED.code, CHANGED.message) from None
        if mode is WriteMode.ADD and there.exists:
            new = structs.replace(new, memory=replace(new.memory, extra=there.memory.extra))
        gone = len(there.messages) if mode is WriteMode.REPLACE else 0
        found, before = self.changed_rows(key, rows, there, new, None)
        return found, WriteResult(key, len(small.entries), gone, before=before)

    def there(self, key: MemoryKey, rows: Rows) -> Snapshot:
        """Return the memory to change.

        Raises:
            Rejected: the memory is damaged.
        """
        if key not in self.keys_in(self.session_of(key), rows):
            return Snapshot(Memory(key), exists=False)
        bad: list[str] = []
        found = self.read_rows(key, rows, bad)
        if found is None or bad:
            raise Rejected("damaged", bad[0])
        return found

    def made_rows(
        self,
        key: MemoryKey,  # noqa: ARG002
        rows: Rows,  # noqa: ARG002
        undone: str,  # noqa: ARG002
    ) -> list[tuple[RowTable, Key]]:
        """Return the rows that only the undone change needed; ``rows`` are those after the undo.

        A row with a value in a column that an application added stays nevertheless.
        """
        return []

    def fitted(self, edit: Edit, there: Snapshot) -> Edit:  # noqa: ARG002
        """Return an edit as this layout places its changes."""
        return edit

    def refusal(self, messages: Sequence[StoredMessage]) -> Failure | None:  # noqa: ARG002
        """Return why the tables can hold no memory with these messages; None if they can."""
        return None

    async def around(
        self,
        connection: AsyncConnection,  # noqa: ARG002
        tasks: Sequence[Small | Edit],  # noqa: ARG002
    ) -> Rows:
        """Return further rows that the changes of memories need, such as shared rows."""
        return {}

    async def settled(
        self,
        connection: AsyncConnection,  # noqa: ARG002
        rows: Rows,  # noqa: ARG002
        new: Rows,
    ) -> Rows:
        """Return the rows ``new``, adapted to the rows of other sessions; ``rows`` are present.

        Raises:
            Rejected: another session has a row that is to be inserted.
        """
        return new

    # Tables

    @property
    def rows(self) -> RowTables:
        """The statements on the tables."""
        return RowTables(self.database, self.tables)

    @cached_property
    def added(self) -> AddedColumns:
        """The columns that an application added to the tables."""
        return AddedColumns(self.database, self.tables)

    @property
    def changed_tables(self) -> Sequence[str]:
        return [table.name for table in (*self.tables, *self.erased)]

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - rights of tables
        own = [table for table in self.tables if table.session]
        inserted = [table.name for table in own if table is not self.head]
        return await self.database.missing_right(inserted, locked=[table.name for table in own])

    async def unrestorable(self, where: Selection) -> str:
        for table in self.tables:
            if not table.session:
                continue
            condition = session_condition(where, table.session)
            added = [] if table is self.head else await self.added.of(table)
            restored = {*table.columns, *(one.name for one in added if not one.numbered)}
            columns = [*table.typed.values(), *added]
            found = columns and await self._unrestorable(table, columns, condition)
            if not found and any(one.numbered for one in added):
                found = await self.database.find_other_values(table.name, restored, condition)
            if found:
                return found
        return ""

    async def _unrestorable(
        self, table: RowTable, columns: Sequence[Column], where: Condition
    ) -> str:
        from memctl.engines.sql.columns import find_unrestorable  # by SQLAlchemy

        return await find_unrestorable(self.database, table.name, columns, *where)

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        if deletion is Deletion.MARKS:  # they are in no row of a message
            return []
        tables = {
            table.name: session_condition(where, table.session) if table.session else EVERY
            for table in (*self.tables, *self.erased)
            if deletion is not Deletion.MESSAGES
            or (table.session and table is not self.head and table not in self.erased)
        }
        return await self.database.side_effects(tables, self.own_tables)

    # Reading

    async def is_empty(self) -> bool:
        quoted = self.database.syntax.quoted
        async with self.database.snapshot(self.shard) as connection:
            for table in self.head, self.log:
                condition = self.database.syntax.in_shard(self.shard, f"m.{quoted(table.session)}")
                sql = f"SELECT 1 FROM {quoted(table.name)} m WHERE {condition} LIMIT 1"
                if await self.database.fetch_all(connection, sql, {}):
                    return False
        return True

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        database = self.database
        async with (
            database.snapshot(where.shard) as connection,
            aclosing(self._sound(connection, where)) as listed,
            aclosing(grouped_async(listed, _measure, BATCH_BYTES)) as chunks,
        ):
            async for chunk in chunks:
                sessions = [one.session for one in chunk]
                held = await self.rows.load(connection, sessions)
                for session in sessions:
                    rows = held.pop(session)
                    keys = list(filter(where.has_key, self.keys_in(session, rows)))
                    while keys:
                        found = self._readable(keys.pop(0), rows)
                        if not keys:
                            rows = {}  # each page releases its messages
                        for page in _pages_of(found):
                            self.left_out.others |= page.last
                            yield page
                            del page  # a large page must not stay while the next page is made
                if database.syntax.reads_briefly:
                    await connection.rollback()
                    await database.begin_read(connection)

    async def _sound(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        """Yield the selected sessions whose names are texts."""
        async with aclosing(self.listed(connection, where)) as listed:
            async for one in listed:
                if not self._may_have(where, one.key):
                    continue
                if one.is_named:
                    yield one
                else:
                    self._leave_out(one.key, self.misnamed)

    def _may_have(self, where: Selection, key: MemoryKey) -> bool:
        """Return whether a session may have a selected memory."""
        if not self.features.parts:
            return where.has_key(key)
        names = {key.session} if where.keys is None else {one.session for one in where.keys}
        return key.session in names and where.around.has_key(key)

    def _readable(self, key: MemoryKey, rows: Rows) -> Snapshot | None:
        bad: list[str] = []
        found = self.read_rows(key, rows, bad)
        for why in bad if self.skips_damage else bad[:1]:
            self._leave_out(key, why)
        if found is None or (bad and not self.skips_damage):
            return None
        return found if found.messages or self.features.empty else None

    def _leave_out(self, key: MemoryKey, why: str) -> None:
        if self.skips_damage:
            self.damage.append(Finding(self.damage_code, key, 1, (), why))
        else:
            self.left_out.failures[key] = damage(why)

    async def listed(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        """Yield the sessions that ``where`` selects, in the order of their names.

        May also yield sessions that ``where`` does not select.
        """
        syntax, head, log = self.database.syntax, self.head, self.log
        name = f"s.{syntax.quoted(head.session)}"
        conditions = [syntax.in_shard(where.shard, name)]
        values = dict[str, Any]()
        sessions = where.sessions
        if not sessions and where.keys is not None:
            sessions = frozenset(key.session for key in where.keys)
        user = f"s.{syntax.quoted(self.head.owner)}"
        for column, names in ((name, sessions), (user, where.users)):
            if 0 < len(names) <= MAX_PUSHED_VALUES:
                conditions.append(f"{column} IN :names{len(values)}")
                values[f"names{len(values)}"] = sorted(names)
        size = syntax.json_size(f"s.{syntax.quoted(head.text)}") if head.text else "0"
        own = f"m.{syntax.quoted(log.session)} = {name}"
        count = f"(SELECT COUNT(*) FROM {syntax.quoted(log.name)} m WHERE {own})"
        more = ""
        while True:
            sql = (
                f"SELECT {name}, {user}, {size}, {count} FROM {syntax.quoted(head.name)} s "
                f"WHERE {' AND '.join(conditions)} {more} ORDER BY {name} LIMIT {PAGE_ENTRIES}"
            )
            rows = await self.database.fetch_all(connection, sql, values)
            for session, owner, bytes, messages in rows:
                yield Listed(session, owner, bytes or 0, messages)
            if len(rows) < PAGE_ENTRIES:
                return
            more = f"AND {name} > :last"
            values["last"] = rows[-1][0]

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for one in await self.stored(where.shard):
            if where.has_key(one.key):
                yield one.key

    async def stored(self, shard: Shard | None = None) -> list[Listed]:
        """Return all sessions, without sizes; with a ``shard``, those of others may be missing."""
        quoted = self.database.syntax.quoted
        names = f"{quoted(self.head.session)}, {quoted(self.head.owner)}"
        async with self.database.snapshot(shard) as connection:
            condition = self.database.syntax.in_shard(shard, quoted(self.head.session))
            sql = f"SELECT {names} FROM {quoted(self.head.name)} WHERE {condition}"
            rows = await self.database.fetch_all(connection, sql, {})
        return sorted((Listed(*row) for row in rows), key=lambda one: one.key)

    async def count_rows(
        self, connection: AsyncConnection, sessions: Collection[str]
    ) -> dict[str, int]:
        """Return the number of rows in the log of each session; lacks sessions without rows."""
        name = self.database.syntax.quoted(self.log.session)
        table = self.database.syntax.quoted(self.log.name)
        sql = f"SELECT {name}, COUNT(*) FROM {table} WHERE {name} IN :names GROUP BY {name}"
        found: dict[str, int] = {}
        for some in pieces(sorted(sessions)):
            found |= dict(await self.database.fetch_all(connection, sql, {"names": some}))
        return found

    # Changing

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return part_refusal(key)

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return RowChanges(self, mode).execute(gather(pages, BATCH_BYTES, BATCH_MESSAGES))

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return RowChanges(self).execute(batch_edits(edits))

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for one in await self.stored():
            if where.has_key(one.key):
                yield one.key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        odd = {one.key for one in await self.stored() if not one.is_named}
        names = dict.fromkeys([key async for key in self.names(where)])
        for key in odd.intersection(names):
            yield WriteResult(key, failure=damage(self.misnamed))
        keys = [key for key in names if key not in odd]
        if not keys:
            return
        async with self.database.connect() as connection:
            await self.database.prepare_erasing(connection)
            async with self.database.read_transaction(connection):
                counts = await self.count_rows(connection, set(map(self.session_of, keys)))
            sizes = {key: counts.get(self.session_of(key), 0) for key in keys}
            attempt, most = partial(self._erase_sessions, connection), self.database.batch_changes
            async with aclosing(erase_memories(sizes, attempt, most)) as results:
                async for result in results:
                    yield result
            await self.erase_users(connection, sorted({key.user for key in keys}))
            await self.database.finish_erasing(connection)

    # Other names

    @property
    def named(self) -> Sequence[Named]:
        """The columns that name the session and the user of rows of a session."""
        own = (table for table in (*self.tables, *self.erased) if table.session)
        return [Named(table.name, table.session, table.owner) for table in own]

    def renamed_rows(self, old: MemoryKey, new: MemoryKey, rows: Rows) -> Rows:  # noqa: ARG002
        """Return rows whose documents have the new names; ``rows`` have them in their columns.

        Rows that stay should be the same objects.

        Raises:
            Rejected: a document cannot have another name.
        """
        return {}

    async def rename_beside(
        self, connection: AsyncConnection, moves: Mapping[MemoryKey, MemoryKey]
    ) -> None:
        """Rename what other rows keep of sessions and users, in the transaction of their rename.

        Raises:
            Rejected: it cannot have the new names.
        """

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        places = [*self.named, *self.of_users]
        renaming = Renaming(self.database, {*self.own_tables, *(one.table for one in places)})
        await renaming.find()
        async with self.database.connect() as connection, self.database.erasing(connection):
            await self.rows.lock(connection, self.head, {self.session_of(key) for key in moves})
            for old, new in moves.items():
                if not old.session:
                    about = connection, self.of_users, old[:2], new[:2]
                    await renaming.rename_names(*about, by_user=True)
                    continue
                names = [(key.user, self.session_of(key)) for key in (old, new)]
                await renaming.rename_names(connection, self.named, *names, by_user=False)
                [rows] = (await self.rows.load(connection, [names[1][1]])).values()
                try:
                    if not any(rows.values()):
                        raise Rejected("changed", f"{old} is gone")
                    changed = self.renamed_rows(old, new, rows)
                except Rejected as error:
                    raise RejectedValue(error.failure.message, error.failure.code) from error
                await self.rows.apply(connection, [Delta(self.tables, rows, changed)])
            await self.rename_beside(connection, moves)
        for key in moves:
            yield WriteResult(key)

    async def erase_users(self, connection: AsyncConnection, users: Iterable[str]) -> None:
        """Delete the rows of users that have no session any more."""

    async def _erase_sessions(
        self, connection: AsyncConnection, keys: Sequence[MemoryKey]
    ) -> dict[MemoryKey, int]:
        """Delete sessions in a transaction; return the number of messages of each that exists.

        Raises:
            Contended: another program added messages meanwhile.
        """
        syntax = self.database.syntax
        async with self.database.transaction(connection):
            found = await self._present(connection, keys)
            counts = await self.count_rows(connection, set(map(self.session_of, found)))
            messages = await self.count_messages(connection, counts)
            names = {"names": list(map(self.session_of, found))}
            for table in (*self.erased, *(one for one in reversed(self.tables) if one.session)):
                tests = [syntax.among(syntax.quoted(table.session), "names"), table.deletable]
                where = " AND ".join(filter(None, tests))
                sql = f"DELETE FROM {syntax.quoted(table.name)} WHERE {where}"
                deleted = await self.database.change(connection, sql, names)
                if table is self.log and deleted != sum(counts.values()):
                    raise Contended(f"{self.database.label}: another program added messages")
            return {key: messages.get(self.session_of(key), 0) for key in found}

    async def count_messages(
        self,
        connection: AsyncConnection,  # noqa: ARG002
        rows: dict[str, int],
    ) -> dict[str, int]:
        """Return the number of messages of sessions, whose numbers of rows are ``rows``."""
        return rows

    async def _present(
        self, connection: AsyncConnection, keys: Sequence[MemoryKey]
    ) -> list[MemoryKey]:
        """Lock sessions, and return those that exist."""
        head, syntax = self.head, self.database.syntax
        if not head.owner:
            return list(keys)
        name = syntax.quoted(head.session)
        sql = (
            f"SELECT {name}, {syntax.quoted(head.owner)} FROM {syntax.quoted(head.name)} "
            f"WHERE {name} IN :names {syntax.row_lock}"
        )
        values = {"names": [key.session for key in keys]}
        rows = await self.database.execute(connection, sql, values)
        return sorted({Listed(*row).key for row in rows}.intersection(keys))


class RowChanges(Executor[Any, Any]):
    """One write or one edit of memories in rows."""

    def __init__(self, store: RowStore, mode: WriteMode = WriteMode.ADD) -> None:
        super().__init__(store.database)
        self._store = store
        self._rows = store.rows
        self._mode = mode

    def failure(self, task: Any) -> Failure | None:
        store, failure = self._store, self._store.name_refusal(task.memory.key)
        if isinstance(task, Small):
            return failure or store.refusal(task.entries)
        return failure and structs.replace(failure, code=_code(task, failure.code))

    async def commit_alone(
        self, connection: AsyncConnection, batch: list[Small | Edit]
    ) -> list[WriteResult]:
        for _ in range(ATTEMPTS - 1 if isinstance(batch[0], Small) else 0):
            # If another run inserted the session meanwhile, the next attempt finds the session.
            with suppress(*self.memory_errors):
                return await self.commit(connection, batch)
        return await self.commit(connection, batch)

    async def commit(
        self, connection: AsyncConnection, batch: list[Small | Edit]
    ) -> list[WriteResult]:
        store, results = self._store, list[WriteResult]()
        sessions = {store.session_of(one.memory.key) for one in batch}
        if self._deletes(batch[0]):
            await store.added.find()
        tasks = [_without_noted(task) for task in batch]
        async with self._database.transaction(connection):
            await self._rows.lock(connection, store.head, sessions)
            counts = await store.count_rows(connection, sessions)
            around = await store.around(connection, [task for task, _ in tasks])

            def measure(one: tuple[Small | Edit, Noted]) -> tuple[int, int]:
                return 0, counts.get(store.session_of(one[0].memory.key), 0)

            for some in grouped(tasks, measure):
                held = await self._load(connection, [task for task, _ in some])
                deltas: Group[tuple[Delta, list[Restored]]] = Group(BATCH_BYTES)
                for task, noted in some:
                    session = store.session_of(task.memory.key)
                    if session not in held:  # the batch changes another memory of the session
                        await self._apply(connection, deltas.take())
                        held |= await self._load(connection, [task])
                    try:
                        rows = held.pop(session) | around
                        new, result = self._changed(task, rows)
                        new = await store.settled(connection, rows, new)
                        if isinstance(task, Edit):
                            await self._remove_made(connection, task, rows, new)
                        restored = self._restored(task, noted, rows, new)
                    except Rejected as error:
                        results.append(WriteResult(task.memory.key, failure=error.failure))
                        continue
                    delta = Delta(store.tables, rows, new)
                    before = with_noted(result.before, await store.added.noted(connection, delta))
                    around |= {name: new[name] for name in around.keys() & new.keys()}
                    results.append(replace(result, before=before))
                    del rows, new
                    if deltas.add((delta, restored), delta.size, 1):
                        await self._apply(connection, deltas.take())
                    del delta
                await self._apply(connection, deltas.take())
            self._database.about_to_commit(results)
        return results

    def _deletes(self, task: Small | Edit) -> bool:
        return isinstance(task, Edit) or self._mode is WriteMode.REPLACE

    def _restored(self, task: Small | Edit, noted: Noted, rows: Rows, new: Rows) -> list[Restored]:
        """Return the values to give back: to new rows, or to all if the rows are back already."""
        if not noted:
            return []
        is_back = isinstance(task, Edit) and not task.changes
        keys = {
            name: {key for key in found if is_back or key not in rows.get(name, ())}
            for name, found in (rows | new).items()
        }
        return self._store.added.restoring(noted, keys)

    async def _apply(
        self, connection: AsyncConnection, changes: list[tuple[Delta, list[Restored]]]
    ) -> None:
        await self._rows.apply(connection, [delta for delta, _ in changes])
        restored = chain.from_iterable(restored for _, restored in changes)
        await self._store.added.restore(connection, restored)

    async def _load(
        self, connection: AsyncConnection, batch: Sequence[Small | Edit]
    ) -> dict[str, Rows]:
        sessions = {self._store.session_of(one.memory.key) for one in batch}
        tail = isinstance(batch[0], Small) and self._store.log.tail is not None
        if not tail:
            await self._rows.lock(connection, self._store.log, sessions)
        return await self._rows.load(connection, sessions, tail=tail)

    def _changed(self, task: Small | Edit, rows: Rows) -> tuple[Rows, WriteResult]:
        store, key = self._store, task.memory.key
        keys = store.keys_in(store.session_of(key), rows)
        if store.features.session_owners and keys and keys[0].user != key.user:
            text = store.belongs.format(key.session, keys[0].user)
            raise Rejected(_code(task, "bad-name"), text)
        if isinstance(task, Small):
            return store.written_rows(task, rows, self._mode)
        there = store.there(key, rows)
        edit = store.fitted(task if store.features.summaries else without_summary(task), there)
        new, result = apply_edit(edit, there, store.dialect)
        if new is None:
            assert result.failure is not None
            raise Rejected(result.failure.code, result.failure.message)
        found, before = store.changed_rows(key, rows, there, new, task.before)
        return found, replace(result, before=before)

    async def _remove_made(
        self, connection: AsyncConnection, edit: Edit, rows: Rows, new: Rows
    ) -> None:
        made = self._store.made_rows(edit.memory.key, rows | new, edit.before)
        for table, key in made:
            where = Condition(f"m.{table.key[0]} IN :keys", {"keys": [key[0]]})
            known = table.columns
            if not await self._database.has_added_value(connection, table.name, known, where):
                there = new.get(table.name, rows[table.name])
                new[table.name] = {name: row for name, row in there.items() if name != key}


def _code(task: Any, code: str) -> str:
    """Return the code of the failure of a task whose memory another user or no user may have.

    ``code`` is that of a write.  A memory whose messages an edit changes has changed.
    """
    changes = isinstance(task, Edit) and any(one.old is not None for one in task.changes)
    return "changed" if changes else code


def _without_noted(task: Small | Edit) -> tuple[Small | Edit, Noted]:
    if isinstance(task, Small):
        return task, {}
    before, noted = without_noted(task.before)
    return structs.replace(task, before=before), noted


def _measure(listed: Listed) -> tuple[int, int]:
    return listed.bytes, listed.messages + 1


def _pages_of(snapshot: Snapshot | None) -> Iterator[Page]:
    """Yield the pages of a memory, and release its messages with their pages."""
    if snapshot is not None:
        memory, messages = snapshot.memory, snapshot.messages
        del snapshot
        messages.reverse()
        yield from paginate(memory, (messages.pop() for _ in range(len(messages))), empty=True)
