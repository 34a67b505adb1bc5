"""Tables of PostgreSQL with the extension pgvector, in which mem0 stores facts."""

from __future__ import annotations

import math
import shlex
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import asyncpg

from memctl.engines.sql.pooler import PooledConnection, is_pooled, pooler_error
from memctl.engines.sql.postgresql import (
    BROKEN,
    CLOSED,
    IDLE_LIMITS,
    LACKS_INSERT,
    PostgresqlDatabase,
    PostgresqlSyntax,
    require_replica_identity,
)
from memctl.engines.sql.side_effects import Trigger, find_side_effects
from memctl.engines.sql.syntax import EVERY, pushed_down
from memctl.errors import (
    BadData,
    Busy,
    Lost,
    NotFound,
    Unavailable,
    UsageError,
)
from memctl.json import jsonio
from memctl.location import visible
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.locks import busy
from memctl.storekit.simple import Rejected
from memctl.stores.mem0.config import Mem0Config
from memctl.stores.mem0.vectors import (
    Record,
    VectorStore,
    check_dimensions,
    check_uuids,
    check_vectors,
    is_uuid,
    not_there,
    values,
)

_CONNECT_SECONDS = 15
_SOME = 500
_HNSW_LIMIT = 2000
"""The maximum number of dimensions of a pgvector index."""
_NAME_BYTES = 63
_GONE = "check that the server is running, and host and port"
_COLUMNS = (
    "SELECT a.attname, a.atttypmod, row_security_active(a.attrelid) AS hides "
    "FROM pg_attribute a WHERE a.attrelid = to_regclass($1) "
    "AND a.attname IN ('id', 'vector', 'payload') AND a.attnum > 0"
)
_IDS = "id = ANY($1::text[]::uuid[])"
_NAMED = (
    # A name that is not a string may belong to any memory.
    "(jsonb_typeof(m.payload->'{0}') <> 'string' OR COALESCE(m.payload->>'{0}', '') = ANY(:{0}))"
)
_LOCK = "pg_try_advisory_{}lock(hashtext('memctl'), hashtext($1))"
_HOLDER = (
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.classid = hashtext('memctl')::oid "
    "AND l.objid = hashtext($1)::oid"
)
_IDENTITY = (
    "SELECT pg_postmaster_start_time()::text || ' ' || oid || ' ' || current_schema() "
    "FROM pg_database WHERE datname = current_database()"
)


