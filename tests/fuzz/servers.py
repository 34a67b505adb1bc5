"""Mutators of stores on servers: Redis keys and values, PostgreSQL and MySQL rows and columns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import redis

from tests.fuzz.bench import Bench, Specimen
from tests.fuzz.databases import REFUSALS, Database, MysqlDatabase, PostgresqlDatabase
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
            lambda: contents(self._client),
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


def contents(client: redis.Redis) -> Any:
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
    types: ClassVar[dict[str, list[str]]]
    """The types of a name, of a message and of an index: that of AgentScope first."""

    def __init__(self, make: Callable[[], Database]) -> None:
        self._database = make()
        first = make()
        self._seeds = [self._rows_of(world, first) for world in plain_worlds()]

    def _rows_of(self, world: list[Any], database: Database) -> Rows:
        database.empty()
        asyncio.run(fill(database.url, world))
        return {
            name: [list(row) for row in database.execute(f"SELECT * FROM {database.quoted(name)}")]
            for name in COLUMNS
        }

    def play(self, rng: Random, bench: Bench) -> None:
        database = self._database
        database.empty()
        odd = rng.random() < 0.25
        loose = odd or rng.random() < 0.4
        for statement in self._tables(rng, loose=loose, odd=odd):
            with suppress(*REFUSALS):
                database.execute(statement)
        rows = {
            name: [list(row) for row in found] for name, found in rng.choice(self._seeds).items()
        }
        for _ in range(rng.choice([1, 1, 2, 4])):
            _mutate_rows(rng, rows)
        for name, found in rows.items():
            for row in found:
                places = ", ".join(map(database.place, range(len(row))))
                columns = ", ".join(map(database.quoted, dict.fromkeys(COLUMNS[name])))
                insert = f"INSERT INTO {database.quoted(name)} ({columns}) VALUES ({places})"
                with suppress(*REFUSALS):
                    database.execute(insert, row)
        store = Specimen(
            database.url, database.contents, on_server=True, has_password=database.has_password
        )
        bench.specimens.append(store)
        play(rng, bench, store)

    def _tables(self, rng: Random, *, loose: bool, odd: bool) -> list[str]:
        """Statements that make the tables.

        ``loose`` ones lack references, keys and NOT NULL, ``odd`` ones have columns of other types.
        """

        def kind(name: str) -> str:
            types = self.types[name]
            return rng.choice(types) if odd and rng.random() < 0.4 else types[0]

        q = self._database.quoted

        def refer(to: str, more: str = "") -> str:
            return "" if loose else f" REFERENCES {q(to)} ({q('id')}){more}"

        def key(*names: str) -> str:
            columns = ", ".join(map(q, names))
            return "" if loose and rng.random() < 0.2 else f", PRIMARY KEY ({columns})"

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
    types: ClassVar = {
        "name": ["VARCHAR(255)", "TEXT", "CHAR(255)", "BYTEA", "UUID"],
        "msg": ["JSON", "JSONB", "TEXT", "BYTEA"],
        "index": ["BIGINT", "INTEGER", "NUMERIC", "TEXT", "REAL"],
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(partial(PostgresqlDatabase, folder))


class MysqlRows(SqlServer):
    """MariaDB, as a MySQL server."""

    name = "mysql"
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

    def __init__(self, folder: Path) -> None:
        super().__init__(partial(MysqlDatabase, folder))
