"""The rows of LangGraph's tables: old checkpoints go, rows from an archive come back.

memctl writes nothing else in these tables.  A checkpoint that stays keeps its row as it is, with
the id of a parent that may be gone: LangGraph needs the parent only in the cases that ``pruning``
names.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from itertools import chain, groupby
from typing import Any, ClassVar, NamedTuple

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Contended, Database, RejectedValue, is_text
from memctl.engines.sql.inspector import column_names
from memctl.errors import BadData, Failure, UsageError
from memctl.json import jsonio
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.storekit.prunable import (
    CHECKPOINTS,
    OldItems,
    Prunable,
    Pruned,
    PrunedRow,
    PutBack,
)
from memctl.stores.langgraph.checkpoints import Undecodable, value_of
from memctl.stores.langgraph.pruning import Checkpoint, Id, checkpoint_of, old_checkpoints

LEFT_ALONE = "unprunable"
"""The code of the failure for a thread that memctl does not understand."""
_CHECKPOINT_KEY = ("thread_id", "checkpoint_ns", "checkpoint_id")
_FETCHED = 16
"""The number of rows to fetch at once: in SQLite, a row has the whole state of a graph."""
_BLOCK = 4
"""The number of checkpoints, or of blobs, whose rows are selected and deleted at once.

memctl holds a block in RAM, and a row may have the whole state of a graph.
"""
_WRITE_KEY = (*_CHECKPOINT_KEY, "task_id", "idx")
_BLOB_KEY = ("thread_id", "checkpoint_ns", "channel", "version")


class Table(NamedTuple):
    """A table of a checkpointer.

    ``json`` are the columns of the type JSONB, ``optional`` the columns that an earlier
    checkpointer did not make.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    json: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    @property
    def block(self) -> tuple[str, ...]:
        """The columns of a ``Block``: the key of a blob, or of the checkpoint of a row."""
        return self.key if self.key == _BLOB_KEY else _CHECKPOINT_KEY

    def key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the key of a row."""
        return tuple(row[name] for name in self.key)


class Block(NamedTuple):
    """Rows whose keys differ in one column: the last of ``columns``.

    ``begin`` has the common values of the other columns, ``last`` the values of the last column.
    """

    columns: tuple[str, ...]
    begin: tuple[Any, ...]
    last: list[Any]

    @property
    def condition(self) -> str:
        """The SQL condition for the rows; its parameters are ``values``."""
        *others, last = self.columns
        return " AND ".join([*(f"{name} = :{name}" for name in others), f"{last} IN :{last}"])

    @property
    def values(self) -> dict[str, Any]:
        return dict(zip(self.columns, (*self.begin, self.last), strict=True))


Lines = dict[tuple[Any, ...], list[tuple[bytes, dict[str, Any]]]]
"""Each line of an archive with the row that it holds, by the values in ``Table.block``."""
_OTHER_COLUMNS = ("parent_checkpoint_id", "type", "checkpoint", "metadata")


class LangGraphCheckpoints(Prunable):
    """The rows in the tables of a checkpointer; each database has a subclass."""

    tables: ClassVar[tuple[Table, ...]]
    """The tables: checkpoints, writes, and, if channels have rows of their own, blobs."""
    checkpoint_sql: ClassVar[str]
    """Selects namespace, id, parent, type, value and metadata of the checkpoints of ``:thread``."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._columns: dict[str, list[str]] = {}

    async def isolate(self, connection: AsyncConnection) -> None:
        """Make the next transactions see the rows as they are when the transaction begins."""

    # Reading

    async def threads(self) -> list[str]:
        """Return the names of all threads with a row in any table, in order."""
        await self.prepare()
        names = " UNION ".join(f"SELECT thread_id FROM {table.name}" for table in self.tables)
        async with self.database.snapshot() as connection:
            rows = await self.database.fetch_all(connection, names, {})
        return sorted(thread for (thread,) in rows if isinstance(thread, str) and is_text(thread))

    async def prepare(self) -> None:
        """Find the columns of the tables.

        Raises:
            UsageError: a table is missing, or has a column that no checkpointer makes.
        """
        for table in self.tables if not self._columns else ():
            found = await self.database.look(partial(column_names, table.name))
            missing = {*table.columns} - table.optional - found
            if missing or (strange := sorted(found - {*table.columns})):
                text = f"lacks {min(missing)!r}" if missing else f"has a column {strange[0]!r}"
                self._columns.clear()
                raise UsageError(
                    f"{self.database.label}: the table {table.name!r} {visible(text)}: memctl "
                    "changes only tables as LangGraph's checkpointers make them",
                    "prune or remove threads by the checkpointer (prune, delete_thread)",
                )
            self._columns[table.name] = [name for name in table.columns if name in found]

    def key_of(self, group: str) -> MemoryKey:
        return MemoryKey("", group)

    async def old(self, where: Selection) -> AsyncGenerator[OldItems]:
        for thread in await self.threads():
            if not where.has_key(self.key_of(thread)):
                continue
            async with self.database.snapshot() as connection:
                try:
                    old, stay = await self._divided(connection, thread, where.until)
                except Undecodable as error:
                    yield OldItems(thread, failure=Failure(LEFT_ALONE, str(error)))
                    continue
                if old:
                    rows = self._rows(connection, thread, old, stay)
                    async with aclosing(rows):
                        yield OldItems(thread, len(old), rows=rows)

    async def _divided(
        self, connection: AsyncConnection, thread: str, until: datetime | None
    ) -> tuple[list[Checkpoint], list[Checkpoint]]:
        """Return the old checkpoints of a thread, and those that stay.

        Raises:
            Undecodable: memctl does not understand one of them.
        """
        values = {"thread": thread}
        blobs: dict[str, set[Id]] = defaultdict(set)
        if len(self.tables) > 2:
            sql = (
                f"SELECT checkpoint_ns, channel, version FROM {self.tables[2].name} "
                "WHERE thread_id = :thread"
            )
            for namespace, channel, version in await self.database.fetch_all(
                connection, sql, values
            ):
                blobs[namespace].add((channel, version))
        found = []
        rows = self.database.rows(connection, self.checkpoint_sql, values, _FETCHED)
        async with aclosing(rows):
            async for some in rows:
                for namespace, id, parent, kind, data, metadata in some:
                    known = blobs[namespace] if isinstance(namespace, str) else ()
                    value = value_of(kind, data)
                    found.append(checkpoint_of(namespace, id, parent, value, metadata, known))
        old = old_checkpoints(found, until)
        keys = {one.key for one in old}
        return old, [one for one in found if one.key not in keys]

    async def _rows(
        self,
        connection: AsyncConnection,
        thread: str,
        old: Sequence[Checkpoint],
        stay: Iterable[Checkpoint],
    ) -> AsyncGenerator[PrunedRow]:
        """Yield the rows of old checkpoints, of their writes, and of blobs that only they need."""
        moments = {one.key: one.moment for one in old}
        for block in _of_checkpoints(thread, old):
            tables = [
                (table, await self._select(connection, table, block)) for table in self.tables[:2]
            ]
            for id in block.last:
                for table, found in tables:
                    for row in found.pop(id, ()):
                        yield self._checkpoint_row(table, row, moments[block.begin[-1], id])
        for block in self._blobs(thread, old, stay):
            blobs = await self._select(connection, self.tables[2], block)
            for version in block.last:
                for row in blobs.pop(version, ()):
                    yield self._checkpoint_row(self.tables[2], row)

    def _checkpoint_row(
        self, table: Table, row: Sequence[Any], moment: datetime | None = None
    ) -> PrunedRow:
        line = self._line(table, row)
        if table is self.tables[0]:
            return PrunedRow(line, True, moment, _unrestorable(line))
        return PrunedRow(line, failure=_unrestorable(line))

    def _blobs(
        self, thread: str, gone: Iterable[Checkpoint], stay: Iterable[Checkpoint]
    ) -> Iterator[Block]:
        """Yield the keys of blobs that checkpoints in ``gone`` name, and none in ``stay``."""
        if len(self.tables) < 3:
            return
        needed = {(one.namespace, *item) for one in stay for item in one.versions.items()}
        free = {(one.namespace, *item) for one in gone for item in one.versions.items()} - needed
        yield from _blocks(_BLOB_KEY, ((thread, *blob) for blob in sorted(free)))

    async def _select(
        self, connection: AsyncConnection, table: Table, block: Block
    ) -> dict[Any, list[Sequence[Any]]]:
        """Return the rows of a block, by the value in the last column of the block."""
        columns = self._columns[table.name]
        shown = (f"CAST({name} AS TEXT)" if name in table.json else name for name in columns)
        sql = f"SELECT {', '.join(shown)} FROM {table.name} WHERE {block.condition}"
        if table.name == self.tables[1].name:
            sql += " ORDER BY task_id, idx"
        found: dict[Any, list[Sequence[Any]]] = defaultdict(list)
        at = columns.index(block.columns[-1])
        for row in await self.database.fetch_all(connection, sql, block.values):
            found[row[at]].append(row)
        return found

    def _line(self, table: Table, row: Sequence[Any]) -> bytes:
        values = {
            name: {"base64": base64.b64encode(value).decode()}
            if isinstance(value, bytes)
            else value
            for name, value in zip(self._columns[table.name], row, strict=True)
        }
        return jsonio.dumps({"table": table.name, "row": values})

    # Writing

    async def prune(
        self, thread: str, until: datetime | None, is_archived: Callable[[bytes], bool]
    ) -> Pruned:
        await self.prepare()
        result = Pruned()
        try:
            async with self.database.connect() as connection:
                await self.isolate(connection)
                async with self.database.transaction(connection):
                    await self._prune(connection, thread, until, is_archived, result)
        except Undecodable as error:
            return Pruned(failure=Failure(LEFT_ALONE, str(error)))
        except (Contended, RejectedValue) as error:
            return Pruned(failure=error.failure)
        return result

    async def _prune(
        self,
        connection: AsyncConnection,
        thread: str,
        until: datetime | None,
        is_archived: Callable[[bytes], bool],
        result: Pruned,
    ) -> None:
        old, stay = await self._divided(connection, thread, until)
        gone = set[Id]()
        for block in _of_checkpoints(thread, old):
            namespace = block.begin[-1]
            ids = await self._delete(connection, self.tables[:2], block, is_archived, result)
            gone |= {(namespace, id) for id in ids}
        result.items = len(gone)
        left = [one for one in old if one.key not in gone]
        result.left = len(left)
        for block in self._blobs(thread, [one for one in old if one.key in gone], [*stay, *left]):
            await self._delete(connection, self.tables[2:], block, is_archived, result)

    async def _delete(
        self,
        connection: AsyncConnection,
        tables: Sequence[Table],
        block: Block,
        is_archived: Callable[[bytes], bool],
        result: Pruned,
    ) -> list[str]:
        """Delete the rows of a block in tables, except what the archive does not have whole.

        Returns the values in the last column of the block whose rows are deleted.
        """
        found = [(table, await self._select(connection, table, block)) for table in tables]
        gone = [
            value
            for value in block.last
            if all(
                is_archived(self._line(table, row)) for table, some in found for row in some[value]
            )
        ]
        chosen = block._replace(last=gone)
        for table, some in found if gone else ():
            sql = f"DELETE FROM {table.name} WHERE {chosen.condition}"
            deleted = await self.database.change(connection, sql, chosen.values)
            rows = sum(len(some[value]) for value in gone)
            self.database.check_deleted(table.name, rows, deleted)
            result.rows += rows
        return gone

    async def put_back(
        self, thread: str, lines: Sequence[bytes], *, dry_run: bool = False
    ) -> PutBack:
        await self.prepare()
        result = PutBack()
        if dry_run:
            async with self.database.snapshot() as connection:
                async for _ in self._missing(connection, thread, lines, result):
                    pass
            return result
        async with self.database.connect() as connection:
            await self.isolate(connection)
            async with self.database.transaction(connection):
                missing = self._missing(connection, thread, lines, result)
                async with aclosing(missing):
                    async for table, rows in missing:
                        await self._insert(connection, table, rows)
        return result

    async def _insert(
        self, connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]
    ) -> None:
        columns, types = self._columns[table.name], dict.fromkeys(table.json, "JSONB")
        values = [tuple(row[name] for name in columns) for row in rows]
        await self.database.insert_rows(connection, table.name, columns, values, types)

    async def _missing(
        self, connection: AsyncConnection, thread: str, lines: Sequence[bytes], result: PutBack
    ) -> AsyncGenerator[tuple[Table, list[dict[str, Any]]]]:
        """Yield the rows that a table lacks, with the table, and count all rows in ``result``."""
        for table, given in self._by_table(thread, lines).items():
            is_checkpoint, columns = table is self.tables[0], self._columns[table.name]
            for block in _blocks(table.block, given):
                found = await self._select(connection, table, block)
                there = {
                    table.key_of(dict(zip(columns, row, strict=True))): self._line(table, row)
                    for row in chain(*found.values())
                }
                missing = []
                for line, row in chain(*(given[*block.begin, value] for value in block.last)):
                    if (stored := there.get(table.key_of(row))) is None:
                        missing.append(row)
                        result.rows += 1
                        result.items += is_checkpoint
                    else:
                        result.there += is_checkpoint and stored == line
                        result.others += stored != line
                if missing:
                    yield table, missing

    def _by_table(self, thread: str, lines: Sequence[bytes]) -> dict[Table, Lines]:
        """Parse the lines of a thread.

        Raises:
            BadData: a line does not fit into the tables, or belongs to another thread.
        """
        given: dict[Table, Lines] = {}
        for line in lines:
            table, row = self._row(line)
            if row["thread_id"] != thread:
                raise BadData(f"the archive has a row of another thread than {visible(thread)!r}")
            key = tuple(row[name] for name in table.block)
            given.setdefault(table, {}).setdefault(key, []).append((line, row))
        return given

    def _row(self, line: bytes) -> tuple[Table, dict[str, Any]]:
        """Return the table of a line, and the values of its row by column.

        Raises:
            BadData: the line is not that of a row, or has other columns than the table.
        """
        match jsonio.loads(line):
            case {"table": str() as name, "row": dict() as row}:
                for table in self.tables:
                    if table.name == name and {*row} == {*self._columns[name]}:
                        return table, {column: _stored(value) for column, value in row.items()}
        raise BadData(
            f"the archive has a row that does not fit into {self.database.label}",
            "its columns differ from those of the tables: update LangGraph's checkpointer, and let "
            "it make its tables by setup()",
        )

    async def erase(self, thread: str) -> None:
        """Delete all rows of a thread, in one transaction."""
        await self.prepare()
        async with self.database.connect() as connection, self.database.erasing(connection):
            for table in self.tables:
                sql = f"DELETE FROM {table.name} WHERE thread_id = :thread"
                await self.database.change(connection, sql, {"thread": thread})


