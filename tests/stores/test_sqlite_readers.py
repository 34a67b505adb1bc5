"""SQLite files that are read while agents write to them."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from memctl.engines.sql import sqlite, sqlite_files
from memctl.engines.sql.sqlite_driver import Call, open_driver
from memctl.engines.sql.sqlite_files import SnapshotCopy
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.agentscope1.sql import sqlite as tables
from memctl.stores.agentscope1.sql.store import SqlMemoryStore
from memctl.testing import samples
from memctl.testing.drive import write_all
from memctl.testing.samples import sample

KEYS = [MemoryKey("alice", "s1"), MemoryKey("bob", "s2")]
MESSAGES = 1500
"""The number of messages of each memory: more than a page."""
OLD = Selection(marks=frozenset({"hint"}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two memories."""
    found = tmp_path / "m.db"

    async def fill() -> None:
        async with make_store(parse(str(found)), OpenMode.CREATE) as store:
            await write_all(store, [sample(key, samples.entries(MESSAGES)) for key in KEYS])

    asyncio.run(fill())
    return found


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The copies that are made."""
    found: list[Path] = []
    make = SnapshotCopy.make

    async def noted(snapshot: SnapshotCopy, stamp: str | None) -> bool:
        made = await make(snapshot, stamp)
        if snapshot.path is not None:
            found.append(snapshot.path)
        return made

    monkeypatch.setattr(SnapshotCopy, "make", noted)
    return found


def opened(path: Path) -> Store:
    return make_store(parse(str(path)))


@contextmanager
def agent(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that waits for others while they fetch some rows, not for a whole read."""
    with closing(sqlite3.connect(path, timeout=0.5)) as database:
        yield database


def add(path: Path) -> None:
    """A message more at the end of the last memory."""
    user, session, _ = KEYS[-1]
    with agent(path) as database, database:
        database.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?)",
            (f"{user}-{session}-new", json.dumps({"id": "new"}), session, 10**6),
        )


async def test_sqlite_small_file_is_read_itself(path: Path, copies: list[Path]) -> None:
    async with opened(path) as store:
        pages = [page async for page in store.read(Selection())]
    assert sum(len(page.messages) for page in pages) == 2 * MESSAGES
    assert not copies


@pytest.mark.slow
async def test_sqlite_large_file_is_read_from_a_copy(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1000)
    found = []
    async with opened(path) as store:
        async for page in store.read(Selection()):
            if not found:
                assert len(copies) == 1
                add(path)
            found += [entry.id for entry in page.messages]
        assert len(found) == 2 * MESSAGES
        assert "new" not in found, "what is read is of one moment"
        again = [e.id async for page in store.read(Selection()) for e in page.messages]
        assert again.count("new") == 1
    assert len(copies) == 2
    assert not any(copy.exists() for copy in copies)


@pytest.mark.parametrize("large", [False, True])
async def test_sqlite_nobody_waits_while_a_large_file_is_counted(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1000 if large else 10**9)
    rows, waits = tables.SqliteTables.rows, list[bool]()

    async def slow(*args: Any) -> AsyncGenerator[Sequence[Any]]:
        async for some in rows(*args):
            if not waits:
                try:
                    add(path)
                    waits.append(False)
                except sqlite3.OperationalError:
                    waits.append(True)
            yield some

    monkeypatch.setattr(tables.SqliteTables, "rows", slow)
    async with opened(path) as store:
        found = [info.messages async for info in store.list_memories(Selection())]
        assert found == [MESSAGES, MESSAGES]
        assert waits == [not large]
        assert len(copies) == large
        [_, last] = [info.messages async for info in store.list_memories(Selection())]
        assert last == MESSAGES + large, "a file that has changed is copied again"
    assert not any(copy.exists() for copy in copies)


@pytest.mark.parametrize("lacks", ["room", "cp"])
async def test_sqlite_file_that_cannot_be_copied_is_read_itself(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1000)
    if lacks == "cp":
        monkeypatch.setenv("PATH", "")
    else:
        monkeypatch.setattr(sqlite_files.shutil, "disk_usage", lambda _: Mock(free=1000))
    async with opened(path) as store:
        pages = [page async for page in store.read(Selection())]
    assert sum(len(page.messages) for page in pages) == 2 * MESSAGES
    assert not copies


@pytest.mark.slow
async def test_sqlite_copy_serves_as_long_as_the_file_stays_as_it_is(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1000)
    os.utime(path, (1, 1))
    async with opened(path) as store:
        for _ in range(2):
            assert len([info async for info in store.list_memories(Selection())]) == 2
    assert len(copies) == 1


async def test_sqlite_reading_that_takes_long_goes_on_in_a_copy(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_files, "MAX_WAIT", 0)
    found: list[str] = []
    async with opened(path) as store:
        async for page in store.read(Selection()):
            if page.memory.key == KEYS[1] and not page.offset:
                assert len(copies) == 1
                add(path)
            found += [entry.id for entry in page.messages]
    assert len(found) == 2 * MESSAGES
    assert "new" not in found, "what is read is of one moment"
    assert not any(copy.exists() for copy in copies)


async def test_sqlite_window_of_a_large_file_is_not_copied(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1000)
    async with opened(path) as store:
        page = await store.window(KEYS[0], 0, 10)
        assert page is not None
        assert len(page.messages) == 10
    assert not copies


