"""Tests of damaged rows: each damage, as every command meets it, in a SQLite file."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from memctl.model import PAGE_ENTRIES, MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write_all
from tests.stores.test_sql_findings import ALICE, BOB, Database, database, fill, messages

__all__ = ["database"]

Run = Callable[..., Result]

_LOOSE = """
CREATE TABLE new_message (id VARCHAR(255) PRIMARY KEY, msg JSON, session_id VARCHAR(255),
    "index" BIGINT);
CREATE TABLE new_session (id VARCHAR(255) PRIMARY KEY, user_id VARCHAR(255));
CREATE TABLE new_users (id VARCHAR(255) PRIMARY KEY);
CREATE TABLE new_message_mark (msg_id VARCHAR(255), mark VARCHAR(255), PRIMARY KEY (msg_id, mark));
"""
"""AgentScope's tables as other tools make them, without NOT NULL."""

_NO_TEXT = "CAST(x'FF' AS TEXT)"
_CONTENTS = {
    "number": "'5'",
    "word": "'a/b'",
    "byte": _NO_TEXT,
    "blob": "x'DEADBEEF'",
    "list": "'[]'",
    "cut off": "substr(msg, 1, 40)",
    "two values": """'{"id": "m2"}, "forged": {"a": 1}'""",
    "byte within": """CAST('{"id": "m2", "x": "' || x'FF' || '"}' AS TEXT)""",
}
DAMAGE = (
    {
        f"message {name}": f"UPDATE message SET msg = {value} WHERE id = 'alice-s1-m2'"
        for name, value in _CONTENTS.items()
    }
    | {
        f"{column} {name}": f"UPDATE message SET \"{column}\" = {value} WHERE id = 'alice-s1-m2'"
        for column, name, value in (
            ("msg", "null", "NULL"),
            ("id", "null", "NULL"),
            ("id", "blob", "CAST(id AS BLOB)"),
            ("id", "byte", f"'alice-s1-' || {_NO_TEXT}"),
            ("session_id", "null", "NULL"),
            ("session_id", "blob", "x'DEADBEEF'"),
            ("session_id", "byte", _NO_TEXT),
            ("index", "null", "NULL"),
            ("index", "text", "'x'"),
            ("index", "blob", "x'DEAD'"),
            ("index", "real", "1.5"),
        )
    }
    | {
        f"{table} {column} {name}": f"UPDATE {table} SET {column} = {value} WHERE {row}"
        for table, column, row in (
            ("session", "id", "id = 's1'"),
            ("session", "user_id", "id = 's1'"),
            ("users", "id", "id = 'alice'"),
            ("message_mark", "mark", "msg_id = 'alice-s1-m2'"),
            ("message_mark", "msg_id", "msg_id = 'alice-s1-m2'"),
        )
        for name, value in (("null", "NULL"), ("blob", "x'DEADBEEF'"), ("byte", _NO_TEXT))
    }
)
_OUTSIDE = ("users", "message_mark msg_id")
"""Damage of rows that belong to no memory."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in order, of two memories, whose tables take anything."""
    path = tmp_path_factory.mktemp("damage") / "good.db"
    asyncio.run(fill(Database("sqlite", f"sqlite:///{path}", print)))
    with sqlite3.connect(path) as driver:
        driver.executescript(_LOOSE)
        for table in ("message", "session", "users", "message_mark"):
            driver.execute(f"INSERT INTO new_{table} SELECT * FROM {table} ORDER BY rowid")
            driver.execute(f"DROP TABLE {table}")
            driver.execute(f"ALTER TABLE new_{table} RENAME TO {table}")
    driver.close()
    return path


def dump(path: Path) -> dict[str, list[Any]]:
    """Return every row, with the type of each value, as SQLite has it."""
    driver = sqlite3.connect(path)
    driver.text_factory = lambda text: ("text", text)
    tables = ("users", "session", "message", "message_mark")
    found = {table: sorted(map(repr, driver.execute(f"SELECT * FROM {table}"))) for table in tables}
    driver.close()
    return found


