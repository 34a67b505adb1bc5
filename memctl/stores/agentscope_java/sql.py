"""The sessions of AgentScope Java in SQL databases.

A row of ``agentscope_sessions`` is a value under a key, or an item of a list.  A session is named
``USER:SESSION``.  Tables of older versions lack the column ``version``.

Sources in agentscope-java of 22 August 2026: ``MysqlAgentStateStore.java``,
``PostgresAgentStateStore.java`` and ``JdbcStore.java`` of agentscope-extensions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memctl.dialects.agentscope_java import AGENTSCOPE_JAVA
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import RejectedValue, is_text, shown_name
from memctl.engines.sql.inspector import column_names
from memctl.engines.sql.rows.store import Listed, RowStore
from memctl.engines.sql.rows.tables import Row, Rows, RowTable
from memctl.engines.sql.syntax import EVERY, MAX_PUSHED_VALUES
from memctl.errors import BadData, Failure, Uninitialised
from memctl.json import jsonio
from memctl.layouts.sql import JAVA_COLUMNS, JAVA_FILES, JAVA_SESSIONS
from memctl.location import Location, visible
from memctl.model import Finding, MemoryKey, WriteResult
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Deletion, Features, Maintenance, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.prunable import Prunable
from memctl.storekit.simple import MADE, Rejected
from memctl.stores.agentscope_java.session import (
    FEATURES,
    LIST,
    STATE,
    Kept,
    Naming,
    changed,
    idle_seconds,
    read,
    refuse_at_work,
    warn_of_hidden,
    with_new_names,
)
from memctl.stores.agentscope_java.workspace import INDEX, Renamed, Scope, without_sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

_NAMING = Naming(":")
_HASH = ":_hash"
_LONGEST_NAME = 255
_TABLE = """
CREATE TABLE IF NOT EXISTS {name} (
    session_id VARCHAR(255) NOT NULL,
    state_key VARCHAR(255) NOT NULL,
    item_index INT NOT NULL DEFAULT 0,
    state_data {text} NOT NULL,
    version BIGINT NOT NULL DEFAULT 0,
    created_at {time} DEFAULT CURRENT_TIMESTAMP,
    updated_at {time} DEFAULT CURRENT_TIMESTAMP{updated},
    PRIMARY KEY (session_id, state_key, item_index)
)
"""
_NEAR = 0.8
"""The part of the largest size from which a state is near it."""


class _Listed(Listed):
    """A session in a list; ``session`` is its name in the table, ``user`` its key."""

    __slots__ = ()

    @property
    def key(self) -> MemoryKey:
        return MemoryKey(*map(shown_name, self.user))

    @property
    def is_named(self) -> bool:
        return isinstance(self.session, str) and is_text(self.session)


class SqlJavaMaintenance(Maintenance):
    """The check of the sizes of states."""

    store: SqlAgentScopeJavaStore

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        store = self.store
        async with (
            store.database.snapshot(long=True) as connection,
            aclosing(store.listed(connection, where)) as listed,
        ):
            limit = await store.limit(connection)
            async for one in listed:
                if where.has_key(one.key) and limit and one.bytes > limit * _NEAR:
                    detail = f"{one.bytes:,} of {limit:,} bytes"
                    yield Finding("state-near-limit", one.key, detail=detail)


class SqlAgentScopeJavaStore(RowStore):
    """The sessions of AgentScope Java in a table; ``?table=`` names another one."""

    features: Features = replace(FEATURES, parallel=True)
    dialect = AGENTSCOPE_JAVA
    damage_code = "damaged-state"

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        idle_seconds(location)  # an error at once
        self.features = replace(self.features, parallel=self.database.parallel)
        self._table = location.options.get("table", JAVA_SESSIONS)
        self._plain: set[str] = set()
        """The sessions of AgentScope Java 1, whose names have no user."""
        self._erasing: set[MemoryKey] = set()

    async def prepare(self) -> None:
        look = partial(column_names, self._table)
        columns = await self.database.look(look)
        if not columns and not self.mode.creates:
            raise Uninitialised(
                f"{self.label} has no table {visible(self._table)!r}",
                "AgentScope Java makes it in a database or schema 'agentscope', in PostgreSQL "
                "?options=-csearch_path%3Dagentscope; a table of another name is ?table=NAME",
            )
        if not columns:
            await self.database.create(partial(_create, self._table))
            columns = await self.database.look(look)
        if lacking := JAVA_COLUMNS - columns:
            named = f"the table {visible(self._table)!r} of {self.label} has no column "
            raise BadData(f"{named}{min(lacking)!r}", "it is not a table of AgentScope Java")
        key = ("session_id", "state_key", "item_index")
        version = ("version",) if "version" in columns else ()
        self.head = self.log = RowTable(
            *(self._table, key, (*key, "state_data", *version)), session="session_id", order=key[1:]
        )
        self.tables = (self.head,)
        self.own_tables = {self._table}
        self._has_files = bool(await self.database.look(partial(column_names, JAVA_FILES)))

    def maintenance(self) -> Maintenance:
        return SqlJavaMaintenance(self)

    def prunable(self) -> Prunable:
        from memctl.stores.agentscope_java.archived import ArchivedFiles  # only to prune

        return ArchivedFiles(self.database)

    async def limit(self, connection: AsyncConnection) -> int | None:
        """Return the bytes of the largest state; None if only the engine limits it."""
        if not self.kind.startswith("mysql"):
            return None
        sql = (
            "SELECT LEAST(@@max_allowed_packet, character_octet_length) FROM "
            "information_schema.columns WHERE table_schema = DATABASE() AND table_name = :table "
            "AND column_name = 'state_data'"
        )
        [(limit,)] = await self.database.fetch_all(connection, sql, {"table": self._table})
        return int(limit)

    # Names

    def session_of(self, key: MemoryKey) -> str:
        is_plain = not key.user and key.session in self._plain
        return key.session if is_plain else _NAMING.name(key)

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        if len(_NAMING.name(key)) > _LONGEST_NAME:
            why = f"AgentScope Java takes {_LONGEST_NAME} characters for user and session together"
            return Failure("bad-name", why)
        return _NAMING.refusal(key)

    def keys_in(self, session: str, rows: Rows) -> list[MemoryKey]:
        kept = _kept(rows[self._table].values())
        found = _NAMING.key(session, kept.get(STATE))
        return [found] if kept.keys() & {STATE, LIST} else []

    async def listed(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        quoted, size = self.database.syntax.quoted, self.database.syntax.json_size("state_data")
        names = [_NAMING.name(key) for key in where.keys or ()]
        condition = "session_id IN :names" if 0 < len(names) <= MAX_PUSHED_VALUES else "1 = 1"
        start = f"CASE WHEN state_key = '{STATE}' THEN SUBSTR(state_data, 1, 1000) END"
        messages = f"CASE WHEN state_key IN ('{STATE}', '{LIST}') THEN 1 ELSE 0 END"
        sql = (
            f"SELECT session_id, SUM({size}), SUM({messages}), MAX({start}) "
            f"FROM {quoted(self._table)} WHERE {condition} GROUP BY session_id"
        )
        values = {"names": names} if ":names" in condition else {}
        found = []
        for name, bytes, count, state in await self.database.fetch_all(connection, sql, values):
            key = _NAMING.key(shown_name(name), jsonio.encoded(state or ""))
            found.append(_Listed(name, key, int(bytes or 0), int(count)))
        plain = {one for one in found if one.session == one.key.session}
        named = {one.key for one in found if one not in plain}
        hidden = {one for one in plain if one.key in named}
        self._plain = {one.session for one in plain - hidden}
        warn_of_hidden(self, [one.key for one in hidden])
        for one in sorted(set(found) - hidden, key=lambda one: one.key):
            yield one

    async def stored(self, shard: Shard | None = None) -> list[Listed]:
        where = Selection(shard=shard)
        async with (
            self.database.snapshot() as connection,
            aclosing(self.listed(connection, where)) as listed,
        ):
            return [one async for one in listed if where.has_key(one.key)]

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for one in await self.stored(where.shard):
            if one.messages and where.has_key(one.key):
                yield one.key

    @property
    def changed_tables(self) -> Sequence[str]:
        return [self._table, *([JAVA_FILES] if self._has_files else [])]

    @property
    def row_versions(self) -> Mapping[str, str]:
        counted = {self._table: "version"} if "version" in self.head.columns else {}
        return counted | ({JAVA_FILES: "version"} if self._has_files else {})

    async def is_empty(self) -> bool:
        return not await self.stored(self.shard)

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:  # noqa: ARG002
        tables = dict.fromkeys(self.changed_tables, EVERY)
        erases = deletion is Deletion.MEMORIES  # else rows change, and none is deleted
        return await self.database.side_effects(tables if erases else {}, self.own_tables)

    # Memories

    def read_rows(self, key: MemoryKey, rows: Rows, bad: list[str]) -> Snapshot | None:
        try:
            return read(key, _kept(rows[self._table].values()))
        except BadData as error:
            bad.append(error.message)
            return None

    def changed_rows(
        self, key: MemoryKey, rows: Rows, there: Snapshot, new: Snapshot, undone: str | None
    ) -> tuple[Rows, str]:
        own = rows[self._table]
        if undone == MADE and not new.messages:
            return {self._table: {}}, ""
        refuse_at_work(self, there, new)
        found = dict(own)
        for name, value in changed(_kept(own.values()), there, new).items():
            texts = [value] if isinstance(value, bytes) else [*value]
            for at, one in enumerate(texts):
                self._put(found, (_NAMING.name(key), name, at, one.decode()))
            if not isinstance(value, bytes):  # the framework writes a list without a hash anew
                self._put(found, (_NAMING.name(key), name + _HASH, 0, ""))
        return {self._table: found}, "" if own else MADE

    def _put(self, rows: dict[Row, Row], values: Row) -> None:
        """Put a row, with a version that is one higher than that of the row in its place."""
        old = rows.get(values[:3])
        if old is None or old[3] != values[3]:
            version = (1 if old is None else old[4] + 1,) if "version" in self.head.columns else ()
            rows[values[:3]] = (*values, *version)

    def renamed_rows(self, old: MemoryKey, new: MemoryKey, rows: Rows) -> Rows:
        if old.session in self._plain and not old.user:
            raise Rejected(
                "refused", f"{old} is a session of AgentScope Java 1, whose names differ"
            )
        own = dict(rows[self._table])
        for key, row in own.items():
            if row[1] == STATE:
                text = with_new_names(jsonio.encoded(row[3]), old, new).decode()
                own[key] = (*row[:3], text, *row[4:])
        return {self._table: own}

    async def rename_beside(
        self, connection: AsyncConnection, moves: Mapping[MemoryKey, MemoryKey]
    ) -> None:
        """Rename the files in workspaces, and sessions in the indexes of their transcripts."""
        renamed, exact = Renamed(moves), self.database.syntax.exact
        pairs = ("namespace_path", ":path"), ("item_key", ":file")
        here = " AND ".join(f"{exact(column)} = {exact(value)}" for column, value in pairs)
        for path, file in await self._files(connection):
            if renamed.joins(path):
                raise RejectedValue(
                    "a user who has a workspace cannot become another one", "refused"
                )
            at = {"path": path, "file": file}
            if file == INDEX:
                sql = f"SELECT value_json FROM {JAVA_FILES} WHERE {here}"
                for (value,) in await self.database.execute(connection, sql, at):
                    sql = f"UPDATE {JAVA_FILES} SET value_json = :value WHERE {here}"
                    new = at | {"value": renamed.index(path, value)}
                    await self.database.change(connection, sql, new)
            new_path, new_file = renamed.place(path, file)
            if (new_path, new_file) != (path, file):
                sql = f"UPDATE {JAVA_FILES} SET namespace_path = :to, item_key = :name WHERE {here}"
                await self.database.change(connection, sql, at | {"to": new_path, "name": new_file})

    async def count_messages(
        self, connection: AsyncConnection, rows: dict[str, int]
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        for session, held in (await self.rows.load(connection, rows)).items():
            for key in self.keys_in(session, held):
                with suppress(Rejected):  # a damaged session has no messages to count
                    found[session] = len(self.there(key, held).messages)
        return found

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        found = {one.key for one in await self.stored()}
        users, sessions = {key.user for key in found}, {key.session for key in found}
        async with self.database.connect() as connection:
            for path, file in await self._files(connection):
                scope = Scope.of(path)
                session = scope.session_of(file)
                if session is not None and (scope.user is not None or session not in sessions):
                    found.add(MemoryKey(scope.user or "", session))
                elif scope.user is not None and scope.user not in users:
                    found.add(MemoryKey(scope.user, ""))
        for key in sorted(filter(where.has_key, found)):
            yield key

    async def _files(self, connection: AsyncConnection) -> Sequence[Any]:
        """Return the ``namespace_path`` and the ``item_key`` of each file in workspaces."""
        sql = f"SELECT namespace_path, item_key FROM {JAVA_FILES}"
        return await self.database.fetch_all(connection, sql, {}) if self._has_files else []

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        self._erasing = {key async for key in self.names(where)}
        for _ in range(2):  # the second time, those that a session of version 2 has hidden
            async with aclosing(super().erase(where)) as results:
                async for result in results:
                    yield result
            if self._plain.isdisjoint(key.session for key in self._erasing):
                return

    async def erase_users(self, connection: AsyncConnection, users: Iterable[str]) -> None:  # noqa: ARG002
        """Delete the files of erased sessions, and of users who have no session left."""
        left = {one.key for one in await self.stored()}
        async with self.database.transaction(connection):
            for path in sorted({path for path, _ in await self._files(connection)}):
                await self._erase_files(connection, path, self._erasing - left, left)

    async def _erase_files(
        self,
        connection: AsyncConnection,
        path: str,
        gone: Collection[MemoryKey],
        left: Collection[MemoryKey],
    ) -> None:
        scope, exact = Scope.of(path), self.database.syntax.exact
        sessions = {key.session for key in gone if scope.user in (None, key.user)}
        if scope.user is None:
            sessions -= {key.session for key in left}
        of_path = f"{exact('namespace_path')} = {exact(':path')}"
        users = {key.user for key in gone} - {key.user for key in left}
        delete = f"DELETE FROM {JAVA_FILES} WHERE {of_path}"
        if scope.user in users or scope.session in sessions:
            await self.database.change(connection, delete, {"path": path})
            return
        for file in scope.files(sessions):
            sql = f"{delete} AND {exact('item_key')} = {exact(':file')}"
            await self.database.change(connection, sql, {"path": path, "file": file})
        if scope.folder == "sessions" and sessions:
            index, at = {"path": path, "file": INDEX}, f"{of_path} AND item_key = :file"
            sql = f"SELECT value_json FROM {JAVA_FILES} WHERE {at} {self.database.syntax.row_lock}"
            for (value,) in await self.database.execute(connection, sql, index):
                new = without_sessions(value, sessions)
                sql = f"UPDATE {JAVA_FILES} SET value_json = :new, version = version + 1 WHERE {at}"
                sql = f"DELETE FROM {JAVA_FILES} WHERE {at}" if new is None else sql
                await self.database.change(connection, sql, index | ({"new": new} if new else {}))


def _kept(rows: Iterable[Row]) -> Kept:
    """Return the values of a session by key, without the hashes of lists; ``rows`` are in order."""
    found: dict[str, list[bytes]] = {}
    for _, key, _, value, *_ in rows:
        found.setdefault(key, []).append(jsonio.encoded(value))
    return {
        key: texts if key == LIST or len(texts) > 1 or key + _HASH in found else texts[0]
        for key, texts in found.items()
        if not key.endswith(_HASH)
    }


def _create(name: str, connection: Connection) -> None:
    from sqlalchemy import text  # only to create a table

    is_mysql = connection.dialect.name in ("mysql", "mariadb")
    statement = _TABLE.format(
        name=connection.dialect.identifier_preparer.quote(name),
        text="LONGTEXT" if is_mysql else "TEXT",
        time="DATETIME" if is_mysql else "TIMESTAMP",
        updated=" ON UPDATE CURRENT_TIMESTAMP" if is_mysql else "",
    )
    connection.execute(text(statement.replace(":", "\\:")))
