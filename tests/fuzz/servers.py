"""Mutators of stores on servers: Redis keys and values, PostgreSQL and MySQL rows and columns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from urllib.parse import quote

import asyncpg
import pymysql
import redis

from memctl.location import Location
from memctl.registry import parse
from tests.fuzz.bench import Bench, Specimen
from tests.fuzz.files import COLUMNS, fill, plain_worlds, state_dict, worlds
from tests.fuzz.mutations import (
    WORDS,
    any_value,
    dump,
    mutate_bytes,
    mutate_json,
    mutate_text,
)
from tests.fuzz.scenarios import play
from tests.support.servers.mariadb import PASSWORD, Mariadb
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

Keys = dict[bytes, Any]
Rows = dict[str, list[list[Any]]]


class RedisKeys:
    """Redis: keys that are gone, renamed, of another type; lists, sets and texts changed."""

    name = "redis"
    weight = 6

    def __init__(self, folder: Path) -> None:
        self._server = Redis(folder)
        self._seeds = [self._keys_of(world) for world in plain_worlds()]
        self._states = {
            f"user_id:{one.key.user}:session:{one.key.session}:state": json.dumps(
                {"agent": {"memory": state_dict(one)}}
                if one.memory.summary is None
                else {"memory": {"_compressed_summary": one.memory.summary}}
            ).encode()
            for world in worlds()[:2]
            for one in world
        }

    def _keys_of(self, world: list[Any]) -> Keys:
        url = self._server.socket_url(self._server.fresh())
        asyncio.run(fill(url, world))
        with redis.Redis.from_url(url) as client:
            return _keys(client)

    @cached_property
    def _url(self) -> str:
        return self._server.socket_url(self._server.fresh())

    @cached_property
    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self._url)

    def play(self, rng: Random, bench: Bench) -> None:
        keys = dict(rng.choice(self._seeds))
        session = rng.random() < 0.25
        if session or rng.random() < 0.3:
            keys.update({name.encode(): value for name, value in self._states.items()})
        for _ in range(rng.choice([1, 1, 2, 3])):
            _mutate_keys(rng, keys)
        self._put(rng, keys)
        options = "&layout=session" if session else rng.choice(["", "", "", "&state=redis"])
        store = Specimen(
            self._url + options,
            lambda: _contents(self._client),
            on_server=True,
            is_foreign="layout=" in options,
        )
        bench.specimens.append(store)
        play(rng, bench, store)

    def _put(self, rng: Random, keys: Keys) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.flushdb()
            for key, value in keys.items():
                match value:
                    case bytes():
                        pipeline.set(key, value)
                    case list():
                        pipeline.rpush(key, *value)
                    case set():
                        pipeline.sadd(key, *sorted(value))
                    case dict():
                        pipeline.hset(key, mapping=value)
                if rng.random() < 0.05:
                    pipeline.expire(key, rng.choice([5000, 5000, 9000]))
            pipeline.execute(raise_on_error=False)


def _keys(client: redis.Redis) -> Keys:
    keys: Any = client.keys()
    names = sorted(keys)
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.type(name)
        kinds = pipeline.execute()
        for name, kind in zip(names, kinds, strict=True):
            match kind:
                case b"string":
                    pipeline.get(name)
                case b"list":
                    pipeline.lrange(name, 0, -1)
                case b"set":
                    pipeline.smembers(name)
                case _:
                    pipeline.dump(name)
        return dict(zip(names, pipeline.execute(), strict=True))


def _contents(client: redis.Redis) -> Any:
    """The value of each key, and about when it expires; that of a state is a value of JSON."""
    found = _keys(client)
    for name, value in found.items():
        if name.endswith(b":state") and isinstance(value, bytes):
            with suppress(ValueError, RecursionError):
                text = value.decode("utf-8", "surrogatepass")
                found[name] = json.dumps(json.loads(text), sort_keys=True)
    with client.pipeline(transaction=False) as pipeline:
        for name in found:
            pipeline.ttl(name)
        expiries = pipeline.execute()
    return {
        name: (value, round(expiry, -3))
        for (name, value), expiry in zip(found.items(), expiries, strict=True)
    }


def _mutate_keys(rng: Random, keys: Keys) -> None:
    name = rng.choice(sorted(keys))
    value = keys[name]
    kind = rng.randrange(12)
    if kind == 0:
        if len(keys) > 1:
            del keys[name]
    elif kind == 1:
        keys[mutate_bytes(rng, name, 1)] = keys.pop(name)
    elif kind == 2:
        keys[name] = rng.choice([b"", [b"x"], {b"x"}, {b"x": b"y"}, b"\xff"])
    elif kind == 3:
        keys[name + b":" + _word(rng)] = value
    elif isinstance(value, bytes):
        keys[name] = mutate_json(rng, value) if kind < 10 else mutate_bytes(rng, value)
    elif isinstance(value, list):
        keys[name] = _mutate_list(rng, value)
    elif isinstance(value, set):
        keys[name] = set(_mutate_list(rng, sorted(value)))


def _mutate_list(rng: Random, values: list[bytes]) -> list[bytes]:
    values = list(values)
    at = rng.randrange(len(values) + 1)
    if not values:
        return [_word(rng)]
    one = rng.choice(values)
    match rng.randrange(6):
        case 0:
            values.insert(at, one)  # an id twice
        case 1:
            values.remove(one)
        case 2:
            values.insert(at, _word(rng))
        case 3:
            rng.shuffle(values)
        case 4:
            values[values.index(one)] = mutate_bytes(rng, one, 1)
        case _:
            values.insert(at, rng.choice([b"", b"\xff\xfe", b"m0000001", b"_MemoryMark.HINT"]))
    return values


def _word(rng: Random) -> bytes:
    return rng.choice(WORDS).encode("utf-8", "surrogatepass")


class SqlServer:
    """A database on a server: rows as it takes them, columns of other types, missing tables."""

    name: ClassVar[str]
    weight = 2
    quote: ClassVar[str]
    types: ClassVar[dict[str, list[str]]]
    """The types of a name, of a message and of an index: that of AgentScope first."""

    def __init__(self) -> None:
        self._seeds = [self._rows_of(world) for world in plain_worlds()]

    def _new(self) -> str:
        """The URL of a new database, through a socket."""
        raise NotImplementedError

    def _open(self, url: str) -> Any:
        """A connection to a database."""
        raise NotImplementedError

    def _execute(self, connection: Any, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Execute a statement; raise what the driver raises."""
        raise NotImplementedError

    def _empty(self, connection: Any) -> None:
        """Drop every table."""
        raise NotImplementedError

    def _place(self, number: int) -> str:
        """The placeholder of a value in a statement."""
        raise NotImplementedError

    def _rows_of(self, world: list[Any]) -> Rows:
        url = self._new()
        asyncio.run(fill(url, world))
        connection = self._open(url)
        quoted = {name: self._quoted(name) for name in COLUMNS}
        rows = {
            name: [list(row) for row in self._execute(connection, f"SELECT * FROM {table}")]
            for name, table in quoted.items()
        }
        self._close(connection)
        return rows

    def _close(self, connection: Any) -> None:
        connection.close()

    def _quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    @cached_property
    def _url(self) -> str:
        return self._new()

    @cached_property
    def _connection(self) -> Any:
        return self._open(self._url)

    def play(self, rng: Random, bench: Bench) -> None:
        connection = self._connection
        self._empty(connection)
        odd = rng.random() < 0.25
        loose = odd or rng.random() < 0.4
        for statement in self._tables(rng, loose=loose, odd=odd):
            with suppress(*REFUSALS):
                self._execute(connection, statement)
        rows = {
            name: [list(row) for row in found] for name, found in rng.choice(self._seeds).items()
        }
        for _ in range(rng.choice([1, 1, 2, 4])):
            _mutate_rows(rng, rows)
        for name, found in rows.items():
            for row in found:
                places = ", ".join(self._place(number) for number in range(len(row)))
                columns = ", ".join(map(self._quoted, dict.fromkeys(COLUMNS[name])))
                insert = f"INSERT INTO {self._quoted(name)} ({columns}) VALUES ({places})"
                with suppress(*REFUSALS):
                    self._execute(connection, insert, row)
        secret = f":{quote(PASSWORD, safe='')}@" in self._url
        store = Specimen(self._url, self._contents, on_server=True, has_password=secret)
        bench.specimens.append(store)
        play(rng, bench, store)

    def _tables(self, rng: Random, *, loose: bool, odd: bool) -> list[str]:
        """Statements that make the tables.

        ``loose`` ones lack references, keys and NOT NULL, ``odd`` ones have columns of other types.
        """

        def kind(name: str) -> str:
            types = self.types[name]
            return rng.choice(types) if odd and rng.random() < 0.4 else types[0]

        def refer(to: str, more: str = "") -> str:
            return "" if loose else f" REFERENCES {self._quoted(to)} ({self._quoted('id')}){more}"

        def key(*names: str) -> str:
            columns = ", ".join(map(self._quoted, names))
            return "" if loose and rng.random() < 0.2 else f", PRIMARY KEY ({columns})"

        q = self._quoted
        null = "" if loose else " NOT NULL"
        tables = [
            f"CREATE TABLE {q('users')} ({q('id')} {kind('name')}{key('id')})",
            f"CREATE TABLE {q('session')} ({q('id')} {kind('name')}, "
            f"{q('user_id')} {kind('name')}{null}{refer('users')}{key('id')})",
            f"CREATE TABLE {q('message')} ({q('id')} {kind('name')}, "
            f"{q('msg')} {kind('msg')}{null}, {q('session_id')} {kind('name')}{null}"
            f"{refer('session')}, {q('index')} {kind('index')}{null}{key('id')})",
            f"CREATE TABLE {q('message_mark')} ({q('msg_id')} {kind('name')}"
            f"{refer('message', ' ON DELETE CASCADE')}, {q('mark')} {kind('name')}"
            f"{key('msg_id', 'mark')})",
        ]
        if odd and rng.random() < 0.2:
            del tables[rng.randrange(len(tables))]
        return tables

    def _contents(self) -> Any:
        """Return the rows of tables; one without rows is none, as a copy that fails leaves it."""
        connection = self._connection
        tables = self._execute(
            connection,
            "SELECT table_name FROM information_schema.tables WHERE table_schema = " + self._schema,
        )
        found = {name: self._execute(connection, self._select(name)) for (name,) in tables}
        return {name: sorted(map(repr, rows)) for name, rows in found.items() if rows}

    _schema: ClassVar[str]

    def _select(self, table: str) -> str:
        return f"SELECT * FROM {self._quoted(table)}"


