"""Writing and editing memories in a table, a row for each message."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from memctl.engines.sql.columns import types_of
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, RejectedValue, damage
from memctl.engines.sql.executor import Executor, Refused, Writer
from memctl.engines.sql.syntax import pieces
from memctl.errors import Failure
from memctl.layouts.sql import of_shape
from memctl.location import visible
from memctl.model import Edit, MemoryKey, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.storekit.batching import Large, Small
from memctl.storekit.edits import ChangeMatcher, LargeEdit, batch_edits
from memctl.stores.tables.codec import ROWID, DamagedRow, Ordering, Refusal, RowCodec
from memctl.stores.tables.order import Placing, RowOrder
from memctl.stores.tables.sessions import MadeRows, Sessions

_MISSING = "missing"
"""The field of ``WriteResult.before`` with the session tables that lacked a row of the memory."""
_MADE = "made"
"""The field of ``WriteResult.before`` with the states of rows made for the memory, by table."""
_NEEDLESS = "needless"
"""The field of ``WriteResult.before`` with the tables whose made rows the framework needs not."""
_REMOVED = "removed"
"""The field of ``WriteResult.before`` with the states of made rows that an undo removed."""


class TableRows:
    """The SQL statements on message rows that readers, writers and editors share."""

    def __init__(self, database: Database, codec: RowCodec, sessions: Sessions) -> None:
        self.database = database
        self.codec = codec
        self.sessions = sessions
        self.table = codec.mapping.table

    async def counts(
        self,
        connection: AsyncConnection,
        keys: Iterable[MemoryKey] | None,
        shard: Shard | None = None,
    ) -> dict[MemoryKey, int]:
        """Return the number of messages of each memory in the sessions of ``keys``.

        If ``keys`` is None, counts the messages of all sessions, or with a ``shard`` at least those
        of the shard.
        """
        codec = self.codec
        sessions = frozenset(key.session for key in keys or ())
        condition, values = codec.condition(Selection(sessions=sessions, shard=shard))
        names = ", ".join(codec.names)
        sql = f"SELECT {names}, COUNT(*) FROM {codec.table} WHERE {condition} GROUP BY {names}"
        found = await self.database.fetch_all(connection, sql, values)
        return {codec.key_of(row): row[-1] for row in found}

    async def filled(
        self, connection: AsyncConnection, rows: Sequence[Any]
    ) -> AsyncGenerator[Sequence[Any]]:
        """Yield the rows in groups, with the large contents that the SELECT statement left out.

        A row with a large content is alone in its group.  Leaves out rows that were deleted
        meanwhile.
        """
        start = 0
        rows = self.codec.converted(rows)
        for at, row in enumerate(rows):
            if row[-1] is None:
                continue
            if start < at:
                yield rows[start:at]
            start = at + 1
            whole = await self._whole(connection, row)
            if whole is not None:
                yield [whole]
        if start < len(rows):
            yield rows[start:] if start else rows

    async def _whole(self, connection: AsyncConnection, row: Sequence[Any]) -> Sequence[Any] | None:
        codec = self.codec
        condition, values = codec.by_key(row)
        content = codec.value(codec.mapping.columns["content"])
        sql = f"SELECT {content} FROM {codec.table} WHERE {condition}"
        found = await self.database.fetch_all(connection, sql, values)
        if not found:
            return None
        return codec.with_content(row, codec.read(codec.mapping.columns["content"], found[0][0]))

    async def insert(self, connection: AsyncConnection, rows: RowOrder) -> None:
        """Insert new rows into the table of messages."""
        for columns, some in rows.take():
            types = types_of(self.codec.columns.all, columns, some)
            await self.database.insert_rows(connection, self.table, columns, some, types)
        if rows.numbered:
            await self.database.advance_serial(
                connection, self.codec.table, self.codec.columns.key[0]
            )

    async def clear(self, connection: AsyncConnection, key: MemoryKey) -> int:
        """Delete the message rows of a memory; return the number of deleted rows."""
        condition, values = self.codec.of(key)
        rows = f"FROM {self.codec.table} WHERE {condition}"
        [[count]] = await self.database.fetch_all(connection, f"SELECT COUNT(*) {rows}", values)
        done = await connection.execute(f"DELETE {rows}", values)
        self.database.check_deleted(self.table, count, done.rowcount)
        return done.rowcount

    def made(self, key: MemoryKey, made: MadeRows) -> dict[str, Any]:
        """Return the members of ``WriteResult.before`` about rows made for a memory.

        These are rows of sessions, users and applications.  ``made`` has the rows that the
        transaction made.
        """
        own = self.sessions.made(key, made)
        about = {
            _MADE: {table: row.state for table, row in own.items()},
            _NEEDLESS: [table for table, row in own.items() if row.needless],
        }
        return {name: value for name, value in about.items() if value}


class ChangedTimes:
    """Counts messages that got the time of the message before them; warns of them."""

    def __init__(self, label: str, warnings: list[str]) -> None:
        self._label = label
        self._warnings = warnings
        self._untimed = self._shifted = 0

    def add(self, rows: RowOrder) -> None:
        """Add the counts of a transaction, and update the warnings of the store."""
        earlier = self._texts()
        self._untimed += rows.untimed
        self._shifted += rows.shifted
        self._warnings[:] = [text for text in self._warnings if text not in earlier]
        self._warnings += self._texts()

    def _texts(self) -> list[str]:
        order = f"{self._label} orders messages by their times"
        found = []
        if self._untimed:
            found.append(
                f"{order}, and {self._untimed:,} without one got that of the one before them"
            )
        if self._shifted:
            found.append(
                f"{order}, and {self._shifted:,} were older than the one before them: they got "
                "its time"
            )
        return found


class TableWriter(Writer):
    """A writer of pages to a mapped table."""

    memory_errors = (RejectedValue,)

    def __init__(
        self, rows: TableRows, mode: WriteMode, times: ChangedTimes, shard: Shard | None
    ) -> None:
        """``shard`` has all memories to write; None for any memories."""
        super().__init__(rows.database)
        self._shard = shard
        self._rows = rows
        self._codec = rows.codec
        self._sessions = rows.sessions
        self._mode = mode
        self._times = times
        self._held: dict[MemoryKey, int] = {}
        """The number of messages of each memory in the table."""

    async def prepare(self, connection: AsyncConnection) -> None:
        await self._database.take_turn(connection, self._rows.table)
        await self._database.prepare_shard(self._shard)
        async with self._database.read_transaction(connection):
            self._held = await self._rows.counts(connection, None, self._shard)

    async def commit(self, connection: AsyncConnection, batch: list[Small]) -> list[WriteResult]:
        results = []
        rows = RowOrder(self._codec)
        async with self._database.transaction(connection):
            keys = [small.memory.key for small in batch]
            await self._count_again(connection, keys)
            filled = {key for key in keys if self._held.get(key)}
            rows.latest = await self._latest(connection, filled)
            for small in batch:
                key = small.memory.key
                failure = self._refusal(key, small.offset)
                if failure is None:
                    try:
                        rows.add(key, small.entries)
                    except Refusal as error:
                        failure = Failure("refused", str(error))
                if failure is not None:
                    results.append(WriteResult(key, failure=failure))
                    continue
                gone = await self._clear(connection, key)
                results.append(WriteResult(key, len(small.entries), gone))
            good = {result.key for result in results if result.failure is None}
            made = await self._sessions.add(
                connection,
                [small.memory for small in batch if small.memory.key in good],
                filled=filled,
            )
            await self._rows.insert(connection, rows)
            results = [one if one.failure else self._with_made(one, made) for one in results]
            self._database.about_to_commit(results)
        self._sessions.keep(made)
        for result, small in zip(results, batch, strict=True):
            if result.failure is None:
                self._note_count(result.key, small.offset, result.written)
        self._times.add(rows)
        return results

    async def commit_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        key, written = large.memory.key, 0
        async with self._database.transaction(connection):
            await self._count_again(connection, [key])
            filled = {key} if self._held.get(key) else set()
            made = await self._sessions.add(connection, [large.memory], filled=filled)
            failure = self._refusal(key, large.offset)
            if failure is not None:
                raise Refused({key: failure})
            gone = await self._clear(connection, key)
            rows = RowOrder(self._codec)
            rows.latest = await self._latest(connection, filled)
            async for page in large.pages:
                try:
                    rows.add(key, page.messages)
                except Refusal as error:
                    raise Refused({key: Failure("refused", str(error))}) from error
                written += len(page.messages)
                del page
                await self._rows.insert(connection, rows)
            result = self._with_made(WriteResult(key, written, gone), made)
            self._database.about_to_commit([result])
        self._note_count(key, large.offset, written)
        self._sessions.keep(made)
        self._times.add(rows)
        return result

    async def _count_again(self, connection: AsyncConnection, keys: list[MemoryKey]) -> None:
        indexed = self._codec.columns.has_index
        stale = keys if indexed else [key for key in keys if self._held.get(key)]
        for some in pieces(stale):
            for key in some:
                self._held[key] = 0
            self._held |= await self._rows.counts(connection, some)

    def _note_count(self, key: MemoryKey, offset: int, written: int) -> None:
        self._held[key] = written + (0 if self._mode is WriteMode.REPLACE else offset)

    async def _latest(
        self, connection: AsyncConnection, keys: Iterable[MemoryKey]
    ) -> dict[MemoryKey, Any]:
        """Return the number or time of the last message of each memory, to order new messages.

        Empty if the primary key orders messages, or if the write replaces the memories.
        """
        codec, found = self._codec, dict[MemoryKey, Any]()
        if codec.ordering is Ordering.SERIAL or self._mode is WriteMode.REPLACE:
            return found
        for key in keys:
            condition, values = codec.of(key)
            column = codec.columns.order[0]
            sql = f"SELECT {codec.value(column, 'MAX')} FROM {codec.table} WHERE {condition}"
            [[last]] = await self._database.fetch_all(connection, sql, values)
            found |= {} if last is None else {key: codec.read(column, last)}
        return found

    def _refusal(self, key: MemoryKey, offset: int) -> Failure | None:
        """Return why a memory cannot be written; None if it can."""
        mapping = self._codec.mapping
        if failure := mapping.name_refusal(key):
            return failure
        if refusal := self._codec.session_column.refusal(key.session):
            return Failure("bad-name", f"{visible(mapping.table)!r}: {refusal}")
        found = self._held.get(key, 0)
        if self._mode is WriteMode.ADD and found != offset:
            return Failure("changed", f"the target holds {found} messages, not {offset}")
        return None

    async def _clear(self, connection: AsyncConnection, key: MemoryKey) -> int:
        if self._mode is not WriteMode.REPLACE or not self._held.get(key):
            return 0
        return await self._rows.clear(connection, key)

    def _with_made(self, result: WriteResult, made: MadeRows) -> WriteResult:
        about = self._rows.made(result.key, made)
        return replace(result, before=json.dumps(about)) if about else result


class TableEditor(Executor[Edit, LargeEdit]):
    """An editor of a mapped table.  Each memory has a transaction of its own."""

    memory_errors = (RejectedValue,)

    def __init__(self, rows: TableRows) -> None:
        super().__init__(rows.database)
        self._rows = rows
        self._codec = rows.codec
        self._sessions = rows.sessions

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Carry out edits (``Store.edit``)."""
        return self.execute(batch_edits(edits, most=1))

    async def prepare(self, connection: AsyncConnection) -> None:
        await self._database.take_turn(connection, self._rows.table)

    def failure(self, task: Edit | LargeEdit) -> Failure | None:
        key = task.memory.key
        if key.part or not self._codec.has_user(key):
            return Failure("changed", "there is no such memory")
        return None

    async def commit(self, connection: AsyncConnection, batch: list[Edit]) -> list[WriteResult]:
        [edit] = batch
        return [await self._edit(connection, edit)]

    async def _edit(self, connection: AsyncConnection, edit: Edit) -> WriteResult:
        """Carry out the edit of a memory in one transaction.

        Loads the ids and primary keys of all messages of the memory, but not their texts.
        """
        key, codec = edit.memory.key, self._codec
        matcher = ChangeMatcher(edit.shared_ids)
        matcher.give(edit.changes, last=True)
        placing = Placing(codec, key)
        noted = of_shape(edit.before)
        made: MadeRows = {}
        removed: dict[str, Any] = {}
        async with (
            self._database.transaction(connection),
            self._database.second_connection(connection) as second,
        ):
            missing = await self._sessions.missing(connection, key)
            if any(change.old is None for change in edit.changes) or noted.get(_REMOVED):
                there = await self._rows.counts(connection, [key]) if missing else {}
                filled = {key} if there.get(key) else set()
                made = await self._sessions.add(
                    connection, [edit.memory], noted.get(_MISSING, ()), noted.get(_REMOVED), filled
                )
            condition, values = codec.of(key)
            sql = codec.select(condition, lock=True)
            try:
                async with aclosing(self._database.rows(connection, sql, values)) as partitions:
                    async for fetched in partitions:
                        async for rows in self._rows.filled(second, fetched):
                            entries = [codec.entry(row) for row in rows]
                            test = partial(codec.has_text, entries)
                            ids = [one.id for one in entries]
                            steps, _ = matcher.apply(ids, [()] * len(ids), has_text=test)
                            placing.take(steps, entries, rows)
                placing.take(matcher.apply([], [])[0], [], [])
                failure = matcher.failure()
                if failure is not None:
                    raise Refused({key: failure})
                taken = await self._taken(connection, placing)
                free = await self._free_rowids(connection, placing)
                placing.settle(taken, free)
                await self._delete(connection, placing.dropped)
                new = RowOrder(codec, placing.latest)
                new.add(key, placing.put, free)
            except DamagedRow as error:
                raise Refused({key: damage(str(error))}) from error
            except Refusal as error:
                raise Refused({key: Failure("refused", str(error))}) from error
            await self._rows.insert(connection, new)
            if _MADE in noted:
                removed = await self._sessions.unmake(
                    connection, key, noted[_MADE], noted.get(_NEEDLESS, ())
                )
            about = {_MISSING: missing if matcher.deleted else [], _REMOVED: removed}
            about = {name: value for name, value in about.items() if value}
            about |= self._rows.made(key, made) if made else {}
            before = json.dumps(about) if about else ""
            counts = matcher.written, matcher.deleted
            result = WriteResult(key, *counts, before=before, shared_ids=matcher.shared_ids())
            self._database.about_to_commit([result])
        self._sessions.keep(made)
        return result

    async def _taken(self, connection: AsyncConnection, placing: Placing) -> set[tuple[Any, ...]]:
        codec, found = self._codec, set[tuple[Any, ...]]()
        key = codec.columns.key
        columns = ", ".join(map(codec.value, key))
        wanted = placing.keys()
        for some in pieces(sorted({one[0] for one in wanted}, key=str)):
            values = {f"k{at}": codec.bound(key[0], one) for at, one in enumerate(some)}
            places = ", ".join(codec.placed(key[0], f":{place}") for place in values)
            sql = f"SELECT {columns} FROM {codec.table} WHERE {codec.quoted(key[0])} IN ({places})"
            rows = await self._database.fetch_all(connection, sql, values)
            found |= {tuple(map(codec.read, key, row)) for row in rows} & wanted
        return found - set(placing.dropped)

    async def _free_rowids(self, connection: AsyncConnection, placing: Placing) -> frozenset[int]:
        wanted = placing.rowids()
        taken: set[int] = set()
        for some in pieces(sorted(wanted)):
            sql = f"SELECT {ROWID} FROM {self._codec.table} WHERE {ROWID} IN :some"
            rows = await self._database.fetch_all(connection, sql, {"some": some})
            taken |= {number for (number,) in rows}
        return frozenset(wanted - taken)

    async def _delete(self, connection: AsyncConnection, keys: list[tuple[Any, ...]]) -> None:
        codec, syntax = self._codec, self._database.syntax
        names = codec.columns.key
        tests = (
            f"{syntax.identifier(name)} = {codec.placed(name, syntax.place(at))}"
            for at, name in enumerate(names, 1)
        )
        table = syntax.identifier(self._rows.table)
        if keys:
            sql = f"DELETE FROM {table} WHERE {' AND '.join(tests)}"
            rows = [tuple(map(codec.bound, names, key)) for key in keys]
            deleted = await self._database.change_many(connection, sql, rows)
            self._database.check_deleted(self._rows.table, len(rows), deleted)