@pytest.mark.parametrize("damage", DAMAGE)
def test_sql_damage_is_left_out_and_the_rest_goes_on(
    tmp_path: Path, good: Path, run: Run, damage: str
) -> None:
    path, archive, target = tmp_path / "m.db", tmp_path / "a.ndjson", tmp_path / "t.db"
    shutil.copy(good, path)
    with sqlite3.connect(path) as driver:
        assert driver.execute(DAMAGE[damage]).rowcount
    driver.close()
    before = dump(path)
    outside = damage.startswith(_OUTSIDE)

    def check(allowed: tuple[int, ...], *arguments: object) -> Result:
        result = run(*arguments)
        assert result.exit_code in allowed, (arguments, result.exit_code, result.stderr)
        assert "Traceback" not in result.stderr
        assert len(result.stderr.splitlines()) <= 2 * (result.exit_code != 0) + 3
        return result

    some = (0,) if outside else (7,)
    check((*some, 0), "inspect", path)
    check(some, "inspect", path, "--messages", "--json")
    check((0, 7), "inspect", path, "--by", "mark")
    check(some, "export", path, "-o", archive)
    check((0,), "verify", archive, good, "--user", BOB.user)
    check(some, "migrate", path, target)
    check((0,), "verify", target, good, "--user", BOB.user)
    check((6, *some), "verify", path, good)
    check((0,), "context", path, "--user", BOB.user)
    check((0, 7, 8), "context", path, "--session", "s1")
    check((0,), "migrate", good, path, "--user", BOB.user)
    assert dump(path) == before
    for change in (
        ("delete", path, "--role", "user", "--yes"),
        ("mark", "add", path, "new"),
        ("compress", path, "--mode", "message", "--keep-recent", "1"),
    ):
        check((0, 7), *change)
        assert dump(path) != before
        check((0,), "undo", "--yes")
        rows = dump(path)
        if damage.startswith(("session ", "users ")):  # rows that a restored message needs
            rows, expected = ({"message": of["message"]} for of in (rows, before))
            assert rows == expected
            shutil.copy(good, path)
            with sqlite3.connect(path) as driver:
                driver.execute(DAMAGE[damage])
            driver.close()
        else:
            assert rows == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_sql_damage_is_set_aside_and_put_back(
    tmp_path: Path, good: Path, run: Run, damage: str
) -> None:
    path = tmp_path / "m.db"
    shutil.copy(good, path)
    with sqlite3.connect(path) as driver:
        driver.execute(DAMAGE[damage])
    driver.close()
    before = dump(path)
    found = run("doctor", path, "damaged-row", "--json")
    assert found.exit_code == 6
    [finding] = json.loads(found.stdout)["findings"]
    assert finding["code"] == "damaged-row"
    refused = run("doctor", path, "damaged-row", "--repair", "--yes", "--no-backup")
    assert (refused.exit_code, dump(path)) == (2, before)
    repaired = run("doctor", path, "damaged-row", "--repair", "--yes", "--json")
    assert repaired.exit_code == 0
    after = dump(path)
    assert after != before
    for table, rows in after.items():  # nothing is new, and what is in order stays
        assert set(rows) <= set(before[table])
    gone = sum(len(rows) - len(after[table]) for table, rows in before.items())
    assert gone == finding["count"] <= 2
    assert run("inspect", path, "--messages", "--json").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert dump(path) == before


def test_sql_damage_where_nothing_else_was_asked_for(tmp_path: Path, good: Path, run: Run) -> None:
    path, archive = tmp_path / "m.db", tmp_path / "a.ndjson"
    shutil.copy(good, path)
    with sqlite3.connect(path) as driver:
        driver.execute("UPDATE message SET \"index\" = NULL WHERE id = 'alice-s1-m2'")
    driver.close()
    for command in (
        ("inspect", path),
        ("context", path),
        ("export", path, "-o", archive),
        ("migrate", path, tmp_path / "t.db"),
        ("delete", path, "--yes"),
    ):
        result = run(*command, "--user", "alice")
        assert result.exit_code == 8, (command, result.stderr)
        assert "'alice'/'s1' is damaged" in result.stderr
    assert not archive.exists()