class PgvectorTables(VectorStore):
    """The tables of mem0 in a PostgreSQL database."""

    def __init__(self, config: Mem0Config, label: str) -> None:
        super().__init__(config, label)
        self._connection: PooledConnection | None = None
        self._pooled = False
        """True if the server is behind a pooler: a transaction, not the session, holds the lock."""
        self._lock_holder: PooledConnection | None = None
        """The connection of the transaction that holds the lock."""
        self._tables: dict[str, int] = {}
        """The number of dimensions of the vectors in each existing table; 0 if any number fits."""

    @property
    def place(self) -> Path | None:
        return None

    async def identity(self) -> str:
        async with self._errors() as connection:
            place = await connection.fetchval(_IDENTITY)
        return f"postgresql: {place} {self.config.collection}"

    async def lock(self, owner: str) -> bool:
        name = await self.identity()
        async with self._errors() as connection:
            await require_replica_identity(connection, list(self._tables), self.label)
            if self._pooled:
                connection = self._lock_holder = await self._connected()
                await connection.execute("BEGIN")
                await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            local = self._pooled
            signature = f"memctl {owner}"[:_NAME_BYTES]
            sql = "SELECT set_config('application_name', $1, $2)"
            await connection.execute(sql, signature, local)
            lock = _LOCK.format("xact_" * local)
            if not await connection.fetchval(f"SELECT {lock}", name):
                holder = str(await connection.fetchval(_HOLDER, name) or "")
                raise busy(self.label, holder.removeprefix("memctl "))
            await connection.execute("SELECT 1")  # ends the previous statement and its snapshot
        return True

    async def _connected(self) -> PooledConnection:
        connection: PooledConnection = await asyncpg.connect(
            **_settings(self.config, self.label),
            timeout=_CONNECT_SECONDS,
            server_settings={"application_name": "memctl"},
            connection_class=PooledConnection,
        )
        return connection

    async def open(self, mode: OpenMode) -> None:
        async with self._errors(connecting=True):
            self._connection = await self._connected()
        async with self._errors() as connection:
            self._pooled = await is_pooled(connection)
            if not self._pooled:  # a pooler keeps no setting
                await connection.execute("SET row_security = off")
            await connection.set_type_codec(
                "jsonb", encoder=_given, decoder=_given, schema="pg_catalog"
            )
        for name in (self.config.collection, self.config.entities):
            await self._look_for(name)
        found = self._tables.get(self.config.collection)
        check_dimensions(self.config, self.label, self.config.collection, found)
        if found is None:
            if not mode.creates:
                raise not_there(self.config, self.label, "the database")
            await self._create(self.config.collection)

    async def _look_for(self, name: str) -> None:
        async with self._errors() as connection:
            rows = await connection.fetch(_COLUMNS, _quoted(name))
        if not rows:
            return
        columns = {row["attname"]: row["atttypmod"] for row in rows}
        if len(columns) < 3:
            raise BadData(
                f"{self.label}: the table {visible(name)!r} is not one of mem0, which has the "
                "columns id, vector and payload",
                "name another collection_name",
            )
        if rows[0]["hides"]:
            raise Unavailable(
                f"{self.label}: row-level security may hide rows of the table {visible(name)!r} "
                "from this login",
                "use a login with BYPASSRLS or the owner of the table",
            )
        self._tables[name] = max(columns["vector"], 0)

    async def _create(self, name: str) -> None:
        size, table = self.config.embedding.dimensions, _quoted(name)
        async with self._errors() as connection, connection.transaction():
            # Two concurrent "IF NOT EXISTS" statements can fail.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext('memctl create'))")
            await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} "
                f"(id UUID PRIMARY KEY, vector vector({size}), payload JSONB)"
            )
            if self.config.options.get("hnsw", True) and size <= _HNSW_LIMIT:
                await connection.execute(
                    f"CREATE INDEX IF NOT EXISTS {_quoted(f'{name}_hnsw_idx')} ON {table} "
                    "USING hnsw (vector vector_cosine_ops)"
                )
            await connection.execute(
                f"CREATE INDEX IF NOT EXISTS {_quoted(f'{name}_text_lemmatized_idx')} ON {table} "
                "USING gin (to_tsvector('simple', payload->>'text_lemmatized'))"
            )
        self._tables[name] = size

    async def close(self) -> None:
        connections = self._lock_holder, self._connection
        self._lock_holder = self._connection = None
        for connection in filter(None, connections):
            try:
                await connection.close(timeout=_CONNECT_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    async def missing_right(self) -> str:
        for name in self._tables:
            async with self._errors() as connection:
                sql = f"SELECT {LACKS_INSERT.format('$1')}"
                if await connection.fetchval(sql, _quoted(name)):
                    return f"INSERT on {visible(name)!r}"
        return ""

    async def side_effects(self, where: Selection) -> list[str]:
        keys = where.keys or ()
        fields = {
            "user_id": where.users or {key.user for key in keys},
            "run_id": where.sessions or {key.session for key in keys},
        }
        facts = pushed_down(
            {(field, _NAMED.format(field)): names for field, names in fields.items()}
        )
        # The entities of a fact may link to facts of other users.
        every = {self.config.collection: facts, self.config.entities: EVERY}
        tables = {name: condition for name, condition in every.items() if name in self._tables}
        async with self._errors() as connection:

            async def fetch(sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
                for number, name in enumerate(values, 1):
                    sql = sql.replace(f":{name}", f"${number}")
                return list(await connection.fetch(sql, *values.values()))

            triggers = [Trigger(*row) for row in await fetch(PostgresqlDatabase.triggers_sql, {})]
            rows = await fetch(PostgresqlDatabase.references_sql, {})
            return await find_side_effects(fetch, triggers, rows, tables, (), PostgresqlSyntax())

    # Reading

    async def dimensions(self, collection: str) -> int | None:
        return self._tables.get(collection) or None

    async def scan(self, collection: str) -> AsyncGenerator[list[Record]]:
        if collection not in self._tables:
            return
        sql = f"SELECT id::text, payload FROM {_quoted(collection)}"
        more = " WHERE id > $1::uuid"
        end = f" ORDER BY {_quoted(collection)}.id LIMIT {_SOME}"
        after: list[str] = []
        while True:
            async with self._errors() as connection:
                rows = await connection.fetch(sql + (more if after else "") + end, *after)
            if not rows:
                return
            after = [rows[-1]["id"]]
            yield [_record(row["id"], row["payload"], None) for row in rows]

    async def get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        ids = [id for id in ids if _may_be_there(id)]
        if collection not in self._tables or not ids:
            return []
        sql = (
            f"SELECT id::text, payload, vector::real[] AS vector FROM {_quoted(collection)} "
            f"WHERE {_IDS}"
        )
        async with self._errors() as connection:
            rows = await connection.fetch(sql, ids)
        return [_record(row["id"], row["payload"], row["vector"]) for row in rows]

    # Writing

    def refuse(self, collection: str, records: Sequence[Record]) -> None:
        check_uuids(records, "pgvector")
        size = self._tables.get(collection) or self.config.embedding.dimensions
        check_vectors(records, size, "pgvector")
        for record in records:
            for name, value in values(record.payload):
                if isinstance(value, str) and ("\0" in value or jsonio.has_surrogate(value)):
                    text = f"{record.id!r}: PostgreSQL holds no NUL and no lone surrogate: {name}"
                    raise Rejected("refused", text)
                if isinstance(value, float) and not math.isfinite(value):
                    raise Rejected("refused", f"{record.id!r}: JSON has no {value}: {name}")

    async def put(self, collection: str, records: Sequence[Record]) -> None:
        if collection not in self._tables:
            await self._create(collection)
        sql = (
            f"INSERT INTO {_quoted(collection)} (id, vector, payload) "
            "VALUES ($1::text::uuid, $2::real[]::vector, $3::jsonb) ON CONFLICT (id) "
            "DO UPDATE SET vector = excluded.vector, payload = excluded.payload"
        )
        rows = [
            (one.id, list(one.vector) if one.vector else None, jsonio.dumps(one.payload).decode())
            for one in records
        ]
        async with self._errors() as connection, connection.transaction():
            await connection.executemany(sql, rows)
            ids = {one.id for one in records}
            stored = f"SELECT COUNT(*) FROM {_quoted(collection)} WHERE {_IDS}"
            if await connection.fetchval(stored, sorted(ids)) < len(ids):
                raise Rejected("refused", "a trigger or a rule of the table left it out")

    async def replace(self, collection: str, old: Record, new: Record) -> bool:
        sql = (
            f"UPDATE {_quoted(collection)} SET vector = $2::real[]::vector, payload = $3::jsonb "
            "WHERE id = $1::text::uuid AND payload = $4::jsonb"
        )
        vector = list(new.vector) if new.vector else None
        texts = [jsonio.dumps(one.payload).decode() for one in (new, old)]
        async with self._errors() as connection:
            return str(await connection.execute(sql, new.id, vector, *texts)) == "UPDATE 1"

    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        ids = [id for id in ids if _may_be_there(id)]
        if collection in self._tables and ids:
            async with self._errors() as connection, connection.transaction():
                await connection.execute(f"DELETE FROM {_quoted(collection)} WHERE {_IDS}", ids)
                kept = f"SELECT 1 FROM {_quoted(collection)} WHERE {_IDS} LIMIT 1"
                if await connection.fetchval(kept, ids):
                    raise Rejected("refused", "a trigger or a rule of the table kept it")

    @asynccontextmanager
    async def _errors(self, *, connecting: bool = False) -> AsyncIterator[Any]:
        """Yield the connection to the server; translate driver errors into errors of memctl.

        With ``connecting``, yields None if there is no connection yet.
        """
        try:
            if self._connection is None and not connecting:
                raise Lost(f"{self.label}: the connection is closed", _GONE)
            yield self._connection
        except asyncpg.PostgresError as error:
            raise self._translated(error) from error
        except (asyncpg.ClientConfigurationError, ValueError):
            # The error text may contain a part of the password.
            raise UsageError(
                f"{self.label}: connection_string is not a valid PostgreSQL URL",
                "write postgresql://USER@HOST:PORT/DATABASE",
            ) from None
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if any(words in str(error) for words in BROKEN):
                raise Lost(f"{self.label}: {CLOSED}", IDLE_LIMITS) from error
            raise Lost(f"{self.label}: {_first_line(error)}", _GONE) from error

    def _translated(self, error: asyncpg.PostgresError) -> Exception:
        text = f"{self.label}: {_first_line(error)}"
        if (found := pooler_error(text)) is not None:
            return found
        state = error.sqlstate or ""
        match state[:2]:
            case "22" | "23" | "54":
                return Rejected("refused", _first_line(error))
            case "28":
                return Unavailable(
                    text, "check user and password in mem0's configuration, and pg_hba.conf"
                )
            case "3D":
                return NotFound(text, "create the database first")
            case "42" if state == "42501":
                return Unavailable(text, "this login needs more rights: see GRANT")
            case "42" | "0A" | "58":
                hint = "pgvector is needed: the extension 'vector' must be installed on the server"
                return Unavailable(text, hint)
            case "55" | "40":
                return Busy(text, "another session has locked it: try again")
        return Lost(text, _GONE)


def _settings(config: Mem0Config, label: str) -> dict[str, Any]:
    """Return the arguments of ``asyncpg.connect`` from mem0's options, with mem0's defaults.

    ``label`` names the store in errors.

    Raises:
        UsageError: the options name no server, or have words that memctl does not know.
    """
    found: dict[str, Any] = {}
    given = config.text("connection_string")
    sslmode = config.text("sslmode")
    if given and "://" in given:
        parts = urlsplit(given)
        query = [pair for pair in parse_qsl(parts.query) if not (sslmode and pair[0] == "sslmode")]
        query += [("sslmode", sslmode)] if sslmode else []
        dsn = parts._replace(scheme="postgresql", query=urlencode(query, quote_via=quote))
        return {"dsn": dsn.geturl()}
    if given:
        words = dict(word.partition("=")[::2] for word in shlex.split(given))
        names = {"dbname": "database", "sslmode": "ssl"}
        found = {names.get(name, name): value for name, value in words.items()}
        known = {"host", "port", "user", "password", "database", "ssl"}
        if found.keys() - known:
            raise UsageError(
                f"{label}: connection_string has words that memctl does not know",
                "write it as a URL: postgresql://USER@HOST:PORT/DATABASE",
            )
    else:
        found = {
            "host": config.text("host") or None,
            "port": config.options.get("port"),
            "user": config.text("user") or None,
            "password": config.text("password") or None,
            "database": config.text("dbname", "postgres"),
        }
        if found["host"] is None and found["user"] is None:
            raise UsageError(
                f"{label}: the configuration of pgvector has neither connection_string nor host",
                'write "connection_string": "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"',
            )
    if sslmode:
        found["ssl"] = sslmode
    if found.get("port") is not None:
        found["port"] = int(found["port"])
    return {name: value for name, value in found.items() if value is not None}


def _record(id: str, payload: str | None, vector: list[float] | None) -> Record:
    value = jsonio.loads(payload.encode()) if payload is not None else {}
    if not isinstance(value, dict):
        return Record(id, {}, damage="its payload is not an object")
    return Record(id, value, array("f", vector) if vector is not None else None)


def _may_be_there(id: str) -> bool:
    return is_uuid(id)


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _given(text: str) -> str:
    return text


def _first_line(error: BaseException) -> str:
    return visible(str(error).strip().partition("\n")[0] or type(error).__name__)
