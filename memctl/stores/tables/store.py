"""Messages in a table that is not AgentScope's, a row a message, in a database of any kind.

The ``Mapping`` says which column is what.  A row becomes a message of ``memctl.dialects.rows``;
columns that nobody named travel along in its ``extra``, and the key of its row in its shape.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Integer, MetaData, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.engines.sql.columns import Column, TimeFormat
from memctl.engines.sql.database import RejectedValue, damage, is_text, make_database
from memctl.engines.sql.schema import create_missing
from memctl.errors import BadData, Failure, Uninitialised, UsageError
from memctl.layouts.sql import BRANCHES, branch_tables, foreign_tables, of_shape
from memctl.location import Location, visible
from memctl.model import (
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
from memctl.store import DamagedMemory, Features, OpenMode, Store
from memctl.storekit.batching import BATCH_BYTES, Large, PageBuilder, Small, gather
from memctl.storekit.edits import (
    ChangeMatcher,
    whole_edits,
)
from memctl.storekit.simple import not_owned
from memctl.stores.tables.codec import (
    NOT_JSON,
    ROWID,
    SMALL_BYTES,
    DamagedRow,
    Ordering,
    Refusal,
    RowCodec,
    TableColumns,
    parse_json,
)
from memctl.stores.tables.mapping import CALL_COLUMNS, Mapping
from memctl.stores.tables.options import mapping_of
from memctl.stores.tables.order import Placing, RowOrder
from memctl.stores.tables.sessions import MadeRows, Sessions

BATCH_MESSAGES = 10_000
"""Small memories share a transaction up to this size: a commit waits for the disk."""
_KEYS = 500
"""The keys in one statement."""
_SAMPLE = 100
"""The contents that are looked at before the first is read."""
_MISSING = "missing"
"""The field of ``WriteResult.before`` that names the tables without a row for the memory."""
_MADE = "made"
"""That of the tables in which rows were made for it, with their states."""
_NEEDLESS = "needless"
"""That of the tables whose rows were made although the store had done without them."""
_REMOVED = "removed"
"""That of the tables from which such rows were removed, with their states."""


class TableStore(Store):
    """The memories in a table of somebody else."""

    features = Features(marks=frozenset(), duplicate_ids=True)

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.kind = location.kind
        self.mapping = mapping_of(location.options)
        self.dialect = self.mapping.dialect
        self.database = make_database(location, self.label)
        self.details = self.database.details
        self.features = replace(
            self.features,
            empty=self.mapping.keeps_state,
            duplicate_ids=not self.mapping.unique_ids,
            session_owners="user" not in self.mapping.columns,
        )
        self._codec: RowCodec
        self._sessions: Sessions

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self.database.start(mode, self._prepare)

    async def close(self) -> None:
        await self.database.close()

    async def identity(self) -> str:
        return f"{await self.database.identity()}#{self.mapping.table}"

    async def lock(self, owner: str) -> None:
        self._require_key()  # before anything is recorded
        await self.database.lock(owner, self.warnings)

    async def check_integrity(self, where: Selection) -> None:  # noqa: ARG002 - the table
        if self.mode.writes:
            self._require_key()

    async def _prepare(self) -> None:
        mapping = self.mapping
        branched = await self.database.run(branch_tables)
        if branched is not None and branched.messages == mapping.table:
            raise UsageError(
                f"the rows of {visible(mapping.table)!r} are those of several branches of the "
                "OpenAI Agents SDK's AdvancedSQLiteSession",
                f"use ?layout={BRANCHES}",
            )
        columns = await self.database.run(partial(_examine, mapping, self.database.syntax.typed))
        if columns is None:
            if not self.mode.creates or mapping.make is None:
                raise Uninitialised(
                    f"{self.label} has no table {visible(mapping.table)!r}",
                    "check the name: memctl stores detect lists the tables of a database"
                    if mapping.make is None
                    else "check the database; a table of another name is ?table=NAME",
                )
            metadata = MetaData()
            mapping.make(mapping, metadata)
            await self.database.create(partial(_create, mapping, metadata))
            columns = await self.database.run(
                partial(_examine, mapping, self.database.syntax.typed)
            )
            assert columns is not None
        self.mapping = mapping = mapping.of(columns.all)
        self.dialect = mapping.dialect
        rising = columns.all.get(mapping.rising)
        if not self.database.syntax.typed and rising is not None and rising.is_fraction:
            # SqliteSessionService of ADK, which keeps the order of events with one time
            columns = columns._replace(order=(mapping.rising, ROWID))
        missing = [name for name in mapping.columns.values() if name not in columns.all]
        missing += [name for name in columns.order if name not in columns.all and name != ROWID]
        if missing:
            others = await self.database.run(foreign_tables)
            if mapping.table in others:
                raise others[mapping.table].refusal(self.label)
            known = ", ".join(visible(name) for name in columns.all)
            raise BadData(
                f"the table {visible(mapping.table)!r} has no column {visible(missing[0])!r}",
                f"its columns are {known}",
            )
        if not columns.order:
            raise UsageError(
                f"the order of the rows of {visible(mapping.table)!r} is unknown",
                'the table has no primary key: add order = "COLUMN" to the columns',
            )
        self._codec = RowCodec(mapping, columns, self.database)
        if mapping.app and not mapping.app_name:
            self._codec.mapping = self.mapping = await self._only_app()
        self._sessions = Sessions(self._codec, self.database)
        self.features = replace(
            self.features,
            columns=self._codec.extra_columns,
            filled_columns=self._codec.filled_columns,
            call_columns=self._codec.call_columns,
        )
        for name in sorted(self._codec.call_columns):
            role = next(role for role, names in CALL_COLUMNS.items() if name.lower() in names)
            self.warnings.append(
                f"the column {visible(name)!r} of {visible(mapping.table)!r} is not read as calls "
                f"of tools: add {role} = {json.dumps(name)} to the columns"
            )
        if self.mode.writes:
            await self._sessions.learn()
        await self._learn(columns)

    async def _only_app(self) -> Mapping:
        """Return the mapping with the one application that there is.

        Sessions tell it where none has messages, as before a deletion is undone.

        Raises:
            UsageError: there are several, or none and it is to be written.
        """
        mapping, quoted = self.mapping, self._codec.quoted
        places = [(mapping.app, mapping.table)]
        places += [(one.names["app"], one.table) for one in mapping.sessions if "app" in one.names]
        names: list[str] = []
        async with self.database.snapshot() as connection:
            for column, table in places:
                sql = f"SELECT DISTINCT {quoted(column)} FROM {quoted(table)}"
                rows = await self.database.fetch_all(connection, sql, {})
                names = names or [name for (name,) in rows if isinstance(name, str)]
        if len(names) > 1:
            known = ", ".join(map(visible, sorted(names)))
            raise UsageError(f"{self.label} holds several applications", f"add &app=NAME: {known}")
        if not names and self.mode.writes:
            raise UsageError(f"{self.label} holds no application", "add &app=NAME to the URL")
        if names:
            options = self.location.options | {"app": names[0]}
            self.location = replace(self.location, options=options)
        return replace(mapping, app_name=names[0] if names else "")

    async def _learn(self, columns: TableColumns) -> None:
        """Look at the values that say how times are held, and whether the order is one."""
        table, mapping = self._codec.table, self.mapping
        quoted = self._codec.quoted
        async with self.database.snapshot() as connection:
            time = mapping.columns.get("time")
            if time is not None:
                sql = f"SELECT {quoted(time)} FROM {table} WHERE {quoted(time)} IS NOT NULL LIMIT 1"
                rows = await self.database.fetch_all(connection, sql, {})
                sample = rows[0][0] if rows else None
                self._codec.times = TimeFormat.of(columns.all[time], sample, utc=mapping.utc)
                if mapping.unit:
                    self._codec.times = TimeFormat(mapping.unit, whole=True)
            if not mapping.dialect.documents:
                await self._learn_content(connection)
            if mapping.make is not None or set(columns.key) <= set(columns.order):
                return
            names = [mapping.columns["session"], *columns.order]
            names += [mapping.columns["user"]] if "user" in mapping.columns else []
            some = ", ".join(map(quoted, names))
            sql = f"SELECT {some} FROM {table} GROUP BY {some} HAVING COUNT(*) > 1 LIMIT 1"
            clashes = await self.database.fetch_all(connection, sql, {})
        if clashes:
            more = next((name for name in columns.key if name not in columns.order), "ANOTHER")
            raise BadData(
                f"the order of {visible(mapping.table)!r} is not unique: rows of the session "
                f"{visible(str(clashes[0][0]))!r} share {visible(', '.join(columns.order))} "
                f"= {visible(str(clashes[0][1]))}",
                f"add a column that differs: order = {json.dumps([*columns.order, more])}",
            )

    async def _learn_content(self, connection: AsyncConnection) -> None:
        """Look whether all contents are JSON: the type of a column need not say so (MariaDB)."""
        codec = self._codec
        if codec.is_json or self.mapping.encoding:
            return
        content = codec.quoted(self.mapping.columns["content"])
        small = f"{self.database.syntax.json_size(content)} <= {SMALL_BYTES}"
        sql = f"SELECT {content} FROM {codec.table} WHERE {small} LIMIT {_SAMPLE}"
        rows = await self.database.fetch_all(connection, sql, {})
        texts = [one for (one,) in rows if isinstance(one, str)]
        if texts and all(one[:1] in '"[{' and parse_json(one) is not NOT_JSON for one in texts):
            codec.is_json = True
        self.features = replace(self.features, asks_encoding=not texts)

    def _require_key(self) -> None:
        if not self._codec.columns.key:
            raise BadData(
                f"the table {visible(self.mapping.table)!r} of {self.label} has no primary key, "
                "so changes could not be undone",
                "add a primary key to it",
            )

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        pages = self.database.read_pages(where, self._pages, self._pages_of_copy)
        return where.apply(pages, self.dialect)

    async def count(self, where: Selection) -> tuple[int, int] | None:
        if where != Selection():
            return None
        condition, values = self._codec.condition_of_app()
        counted = f"COUNT(DISTINCT {self._codec.session}), COUNT(*)"
        sql = f"SELECT {counted} FROM {self._codec.table} WHERE {condition}"
        async with self.database.snapshot() as connection:
            [[memories, messages]] = await self.database.fetch_all(connection, sql, values)
        return memories, messages

    async def _pages_of_copy(self, path: Path, where: Selection) -> AsyncGenerator[Page]:
        copy = TableStore(replace(self.location, path=path))
        copy.skips_damage, copy.damage, copy.left_out = (
            self.skips_damage,
            self.damage,
            self.left_out,
        )
        async with copy, aclosing(copy._pages(where)) as pages:
            async for page in pages:
                yield page
                del page

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        database, codec = self.database, self._codec
        failures = self.left_out.failures
        condition, values = codec.condition(where)
        builder: PageBuilder | None = None
        current: MemoryKey | None = None
        out = False
        async with (
            database.snapshot() as connection,
            database.second_connection(connection) as second,
        ):
            sql = codec.select(condition)
            async with aclosing(database.rows(connection, sql, values)) as partitions:
                async for rows in partitions:
                    for key, some in groupby(rows, codec.key_of):
                        if key != current:
                            if builder is not None:
                                self.left_out.others = True
                                yield builder.page(last=True)
                            current, out = key, False
                            known = where.has_key(key) and key not in failures
                            builder = None
                            if known:
                                extra = await self._extra(second, key)
                                if extra is not None:
                                    builder = PageBuilder(Memory(key, extra=extra))
                        if builder is None:
                            continue
                        async for several in self._filled(second, list(some)):
                            try:
                                entries = self._entries(key, several)
                            except DamagedRow as error:
                                failures[key] = failure = damage(str(error))
                                builder = None
                                if out:
                                    raise DamagedMemory(self.label, key, failure) from error
                                break
                            for page in builder.take(entries):
                                out = self.left_out.others = True
                                yield page
                if builder is not None:
                    self.left_out.others = True
                    yield builder.page(last=True)
            for key in await self._sessions.empty(connection):
                if where.has_key(key):
                    extra = await self._extra(connection, key)
                    if extra is not None:
                        yield Page(Memory(key, extra=extra), [])

    async def _filled(
        self, connection: AsyncConnection, rows: Sequence[Any]
    ) -> AsyncGenerator[Sequence[Any]]:
        """Yield rows with their contents; one with a large content by itself."""
        start = 0
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
        """Return a row with its large content; None where it was deleted meanwhile."""
        codec = self._codec
        condition, values = codec.by_key(row)
        content = codec.value(self.mapping.columns["content"])
        sql = f"SELECT {content} FROM {codec.table} WHERE {condition}"
        found = await self.database.fetch_all(connection, sql, values)
        return codec.with_content(row, found[0][0]) if found else None

    async def _extra(self, connection: AsyncConnection, key: MemoryKey) -> str | None:
        """Return what else the tables keep of a memory; None where that is damaged."""
        try:
            if not (is_text(key.user) and is_text(key.session)):
                raise ValueError("its name is not valid UTF-8")
            return await self._sessions.extra(connection, key)
        except ValueError as error:
            if self.skips_damage:
                self.damage.append(Finding("damaged-row", key, 1, (), str(error)))
                return ""
            self.left_out.failures[key] = damage(str(error))
            return None

    def _entries(self, key: MemoryKey, rows: Iterable[Any]) -> list[StoredMessage]:
        """Return the messages of rows of one memory.

        Raises:
            DamagedRow: a row is none, and damage is not skipped.
        """
        if not (is_text(key.user) and is_text(key.session)):
            raise DamagedRow("its name is not valid UTF-8")
        entries = []
        for row in rows:
            try:
                entries.append(self._codec.entry(row))
            except DamagedRow as error:
                if not self.skips_damage:
                    raise
                self.damage.append(Finding("damaged-row", key, 1, (), str(error)))
        return entries

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            held: dict[MemoryKey, int] = {}
            async for batch in gather(pages, BATCH_BYTES, BATCH_MESSAGES):
                if connection is None:
                    self._require_key()
                    connection = await stack.enter_async_context(self.database.connect())
                    await self.database.take_turn(connection, self.mapping.table)
                    async with self.database.read_transaction(connection):
                        held = await self._counts(connection, None)
                if isinstance(batch, Large):
                    yield await self._write_large(connection, batch, mode, held)
                else:
                    for result in await self._write_small(connection, batch, mode, held):
                        yield result
                del batch  # the next one needs its room

    async def _counts(
        self, connection: AsyncConnection, keys: Iterable[MemoryKey] | None
    ) -> dict[MemoryKey, int]:
        """Return the numbers of messages of memories, of all where none are named."""
        codec = self._codec
        sessions = frozenset(key.session for key in keys or ())
        condition, values = codec.condition(Selection(sessions=sessions))
        names = ", ".join((codec.session, codec.user) if codec.user else (codec.session,))
        sql = f"SELECT {names}, COUNT(*) FROM {codec.table} WHERE {condition} GROUP BY {names}"
        found = await self.database.fetch_all(connection, sql, values)
        return {codec.key_of(row): row[-1] for row in found}

    async def _write_small(
        self,
        connection: AsyncConnection,
        batch: list[Small],
        mode: WriteMode,
        held: dict[MemoryKey, int],
    ) -> list[WriteResult]:
        try:
            return await self._commit(connection, batch, mode, held)
        except RejectedValue as rejected:
            if len(batch) == 1:
                return [WriteResult(batch[0].memory.key, failure=rejected.failure)]
        # One of them was rejected, and the database does not tell which.
        half = len(batch) // 2
        results = await self._write_small(connection, batch[:half], mode, held)
        return results + await self._write_small(connection, batch[half:], mode, held)

    async def _commit(
        self,
        connection: AsyncConnection,
        batch: list[Small],
        mode: WriteMode,
        held: dict[MemoryKey, int],
    ) -> list[WriteResult]:
        results = []
        rows = RowOrder(self._codec)
        async with self.database.transaction(connection):
            keys = [small.memory.key for small in batch]
            await self._begin(connection, keys, held)
            filled = {key for key in keys if held.get(key)}
            rows.latest = await self._latest(connection, filled, mode)
            for small in batch:
                key = small.memory.key
                failure = self._failure(key, small.offset, mode, held)
                if failure is None:
                    try:
                        rows.add(key, small.entries)
                    except Refusal as error:
                        failure = Failure("refused", str(error))
                if failure is not None:
                    results.append(WriteResult(key, failure=failure))
                    continue
                gone = await self._clear(connection, key, held) if mode is WriteMode.REPLACE else 0
                results.append(WriteResult(key, len(small.entries), gone))
            good = {result.key for result in results if result.failure is None}
            made = await self._sessions.add(
                connection,
                [small.memory for small in batch if small.memory.key in good],
                filled=filled,
            )
            await self._insert(connection, rows)
        self._sessions.keep(made)
        for result, small in zip(results, batch, strict=True):
            if result.failure is None:
                kept = 0 if mode is WriteMode.REPLACE else small.offset
                held[result.key] = kept + result.written
        self._note(rows)
        return [one if one.failure else self._with_made(one, made) for one in results]

    def _with_made(self, result: WriteResult, made: MadeRows) -> WriteResult:
        """Return the result with the rows of sessions that were made for the memory."""
        about = self._about_made(result.key, made)
        return replace(result, before=json.dumps(about)) if about else result

    def _about_made(self, key: MemoryKey, made: MadeRows) -> dict[str, Any]:
        """Return what ``WriteResult.before`` says of the rows that were made for a memory."""
        own = self._sessions.made(key, made)
        about = {
            _MADE: {table: row.state for table, row in own.items()},
            _NEEDLESS: [table for table, row in own.items() if row.needless],
        }
        return {name: value for name, value in about.items() if value}

    async def _write_large(
        self, connection: AsyncConnection, large: Large, mode: WriteMode, held: dict[MemoryKey, int]
    ) -> WriteResult:
        key, written, gone = large.memory.key, 0, 0
        try:
            async with self.database.transaction(connection):
                await self._begin(connection, [key], held)
                filled = {key} if held.get(key) else set()
                made = await self._sessions.add(connection, [large.memory], filled=filled)
                failure = self._failure(key, large.offset, mode, held)
                if failure is not None:
                    raise RejectedValue(failure.message, failure.code)
                if mode is WriteMode.REPLACE:
                    gone = await self._clear(connection, key, held)
                rows = RowOrder(self._codec)
                rows.latest = await self._latest(connection, filled, mode)
                async for page in large.pages:
                    try:
                        rows.add(key, page.messages)
                    except Refusal as error:
                        raise RejectedValue(str(error), "refused") from error
                    written += len(page.messages)
                    del page
                    await self._insert(connection, rows)
        except RejectedValue as rejected:
            async for _ in large.pages:
                pass
            return WriteResult(key, failure=rejected.failure)
        held[key] = written if mode is WriteMode.REPLACE else large.offset + written
        self._sessions.keep(made)
        self._note(rows)
        return self._with_made(WriteResult(key, written, gone), made)

    async def _begin(
        self, connection: AsyncConnection, keys: list[MemoryKey], held: dict[MemoryKey, int]
    ) -> None:
        """Count again what may have changed."""
        codec = self._codec
        stale = keys if codec.columns.has_index else [key for key in keys if held.get(key)]
        for some in _pieces(stale):
            for key in some:
                held[key] = 0
            held |= await self._counts(connection, some)

    async def _latest(
        self, connection: AsyncConnection, keys: Iterable[MemoryKey], mode: WriteMode
    ) -> dict[MemoryKey, Any]:
        """Return what orders the last messages that stay, where memctl sees to that."""
        codec, found = self._codec, dict[MemoryKey, Any]()
        if codec.ordering is Ordering.SERIAL or mode is WriteMode.REPLACE:
            return found
        for key in keys:
            condition, values = codec.of(key)
            column = codec.quoted(codec.columns.order[0])
            sql = f"SELECT MAX({column}) FROM {codec.table} WHERE {condition}"
            [[last]] = await self.database.fetch_all(connection, sql, values)
            found |= {} if last is None else {key: last}
        return found

    def _failure(
        self, key: MemoryKey, offset: int, mode: WriteMode, held: dict[MemoryKey, int]
    ) -> Failure | None:
        if key.part:
            text = f"the table holds one memory a session, not a part like {key.part!r}"
            return Failure("bad-name", text)
        if not self._codec.has_user(key):
            what = f"the rows of {visible(self.mapping.table)!r}"
            return Failure("bad-name", not_owned(what, self.mapping.user, key.user))
        if refusal := self._codec.session_column.refusal(key.session):
            return Failure("bad-name", f"{visible(self.mapping.table)!r}: {refusal}")
        found = held.get(key, 0)
        if mode is WriteMode.ADD and found != offset:
            return Failure("changed", f"the target holds {found} messages, not {offset}")
        return None

    async def _clear(
        self, connection: AsyncConnection, key: MemoryKey, held: dict[MemoryKey, int]
    ) -> int:
        if not held.get(key):
            return 0
        condition, values = self._codec.of(key)
        sql = f"DELETE FROM {self._codec.table} WHERE {condition}"
        return (await connection.execute(*self.database.syntax.bind(sql, values))).rowcount

    async def _insert(self, connection: AsyncConnection, rows: RowOrder) -> None:
        for columns, some in rows.take():
            await self.database.insert_rows(connection, self.mapping.table, columns, some)
        if rows.numbered:
            await self.database.advance_serial(
                connection, self._codec.table, self._codec.columns.key[0]
            )

    def _note(self, rows: RowOrder) -> None:
        if rows.untimed:
            self.warnings.append(
                f"{self.label} orders messages by their times, and {rows.untimed:,} without one "
                "got that of the one before them"
            )
        if rows.shifted:
            self.warnings.append(
                f"{self.label} orders messages by their times, and {rows.shifted:,} were older "
                "than the one before them: they got its time"
            )

    # Changing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            async with aclosing(whole_edits(edits)) as wholes:
                async for edit in wholes:
                    if connection is None:
                        self._require_key()
                        connection = await stack.enter_async_context(self.database.connect())
                        await self.database.take_turn(connection, self.mapping.table)
                    try:
                        yield await self._edit_memory(connection, edit)
                    except RejectedValue as rejected:
                        yield WriteResult(edit.memory.key, failure=rejected.failure)

    async def _edit_memory(self, connection: AsyncConnection, edit: Edit) -> WriteResult:
        """Carry out an edit; the ids and keys of the memory are held, not its texts."""
        key, codec = edit.memory.key, self._codec
        if key.part or not codec.has_user(key):
            return WriteResult(key, failure=Failure("changed", "there is no such memory"))
        matcher = ChangeMatcher(edit.shared_ids)
        matcher.give(edit.changes, last=True)
        placing = Placing(codec, key)
        noted = of_shape(edit.before)
        made: MadeRows = {}
        removed: dict[str, Any] = {}
        async with (
            self.database.transaction(connection),
            self.database.second_connection(connection) as second,
        ):
            missing = await self._sessions.missing(connection, key)
            if any(change.old is None for change in edit.changes) or noted.get(_REMOVED):
                there = await self._counts(connection, [key]) if missing else {}
                filled = {key} if there.get(key) else set()
                made = await self._sessions.add(
                    connection, [edit.memory], noted.get(_MISSING, ()), noted.get(_REMOVED), filled
                )
            condition, values = codec.of(key)
            sql = codec.select(condition, lock=True)
            try:
                async with aclosing(self.database.rows(connection, sql, values)) as partitions:
                    async for fetched in partitions:
                        async for rows in self._filled(second, fetched):
                            entries = [codec.entry(row) for row in rows]
                            test = partial(codec.has_text, entries)
                            ids = [one.id for one in entries]
                            steps, _ = matcher.apply(ids, [()] * len(ids), has_text=test)
                            placing.take(steps, entries, rows)
                placing.take(matcher.apply([], [])[0], [], [])
                failure = matcher.failure()
                if failure is not None:
                    raise RejectedValue(failure.message, failure.code)
                taken = await self._taken(connection, placing)
                free = await self._free_rowids(connection, placing)
                placing.settle(taken, free)
                await self._delete(connection, placing.dropped)
                new = RowOrder(codec, placing.latest)
                new.add(key, placing.put, free)
            except DamagedRow as error:
                raise RejectedValue(str(error), "damaged") from error
            except Refusal as error:
                raise RejectedValue(str(error), "refused") from error
            await self._insert(connection, new)
            if _MADE in noted:
                removed = await self._sessions.unmake(
                    connection, key, noted[_MADE], noted.get(_NEEDLESS, ())
                )
        self._sessions.keep(made)
        about = {_MISSING: missing if matcher.deleted else [], _REMOVED: removed}
        about = {name: value for name, value in about.items() if value}
        about |= self._about_made(key, made) if made else {}
        before = json.dumps(about) if about else ""
        counts = matcher.written, matcher.deleted
        return WriteResult(key, *counts, before=before, shared_ids=matcher.shared_ids())

    async def _taken(self, connection: AsyncConnection, placing: Placing) -> set[tuple[Any, ...]]:
        """Return the keys of messages to put in that other rows have got meanwhile."""
        codec, found = self._codec, set[tuple[Any, ...]]()
        names = [codec.quoted(name) for name in codec.columns.key]
        wanted = placing.keys()
        for some in _pieces(sorted({key[0] for key in wanted}, key=str)):
            sql = f"SELECT {', '.join(names)} FROM {codec.table} WHERE {names[0]} IN :some"
            rows = await self.database.fetch_all(connection, sql, {"some": some})
            found |= {tuple(row) for row in rows} & wanted
        return found - set(placing.dropped)

    async def _free_rowids(self, connection: AsyncConnection, placing: Placing) -> frozenset[int]:
        """Return the numbers of rows of messages to put in that no other row has got meanwhile."""
        wanted = placing.rowids()
        taken: set[int] = set()
        for some in _pieces(sorted(wanted)):
            sql = f"SELECT {ROWID} FROM {self._codec.table} WHERE {ROWID} IN :some"
            rows = await self.database.fetch_all(connection, sql, {"some": some})
            taken |= {number for (number,) in rows}
        return frozenset(wanted - taken)

    async def _delete(self, connection: AsyncConnection, keys: list[tuple[Any, ...]]) -> None:
        codec, syntax = self._codec, self.database.syntax
        names = codec.columns.key
        tests = (f"{codec.quoted(name)} = {syntax.place(at)}" for at, name in enumerate(names, 1))
        sql = f"DELETE FROM {codec.table} WHERE {' AND '.join(tests)}"
        if keys:
            await connection.exec_driver_sql(sql.replace("\\:", ":"), keys)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.database.snapshot() as connection:
            found = dict.fromkeys(await self._counts(connection, None))
            found |= dict.fromkeys(await self._sessions.names(connection))
        for key in found:
            if where.has_key(key):
                yield key

    async def _erase(self, key: MemoryKey) -> WriteResult:
        codec = self._codec
        async with self.database.connect() as connection:
            await self.database.prepare_erasing(connection)
            async with self.database.transaction(connection):
                condition, values = codec.of(key)
                sql = f"DELETE FROM {codec.table} WHERE {condition}"
                statement = self.database.syntax.bind(sql, values)
                gone = (await connection.execute(*statement)).rowcount
                await self._sessions.remove(connection, key)
            await self.database.finish_erasing(connection)
        return WriteResult(key, deleted=gone)


def _pieces(values: Sequence[Any]) -> Iterable[list[Any]]:
    for start in range(0, len(values), _KEYS):
        yield list(values[start : start + _KEYS])


def _create(mapping: Mapping, metadata: MetaData, connection: Connection) -> None:
    """Create the tables of a framework, as it does."""
    create_missing(connection, metadata)
    if mapping.stamp is not None:
        table, values = mapping.stamp
        stamped = metadata.tables[table]
        if connection.execute(select(stamped)).first() is None:
            names = stamped.columns.keys()
            connection.execute(insert(stamped).values(dict(zip(names, values, strict=True))))


def _examine(mapping: Mapping, typed: bool, connection: Connection) -> TableColumns | None:
    """Return the columns of the table; None where it is not there."""
    inspector = inspect(connection)
    if not inspector.has_table(mapping.table):
        return None
    columns = {
        one["name"]: Column(
            *(one["name"], one["type"], typed, one["nullable"]),
            default=one["default"] is not None or bool(one.get("identity")),
            computed=bool(one.get("computed")),
        )
        for one in inspector.get_columns(mapping.table)
    }
    key = tuple(inspector.get_pk_constraint(mapping.table)["constrained_columns"])
    if not key and connection.dialect.name == "sqlite":
        key = (ROWID,)
    session = mapping.columns["session"]
    indexed = any(
        one["column_names"][:1] == [session] for one in inspector.get_indexes(mapping.table)
    )
    serial = len(key) == 1 and (key[0] == ROWID or isinstance(columns[key[0]].type, Integer))
    return TableColumns(
        columns, key, mapping.order or key, indexed or key[:1] == (session,), serial
    )
