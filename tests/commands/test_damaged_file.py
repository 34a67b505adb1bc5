"""SQLite files that are damaged below their rows: an index that lacks rows, and a broken page."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from memctl.engines.sql import sqlite
from memctl.model import MemoryKey
from memctl.stores.mem0 import history
from memctl.testing import samples
from tests.stores.test_mem0 import filled as facts
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.servers.pool import Servers

ADA, BOB = MemoryKey("ada", "kyoto"), MemoryKey("bob", "oslo")


def lose_row(path: Path, table: str, column: str, change: str) -> None:
    """Give a table an index, and make a change that the index does not get."""

    def execute(*statements: str) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA writable_schema = ON")
            for statement in statements:
                database.execute(statement)
            [(version,)] = database.execute("PRAGMA schema_version")
            database.execute(f"PRAGMA schema_version = {version + 1}")

    execute(f'CREATE INDEX lost ON {table} ("{column}")')
    kept = "CREATE TABLE kept AS SELECT * FROM sqlite_master WHERE name = 'lost'"
    execute(kept, "DELETE FROM sqlite_master WHERE name = 'lost'")
    execute(change)
    execute("INSERT INTO sqlite_master SELECT * FROM kept", "DROP TABLE kept")


ANOTHER = (
    "INSERT INTO message SELECT REPLACE(id, 'm0000000', 'm0000009'), "
    "REPLACE(msg, 'm0000000', 'm0000009'), session_id, 9 FROM message WHERE id LIKE 'ada-%' LIMIT 1"
)


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A file of two memories with an index on the session that lacks the last row of one."""
    path = tmp_path / "agents.db"
    asyncio.run(fill(str(path), {ADA: samples.entries(1), BOB: samples.entries(1)}))
    lose_row(path, "message", "session_id", ANOTHER)
    return path


def test_an_index_that_lacks_a_row_is_found_and_made_anew(run: Run, torn: Path) -> None:
    assert len(contents(str(torn))[ADA]) == 1, "a read by the index misses the row"
    found = report(run("doctor", torn, "--json"), 6)
    [finding] = [one for one in found["findings"] if one["code"] == "damaged-file"]
    assert (finding["severity"], finding["count"], finding["user"]) == ("error", 2, None)
    assert "row 3 missing from index lost; wrong # of entries" in finding["message"]
    assert 'sqlite3 FILE "REINDEX"' in finding["remedy"]
    quick = report(run("doctor", torn, "--quick", "--json"))
    assert "damaged-file" not in {one["code"] for one in quick["findings"]}
    with closing(sqlite3.connect(torn)) as database:
        database.execute("REINDEX")
    assert run("doctor", torn, "--ignore", "no-session-index").exit_code == 0
    assert len(contents(str(torn))[ADA]) == 2


def test_what_promises_completeness_refuses_the_file(run: Run, torn: Path, tmp_path: Path) -> None:
    before = torn.read_bytes()
    sound = tmp_path / "sound.db"
    asyncio.run(fill(str(sound), {ADA: samples.entries(1)}))
    receipt = tmp_path / "ada.json"
    assert run("erase", sound, "--user", "ada", "--yes", "--receipt", receipt).exit_code == 0
    settings = tmp_path / "memctl.toml"
    settings.write_text(
        f'[stores.prod]\nurl = "{torn}"\n[[retention]]\nname = "old"\nstore = "prod"\n'
        f'action = "delete"\narchive = "{tmp_path}/old-{{date}}.ndjson"\n'
        "select = {keep_last = 1}\n"
    )
    for words in (
        ("erase", torn, "--user", "ada", "--yes"),
        ("verify", "--receipt", receipt, torn),
        ("export", torn, "-o", tmp_path / "night.ndjson", "--rotate", "daily:7"),
        ("export", torn, "-o", tmp_path / "night.csv", "--rotate", "daily:7"),
        ("--config", settings, "retain", "--yes"),
    ):
        fails(run(*words), 8, "is damaged below its rows: row 3 missing from index lost", "REINDEX")
    assert torn.read_bytes() == before
    assert not [*tmp_path.glob("night*"), *tmp_path.glob("old*")]
    assert run("export", torn, "-o", tmp_path / "once.ndjson").exit_code == 0


def test_a_broken_page_is_found_and_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    asyncio.run(fill(str(path), {ADA: samples.entries(300), BOB: samples.entries(300)}))
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        [(size,)] = database.execute("PRAGMA page_size")
        sql = "SELECT MAX(pageno) FROM dbstat WHERE name = 'message' AND pagetype = 'leaf'"
        try:
            [(page,)] = database.execute(sql)
        except sqlite3.OperationalError:  # this SQLite has no dbstat
            page = data.rindex(b'"m0000299"') // size + 1
    data[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(data)
    found = report(run("doctor", path, "--json"), 6)
    [finding] = [one for one in found["findings"] if one["code"] == "damaged-file"]
    assert ".recover" in finding["remedy"]
    fails(run("erase", path, "--user", "ada", "--yes"), 8, "damaged below its rows", ".recover")
    assert path.read_bytes() == data


def test_a_large_file_is_checked_in_a_copy(
    run: Run, torn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1)
    fails(run("erase", torn, "--user", "ada", "--yes"), 8, "row 3 missing from index lost")


def test_an_index_with_a_collation_of_the_application_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    asyncio.run(fill(str(path), {ADA: samples.entries(1)}))
    with closing(sqlite3.connect(path)) as database:
        database.create_collation("own", lambda one, other: (one > other) - (one < other))
        database.execute("CREATE TABLE app (name TEXT COLLATE own PRIMARY KEY)")
    result = run("doctor", path, "--ignore", "no-session-index")
    assert result.exit_code == 0
    assert "cannot compare its indexes with its tables: no such collation" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(
    "layout",
    ["agentscope2", "langchain&owner=ada", "openai-agents&owner=ada", "adk&app=a", "agno"],
)
def test_every_layout_is_checked(run: Run, tmp_path: Path, layout: str) -> None:
    path = tmp_path / "agents.db"
    url = f"sqlite:///{path}?layout={layout}"
    source = tmp_path / "a.ndjson"
    asyncio.run(fill(str(source), {ADA: samples.entries(2)}))
    assert run("import", source, url, "--lossy").exit_code == 0
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE other (name TEXT)")
    lose_row(path, "other", "name", "INSERT INTO other VALUES ('x')")
    assert "damaged-file" in run("doctor", url).stdout
    fails(run("erase", url, "--user", "ada", "--yes"), 8, "row 1 missing from index lost")


@pytest.mark.parametrize("file", ["history.db", "storage.sqlite"])
def test_files_of_mem0_are_checked_too(
    run: Run, tmp_path: Path, servers: Servers, file: str
) -> None:
    store = facts("qdrant", tmp_path, servers)
    path = tmp_path / file
    if file == "history.db":
        with closing(sqlite3.connect(path)) as database:
            database.execute(history._SCHEMA[0])
        lose_row(path, "history", "memory_id", "INSERT INTO history (id) VALUES ('h')")
    else:
        path = max(tmp_path.rglob(file), key=lambda one: one.stat().st_size)
        lose_row(path, "points", "id", "UPDATE points SET id = id || 'x' WHERE rowid = 1")
    found = report(run("doctor", store, "--json"), 6)
    assert "damaged-file" in {one["code"] for one in found["findings"]}
    fails(run("erase", store, "--user", "quokka", "--yes"), 8, str(path), "REINDEX")