REFUSALS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.DataError,
    pymysql.Error,
    UnicodeEncodeError,
    OverflowError,
    ValueError,
)
"""The errors of a driver where a server refuses a statement or a row."""


def _mutate_rows(rng: Random, rows: Rows) -> None:
    table = rng.choices(list(COLUMNS), [1, 2, 6, 2])[0]
    if not rows[table]:
        return
    columns = list(dict.fromkeys(COLUMNS[table]))
    at = rng.randrange(len(rows[table]))
    row = list(rows[table][at])
    column = rng.randrange(len(columns))
    kind = rng.randrange(8)
    if kind == 0:
        del rows[table][at]
        return
    match columns[column]:
        case "msg":
            row[column] = _message(rng, row[column])
        case "index":
            row[column] = rng.choice([0, -1, 1, 2**63 - 1, -(2**63), None])
        case _:
            text = row[column]
            row[column] = rng.choice([rng.choice(WORDS)[:250], mutate_text(rng, text or ""), None])
    if kind == 1:
        rows[table].append(row)
    else:
        rows[table][at] = row


def _message(rng: Random, text: str | None) -> str | None:
    match rng.randrange(8):
        case 0:
            return dump(rng, any_value(rng)).decode("utf-8", "replace")
        case 1:
            return mutate_bytes(rng, (text or "").encode(), 1).decode("utf-8", "replace")
        case 2:
            return rng.choice(["5", "null", "", "a/b", '{"id":"m1"}, "x": 1', "[]", '"x"', None])
        case _:
            return mutate_json(rng, (text or "").encode()).decode("utf-8", "replace")


