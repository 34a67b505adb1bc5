"""Memories in a mapped table of any SQL database.  Each row holds a message.

The ``Mapping`` names the content of each column.  A row becomes a message of
``memctl.dialects.rows``.  The ``extra`` of the message holds the unmapped columns.  The shape holds
the key of the row.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from collections.abc import Mapping as Map
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import quote

from msgspec import structs
from sqlalchemy import ARRAY, Connection, Integer, MetaData, Uuid, insert, inspect, select

from memctl.engines.sql.columns import TimeFormat, columns_of, filled_zone, find_unrestorable
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, damage, is_text, shown_name
from memctl.engines.sql.renaming import Named, Renaming
from memctl.engines.sql.schema import create_missing
from memctl.engines.sql.store import SqlStore
from memctl.engines.sql.syntax import EVERY, Condition
from memctl.errors import BadData, Failure, Uninitialised, UsageError
from memctl.layouts.sql import BRANCHES, branch_tables, foreign_tables
from memctl.location import Location, visible
from memctl.machine.time_zones import naming
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
from memctl.store import DamagedMemory, Deletion, Features, OpenMode
from memctl.storekit.batching import PageBuilder
from memctl.stores.tables.codec import (
    NOT_JSON,
    ROWID,
    SMALL_BYTES,
    DamagedRow,
    RowCodec,
    TableColumns,
    parse_json,
)
from memctl.stores.tables.detect import tables_like
from memctl.stores.tables.mapping import CALL_COLUMNS, Mapping
from memctl.stores.tables.options import mapping_of
from memctl.stores.tables.sessions import Sessions
from memctl.stores.tables.write import ChangedTimes, TableEditor, TableRows, TableWriter

_SAMPLE = 100
"""The number of contents to sample when the store opens."""


class TableStore(SqlStore):
    """A store whose memories are in a mapped table."""

    features = Features(
        marks=frozenset(), duplicate_ids=True, cheap_windows=True, selects_texts=True
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.mapping = mapping_of(location.options)
        self.dialect = self.mapping.dialect
        self.features = structs.replace(
            self.features,
            empty=self.mapping.keeps_state,
            duplicate_ids=not self.mapping.unique_ids,
            session_owners="user" not in self.mapping.columns,
            renames=frozenset(self._renames()),
        )
        self._codec: RowCodec
        self._sessions: Sessions
        self._rows: TableRows
        self._times = ChangedTimes(self.label, self.warnings)

    def _renames(self) -> Iterator[str]:
        yield "session"
        if "user" in self.mapping.columns:
            yield "user"
            if all(
                "session" in one.names or "user" not in one.names for one in self.mapping.sessions
            ):
                yield "merge"  # users have nothing besides sessions

    async def identity(self) -> str:
        return f"{await self.database.identity()}#{self.mapping.table}"

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - rights of tables
        tables = (self.mapping.table,)
        return await self.database.missing_right(tables, locked=tables)

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        tables = {self.mapping.table: Condition(*self._codec.condition(where))}
        own = [one.table for one in self.mapping.sessions]
        if deletion is not Deletion.MESSAGES:
            tables |= dict.fromkeys(own, EVERY)
        return await self.database.side_effects(tables, own)

    @property
    def changed_tables(self) -> Sequence[str]:
        return self.mapping.table, *(one.table for one in self.mapping.sessions)

    async def lock(self, owner: str) -> None:
        self._require_key()  # before the journal records anything
        await super().lock(owner)

    async def check_integrity(self, where: Selection, *, complete: bool = False) -> None:
        if self.mode.writes:
            self._require_key()
        await super().check_integrity(where, complete=complete)

    async def prepare(self) -> None:
        mapping = self.mapping
        branched = await self.database.look(branch_tables)
        if branched is not None and branched.messages == mapping.table:
            raise UsageError(
                f"the rows of {visible(mapping.table)!r} are those of several branches of the "
                "OpenAI Agents SDK's AdvancedSQLiteSession",
                f"use ?layout={BRANCHES}",
            )
        examine = partial(_examine, mapping, self.database)
        columns = await self.database.run(examine)
        if columns is None:
            if not self.mode.creates or mapping.make is None:
                raise Uninitialised(
                    f"{self.label} has no table {visible(mapping.table)!r}",
                    "check the name: memctl stores detect looks for tables of messages"
                    if mapping.make is None
                    else "check the database; a table of another name is ?table=NAME",
                )
            metadata = MetaData()
            mapping.make(mapping, metadata)
            await self.database.create(partial(_create, mapping, metadata))
            named = "table" in self.location.options and self.kind.startswith("postgresql")
            if named and mapping.other_table:
                self.warnings.append(mapping.other_table)
            columns = await self.database.run(examine)
            assert columns is not None
        self.mapping = mapping = mapping.of(columns.all)
        self.dialect = mapping.dialect
        rising = columns.all.get(mapping.rising)
        if not self.database.syntax.typed and rising is not None and rising.is_fraction:
            # SqliteSessionService of ADK keeps the order of events with equal times
            columns = columns._replace(order=(mapping.rising, ROWID))
        content = columns.all.get(mapping.columns["content"])
        missing = [name for name in mapping.columns.values() if name not in columns.all]
        flags = filter(None, (mapping.dialect.flag, mapping.dialect.summary))
        missing += [flag.column for flag in flags if flag.column not in columns.all]
        missing += [name for name in columns.order if name not in columns.all and name != ROWID]
        arrays = content is not None and isinstance(content.type, ARRAY)
        if missing or arrays:
            others = await self.database.look(foreign_tables)
            if mapping.table in others:
                raise others[mapping.table].refusal(self.label)
        if arrays:
            raise BadData(
                f"the column {visible(mapping.columns['content'])!r} of {visible(mapping.table)!r} "
                "holds arrays",
                "memctl reads tables with a row for each message",
            )
        if missing:
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
        self._rows = TableRows(self.database, self._codec, self._sessions)
        self.features = structs.replace(
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
                + (", if each row with an id is a result" if role == "call_id" else "")
            )
        if (
            not self.mode.writes
            and mapping.make is not None
            and "table" not in (self.location.options)
        ):
            await self._warn_of_other_tables()
        if self.mode.writes:
            await self._sessions.learn()
        await self._learn(columns)

    async def _warn_of_other_tables(self) -> None:
        mapping = self.mapping
        others = await self.database.run(
            partial(tables_like, layout=mapping.name, table=mapping.table)
        )
        for name in others:
            self.warnings.append(
                f"only the table {visible(mapping.table)!r} is read: {visible(name)!r} holds "
                f"messages, too; read it with ?layout={mapping.name}&table={quote(name)}"
            )

    async def _only_app(self) -> Mapping:
        """Return the mapping with the name of the application, if the tables name only one.

        The name is from the table of messages.  If this has no rows, for example before the undo of
        a deletion, the name is from the tables of sessions.  If the tables name no application and
        the store only reads, the name is empty.

        Raises:
            UsageError: the tables name several applications, or none although the store writes.
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
        return structs.replace(mapping, app_name=names[0] if names else "")

    async def _learn(self, columns: TableColumns) -> None:
        """Read the format of times from a row, and check that the order of rows is unique.

        Warn if only a key of texts makes the order unique.

        Raises:
            BadData: several rows of a session have the same order.
        """
        table, mapping = self._codec.table, self.mapping
        quoted = self._codec.quoted
        async with self.database.snapshot() as connection:
            role = mapping.columns.get("role")
            if role is not None:
                sql = f"SELECT {quoted(role)} FROM {table} WHERE {quoted(role)} IS NOT NULL LIMIT 1"
                found = await self.database.fetch_all(connection, sql, {})
                if found and str(found[0][0]).isupper():
                    self.dialect = copy(mapping.dialect)
                    self.dialect.capitals = True
                    mapping = structs.replace(mapping, dialect=self.dialect)
                    self._codec.mapping = self.mapping = mapping
            time = mapping.columns.get("time")
            if time is not None:
                sql = f"SELECT {self._codec.value(time)} FROM {table}"
                sql += f" WHERE {quoted(time)} IS NOT NULL LIMIT 1"
                rows = await self.database.fetch_all(connection, sql, {})
                sample = rows[0][0] if rows else None
                local = mapping.zone or await filled_zone(
                    self.database, connection, columns.all[time]
                )
                if local is None and mapping.filled_times:
                    local = await self.database.time_zone(connection)
                times = TimeFormat.of(columns.all[time], sample, local)
                if mapping.unit:
                    times = TimeFormat(mapping.unit, whole=True)
                if not (times.zone or times.unit):
                    self.details.append(naming(local))
                elif mapping.zone is not None:
                    raise UsageError(
                        f"the times in the column {visible(time)!r} do not depend on a time zone",
                        "leave out tz=",
                    )
                self._codec.times = times
            if not mapping.dialect.documents:
                await self._learn_content(connection)
            unique = bool(columns.key) and set(columns.key) <= set(columns.order)
            of = {mapping.columns["session"], mapping.columns.get("user")} if unique else set()
            key = [
                one for one in columns.key if unique and one not in of and _is_name(columns, one)
            ]
            order = [name for name in columns.order if name not in {*key, *of}]
            chosen = unique and (not key or (not order and mapping.order))
            if mapping.make is not None or chosen:
                return
            found = ", ".join([self._codec.session, *map(self._codec.value, order)])
            some = ", ".join([*self._codec.names, *map(quoted, order)])
            sql = f"SELECT {found} FROM {table} GROUP BY {some} HAVING COUNT(*) > 1 LIMIT 1"
            clashes = await self.database.fetch_all(connection, sql, {})
        session = visible(shown_name(clashes[0][0])) if clashes else ""
        if clashes and unique:
            shared = f" share {visible(', '.join(order))}" if order else ""
            self.warnings.append(
                f"the order of {visible(mapping.table)!r} is unsure: rows of the session "
                f"{session!r}{shared} are in the order of their key, a text"
            )
        elif clashes:
            more = next((name for name in columns.key if name not in columns.order), "ANOTHER")
            raise BadData(
                f"the order of {visible(mapping.table)!r} is not unique: rows of the session "
                f"{session!r} share {visible(', '.join(columns.order))} "
                f"= {visible(str(self._codec.read(columns.order[0], clashes[0][1])))}",
                f"add a column that differs: order = {json.dumps([*columns.order, more])}",
            )

    async def _learn_content(self, connection: AsyncConnection) -> None:
        """Find out from a sample whether all contents are JSON.

        In MariaDB, the column type does not tell.
        """
        codec = self._codec
        if codec.is_json or self.mapping.encoding:
            return
        name = self.mapping.columns["content"]
        content = codec.quoted(name)
        small = f"{self.database.syntax.json_size(content)} <= {SMALL_BYTES}"
        sql = f"SELECT {codec.value(name)} FROM {codec.table} WHERE {small} LIMIT {_SAMPLE}"
        rows = await self.database.fetch_all(connection, sql, {})
        texts = [one for (one,) in rows if isinstance(one, str)]
        if texts and all(one[:1] in '"[{' and parse_json(one) is not NOT_JSON for one in texts):
            codec.is_json = True
        self.features = structs.replace(self.features, asks_encoding=not texts)

    def _require_key(self) -> None:
        if not self._codec.columns.key:
            raise BadData(
                f"the table {visible(self.mapping.table)!r} of {self.label} has no primary key, "
                "so changes could not be undone",
                "add a primary key to it",
            )

    async def unrestorable(self, where: Selection) -> str:
        condition, values = self._codec.condition(where)
        columns = self._codec.columns.all.values()
        return await find_unrestorable(
            self.database, self.mapping.table, columns, condition, values
        )

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        pages = self.database.read_pages(where, self._pages)
        return where.apply(pages, self.dialect)

    async def count(self, where: Selection) -> tuple[int, int] | None:
        if where != Selection():
            return None
        condition, values = self._codec.condition(where)
        counted = f"COUNT(DISTINCT {self._codec.session}), COUNT(*)"
        sql = f"SELECT {counted} FROM {self._codec.table} WHERE {condition}"
        async with self.database.snapshot() as connection:
            [[memories, messages]] = await self.database.fetch_all(connection, sql, values)
        return memories, messages

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        seen: set[MemoryKey] = set()
        for find in self._sessions.names, self._sessions.with_messages:
            async with self.database.snapshot(where.shard) as connection:
                found = filter(where.has_key, await find(connection, where.shard))
            for key in found:
                if key not in seen:
                    seen.add(key)
                    yield key

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        if self.skips_damage:
            return await super().window(key, start, count)
        codec, failures = self._codec, self.left_out.failures
        if key in failures or not codec.has_user(key):
            return None
        condition, values = codec.of(key)
        async with self.database.snapshot() as connection:
            select, source = partial(codec.select_window, condition), f"FROM {codec.table}"
            rows, first, last = await self.database.fetch_window(
                connection, select, f"{source} WHERE {condition}", values, start, count
            )
            if not (rows or first or await self._is_empty(connection, key)):
                return None
            extra = await self._extra(connection, key)
            if extra is None:
                return None
            entries: list[StoredMessage] = []
            try:
                async for several in self._rows.filled(connection, rows):
                    entries += self._entries(key, several)
            except DamagedRow as error:
                failures[key] = damage(str(error))
                return None
        return Page(Memory(key, extra=extra), entries, first, last)

    async def _is_empty(self, connection: AsyncConnection, key: MemoryKey) -> bool:
        """Return whether a memory without messages exists."""
        return self.mapping.keeps_state and key in await self._sessions.names(connection)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        database, codec = self.database, self._codec
        failures = self.left_out.failures
        builder: PageBuilder | None = None
        current: MemoryKey | None = None
        out = False
        part = where.named or where.keys is not None
        async with (
            database.snapshot(where.shard, long=not part) as connection,
            database.second_connection(connection) as second,
        ):
            condition, values = codec.condition(where)
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
                        async for several in self._rows.filled(second, list(some)):
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
            for key in await self._sessions.empty(connection, where.shard):
                if where.has_key(key):
                    extra = await self._extra(connection, key)
                    if extra is not None:
                        yield Page(Memory(key, extra=extra), [])

    async def _extra(self, connection: AsyncConnection, key: MemoryKey) -> str | None:
        """Return the ``Memory.extra`` of a memory; None if the memory is damaged.

        If the store skips damage, the damage becomes a finding, and the result is empty.
        """
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

        If the store skips damage, damaged rows become findings and are left out.

        Raises:
            DamagedRow: a row is damaged, or the name of the memory is not valid UTF-8.
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

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return self.mapping.name_refusal(key)

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        self._require_key()
        return TableWriter(self._rows, mode, self._times, self.shard).write(pages)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        self._require_key()
        return TableEditor(self._rows).edit(edits)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.database.snapshot() as connection:
            found = dict.fromkeys(await self._sessions.with_messages(connection))
            found |= dict.fromkeys(await self._sessions.names(connection))
        for key in found:
            if where.has_key(key):
                yield key

    @property
    def named(self) -> Sequence[Named]:
        mapping, columns = self.mapping, self.mapping.columns
        app = mapping.app_name
        found = []
        for table in mapping.sessions:
            names = table.names
            named = Named(table.table, names.get("session", ""), names.get("user", ""))
            found.append(named._replace(app=(names["app"], app)) if "app" in names else named)
        own = Named(mapping.table, columns["session"], columns.get("user", ""))
        return [*found, own._replace(app=(mapping.app, app)) if mapping.app else own]

    async def rename(self, moves: Map[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        places = [one for one in self.named if one.session]
        of_users = [one for one in self.named if one.user and not one.session]
        renaming = Renaming(self.database, {one.table for one in (*places, *of_users)})
        await renaming.find()
        async with self.database.connect() as connection, self.database.erasing(connection):
            for old, new in moves.items():
                some = places if old.session else of_users
                await renaming.rename_names(connection, some, old[:2], new[:2], by_user=True)
        for key in moves:
            yield WriteResult(key)

    async def _erase(self, key: MemoryKey) -> WriteResult:
        async with self.database.connect() as connection, self.database.erasing(connection):
            gone = await self._rows.clear(connection, key)
            await self._sessions.remove(connection, key)
        return WriteResult(key, deleted=gone)


def _is_name(columns: TableColumns, column: str) -> bool:
    """Return whether a column has texts or UUIDs, whose order need not be that of writing."""
    found = columns.all.get(column)
    return found is not None and (found.is_text or isinstance(found.type, Uuid))


def _create(mapping: Mapping, metadata: MetaData, connection: Connection) -> None:
    create_missing(connection, metadata)
    if mapping.stamp is not None:
        table, values = mapping.stamp
        stamped = metadata.tables[table]
        if connection.execute(select(stamped)).first() is None:
            names = stamped.columns.keys()
            connection.execute(insert(stamped).values(dict(zip(names, values, strict=True))))


def _examine(mapping: Mapping, database: Database, connection: Connection) -> TableColumns | None:
    inspector = inspect(connection)
    if not inspector.has_table(mapping.table):
        return None
    columns = columns_of(database, mapping.table, connection)
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
