"""Undo restores the values of every type of column, or the change is refused."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.engines.sql.columns import FarTime, rank_of
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.stores.test_tables import ask
from tests.support.cli import Run, fails, fill
from tests.support.servers.pool import Servers

COLUMNS = "session:session,role:role,content:content,time:created_at,order:id"
TABLE = "id INTEGER PRIMARY KEY, session TEXT, role TEXT, content TEXT, created_at "
NAMES = "id, session, role, content, created_at"

POSTGRESQL = [
    *(("int[]", one) for one in ("'{1,NULL,3}'", "'[2:3]={1,2}'", "'{}'")),
    ("text[]", """'{"a,b",NULL,"NULL",""}'"""),
    ("text[][]", "'{{a,b},{c,d}}'"),
    ("varchar(3)[]", "'{abc}'"),
    ("float8[]", "'{1.1,NaN,Infinity,0.30000000000000004}'"),
    ("jsonb[]", """array['{"a": 1}'::jsonb]"""),
    ("timestamptz[]", "'{infinity,2025-01-01 00:00+02}'"),
    ("interval", "'1 year 2 mons 3 days -04:05:06.789'"),
    ("interval day to second(3)", "'1 day 2:03:04.5678'"),
    ("int4range", "'[1,5)'"),
    ("tstzrange", "'[0044-03-15 BC,)'"),
    ("int4multirange", "'{[1,3),[5,9)}'"),
    ("bit(5)", "B'10110'"),
    ("varbit(10)", "B'101'"),
    ("money", "12.34"),
    ("point", "'(0.1,2.5)'"),
    ("box", "'((1,1),(0,0))'"),
    ("path", "'[(0,0),(1,1)]'"),
    ("polygon", "'((0,0),(1,1),(1,0))'"),
    ("circle", "'<(0,0),2>'"),
    ("line", "'{1,2,3}'"),
    ("inet", "'10.0.0.1/24'"),
    ("inet", "'10.0.0.1'"),
    ("cidr", "'10.0.0.0/8'"),
    ("macaddr", "'08:00:2b:01:02:03'"),
    ("pair", "ROW(1, 'a b')"),
    ('"the mood"', "'sad'"),
    ('"the mood"[]', "'{sad}'"),
    ("of_numeric", "1.10"),
    ("of_jsonb", "'{}'"),
    ("of_bytea", "'\\xdead'"),
    ("of_date", "'infinity'"),
    ("of_pair", "'(1,x)'"),
    ("tsvector", "'a:1 b:2'::tsvector"),
    ("json", """'{"a": 1e400, "a":  2}'"""),
    ("jsonb", """'{"a": 1e400}'"""),
    ("time", "'24:00'"),
    ("time(3)", "'12:34:56.789'"),
    ("timetz", "'24:00+02'"),
    ("timetz", "'12:00:00+05:30'"),
    *(("date", one) for one in ("'0044-03-15 BC'", "'infinity'", "'9999-12-31'", "'20200-01-01'")),
    *(("timestamp", one) for one in ("'0044-03-15 12:00 BC'", "'infinity'", "'-infinity'")),
    ("timestamp", "'9999-12-31 23:59:59.999999'"),
    ("timestamptz", "'0001-01-01 00:00:00+00'"),
    ("timestamptz", "'2025-01-01 12:00:00.123+02'"),
    ("numeric", "'NaN'"),
    ("numeric", "12345678901234567890.12345678901234567890"),
    ("float8", "'-Infinity'"),
    ("float4", "1.1"),
    ('"char"', "'x'"),
    ("name", "'abc'"),
    ("bpchar", "'ab '"),
    ("oid", "42"),
    ("xid8", "'5'"),
    ("pg_lsn", "'0/16B3748'"),
    ("regclass", "'pg_class'"),
    ("int2vector", "'1 2'"),
    ("bytea", "'\\xdeadbeef'"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("int GENERATED ALWAYS AS (length(content)) STORED", "DEFAULT"),
    ("int GENERATED ALWAYS AS IDENTITY", "DEFAULT"),
]
TYPES = """
CREATE TYPE pair AS (a int, b text);
CREATE TYPE "the mood" AS ENUM ('sad');
CREATE DOMAIN of_numeric AS numeric;
CREATE DOMAIN of_jsonb AS jsonb;
CREATE DOMAIN of_bytea AS bytea;
CREATE DOMAIN of_date AS date;
CREATE DOMAIN of_pair AS pair;
"""
MYSQL = [
    *(("BIT(5)", "b'10110'"), ("BIT(64)", f"b'{'1' * 64}'")),
    ("SET('a','b','c')", "'a,c'"),
    ("ENUM('x','y')", "'y'"),
    ("YEAR", "0"),
    *(("TIME", one) for one in ("'100:00:01'", "'-838:59:59'", "'01:02:03'")),
    *(("TIME(6)", "'12:34:56.789123'"), ("TIME(3)", "'-00:00:00.500'")),
    *(("DATE", one) for one in ("'0000-00-00'", "'2020-00-00'", "'2020-02-31'", "'9999-12-31'")),
    *(("DATETIME", "'0000-00-00'"), ("DATETIME(6)", "'2020-01-01 12:00:00.123456'")),
    ("TIMESTAMP NULL", "0"),
    ("GEOMETRY", "ST_GeomFromText('POINT(1 2)', 4326)"),
    ("JSON", """'{"a": 1e400, "a":  2}'"""),
    ("DECIMAL(65,30)", "12345678901234567890123456789012345.123456789012345678901234567891"),
    ("INET6", "'::1'"),
    ("UUID", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    *(("FLOAT", one) for one in ("1.1", "0.1234567", "3.4028234663852886e38")),
    ("DOUBLE", "1e-300"),
    ("BIGINT UNSIGNED", "18446744073709551615"),
    ("BINARY(5)", "'ab'"),
    ("VARBINARY(5)", "x'00ff27'"),
    ("BLOB", "x'00ff'"),
    ("TEXT CHARACTER SET latin1", "'é'"),
    ("INT GENERATED ALWAYS AS (LENGTH(content)) STORED", "DEFAULT"),
    ("INT GENERATED ALWAYS AS (LENGTH(content)) VIRTUAL", "DEFAULT"),
]
SQLITE = [
    *(("INTEGER", one) for one in ("9223372036854775807", "'a text'", "x'00ff'")),
    *(("TEXT", one) for one in ("x'00ff'", "'Infinity'", "char(0) || 'x'")),
    *(("DATE", "'0044-03-15 BC'"), ("TIMESTAMP", "5"), ("TIME", "'24:00'")),
    *(("FLOAT", "9e999"), ("REAL", "-0.0"), ("DECIMAL(10,2)", "'1.10x'"), ("JSON", "'{bad'")),
    *(("", one) for one in ("1.0", "'1'", "x''")),
    ("INTEGER GENERATED ALWAYS AS (length(content)) STORED", None),
    ("INTEGER GENERATED ALWAYS AS (length(content)) VIRTUAL", None),
]
STRICT = [("INTEGER", "1"), ("REAL", "1.5"), ("BLOB", "x'00'"), ("ANY", "'007'"), ("ANY", "x'00'")]


def store(url: str, columns: str = COLUMNS, table: str = "chats") -> str:
    return f"{url}{'&' if '?' in url else '?'}layout=table&table={table}&columns={columns}"


def create(time: str, types: list[tuple[str, Any]], end: str = "") -> str:
    """Return a statement for a table with a column of each type."""
    more = "".join(f", c{at} {type_}" for at, (type_, _) in enumerate(types))
    return f"CREATE TABLE chats ({TABLE}{time}{more}){end}"


def insert(types: list[tuple[str, Any]]) -> str:
    """Return a statement for two rows with a value of each type."""
    given = [(f"c{at}", value) for at, (_, value) in enumerate(types) if value is not None]
    names = ", ".join([NAMES, *(name for name, _ in given)])
    more = "".join(f", {value}" for _, value in given)
    rows = ", ".join(
        f"({id}, 's', '{role}', 'hello', '2025-01-01 12:00:0{id}'{more})"
        for id, role in ((1, "user"), (2, "assistant"))
    )
    return f"INSERT INTO chats ({names}) VALUES {rows}"


def check_undo(run: Run, place: str, dump: Callable[[], Any], *words: str) -> None:
    """Check that undo leaves the rows as they were before a deletion."""
    before = dump()
    assert run("inspect", place, "--messages").exit_code == 0
    assert run("delete", place, *(words or ("--role", "user")), "--yes").exit_code == 0
    assert dump() != before
    done = run("undo", "--store", place, "--yes")
    assert (done.exit_code, dump()) == (0, before), done.stderr


@pytest.mark.slow
def test_postgresql(run: Run, servers: Servers, postgresql_url: str) -> None:
    def sql(text: str) -> str:
        return servers.postgresql.execute(postgresql_url, text)

    sql(TYPES + create("timestamptz", POSTGRESQL) + ";" + insert(POSTGRESQL))
    check_undo(run, store(postgresql_url), lambda: sql("SELECT chats::text FROM chats ORDER BY id"))


def test_postgresql_with_other_settings(run: Run, servers: Servers, postgresql_url: str) -> None:
    """The texts of values are the same in each session, and exact."""

    def sql(text: str) -> str:
        return servers.postgresql.execute(postgresql_url, text)

    types = [("float8[]", "'{0.30000000000000004}'"), ("tsrange", "'[2025-03-04,2025-05-06)'")]
    types += [("interval", "'-1 mon +2 days'"), ("date[]", "'{2025-03-04}'")]
    sql(create("date", types) + ";" + insert(types))
    place, before = store(postgresql_url), sql("TABLE chats")
    name = postgresql_url.rpartition("/")[2]
    for setting in (
        "extra_float_digits = -9",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
    ):
        sql(f"ALTER DATABASE {name} SET {setting}")
    assert run("delete", place, "--role", "user", "--yes").exit_code == 0
    sql(f"ALTER DATABASE {name} RESET ALL")
    assert run("undo", "--store", place, "--yes").exit_code == 0
    assert sql("SELECT * FROM chats ORDER BY id") == before


@pytest.mark.slow
def test_postgresql_keys(run: Run, servers: Servers, postgresql_url: str) -> None:
    """Keys that the driver does not hold, in the order of the database; and a large content."""

    def sql(text: str) -> str:
        return servers.postgresql.execute(postgresql_url, text)

    table = "session text, role text, content text, at timestamptz PRIMARY KEY"
    far = [
        "-infinity",
        "0100-03-15 BC",
        "0044-03-15 BC",
        "2025-01-01",
        "9999-12-31 23:59:59.999999Z",
    ]
    far += ["20000-01-01", "infinity"]
    rows = ", ".join(f"('s', '{at % 2}', '{at}', '{time}')" for at, time in enumerate(far))
    sql(f"CREATE TABLE times ({table}); INSERT INTO times VALUES {rows}")
    place = store(postgresql_url, "session:session,role:role,content:content,time:at", "times")
    check_undo(run, place, lambda: sql("SELECT * FROM times ORDER BY at"), "--role", "1")
    table = "session text, role text, content text, key interval PRIMARY KEY"
    rows = "('s', 'user', 'a', '9 days'), ('s', 'user', repeat('b', 90000), '10 days')"
    rows += ", ('s', 'assistant', 'c', '1 mon')"
    sql(f"CREATE TABLE spans ({table}); INSERT INTO spans VALUES {rows}")
    place = store(postgresql_url, "session:session,role:role,content:content", "spans")
    check_undo(run, place, lambda: sql("SELECT * FROM spans ORDER BY key"))


def test_postgresql_refuses_what_has_no_input(
    run: Run, servers: Servers, postgresql_url: str
) -> None:
    types = [("integer", "1"), ("pg_node_tree", "(SELECT adbin FROM pg_attrdef LIMIT 1)")]
    sql = f"CREATE TABLE other (a int DEFAULT 1); {create('date', types)}; {insert(types)}"
    servers.postgresql.execute(postgresql_url, sql)
    place = store(postgresql_url)
    found = run("delete", place, "--role", "user", "--yes")
    fails(found, 8, "values in the column 'c1' (pg_node_tree) of the table 'chats', which undo")
    assert servers.postgresql.execute(postgresql_url, "SELECT count(*) FROM chats") == "2"
    assert run("delete", place, "--role", "user", "--yes", "--no-backup").exit_code == 0


@pytest.mark.slow
def test_postgresql_refuses_columns_without_rights(
    run: Run, servers: Servers, postgresql_url: str
) -> None:
    admin = servers.postgresql.admin_url(postgresql_url)
    types = [("integer", "1")]
    servers.postgresql.execute(
        admin,
        f"{create('date', types)}; {insert(types)}; GRANT INSERT ({NAMES}), SELECT, UPDATE, "
        "DELETE ON chats TO memctl",
    )
    place = store(postgresql_url)
    found = run("delete", place, "--role", "user", "--yes")
    fails(found, 8, "the column 'c0' (INTEGER, without the right to INSERT) of the table 'chats'")
    servers.postgresql.execute(admin, "UPDATE chats SET c0 = NULL")
    check_undo(
        run, place, lambda: servers.postgresql.execute(admin, "SELECT * FROM chats ORDER BY id")
    )


def test_mysql(run: Run, mysql_url: str) -> None:
    ask(mysql_url, "SET sql_mode = 'ALLOW_INVALID_DATES'", create("DATETIME", MYSQL), insert(MYSQL))
    shown = ", ".join(
        f"c{at} + 0e0" if type_ == "FLOAT" else f"CAST(c{at} AS BINARY)"
        for at, (type_, _) in enumerate(MYSQL)
    )
    sql = f"SELECT {NAMES}, {shown} FROM chats ORDER BY id"
    check_undo(run, store(mysql_url), lambda: ask(mysql_url, sql))


def test_mysql_keys(run: Run, mysql_url: str) -> None:
    """A key of bytes, also where a content is read by it."""
    table = "id BINARY(2) PRIMARY KEY, session VARCHAR(9), role VARCHAR(9), content LONGTEXT"
    rows = "(x'00ff', 's', 'user', REPEAT('a', 90000)), (x'27ff', 's', 'assistant', 'b')"
    ask(mysql_url, f"CREATE TABLE chats ({table})", f"INSERT INTO chats VALUES {rows}")
    place = store(mysql_url, "session:session,role:role,content:content")
    check_undo(run, place, lambda: ask(mysql_url, "SELECT * FROM chats ORDER BY id"))


@pytest.mark.slow
def test_mysql_defaults_are_no_part_of_a_message(run: Run, mysql_url: str, tmp_path: Path) -> None:
    """A default of a type that SQLAlchemy reflects without it, among others."""
    defaults = "flag BIT(3) DEFAULT b'101', set_ BIT NOT NULL DEFAULT b'1', number INT DEFAULT 5"
    table = "id INTEGER PRIMARY KEY AUTO_INCREMENT, session TEXT, user TEXT, role TEXT, "
    table += f"content TEXT, about TEXT, {defaults}"
    ask(mysql_url, f"CREATE TABLE chats ({table})")
    columns = "session:session,user:user,role:role,content:content,metadata:about,order:id"
    ask(mysql_url, "INSERT INTO chats (session, role, content) VALUES ('own', 'user', 'a')")
    place = store(mysql_url, columns)
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill(source, {MemoryKey("ada", "kyoto"): samples.entries(9)}))
    done = run("migrate", source, place, "--lossy")
    assert done.exit_code == 0, done.stderr
    assert {row[-3:] for row in ask(mysql_url, "SELECT * FROM chats")} == {(b"\5", b"\1", 5)}
    assert run("undo", "--store", place, "--yes").exit_code == 0
    assert len(ask(mysql_url, "SELECT * FROM chats")) == 1


@pytest.mark.parametrize(
    ("types", "end"), [(SQLITE, ""), (SQLITE, " WITHOUT ROWID"), (STRICT, " STRICT")]
)
def test_sqlite(run: Run, tmp_path: Path, types: list[tuple[str, Any]], end: str) -> None:
    path = tmp_path / "chats.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(create("TEXT", types, end))
        database.execute(insert(types))
    quoted = ", ".join(f"quote(c{at})" for at in range(len(types)))

    def dump() -> list[Any]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute(f"SELECT {NAMES}, {quoted} FROM chats ORDER BY id").fetchall()

    check_undo(run, store(f"sqlite:///{path}"), dump)


@pytest.mark.slow
def test_the_first_and_the_last_day(
    run: Run, servers: Servers, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local times that are in another year in UTC, which Python does not know."""
    for zone in ("America/New_York", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        types = [("timestamptz", "'9999-12-31 23:00+00'"), ("date", "'9999-12-31'")]
        sql = f"DROP TABLE IF EXISTS chats; {create('timestamp', types)}; {insert(types)};"
        sql += "UPDATE chats SET created_at = '9999-12-31 23:59:59.999999' WHERE id = 1;"
        sql += "UPDATE chats SET created_at = '0001-01-01' WHERE id = 2"
        servers.postgresql.execute(postgresql_url, sql)
        check_undo(
            run,
            store(postgresql_url),
            lambda: servers.postgresql.execute(postgresql_url, "SELECT * FROM chats ORDER BY id"),
            "--all",
        )


def test_stores_detect_reads_times_that_python_does_not_know(
    run: Run, servers: Servers, postgresql_url: str
) -> None:
    types = [("time", "'24:00'"), ("date", "'0044-03-15 BC'")]
    sql = f"{create('timestamp', types)}; {insert(types)}"
    servers.postgresql.execute(postgresql_url, sql)
    assert "time = created_at: times" in run("stores", "detect", postgresql_url).stdout


def test_far_times_are_in_order() -> None:
    texts = ["-infinity", "0100-03-15 BC", "0044-03-15 BC", "9999-12-31", "20000-01-01", "infinity"]
    ranks = [rank_of(FarTime(text)) for text in texts]
    assert ranks == sorted(ranks)


@pytest.mark.slow
def test_agno(run: Run, servers: Servers, postgresql_url: str, tmp_path: Path) -> None:
    """Columns that an application added to the tables of Agno."""

    def sql(text: str) -> str:
        return servers.postgresql.execute(postgresql_url, text)

    place = f"{postgresql_url}?layout=agno"
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    assert run("migrate", str(source), place, "--lossy").exit_code == 0
    for table in "agno_sessions", "agno_runs":
        sql(
            f"ALTER TABLE {table} ADD a int[] DEFAULT '{{1,NULL}}', "
            "ADD b interval DEFAULT '1 mon', ADD c date DEFAULT '0044-03-15 BC', "
            "ADD d time DEFAULT '24:00', "
            "ADD e int GENERATED ALWAYS AS (length(session_id)) STORED"
        )
    rows = "SELECT agno_sessions::text, agno_runs::text FROM agno_sessions, agno_runs ORDER BY 1, 2"
    # A value other than the default shows that undo writes it.
    sql("UPDATE agno_runs SET a = '{2}', b = '9 days', c = 'infinity', d = '00:00:00.5'")
    check_undo(run, place, lambda: sql(rows), "--all")
    sql("ALTER TABLE agno_runs ADD f pg_node_tree")
    sql("UPDATE agno_runs SET f = (SELECT adbin FROM pg_attrdef LIMIT 1)")
    before = sql(rows)
    found = run("delete", place, "--all", "--yes")
    fails(found, 8, "the column 'f' (pg_node_tree) of the table 'agno_runs'")
    assert sql(rows) == before
