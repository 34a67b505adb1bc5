"""Messages in a table that is not AgentScope's, a row a message, in a database of any kind.

The ``Mapping`` says which column is what.  A row becomes a message of ``memctl.dialects.rows``;
columns that nobody named travel along in its ``extra``, and the key of its row in its shape.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import groupby
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Integer, MetaData, String, Text, Uuid, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl import jsonio
from memctl.dialects.agentscope import CONTENT, ID, NAME, ROLE
from memctl.dialects.rows import CALL_ID, CALL_NAME, CALLS, EXTRA, METADATA, TIME, blocks_of
from memctl.dialects.view import NOTES
from memctl.engines.sql.columns import UNKNOWN_TIME, Column, TimeFormat, after, shown
from memctl.engines.sql.database import Database, RejectedValue, damage, is_text, make_database
from memctl.engines.sql.schema import create_missing
from memctl.engines.sql.syntax import MAX_PUSHED_VALUES
from memctl.errors import BadData, Failure, Uninitialised, UsageError
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
    Drop,
    Keep,
    Mark,
    Put,
    Step,
    is_same_text,
    whole_edits,
)
from memctl.storekit.simple import not_owned
from memctl.stores.agentscope1.sql.write import of_shape
from memctl.stores.openai.branches import LAYOUT, find_tables
from memctl.stores.tables.detect import foreign_tables
from memctl.stores.tables.mapping import CALL_COLUMNS, Mapping, mapping_of
from memctl.stores.tables.sessions import MadeRows, Sessions

BATCH_MESSAGES = 10_000
"""Small memories share a transaction up to this size: a commit waits for the disk."""
_KEYS = 500
"""The keys in one statement."""
_SAMPLE = 100
"""The contents that are looked at before the first is read."""
_SMALL_BYTES = 32 * 1024
"""Larger contents are fetched one by one: so the rows that are fetched together hold 8 MiB."""
_BESIDE = {
    **{"id": ID, "role": ROLE, "name": NAME, "metadata": METADATA},
    **{"calls": CALLS, "call_id": CALL_ID, "call_name": CALL_NAME},
}
_JSON_FIELDS = (METADATA, CALLS)
_LARGEST_NUMBER = 2**63 - 1
_ROWID = "rowid"
_MISSING = "missing"
"""The field of ``WriteResult.before`` that names the tables without a row for the memory."""
_MADE = "made"
"""That of the tables in which rows were made for it, with their states."""
_NEEDLESS = "needless"
"""That of the tables whose rows were made although the store had done without them."""
_REMOVED = "removed"
"""That of the tables from which such rows were removed, with their states."""
FILLED = "filled"
"""The note, and the field of a shape, that names columns whose values are not of the message: the
database fills them, or a row has to have one."""


class _Refused(Exception):
    """A message that the table has no place for, and why."""


class _Damaged(Exception):
    """A row that is no message, and why."""


class _JsonStyle(NamedTuple):
    """The way in which a program writes JSON, as far as programs differ in it."""

    compact: bool
    """True without spaces."""
    unicode: bool | None
    """True if a text beyond ASCII stands there as it is; None if there is none."""

    @classmethod
    def of(cls, text: str) -> _JsonStyle:
        """Return the style of a JSON text, as its first key and its characters show it."""
        at = text.find('":')
        escaped = None if "\\u" not in text else False
        return cls(at >= 0 and text[at + 2 : at + 3] != " ", escaped if text.isascii() else True)

    def writes(self, other: _JsonStyle) -> bool:
        """Return whether another style gives the same text."""
        return self.compact == other.compact and self.unicode in (None, other.unicode)

    def encode(self, value: Any) -> str:
        """Return a value as JSON text."""
        separators = (",", ":") if self.compact else None
        return json.dumps(value, separators=separators, ensure_ascii=not self.unicode)


class _Columns(NamedTuple):
    """The table as it is."""

    all: dict[str, Column]
    key: tuple[str, ...]
    order: tuple[str, ...]
    has_index: bool
    """True where the rows of a session are found without reading the others."""
    is_serial: bool
    """True where the database makes the key."""


class Ordering(Enum):
    """The ways in which new messages come to stand behind those that are there."""

    SERIAL = "serial"
    """By the key, which the database makes, or the message has."""
    NUMBER = "number"
    """By a number that memctl gives them."""
    TIME = "time"
    """By their times, of which several may be the same."""
    INSTANT = "instant"
    """By times of which no two are the same."""


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
        branched = await self.database.run(find_tables)
        if branched is not None and branched.messages == mapping.table:
            raise UsageError(
                f"the rows of {visible(mapping.table)!r} are those of several branches of the "
                "OpenAI Agents SDK's AdvancedSQLiteSession",
                f"use ?layout={LAYOUT}",
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
            columns = columns._replace(order=(mapping.rising, _ROWID))
        missing = [name for name in mapping.columns.values() if name not in columns.all]
        missing += [name for name in columns.order if name not in columns.all and name != _ROWID]
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
                f"nothing says in which order the rows of {visible(mapping.table)!r} are",
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

    async def _learn(self, columns: _Columns) -> None:
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
            twins = await self.database.fetch_all(connection, sql, {})
        if twins:
            more = next((name for name in columns.key if name not in columns.order), "ANOTHER")
            raise BadData(
                f"the order of {visible(mapping.table)!r} is not unique: rows of the session "
                f"{visible(str(twins[0][0]))!r} share {visible(', '.join(columns.order))} "
                f"= {visible(str(twins[0][1]))}",
                f"add a column that tells them apart: order = {json.dumps([*columns.order, more])}",
            )

    async def _learn_content(self, connection: AsyncConnection) -> None:
        """Look whether all contents are JSON: the type of a column need not say so (MariaDB)."""
        codec = self._codec
        if codec.is_json or self.mapping.encoding:
            return
        content = codec.quoted(self.mapping.columns["content"])
        small = f"{self.database.syntax.json_size(content)} <= {_SMALL_BYTES}"
        sql = f"SELECT {content} FROM {codec.table} WHERE {small} LIMIT {_SAMPLE}"
        rows = await self.database.fetch_all(connection, sql, {})
        texts = [one for (one,) in rows if isinstance(one, str)]
        if texts and all(one[:1] in '"[{' and _json(one) is not _NOT_JSON for one in texts):
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
                            except _Damaged as error:
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
            _Damaged: a row is none, and damage is not skipped.
        """
        if not (is_text(key.user) and is_text(key.session)):
            raise _Damaged("its name is not valid UTF-8")
        entries = []
        for row in rows:
            try:
                entries.append(self._codec.entry(row))
            except _Damaged as error:
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
        rows = _Rows(self._codec)
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
                    except _Refused as error:
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
                rows = _Rows(self._codec)
                rows.latest = await self._latest(connection, filled, mode)
                async for page in large.pages:
                    try:
                        rows.add(key, page.messages)
                    except _Refused as error:
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

    async def _insert(self, connection: AsyncConnection, rows: _Rows) -> None:
        for columns, some in rows.take():
            await self.database.insert_rows(connection, self.mapping.table, columns, some)
        if rows.numbered:
            await self.database.advance_serial(
                connection, self._codec.table, self._codec.columns.key[0]
            )

    def _note(self, rows: _Rows) -> None:
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
        matcher = ChangeMatcher(edit.twins)
        matcher.give(edit.changes, last=True)
        placing = _Placing(codec, key)
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
                new = _Rows(codec, placing.latest)
                new.add(key, placing.put, free)
            except _Damaged as error:
                raise RejectedValue(str(error), "damaged") from error
            except _Refused as error:
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
        return WriteResult(key, *counts, before=before, twins=matcher.twins())

    async def _taken(self, connection: AsyncConnection, placing: _Placing) -> set[tuple[Any, ...]]:
        """Return the keys of messages to put in that other rows have got meanwhile."""
        codec, found = self._codec, set[tuple[Any, ...]]()
        names = [codec.quoted(name) for name in codec.columns.key]
        wanted = placing.keys()
        for some in _pieces(sorted({key[0] for key in wanted}, key=str)):
            sql = f"SELECT {', '.join(names)} FROM {codec.table} WHERE {names[0]} IN :some"
            rows = await self.database.fetch_all(connection, sql, {"some": some})
            found |= {tuple(row) for row in rows} & wanted
        return found - set(placing.dropped)

    async def _free_rowids(self, connection: AsyncConnection, placing: _Placing) -> frozenset[int]:
        """Return the numbers of rows of messages to put in that no other row has got meanwhile."""
        wanted = placing.rowids()
        taken: set[int] = set()
        for some in _pieces(sorted(wanted)):
            sql = f"SELECT {_ROWID} FROM {self._codec.table} WHERE {_ROWID} IN :some"
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