async def test_sqlite_nobody_waits_for_readers_in_wal_mode(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 1000)
    with agent(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
    found = []
    async with opened(path) as store:
        async for page in store.read(Selection()):
            if not found:
                add(path)
            found += [entry.id for entry in page.messages]
    assert len(found) == 2 * MESSAGES
    assert not copies


async def test_sqlite_who_picks_hinders_nobody(path: Path, copies: list[Path]) -> None:
    """The list of messages is of one moment; a message deleted before its text is read is left out.

    Another that gets the number of its row is not taken for it.
    """
    with agent(path) as database, database:
        [[last]] = database.execute("SELECT id FROM message ORDER BY rowid DESC LIMIT 1")
        database.execute("INSERT OR IGNORE INTO message_mark VALUES (?, 'hint')", (last,))
    found: list[str] = []
    expected = await _picked(path)
    assert last.endswith(expected[-1])
    async with opened(path) as store:
        async for page in store.read_with_anchors(OLD):
            if not found:
                with agent(path) as database, database:
                    database.execute("DELETE FROM message WHERE id = ?", (last,))
                    database.execute("UPDATE message_mark SET mark = 'new' WHERE mark = 'hint'")
                add(path)
            found += [entry.id for entry in page.messages]
            assert all(json.loads(entry.message)["id"] == entry.id for entry in page.messages)
    assert found == expected[:-1]
    assert not copies


async def _picked(path: Path) -> list[str]:
    async with opened(path) as store:
        return [entry.id async for page in store.read_with_anchors(OLD) for entry in page.messages]


async def test_sqlite_who_searches_hinders_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than it takes to look through some messages."""
    monkeypatch.setattr(tables, "SEARCH_ROWS", 700)
    seen = 0

    def matches(texts: Sequence[bytes]) -> Iterator[int]:
        nonlocal seen
        for place, text in enumerate(texts):
            seen += 1
            if b'"id": "new"' in text or seen % 1000 == 0:
                yield place

    found = []
    async with opened(path) as store:
        async for key, _ in store.find_messages(Selection(), matches):
            if not found:
                add(path)
            found.append(key)
    assert seen == 2 * MESSAGES + 1
    assert found == [KEYS[0], KEYS[1], KEYS[1], KEYS[1]]


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_sqlite_transactions_of_a_run_share_a_journal(path: Path, mode: str) -> None:
    """The journal goes with the run; the journal mode of the file stays its owner's choice."""
    with agent(path) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
    async with (
        SqlMemoryStore(parse(str(path)), OpenMode.CHANGE) as store,
        store.database.connect() as connection,
    ):
        for _ in range(2):
            async with store.database.transaction(connection):
                await connection.exec_driver_sql('UPDATE message SET "index" = "index" + 1')
            assert has_journal(path) == (mode == "delete")
    assert not has_journal(path)
    with agent(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == (mode,)


def has_journal(path: Path) -> bool:
    return Path(f"{path}-journal").exists()


def test_sqlite_connection_that_is_closed_leaves_no_lock(path: Path) -> None:
    """Even if a cursor of it with rows left is still there, as in the traceback of an error."""
    driver = open_driver(str(path), Call())
    driver.execute("BEGIN")
    cursor = driver.execute("SELECT id FROM message")
    assert cursor.fetchone()
    driver.close()
    with closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("BEGIN EXCLUSIVE")
    driver.close()


_WRITE = (
    "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('CREATE TABLE t (x)')"
)


@pytest.mark.parametrize("new", [False, True])
async def test_sqlite_program_that_uses_memctl_keeps_its_locks(
    path: Path, tmp_path: Path, new: bool
) -> None:
    """A system drops all locks of a process on a file as soon as the process closes the file."""
    file = tmp_path / "new.db" if new else path
    with closing(sqlite3.connect(file, isolation_level=None)) as program:
        program.execute("BEGIN IMMEDIATE")
        program.execute("CREATE TABLE own (x)")
        if new:
            assert parse(str(file)).kind == "sqlite"
        else:
            async with opened(file) as store:
                assert len([info async for info in store.list_memories(Selection())]) == len(KEYS)
        assert "database is locked" in error_of_another_program(file)
        program.execute("COMMIT")


def error_of_another_program(file: Path) -> str:
    """Return what a program says that writes to the file."""
    done = subprocess.run([sys.executable, "-c", _WRITE, file], capture_output=True, text=True)
    return done.stderr


def threads() -> list[threading.Thread]:
    """Return the threads of connections."""
    return [one for one in threading.enumerate() if "connection_worker" in one.name]


async def test_sqlite_store_that_is_closed_ends_connections_that_are_left(path: Path) -> None:
    """As a task that was cancelled may leave one behind: nobody closes the reading here."""
    async with opened(path) as store:
        pages = store.read(Selection())
        await anext(pages)
        assert threads()
    assert not threads()
    with closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ValueError, match="no active connection"):
        await pages.aclose()


async def test_sqlite_damage_is_named_where_a_copy_is_read(
    path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 0)
    first, second = KEYS
    sql = "UPDATE message SET \"index\" = 'x' WHERE session_id = ?"
    with agent(path) as database:
        database.execute(sql, [second.session])
        database.commit()
    async with SqlMemoryStore(parse(str(path))) as store:
        assert {page.memory.key async for page in store.read(Selection())} == {first}
        assert store.left_out.failures.keys() == {second}
    assert copies
