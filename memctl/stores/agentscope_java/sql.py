"""The sessions of AgentScope Java in SQL databases.

A row of ``agentscope_sessions`` is a value under a key, or an item of a list.  A session is named
``USER:SESSION``.  Tables of older versions lack the column ``version``.

Sources in agentscope-java of 22 August 2026: ``MysqlAgentStateStore.java``,
``PostgresAgentStateStore.java`` and ``JdbcStore.java`` of agentscope-extensions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
)
from sqlalchemy.dialects.mysql import LONGTEXT

from memctl.dialects.agentscope_java import AGENTSCOPE_JAVA
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import is_text, shown_name
from memctl.engines.sql.rows.store import Listed, RowStore
from memctl.engines.sql.rows.tables import Row, Rows, RowTable
from memctl.engines.sql.syntax import EVERY, MAX_PUSHED_VALUES
from memctl.errors import BadData, Failure, Uninitialised
from memctl.json import jsonio
from memctl.layouts.sql import JAVA_COLUMNS, JAVA_SESSIONS
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Deletion, Features, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import MADE, Rejected
from memctl.stores.agentscope_java.session import (
    FEATURES,
    LIST,
    STATE,
    Kept,
    Naming,
    changed,
    read,
)

_NAMING = Naming(":")
_HASH = ":_hash"
_LONGEST_NAME = 255


class _Listed(Listed):
    """A session in a list; ``session`` is its name in the table, ``user`` its key."""

    __slots__ = ()

    @property
    def key(self) -> MemoryKey:
        return MemoryKey(*map(shown_name, self.user))

    @property
    def is_named(self) -> bool:
        return isinstance(self.session, str) and is_text(self.session)


class SqlAgentScopeJavaStore(RowStore):
    """The sessions of AgentScope Java in a table; ``?table=`` names another one."""

    features: Features = replace(FEATURES, parallel=True)
    dialect = AGENTSCOPE_JAVA
    damage_code = "damaged-state"

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.features = replace(self.features, parallel=self.database.parallel)
        self._table = location.options.get("table", JAVA_SESSIONS)
        self._plain: set[str] = set()
        """The sessions of AgentScope Java 1, whose names have no user."""

    async def prepare(self) -> None:
        look = partial(_columns, self._table)
        columns = await self.database.run(look)
        if not columns and not self.mode.creates:
            raise Uninitialised(
                f"{self.label} has no table {visible(self._table)!r}",
                "AgentScope Java makes it in a database or schema 'agentscope', in PostgreSQL "
                "?options=-csearch_path%3Dagentscope; a table of another name is ?table=NAME",
            )
        if not columns:
            await self.database.create(partial(_create, self._table))
            columns = await self.database.run(look)
        if lacking := JAVA_COLUMNS - columns:
            text = f"the table {visible(self._table)!r} of {self.label} has no column "
            raise BadData(f"{text}{min(lacking)!r}", "it is not a table of AgentScope Java")
        key = ("session_id", "state_key", "item_index")
        version = ("version",) if "version" in columns else ()
        self.head = self.log = RowTable(
            *(self._table, key, (*key, "state_data", *version)), session="session_id", order=key[1:]
        )
        self.tables = (self.head,)
        self.own_tables = {self._table}

    # Names

    def session_of(self, key: MemoryKey) -> str:
        is_plain = not key.user and key.session in self._plain
        return key.session if is_plain else _NAMING.name(key)

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        if len(_NAMING.name(key)) > _LONGEST_NAME:
            text = f"AgentScope Java takes {_LONGEST_NAME} characters for user and session together"
            return Failure("bad-name", text)
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
        self._plain = {one.session for one in found if one.session == one.key.session}
        for one in sorted(found, key=lambda one: one.key):
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
        found = dict(own)
        for name, value in changed(_kept(own.values()), there, new).items():
            texts = [value] if isinstance(value, bytes) else [*value]
            for at, text in enumerate(texts):
                self._put(found, (_NAMING.name(key), name, at, text.decode()))
            if not isinstance(value, bytes):  # the framework writes a list without a hash anew
                self._put(found, (_NAMING.name(key), name + _HASH, 0, ""))
        return {self._table: found}, "" if own else MADE

    def _put(self, rows: dict[Row, Row], values: Row) -> None:
        """Put a row, with a version that is one higher than that of the row in its place."""
        old = rows.get(values[:3])
        if old is None or old[3] != values[3]:
            version = (1 if old is None else old[4] + 1,) if "version" in self.head.columns else ()
            rows[values[:3]] = (*values, *version)

    async def count_messages(
        self, connection: AsyncConnection, rows: dict[str, int]
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        for session, held in (await self.rows.load(connection, rows)).items():
            for key in self.keys_in(session, held):
                with suppress(Rejected):  # a damaged session has no messages to count
                    found[session] = len(self.there(key, held).messages)
        return found


def _kept(rows: Iterable[Row]) -> Kept:
    """Return what a session keeps in its rows, which are in order; without the hashes of lists."""
    found: dict[str, list[bytes]] = {}
    for _, key, _, text, *_ in rows:
        found.setdefault(key, []).append(jsonio.encoded(text))
    return {
        key: texts if key == LIST or len(texts) > 1 or key + _HASH in found else texts[0]
        for key, texts in found.items()
        if not key.endswith(_HASH)
    }


def _columns(table: str, connection: Connection) -> set[str]:
    inspector = inspect(connection)
    there = inspector.has_table(table)
    return {one["name"] for one in inspector.get_columns(table)} if there else set()


def _create(name: str, connection: Connection) -> None:
    now = func.current_timestamp()
    table = Table(
        name,
        MetaData(),
        Column("session_id", String(_LONGEST_NAME), primary_key=True),
        Column("state_key", String(_LONGEST_NAME), primary_key=True),
        Column("item_index", Integer, primary_key=True, server_default="0", autoincrement=False),
        Column("state_data", Text().with_variant(LONGTEXT(), "mysql", "mariadb"), nullable=False),
        Column("version", BigInteger, nullable=False, server_default="0"),
        Column("created_at", DateTime, server_default=now),
        Column("updated_at", DateTime, server_default=now),
    )
    table.create(connection, checkfirst=True)