def _of_checkpoints(thread: str, checkpoints: Iterable[Checkpoint]) -> Iterator[Block]:
    return _blocks(_CHECKPOINT_KEY, ((thread, *one.key) for one in checkpoints))


def _blocks(columns: tuple[str, ...], keys: Iterable[tuple[Any, ...]]) -> Iterator[Block]:
    """Divide keys into blocks of at most ``_BLOCK`` keys, in the order of the keys."""
    for begin, some in groupby(keys, key=lambda key: key[:-1]):
        last = [key[-1] for key in some]
        for at in range(0, len(last), _BLOCK):
            yield Block(columns, begin, last[at : at + _BLOCK])


def _unrestorable(line: bytes) -> Failure | None:
    """Return why the row of a line cannot be put back; None if the row can."""
    if b"\\ud" not in line:  # no surrogate, neither in a pair nor alone
        return None
    values = jsonio.loads(line)["row"].values()
    if all(is_text(value) for value in values if isinstance(value, str)):
        return None
    return Failure(LEFT_ALONE, "a row has a text that is not UTF-8: its checkpoint stays")


def _stored(value: Any) -> Any:
    """Return the value of a column from the JSON of a line."""
    match value:
        case {"base64": str() as text}:
            return base64.b64decode(text)
        case dict() | list():
            raise BadData("the archive has a value that no column has")
    return value