@pytest.mark.parametrize("number", [2, PAGE_ENTRIES + 200])
def test_sql_damage_of_a_large_memory(tmp_path: Path, run: Run, number: int) -> None:
    """Pages of it may be on their way when the damage is met."""
    path, archive, target = tmp_path / "m.db", tmp_path / "a.ndjson", tmp_path / "t.db"
    large = MemoryKey("alice", "large")
    good = Database("sqlite", f"sqlite:///{path}", print)
    asyncio.run(fill(good, {large: messages(PAGE_ENTRIES * 2 + 500), BOB: messages(5, "a")}))
    with sqlite3.connect(path) as driver:
        driver.execute(f"UPDATE message SET msg = '[]' WHERE id = 'alice-large-m{number}'")
    driver.close()
    before = dump(path)
    folder = tmp_path / "md"
    for command in (
        ("inspect", path, "--by", "day"),
        ("inspect", path, "--messages", "--json"),
        ("export", path, "-o", archive),
        ("export", path, "--as", "markdown", "-o", f"{folder}/"),
        ("export", path, "--as", "markdown", "-o", tmp_path / "x.md"),
        ("migrate", path, target),
        ("compress", path, "--mode", "message", "--keep-recent", "1"),
        ("delete", path, "--role", "user", "--yes"),
    ):
        result = run(*command)
        assert result.exit_code == 7, (command, result.stderr)
        if dump(path) != before:
            assert run("undo", "--yes").exit_code == 0
            assert dump(path) == before
    for place in (archive, target):
        found = json.loads(run("inspect", place, "--json").stdout)
        assert [(one["user"], one["messages"]) for one in found["memories"]] == [(BOB.user, 5)]


def test_sql_damage_of_the_file(tmp_path: Path, good: Path, run: Run) -> None:
    whole = good.read_bytes()
    schema = whole.index(b"CREATE TABLE")
    files = {
        "page": whole[:4096] + bytes(len(whole) - 4096),
        "schema": whole[:schema] + b"CREATF" + whole[schema + 6 :],
        "length": whole[: len(whole) // 2],
        "header": b"no database at all" + whole[18:],
    }
    for name, content in files.items():
        path = tmp_path / f"{name}.db"
        path.write_bytes(content)
        for command in (("inspect", path), ("delete", path, "--all", "--yes"), ("doctor", path)):
            result = run(*command)
            assert result.exit_code == 8, (name, command, result.stderr)
            assert [line.startswith("  hint: ") for line in result.stderr.splitlines()] == [0, 1]


def test_sql_damage_of_content_in_any_database(database: Database, run: Run) -> None:
    """Servers see to the types of columns, and that a message is JSON, but not an object."""
    asyncio.run(fill(database))
    database.execute("UPDATE message SET msg = '5' WHERE id = 'alice-s1-m2'")
    assert run("inspect", database.url, "--messages", "--json").exit_code == 7
    assert run("delete", database.url, "--user", ALICE.user, "--yes").exit_code == 8
    assert run("verify", database.url, database.url, "--user", BOB.user).exit_code == 0


async def test_sql_damage_keeps_its_memory_from_being_written(tmp_path: Path) -> None:
    database = Database("sqlite", f"sqlite:///{tmp_path}/m.db", print)
    await fill(database)
    with sqlite3.connect(tmp_path / "m.db") as driver:
        driver.execute("UPDATE message SET \"index\" = 'x' WHERE id = 'alice-s1-m4'")
    driver.close()
    more = samples.sample(ALICE, messages(9)[5:])
    async with make_store(parse(database.url), OpenMode.CHANGE) as store:
        with pytest.raises(AssertionError, match="damaged"):
            await write_all(store, [more])