def _examine(mapping: Mapping, typed: bool, connection: Connection) -> _Columns | None:
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
        key = (_ROWID,)
    session = mapping.columns["session"]
    indexed = any(
        one["column_names"][:1] == [session] for one in inspector.get_indexes(mapping.table)
    )
    serial = len(key) == 1 and (key[0] == _ROWID or isinstance(columns[key[0]].type, Integer))
    return _Columns(columns, key, mapping.order or key, indexed or key[:1] == (session,), serial)


class RowCodec:
    """The rows of a table as messages, and the reverse."""

    def __init__(self, mapping: Mapping, columns: _Columns, database: Database) -> None:
        self.mapping = mapping
        self.columns = columns
        self.times = TimeFormat(utc=mapping.utc)
        self._sql = database.syntax
        self.table = self.quoted(mapping.table)
        self.session = self._name("session")
        named = mapping.columns
        self.user = f"COALESCE({self._name('user')}, '')" if "user" in named else ""
        key_and_order = dict.fromkeys((*columns.key, *columns.order))
        own = {*named.values(), *key_and_order, mapping.app}
        others = [name for name, one in columns.all.items() if name not in own and not one.computed]
        self.session_column = columns.all[named["session"]]
        self.extra_columns = frozenset(others)
        self.filled_columns = frozenset(name for name in others if columns.all[name].default)
        unread = () if mapping.dialect.documents else ("calls", "call_id")
        likely = {name for role in unread if role not in named for name in CALL_COLUMNS[role]}
        self.call_columns = frozenset(name for name in others if name.lower() in likely)
        self._once_null = [name for name in self.filled_columns if columns.all[name].nullable]
        owner = named.get("user")
        self._owner = owner if owner and not columns.all[owner].filled else None
        """The column of the user where it may be NULL, which is one with an empty text."""
        self._named = [(named[name], field) for name, field in _BESIDE.items() if name in named]
        self._time = named.get("time")
        self._content = named["content"]
        selected = dict.fromkeys(
            [*key_and_order, self._content, *(column for column, _ in self._named)]
            + ([self._time] if self._time else [])
            + ([self._owner] if self._owner else [])
            + others
        )
        self._start = 2 if self.user else 1
        self._loose = not database.syntax.typed
        """True where a column of texts may hold something else."""
        self._at = {name: self._start + number for number, name in enumerate(selected)}
        self._selected = selected
        self._others = others
        self._key = columns.key
        self._placed = tuple(key_and_order)
        """The columns that an undo needs to put a row back where it was."""
        only = columns.all.get(columns.order[0]) if len(columns.order) == 1 else None
        numbered = columns.order == (_ROWID,) or (only is not None and only.is_integer)
        self._position = self._at[columns.order[0]] if numbered else None
        self.ordering = self._ordering()
        self.is_json = columns.all[self._content].is_json or mapping.encoding == "json"
        self._mixed = not (self.is_json or mapping.dialect.documents)
        """True where a content may be a text as it is, or as JSON."""
        fields = {field for _, field in self._named}
        self._known = frozenset(
            {CONTENT, EXTRA, METADATA, *fields}
            | ({TIME} if self._time or mapping.dialect.notes_time else set())
        )
        self._converted = frozenset(
            name for name, column in columns.all.items() if not column.is_text
        )
        packed = frozenset({NOTES} if mapping.dialect.note_key else ())
        self._style = _JsonStyle.of(mapping.encode({"a": "é"}))
        self._last_names: tuple[Any, Any] | None = None
        self._last_key = MemoryKey("", "")
        self._packed = None if METADATA in fields else packed
        """The metadata that the content takes; None where these have a column."""
        self.holds_notes = METADATA in fields or bool(mapping.dialect.note_key)

    @property
    def _needs_time(self) -> bool:
        """True if every row needs a time: the column is NOT NULL, or puts the rows in order."""
        if self._time is None:
            return False
        return not self.columns.all[self._time].nullable or self.ordering is Ordering.TIME

    @property
    def _fills_time(self) -> bool:
        """True where the database gives a time to a message that a note says has none."""
        default = self._time is not None and self.columns.all[self._time].default
        return default and self.holds_notes and self.ordering is not Ordering.TIME

    def _filled(self, value: dict[str, Any], extra: dict[str, Any]) -> list[str]:
        """Return the columns that get a value which the message lacks, for its note."""
        if not self.holds_notes:
            return []
        filled = sorted(self.filled_columns - extra.keys())
        if self._time is not None and self._needs_time and value.get(TIME) is None:
            filled.append(self._time)
        return filled

    def _ordering(self) -> Ordering:
        first = self.columns.order[0]
        if self.mapping.rising:
            return Ordering.INSTANT
        if first == self._time:
            return Ordering.TIME
        if self._position is not None and first not in self.columns.key:
            return Ordering.NUMBER
        return Ordering.SERIAL

    def quoted(self, name: str) -> str:
        """Return a name in SQL, for statements that ``text`` takes."""
        quote = self._sql.quote
        return quote + name.replace(quote, quote * 2).replace(":", "\\:") + quote

    def value(self, name: str) -> str:
        """Return SQL for the value of a column; JSON as a text, whatever the driver makes of it."""
        column = self.columns.all.get(name)
        if column is None or not column.is_json:
            return self.quoted(name)
        return f"CAST({self.quoted(name)} AS {self._sql.text_type})"

    def _name(self, role: str) -> str:
        """Return SQL for the user or the session of a row, as an exact text."""
        column = self.columns.all[self.mapping.columns[role]]
        name = self.quoted(column.name)
        if not isinstance(column.type, String | Text):
            return f"CAST({name} AS {self._sql.text_type})"
        return self._sql.exact(name)

    def has_user(self, key: MemoryKey) -> bool:
        """Return whether the table can have rows of the user of a memory."""
        return bool(self.user) or key.user == self.mapping.user

    def select(self, condition: str, *, lock: bool = False) -> str:
        """Return the statement that reads rows, memory after memory, in order."""
        keys = [self.session, *([self.user] if self.user else [])]
        columns = [*keys, *map(self.value, self._selected)]
        # A large content is fetched by itself: drivers fetch rows by number, whatever their size.
        content = self.quoted(self._content)
        size = self._sql.json_size(content)
        columns[self._at[self._content]] = (
            f"CASE WHEN {size} <= {_SMALL_BYTES} THEN {self.value(self._content)} END"
        )
        columns.append(f"CASE WHEN {size} > {_SMALL_BYTES} THEN 1 END")
        order = [*keys, *map(self.quoted, self.columns.order)]
        more = f" {self._sql.row_lock}" if lock else ""
        return (
            f"SELECT {', '.join(columns)} FROM {self.table} WHERE {condition} "
            f"ORDER BY {', '.join(order)}{more}"
        )

    def condition(self, where: Selection) -> tuple[str, dict[str, Any]]:
        """Return a condition on the rows that may be selected, and its values."""
        parts, values = ["1 = 1"], dict[str, Any]()
        sessions, users = where.sessions, where.users
        if not sessions and where.keys is not None:
            sessions = frozenset(key.session for key in where.keys)
        for name, column, some in (("s", self.session, sessions), ("u", self.user, users)):
            if column and 0 < len(some) <= MAX_PUSHED_VALUES:
                parts.append(f"{column} IN :{name}_names")
                values[f"{name}_names"] = sorted(some)
        return self._in_app(" AND ".join(parts), values)

    def condition_of_app(self) -> tuple[str, dict[str, Any]]:
        """Return the condition of all rows of the store, and its values."""
        return self._in_app("1 = 1", {})

    def _in_app(self, condition: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self.mapping.app:
            return condition, values
        app = self._sql.exact(self.quoted(self.mapping.app))
        return f"{condition} AND {app} = :app", values | {"app": self.mapping.app_name}

    def of(self, key: MemoryKey) -> tuple[str, dict[str, Any]]:
        """Return the condition of the rows of one memory, and its values."""
        condition, values = f"{self.session} = :session", {"session": key.session}
        if isinstance(self.session_column.type, Uuid) and not self.session_column.refusal(
            key.session
        ):  # for the index
            condition = f"{self.quoted(self.session_column.name)} = CAST(:session AS UUID)"
        if self.user:
            condition, values = f"{condition} AND {self.user} = :user", values | {"user": key.user}
        return self._in_app(condition, values)

    def key_of(self, row: Sequence[Any]) -> MemoryKey:
        """Return the memory of a row."""
        names = (row[0], row[1] if self.user else "")
        if names == self._last_names:
            return self._last_key
        key = self._key_of(row)
        if type(names[0]) is str and type(names[1]) is str:  # 1 equals 1.0
            self._last_names, self._last_key = names, key
        return key

    def _key_of(self, row: Sequence[Any]) -> MemoryKey:
        session = "NULL" if row[0] is None else _decoded(row[0])
        if not self.user:
            return MemoryKey(self.mapping.user, session)
        return MemoryKey(_decoded(row[1]), session)

    def by_key(self, row: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """Return the condition of one row, by its key, and its values."""
        key = self._key or tuple(self.columns.order)
        tests = [f"{self.quoted(name)} = :k{at}" for at, name in enumerate(key)]
        return " AND ".join(tests), {f"k{at}": row[self._at[name]] for at, name in enumerate(key)}

    def with_content(self, row: Sequence[Any], content: Any) -> Sequence[Any]:
        """Return a row with another content."""
        at = self._at[self._content]
        return [*row[:at], content, *row[at + 1 :]]

    def row_key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of the primary key of a row."""
        return tuple(row[self._at[name]] for name in self._key)

    # From a row

    def entry(self, row: Sequence[Any]) -> StoredMessage:
        """Return the message of a row.

        Raises:
            _Damaged: it is none.
        """
        at = self._at
        if row[0] is None:
            raise _Damaged(f"{self._which(row)} names no session")
        if self._loose and not all(isinstance(name, str) for name in row[: self._start]):
            raise _Damaged(
                f"{self._which(row)} names its session or user by a value that is no text"
            )
        if self._loose and not all(is_text(one) for one in row if isinstance(one, str)):
            raise _Damaged(f"{self._which(row)} is not UTF-8")
        dialect = self.mapping.dialect
        value: dict[str, Any] = {}
        shape = {name: shown(row[at[name]]) for name in self._placed}
        for column, field in self._named:
            if (found := row[at[column]]) is not None:
                value[field] = self._field(row, field, found)
                if field in _JSON_FIELDS and not self._writes(column, value[field], found):
                    shape[column] = shown(found)
                if type(found) is bytes:  # in SQLite, which takes them for no text
                    shape[column] = shown(found)
        if self._time is not None:
            raw = row[at[self._time]]
            time = self.times.read(raw)
            if time is not None:
                value[TIME] = time
                if self._time not in shape and not self._keeps_time(time, raw):
                    shape[self._time] = shown(raw)
        value[CONTENT] = self._content_of(row)
        found = row[at[self._content]]
        if type(found) is bytes or (self.is_json and value[CONTENT] is None):  # NULL, or null
            shape[self._content] = shown(found)
        if self._owner and row[at[self._owner]] == "":
            shape[self._owner] = ""
        value |= dialect.unpack(value[CONTENT])
        content = value[CONTENT]
        filled = _take_filled(value)
        if self._time in filled and value.pop(TIME, None) is not None:
            shape[self._time] = shown(row[at[self._time]])
        shape |= {name: shown(row[at[name]]) for name in self._others if name in filled}
        given = self.mapping.given(content)
        if any(name in given and row[at[name]] != given[name] for name in self._key):
            raise _Damaged(f"the content of {self._which(row)} has another id")
        if self._others:
            extra = {
                name: found
                for name in self._others
                if name not in filled
                and (found := shown(row[at[name]])) is not None
                and found != given.get(name)
            }
            if extra:
                value[EXTRA] = extra
        id = dialect.message_id(value)
        position = None if self._position is None else row[self._position]
        about: dict[str, Any] = {"row": shape}
        if filled:
            about[FILLED] = filled
        style = self._style_of(row[at[self._content]])
        if style is not None:
            about["style"] = style
        if self._mixed and self.is_json:
            about["quoted"] = True
        packed = jsonio.dumps if any(map(_is_odd, shape.values())) else jsonio.compact
        text = packed(about).decode()
        beside = not value.keys().isdisjoint((METADATA, EXTRA, CALLS))
        odd = any(map(_is_odd, row if beside else (row[at[self._content]],)))
        message = jsonio.dumps(value) if odd else jsonio.compact(value)
        return StoredMessage(id, message, (), position, text)

    def _style_of(self, found: Any) -> _JsonStyle | None:
        """Return the style of a JSON content; None for the style of memctl, and for other contents.

        A database that checks JSON keeps its own style.
        """
        if not (self.mapping.dialect.documents or self.is_json) or not isinstance(found, str):
            return None
        style = _JsonStyle.of(found)
        return None if style.writes(self._style) else style

    @property
    def no_time(self) -> Any:
        """The value of a column that must have a time, for a message without one."""
        return self.times.write(UNKNOWN_TIME)

    def _keeps_time(self, time: str, raw: Any) -> bool:
        """Return whether a time would be written as it was, also later and elsewhere."""
        if not (self.times.is_fixed or self.mapping.unit):
            return False
        try:
            return bool(self.times.write(time) == raw)
        except ValueError:
            return False

    def _writes(self, column: str, value: Any, found: Any) -> bool:
        """Return whether a value of JSON is written as it was found."""
        return self.columns.all[column].is_json or self._encoded(column, value) == found

    def _encoded(self, column: str, value: Any) -> Any:
        """Return the JSON text of a value; a text that is not JSON stays the same."""
        plain = isinstance(value, str) and not self.columns.all[column].is_json
        return value if plain else json.dumps(value)

    def _field(self, row: Sequence[Any], field: str, found: Any) -> Any:
        if field == CALLS:
            calls = _json(found)
            return calls if isinstance(calls, list | dict) else _decoded(found)
        if field != METADATA:
            return _decoded(found)
        value = _json(found) if isinstance(found, str | bytes) else found
        if not isinstance(value, dict):
            raise _Damaged(f"the metadata of {self._which(row)} is not a JSON object")
        return value

    def _content_of(self, row: Sequence[Any]) -> Any:
        found = row[self._at[self._content]]
        documents = self.mapping.dialect.documents
        if isinstance(found, bytes | bytearray | memoryview):
            try:
                found = bytes(found).decode()
            except UnicodeDecodeError:
                raise _Damaged(f"the content of {self._which(row)} is not UTF-8") from None
        if documents or (self.is_json and found is not None):
            if found is None:
                raise _Damaged(f"{self._which(row)} has no content")
            value = _json(found)
            if value is _NOT_JSON or (documents and not isinstance(value, dict)):
                what = "JSON" if value is _NOT_JSON else "a JSON object"
                raise _Damaged(f"the content of {self._which(row)} is not {what}")
            return value
        if found is None:
            return None
        if not isinstance(found, str):
            raise _Damaged(f"the content of {self._which(row)} is not a text")
        if not is_text(found):
            raise _Damaged(f"the content of {self._which(row)} is not UTF-8")
        blocks = blocks_of(found)
        return found if blocks is None else blocks

    def _which(self, row: Sequence[Any]) -> str:
        key = ", ".join(visible(str(one)) for one in self.row_key(row))
        return f"the row {key} of {visible(self.mapping.table)!r}"

    def has_text(self, entries: list[StoredMessage], at: int, text: bytes) -> bool:
        """Return whether a message has a text, but for columns that the database filled."""
        found = entries[at].message
        if is_same_text(found, text):
            return True
        value, wanted = jsonio.loads(found), jsonio.loads(text)
        extra = value.get(EXTRA)
        if not extra or not isinstance(wanted, dict):
            return False
        added = self.filled_columns - (wanted.get(EXTRA) or {}).keys()
        value[EXTRA] = {name: one for name, one in extra.items() if name not in added}
        if not value[EXTRA]:
            del value[EXTRA]
        return bool(added) and is_same_text(jsonio.dumps(value), text)

    # To a row

    def row_order(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values that put a row in order."""
        return tuple(row[self._at[name]] for name in self.columns.order)

    def order_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Return the same of a row that is to be inserted."""
        return tuple(row.get(name, inf if name == _ROWID else None) for name in self.columns.order)

    @property
    def orders_by_rowid(self) -> bool:
        """True where the number of a row, which is not its key, puts rows of one time in order."""
        return _ROWID in self.columns.order and _ROWID not in self.columns.key

    def shape_rowid(self, entry: StoredMessage) -> int | None:
        """Return the number of the row that a message had, where it puts rows in order."""
        row = of_shape(entry.shape).get("row") if self.orders_by_rowid and entry.shape else None
        found = row.get(_ROWID) if isinstance(row, dict) else None
        return found if isinstance(found, int) else None

    def shape_key(self, entry: StoredMessage) -> tuple[Any, ...] | None:
        """Return the key of the row that a message had; None where it had none."""
        row = of_shape(entry.shape).get("row")
        if not isinstance(row, dict) or not all(name in row for name in self._key):
            return None
        columns = self.columns.all
        return tuple(
            columns[name].stored(row[name]) if name in columns else row[name] for name in self._key
        )

    def _lost(self, value: dict[str, Any], extra: dict[str, Any]) -> list[str]:
        """Return what of a message the table has no place for."""
        lost = [name for name in value if name not in self._known]
        if self._packed is not None:
            lost += [name for name in value.get(METADATA) or () if name not in self._packed]
        return [*lost, *(name for name in extra if name not in self.extra_columns)]

    def row(self, key: MemoryKey, entry: StoredMessage) -> dict[str, Any]:
        """Return the values of a message by column.

        Raises:
            _Refused: the table has no place for some of it.
        """
        value = jsonio.loads(entry.message)
        if not isinstance(value, dict):
            raise _Refused(f"the message {entry.id!r} is not a JSON object")
        mapping = self.mapping
        named = mapping.columns
        extra = value.get(EXTRA) or {}
        if lost := self._lost(value, extra):
            raise _Refused(
                f"the table {visible(mapping.table)!r} has no column for {visible(lost[0])!r}, "
                f"which the message {entry.id!r} has"
            )
        shape = of_shape(entry.shape) if entry.shape else {}
        filled = shape.get(FILLED, ()) if shape else self._filled(value, extra)
        value = _with_filled(value, filled)
        content = mapping.dialect.pack(value)
        found: dict[str, Any] = {}
        for name, given in mapping.given(content).items():
            if (typed := self.columns.all.get(name)) is not None:
                found[name] = typed.moment(given) if isinstance(given, datetime) else given
        found[named["session"]] = key.session
        if self.user:
            owner = named["user"]
            found[owner] = key.user or ("" if self.columns.all[owner].filled else None)
        if mapping.app:
            found[mapping.app] = mapping.app_name
        for column, field in self._named:
            if field in value:
                stored = value[field]
                found[column] = self._encoded(column, stored) if field in _JSON_FIELDS else stored
        # One that was there is as it was, whatever the others are now.
        is_json = "quoted" in shape if self._mixed and shape else self.is_json
        if content == [] and not is_json:  # it would come back as a text
            raise _Refused(f"the message {entry.id!r} has an empty list as its content")
        text = mapping.dialect.documents or is_json or not isinstance(content, str | None)
        text = text and not (content is None and self.columns.all[self._content].nullable)
        encode = _JsonStyle(*shape["style"]).encode if "style" in shape else mapping.encode
        found[named["content"]] = encode(content) if text else content
        if shape:  # NULL where the database would fill it now
            found |= dict.fromkeys(self._once_null)
        found |= extra
        row = shape.get("row")
        raw = row if isinstance(row, dict) else {}
        if self.orders_by_rowid:  # of which another row may have got it
            raw = {name: one for name, one in raw.items() if name != _ROWID}
        for name, one in found.items():  # a blob that is no text comes back as it was
            if isinstance(one, str) and name not in raw and not is_text(one):
                raise _Refused(f"the message {entry.id!r} holds a text that is not valid Unicode")
        try:
            stored_row = found | raw
            for name, one in stored_row.items():
                if type(one) is not str or name in self._converted:
                    typed = self.columns.all.get(name)
                    stored_row[name] = one if typed is None else typed.stored(one)
            if self._time is not None and self._time not in raw:
                time = value.get(TIME)
                if time is None and self._needs_time and not self._fills_time:
                    time = UNKNOWN_TIME
                if time is not None or not self._needs_time:
                    stored_row[self._time] = self.times.write(time)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise _Refused(f"the message {entry.id!r} does not fit the table: {error}") from error
        return stored_row


def _take_filled(value: dict[str, Any]) -> list[str]:
    """Take the names of columns that the message lacks out of its notes."""
    metadata: dict[str, Any] = value.get(METADATA) or {}
    notes = metadata.get(NOTES)
    filled = notes.get(FILLED) if isinstance(notes, dict) else None
    if not isinstance(filled, list) or not all(isinstance(one, str) for one in filled):
        return []
    notes = {name: one for name, one in metadata[NOTES].items() if name != FILLED}
    metadata = {name: one for name, one in metadata.items() if name != NOTES}
    value[METADATA] = metadata | ({NOTES: notes} if notes else {})
    if not value[METADATA]:
        del value[METADATA]
    return filled


def _with_filled(value: dict[str, Any], filled: Sequence[str]) -> dict[str, Any]:
    """Return a message with the names of columns that it lacks in its notes."""
    if not filled:
        return value
    metadata = value.get(METADATA) or {}
    notes = metadata.get(NOTES)
    notes = (notes if isinstance(notes, dict) else {}) | {FILLED: list(filled)}
    return value | {METADATA: metadata | {NOTES: notes}}


def _after(moment: Any) -> Any:
    try:
        return after(moment)
    except (ValueError, TypeError, OverflowError) as error:
        text = f"the newest message there has {visible(str(moment)[:50])!r} as its time"
        raise _Refused(text) from error


def _next(number: Any) -> Any:
    """Return the number of a message behind one that has this number, or behind none."""
    if number is None:
        return 0
    if not isinstance(number, int | float | Decimal) or number >= _LARGEST_NUMBER:
        text = f"no number follows the one of the last message there, {visible(str(number)[:50])!r}"
        raise _Refused(text)
    return number + 1


_NOT_JSON = object()


def _json(text: Any) -> Any:
    """Return the value of a JSON text; ``_NOT_JSON`` where it is none."""
    if not isinstance(text, str | bytes):
        return text
    try:
        return jsonio.loads(
            text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        )
    except (ValueError, RecursionError):
        return _NOT_JSON


def _is_odd(value: Any) -> bool:
    """Return whether a value is a number that JSON lacks, such as NaN, or may be JSON with one."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, str):
        return "NaN" in value or "Infinity" in value
    return isinstance(value, bytes) and (b"NaN" in value or b"Infinity" in value)


def _decoded(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else str(value)


class _Item(NamedTuple):
    """A message in the part of a memory from the first one on that is put in."""

    entry: StoredMessage
    key: tuple[Any, ...] | None
    """The key of its row; None for one that is put in."""
    order: tuple[Any, ...]


class _Placing:
    """The places of messages that are put into a memory.

    A message whose key says its place gets its row back.  Any other goes behind the last row, as
    the framework would put it there, and so do then all that come after it.
    """

    def __init__(self, codec: RowCodec, key: MemoryKey) -> None:
        self.dropped: list[tuple[Any, ...]] = []
        """The keys of the rows that go."""
        self.put: list[StoredMessage] = []
        """The messages to insert; those without a shape get a new row at the end."""
        self._codec = codec
        self._key = key
        self._items: list[_Item] = []
        self._last: tuple[Any, ...] = ()

    def take(
        self, steps: Iterable[Step], entries: Sequence[StoredMessage], rows: Sequence[Any]
    ) -> None:
        """Take the next steps of the edit, and the rows that they are about."""
        for step in steps:
            match step:
                case Drop(at):
                    self.dropped.append(self._codec.row_key(rows[at]))
                case Put(entry):
                    self._items.append(_Item(entry, None, ()))
                case Mark(at, marks):
                    if marks:
                        raise _Refused("the messages of a table have no marks")
                    self._keep(entries, rows, range(at, at + 1))
                case Keep(start, stop):
                    self._keep(entries, rows, range(start, stop))

    def _keep(self, entries: Sequence[StoredMessage], rows: Sequence[Any], which: range) -> None:
        for at in which:
            order = self._codec.row_order(rows[at])
            if self._items:
                key = self._codec.row_key(rows[at])
                self._items.append(_Item(entries[at], key, order))
            else:
                self._last = order

    def keys(self) -> set[tuple[Any, ...]]:
        """Return the keys that messages to put in once had."""
        found = (self._codec.shape_key(item.entry) for item in self._items if item.key is None)
        return {key for key in found if key is not None}

    def rowids(self) -> set[int]:
        """Return the numbers of rows that messages to put in once had."""
        found = (self._codec.shape_rowid(item.entry) for item in self._items if item.key is None)
        return {number for number in found if number is not None}

    def settle(self, taken: set[tuple[Any, ...]], free: frozenset[int]) -> None:
        """Decide where each message goes.

        ``taken`` are the keys that other rows have, ``free`` the numbers that no other row has.

        Raises:
            _Refused: the table has no place for one.
        """
        moving = False
        for entry, key, order in self._items:
            if key is None:
                wanted = self._codec.shape_key(entry)
                if wanted is None or wanted in taken:
                    moving = True
                else:
                    row = self._codec.row(self._key, entry)
                    if (number := self._codec.shape_rowid(entry)) in free:
                        row[_ROWID] = number
                    order = self._codec.order_of(row)
            moving = moving or not self._follows(order)
            if moving:
                if key is not None:
                    self.dropped.append(key)
                self.put.append(entry._replace(shape=""))
                continue
            self._last = order
            if key is None:
                self.put.append(entry)

    def _follows(self, order: tuple[Any, ...]) -> bool:
        if not self._last:
            return True
        last, now = [*map(_ranked, self._last)], [*map(_ranked, order)]
        # SQLiteSession of the OpenAI Agents SDK reads by the id, SQLAlchemySession by the time.
        by_id = self._codec.mapping.name == "openai-agents"
        return last < now and (not by_id or last[-1] < now[-1])

    @property
    def latest(self) -> dict[MemoryKey, Any]:
        """Return what orders the last message that stays."""
        return {self._key: self._last[0]} if self._last else {}


def _ranked(value: Any) -> tuple[int, Any]:
    """Return a value that compares as SQLite orders values of several types in one column."""
    match value:
        case None:
            return 0, None
        case int() | float() | Decimal():
            return 1, value
        case bytes():
            return 3, value
        case _:
            return 2, value


class _Rows:
    """Rows that are to be inserted, in order."""

    def __init__(self, codec: RowCodec, latest: dict[MemoryKey, Any] | None = None) -> None:
        self._codec = codec
        self._rows: list[dict[str, Any]] = []
        self.latest = latest or {}
        """The times or numbers of the last messages of memories, where these put them in order."""
        self.numbered = False
        """True when a row had a key that the database makes."""
        self.shifted = 0
        self.untimed = 0

    def add(
        self,
        key: MemoryKey,
        entries: Sequence[StoredMessage],
        free: frozenset[int] = frozenset(),
    ) -> None:
        """Take messages of a memory, all or none; ``free`` are the numbers that rows can have.

        Raises:
            _Refused: the table has no place for one.
        """
        codec = self._codec
        rows = [codec.row(key, entry) for entry in entries]
        for row, entry in zip(rows, entries, strict=True) if free else ():
            if (number := codec.shape_rowid(entry)) in free:
                row[_ROWID] = number
        names = codec.columns.key
        self.numbered |= codec.columns.is_serial and any(names[0] in row for row in rows)
        if codec.ordering is not Ordering.SERIAL:
            self._put_in_order(key, rows, entries)
        self._rows += rows

    def _put_in_order(
        self, key: MemoryKey, rows: list[dict[str, Any]], entries: Sequence[StoredMessage]
    ) -> None:
        """Keep messages in order: by numbers, or by times where these do not rise."""
        codec = self._codec
        column, ordering = codec.columns.order[0], codec.ordering
        last = self.latest.get(key)
        for row, entry in zip(rows, entries, strict=True):
            if "row" not in of_shape(entry.shape):
                if ordering is Ordering.NUMBER:
                    row[column] = _next(last)
                elif column not in row:
                    continue
                elif last is not None and (at := _ranked(row[column])) <= (end := _ranked(last)):
                    if ordering is Ordering.INSTANT:
                        row[column] = _after(last)
                    elif at < end:
                        untimed = row[column] == codec.no_time
                        row[column] = last
                        self.untimed += untimed and not codec.holds_notes
                        self.shifted += not untimed
            last = row.get(column, last)
        if last is not None:
            self.latest[key] = last

    def take(self) -> list[tuple[list[str], list[tuple[Any, ...]]]]:
        """Return the rows with their columns, and hold them no more."""
        rows, self._rows = self._rows, []
        names: Callable[[dict[str, Any]], list[str]] = list
        return [
            (columns, [tuple(row.values()) for row in some])
            for columns, some in groupby(rows, names)
        ]