class SqliteCheckpoints(LangGraphCheckpoints):
    """The tables of ``SqliteSaver`` and ``AsyncSqliteSaver``."""

    engine = "sqlite"
    tables = (
        Table(CHECKPOINTS, _CHECKPOINT_KEY, (*_CHECKPOINT_KEY, *_OTHER_COLUMNS)),
        Table(
            "writes",
            _WRITE_KEY,
            (*_CHECKPOINT_KEY, "task_id", "task_path", "idx", "channel", "type", "value"),
            optional=frozenset({"task_path"}),
        ),
    )
    checkpoint_sql = (
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata "
        "FROM checkpoints WHERE thread_id = :thread"
    )


class PostgresqlCheckpoints(LangGraphCheckpoints):
    """The tables of ``PostgresSaver`` and ``AsyncPostgresSaver``."""

    engine = "postgresql"
    tables = (
        Table(
            CHECKPOINTS,
            _CHECKPOINT_KEY,
            (*_CHECKPOINT_KEY, *_OTHER_COLUMNS),
            json=frozenset({"checkpoint", "metadata"}),
        ),
        Table(
            "checkpoint_writes",
            _WRITE_KEY,
            (*_CHECKPOINT_KEY, "task_id", "task_path", "idx", "channel", "type", "blob"),
            optional=frozenset({"task_path"}),
        ),
        Table("checkpoint_blobs", _BLOB_KEY, (*_BLOB_KEY, "type", "blob")),
    )
    checkpoint_sql = (
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, 'json', "
        "CAST(checkpoint AS TEXT), CAST(metadata AS TEXT) "
        "FROM checkpoints WHERE thread_id = :thread"
    )

    async def isolate(self, connection: AsyncConnection) -> None:
        await connection.set_options(isolation_level="REPEATABLE READ")