class PostgresqlRows(SqlServer):
    """PostgreSQL."""

    name = "postgresql"
    quote = '"'
    types: ClassVar = {
        "name": ["VARCHAR(255)", "TEXT", "CHAR(255)", "BYTEA", "UUID"],
        "msg": ["JSON", "JSONB", "TEXT", "BYTEA"],
        "index": ["BIGINT", "INTEGER", "NUMERIC", "TEXT", "REAL"],
    }
    _schema = "'public'"

    def __init__(self, folder: Path) -> None:
        self._server = Postgresql(folder)
        super().__init__()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def _new(self) -> str:
        return self._server.socket_url(self._server.fresh())

    def _open(self, url: str) -> Any:
        name = url.partition(":///")[2].partition("?")[0]
        where = {"host": self._server.sockets, "port": self._server.port, "user": "memctl"}
        return self._loop.run_until_complete(asyncpg.connect(database=name, **where))

    def _close(self, connection: Any) -> None:
        self._loop.run_until_complete(connection.close())

    def _execute(self, connection: Any, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        return [tuple(row) for row in self._loop.run_until_complete(connection.fetch(sql, *values))]

    def _empty(self, connection: Any) -> None:
        self._execute(connection, "DROP SCHEMA public CASCADE")
        self._execute(connection, "CREATE SCHEMA public")

    def _place(self, number: int) -> str:
        return f"${number + 1}"

    def _select(self, table: str) -> str:
        return f"SELECT t::text FROM {self._quoted(table)} t"


class MysqlRows(SqlServer):
    """MariaDB, as a MySQL server."""

    name = "mysql"
    quote = "`"
    types: ClassVar = {
        "name": [
            "VARCHAR(255)",
            "VARCHAR(255) CHARACTER SET latin1",
            "VARCHAR(255) COLLATE utf8mb4_general_ci",
            "VARBINARY(255)",
        ],
        "msg": ["JSON", "LONGTEXT", "LONGTEXT", "BLOB", "TEXT CHARACTER SET latin1"],
        "index": ["BIGINT", "INT", "DECIMAL(30,5)", "TEXT", "DOUBLE"],
    }
    _schema = "DATABASE()"

    def __init__(self, folder: Path) -> None:
        self._server = Mariadb(folder)
        super().__init__()

    def _new(self) -> str:
        return self._server.socket_url(self._server.fresh())

    def _open(self, url: str) -> Any:
        location: Location = parse(url)
        name = location.url.partition("?")[0].rpartition("/")[2]
        return pymysql.connect(
            unix_socket=self._server.socket,
            user="memctl",
            password=PASSWORD,
            database=name,
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,
        )

    def _execute(self, connection: Any, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(sql, list(values) or None)
            return list(cursor.fetchall())

    def _empty(self, connection: Any) -> None:
        self._execute(connection, "SET foreign_key_checks = 0")
        names = self._execute(connection, "SHOW TABLES")
        for (name,) in names:
            self._execute(connection, f"DROP TABLE `{name}`")
        self._execute(connection, "SET foreign_key_checks = 1")

    def _place(self, number: int) -> str:  # noqa: ARG002 - the same for all
        return "%s"
