"""Stores and folders of another user: what may not be done is refused, and nothing is changed."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from memctl.model import MemoryKey
from memctl.storekit.locks import FileLock
from memctl.testing import samples
from tests.support.cli import Run, fill
from tests.support.other_user import (
    OTHER,
    ROOT,
    can_be_plain,
    give_away,
    run_plain,
    start_plain,
    take_back,
)
from tests.support.processes import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not can_be_plain(), reason="root cannot run memctl without root's rights here"
    ),
]

KEY = MemoryKey("ada", "kyoto")
STORES = ["m.db", "wal.db", "m.ndjson", "kyoto.json", "sessions/"]
CHANGES = {
    "delete": ("--mark", "hint", "--yes"),
    "doctor": ("--repair", "--yes"),
    "erase": ("--user", "ada", "--yes"),
}


@pytest.fixture
def theirs(run: Run, tmp_path: Path) -> Iterator[Path]:
    """A folder with stores, which ``give_away`` makes another user's."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    asyncio.run(fill(f"{folder}/m.db", {KEY: samples.entries(20)}))
    for name in STORES[1:]:
        assert run("migrate", folder / "m.db", f"{folder}/{name}").exit_code == 0
    for record in run_folders():
        shutil.rmtree(record)
    with closing(sqlite3.connect(folder / "wal.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
    yield folder
    take_back(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder."""
    take_back(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def refused(result: CompletedProcess[str], *said: str) -> None:
    """The run ended with 3, and told why on one line and what to do on the next."""
    assert result.returncode == 3, (result.returncode, result.stdout, result.stderr)
    lines = result.stderr.splitlines()
    assert [line.startswith("memctl: error: ") for line in lines] == [True, False], result.stderr
    assert lines[1].startswith("  hint: ")
    assert any(text in lines[0] for text in said), lines[0]


def run_folders() -> list[Path]:
    """Return the folders of the runs that are kept."""
    runs = Path(os.environ["XDG_STATE_HOME"], "memctl", "runs")
    return [path for path in runs.iterdir() if path.is_dir()] if runs.exists() else []


@pytest.mark.parametrize("name", STORES)
def test_store_that_may_not_be_read(theirs: Path, tmp_path: Path, name: str) -> None:
    give_away(theirs / name, 0)
    words = "no permission to read", "unable to open database file"
    for command in ("inspect", "doctor", "export"):
        refused(run_plain(command, theirs / name), *words)
    refused(run_plain("migrate", theirs / name, tmp_path / "new.db"), *words)
    assert not (tmp_path / "new.db").exists()
    give_away(theirs, 0)
    found = run_plain("inspect", theirs / name, "--json")
    assert (found.returncode, json.loads(found.stdout)["error"]["code"]) == (3, "unavailable")


@pytest.mark.parametrize("name", STORES)
def test_store_that_may_only_be_read(theirs: Path, tmp_path: Path, name: str) -> None:
    before = contents(theirs)
    give_away(theirs, 4)
    store = theirs / name
    found = json.loads(run_plain("inspect", store, "--json").stdout)
    assert found["totals"]["messages"] == 20
    assert run_plain("export", store, "-o", tmp_path / "copy.ndjson").returncode == 0
    assert run_plain("verify", store, tmp_path / "copy.ndjson").returncode == 0
    for command, words in CHANGES.items():
        if (command, name) == ("erase", "kyoto.json"):  # a state does not say whose it is
            continue
        refused(run_plain(command, store, *words), "no permission", "readonly", "cannot write")
    refused(run_plain("mark", "add", "--all", store, "new"), "no permission", "cannot write")
    words = ("import", tmp_path / "copy.ndjson", store, "--on-conflict", "replace", "--yes")
    refused(run_plain(*words), "no permission", "cannot write")
    assert contents(theirs) == before
    assert not run_folders()


LAYOUTS = ["agentscope2", "agno", "openai-agents&owner=ada", "langchain&owner=ada"]


def unfinished(theirs: Path, name: str, mode: str) -> Path:
    """Copy a database as a program that was killed leaves it; return the copy.

    The last message is in the log alone, or the first one only in the journal.
    """
    source = theirs / name
    copy = theirs / "killed" / name
    copy.parent.mkdir()
    with closing(sqlite3.connect(source, isolation_level=None)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("PRAGMA cache_size = 1")  # changes go to the file before they are made
        database.execute("BEGIN")
        if mode == "wal":
            [last] = database.execute('SELECT id FROM message ORDER BY "index" DESC').fetchone()
            database.execute(
                "UPDATE message SET msg = json_set(msg, '$.content', 'from the log') WHERE id = ?",
                [last],
            )
            database.execute("COMMIT")
        else:
            database.execute("UPDATE message SET msg = hex(randomblob(20000))")
        for end in ("", "-wal", "-journal"):
            if os.path.exists(f"{source}{end}"):
                shutil.copy(f"{source}{end}", f"{copy}{end}")
    return copy


@pytest.mark.parametrize(("mode", "end"), [("wal", "-wal"), ("delete", "-journal")])
def test_database_that_was_being_written_may_only_be_read(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, end: str
) -> None:
    """What is in its log counts, and what is in its journal is rolled back, in a private copy."""
    copy = unfinished(theirs, "m.db", mode)
    assert Path(f"{copy}{end}").exists()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = contents(theirs)
    give_away(theirs, 4)
    shown = run_plain("inspect", copy, "--json", "-v")
    assert json.loads(shown.stdout)["totals"]["messages"] == 20, shown.stderr
    assert f"{copy} is read through a private copy: {temporary}" in shown.stderr
    assert "private" not in run_plain("inspect", copy).stderr
    exported = run_plain("export", copy, "-o", tmp_path / "a.ndjson")
    assert exported.returncode == 0, exported.stderr
    text = (tmp_path / "a.ndjson").read_text()
    assert text.count("from the log") == (mode == "wal")
    assert text.count('"content":') == 20
    assert run_plain("doctor", copy).returncode in (0, 6)  # the samples have marks without summary
    assert run_plain("delete", copy, "--all", "--dry-run").returncode == 0
    refused(run_plain("delete", copy, "--all", "--yes"), "cannot write", "readonly")
    assert contents(theirs) == before
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_database_in_wal_mode_of_another_layout_may_only_be_read(
    run: Run, theirs: Path, layout: str
) -> None:
    path = theirs / "other.db"
    words = ("migrate", theirs / "m.db", f"sqlite:///{path}?layout={layout}", "--lossy")
    assert run(*words).exit_code == 0
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
    expected = json.loads(run_plain("inspect", path, "--json").stdout)["totals"]
    assert expected["messages"]
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    give_away(theirs, 4)
    found = run_plain("inspect", path, "--json")
    assert json.loads(found.stdout)["totals"] == expected


def test_private_copy_without_room(theirs: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    give_away(theirs, 4)
    found = run_plain("inspect", theirs / "wal.db", preexec_fn=limit)
    refused(found, "private copy")
    assert "set TMPDIR" in found.stderr


def test_private_copy_goes_when_the_run_is_stopped(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(theirs / "wal.db")) as database:
        database.execute("CREATE TABLE large (data BLOB)")
        database.execute("INSERT INTO large VALUES (zeroblob(200000000))")
        database.commit()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    give_away(theirs, 4)
    started = start_plain("export", theirs / "wal.db", "-o", tmp_path / "a.ndjson")
    wait_until(lambda: any(temporary.iterdir()))
    started.send_signal(signal.SIGINT)
    started.communicate()
    assert started.returncode in (0, 130)  # it may have been quicker
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("name", ["new.db", "new.ndjson", "new.json", "new/"])
def test_folder_that_may_not_be_written(theirs: Path, name: str) -> None:
    before = contents(theirs)
    give_away(theirs, 4)
    target = f"{theirs}/{name}"
    refused(run_plain("migrate", theirs / "m.db", target), "no permission", "unable to open")
    if not name.endswith("db"):
        words = ("--as", "markdown") if name.endswith("/") else ()
        refused(run_plain("export", theirs / "m.db", "-o", target, *words), "no permission")
    assert contents(theirs) == before


@pytest.mark.parametrize("name", STORES)
def test_state_folder_that_may_not_be_written(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing is deleted that could not be restored."""
    store = theirs / name
    assert run_plain("inspect", store).returncode == 0  # SQLite leaves the files of a log
    before = contents(theirs)
    state = tmp_path / "state"
    state.mkdir()
    give_away(state, 4)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert run_plain("inspect", store).returncode == 0
    refused(run_plain("delete", store, "--mark", "hint", "--yes"), "cannot be used")
    assert contents(theirs) == before
    take_back(state)


def test_configuration_that_may_not_be_read(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    give_away(config, 0)
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    found = run_plain("inspect", theirs / "m.db")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"memctl: error: the configuration {config} cannot be read: ")


def test_cache_that_may_not_be_written(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    give_away(cache, 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    found = run_plain("search", theirs / "m.db", "message")
    assert (found.returncode, "no index is kept" in found.stderr) == (0, True)
    refused(run_plain("index", "update", theirs / "m.db"), "cache")
    take_back(cache)


@pytest.mark.skipif(not ROOT, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", STORES)
def test_file_of_another_user_stays_theirs(run: Run, theirs: Path, name: str) -> None:
    """An operator who is root changes the store of an agent, which must still be able to."""
    give_away(theirs, 0)
    before = {path: path.stat() for path in [theirs, *theirs.rglob("*")]}
    assert run("delete", theirs / name, "--mark", "hint", "--yes").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    for path in [theirs, *theirs.rglob("*")]:
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (OTHER, OTHER), path
        assert path not in before or found.st_mode == before[path].st_mode


@pytest.mark.skipif(not ROOT, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", STORES)
def test_folder_that_all_may_write_but_keeps_files_to_their_owners(theirs: Path, name: str) -> None:
    """As /tmp does.  A database is written in place; other files would have to be replaced."""
    give_away(theirs, 7)
    for path in [theirs, *(one for one in theirs.rglob("*") if one.is_dir())]:
        path.chmod(0o1777)
    before = contents(theirs)
    found = run_plain("delete", theirs / name, "--mark", "hint", "--yes")
    if name.endswith(".db"):
        assert found.returncode == 0, found.stderr
        assert run_plain("undo", "--yes").returncode == 0
        assert "20" in run_plain("inspect", theirs / name).stdout
    else:
        refused(found, "belongs to another user")
        assert contents(theirs) == before


@pytest.mark.skipif(not ROOT, reason="only root can give a file to another user")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("name", ["m.db", "m.ndjson", "sessions/"])
def test_lock_that_a_killed_run_of_another_user_left(theirs: Path, name: str, mode: int) -> None:
    """In a folder like /tmp, memctl may not remove it."""
    place = theirs / name
    lock = place / ".memctl-lock" if place.is_dir() else theirs / f".{name}.memctl-lock"
    lock.write_text("another run\n")
    give_away(lock, 4)
    for folder in {theirs, lock.parent}:
        os.chown(folder, OTHER, OTHER)
        folder.chmod(mode)
    assert run_plain("delete", place, "--mark", "hint", "--yes").returncode == 0
    assert lock.exists() == (mode == 0o1777)
    with FileLock(place, name).held("this run"):
        assert run_plain("undo", "--yes").returncode == 75
    assert run_plain("undo", "--yes").returncode == 0
