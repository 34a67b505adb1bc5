"""The sessions of Hermes: read, deleted whole, put back, erased, and written for its import."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.support.cli import FRIDAY, Run, contents, fails, report

PARENTS = "SELECT id, parent_session_id FROM sessions ORDER BY id"
SESSIONS = (Path(__file__).parents[1] / "support" / "hermes.sql").read_text("utf-8")


@pytest.fixture
def hermes(tmp_path: Path) -> str:
    """The folder of Hermes with three sessions; see ``hermes.sql``."""
    folder = tmp_path / "hermes"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "state.db")) as database:
        database.executescript(SESSIONS)
    return f"hermes:{folder}"


def rows(store: str, sql: str = "") -> Sequence[Any]:
    """The rows of a query; without one, all rows of all tables that hold sessions."""
    with closing(sqlite3.connect(Path(store.removeprefix("hermes:")) / "state.db")) as database:
        if sql:
            found = database.execute(sql).fetchall()
            database.commit()
            return found
        names = ("sessions", "messages", "session_model_usage")
        return [sorted(database.execute(f"SELECT * FROM {name}").fetchall()) for name in names]


def found_by_index(store: str, word: str) -> int:
    """The number of messages that both indexes of Hermes find together."""
    queries = (
        f"SELECT COUNT(*) FROM {name} WHERE {name} MATCH '{word}'"
        for name in ("messages_fts", "messages_fts_trigram")
    )
    return sum(rows(store, sql)[0][0] for sql in queries)


def test_hermes_context_is_what_it_sends(run: Run, hermes: str) -> None:
    about = report(run("context", hermes, "--session", "s1", "--json"))
    assert [one["id"] for one in about["messages"]] == [*"123478"]
    about = report(run("inspect", hermes, "--json"))
    found = {one["session"]: one for one in about["memories"]}
    assert found["s1"]["title"] == "The train"
    assert found["s1"]["messages"] == 8
    assert "2 rewound" in run("context", hermes, "--session", "s1").stdout
    assert "2 compacted" in run("context", hermes, "--session", "s3").stdout
    assert found["s3"]["project"] == "/home/ada/blog"
    about = report(run("inspect", hermes, "--project", "/home/ada/blog", "--json"))
    assert [one["session"] for one in about["memories"]] == ["s3"]
    assert report(run("search", hermes, "xylophone", "--json"))["hits"]


def test_hermes_delete_and_undo_leave_no_difference(run: Run, hermes: str) -> None:
    before = rows(hermes)
    done = run("delete", hermes, "--session", "s1", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "VACUUM INTO" in done.stderr
    assert rows(hermes, PARENTS) == [("s2", None), ("s3", None)]
    assert rows(hermes, "SELECT COUNT(*) FROM session_model_usage") == [(0,)]
    assert found_by_index(hermes, "xylophone") == 0
    assert rows(hermes, "PRAGMA foreign_key_check") == []
    assert run("undo", "--yes").exit_code == 0
    assert rows(hermes) == before
    assert found_by_index(hermes, "xylophone") == 2


def test_hermes_archive_brings_sessions_back(run: Run, hermes: str, tmp_path: Path) -> None:
    before, archive = rows(hermes), tmp_path / "a.ndjson"
    assert run("export", hermes, "-o", archive).exit_code == 0
    assert run("delete", hermes, "--all", "--yes").exit_code == 0
    assert rows(hermes, "SELECT COUNT(*) FROM messages") == [(0,)]
    assert run("import", archive, hermes).exit_code == 0
    assert rows(hermes) == before
    assert run("verify", archive, hermes).exit_code == 0


def test_hermes_retain_archives_and_deletes(run: Run, hermes: str, tmp_path: Path) -> None:
    before, config = rows(hermes), tmp_path / "config.toml"
    config.write_text(
        f'[stores.agent]\nurl = "{hermes}"\n'
        '[[retention]]\nname = "old"\nstore = "agent"\naction = "delete"\n'
        f'archive = "{tmp_path}/old-{{date}}.ndjson.zst"\nselect = {{ until = "2100-01-01" }}\n'
    )
    done = run("--config", config, "retain", "--yes")
    assert done.exit_code == 0, done.stderr
    assert rows(hermes) == [[], [], []]
    [archive] = tmp_path.glob("old-*")
    assert run("import", archive, hermes).exit_code == 0
    assert rows(hermes) == before


def test_hermes_delete_by_age_takes_whole_sessions(run: Run, hermes: str) -> None:
    rows(hermes, "UPDATE messages SET timestamp = timestamp - 1e8 WHERE session_id = 's1'")
    rows(hermes, "UPDATE messages SET timestamp = timestamp - 1e8 WHERE id = 9")
    assert run("delete", hermes, "--until", "2024-01-01", "--yes").exit_code == 0
    assert rows(hermes, "SELECT id FROM sessions ORDER BY id") == [("s2",), ("s3",)]


def test_hermes_keeps_what_memctl_cannot_change(run: Run, hermes: str) -> None:
    before = rows(hermes)
    fails(run("delete", hermes, "--match", "xylophone", "--yes"), 2, "deletes its sessions whole")
    names = ("--user", "ada", "--session", "kyoto")
    done = run("migrate", FRIDAY, hermes, *names, "--lossy")
    assert done.exit_code == 7
    assert "export STORE --as hermes" in done.stderr
    assert rows(hermes) == before
    rows(hermes, f"UPDATE messages SET timestamp = {time.time()} WHERE id = 16")
    [failure] = report(run("delete", hermes, "--all", "--yes", "--json"), 7)["failures"]
    assert (failure["session"], failure["code"]) == ("s3", "locked")
    assert "try it later" in failure["message"]
    done = run("erase", hermes, "--session", "s3", "--yes")
    assert "try it later" in done.stdout + done.stderr
    assert rows(hermes, "SELECT id FROM sessions") == [("s3",)]


def test_hermes_erase_leaves_no_text(run: Run, hermes: str) -> None:
    folder = Path(hermes.removeprefix("hermes:"))
    (folder / "sessions").mkdir()
    for name in ("s1.json", "request_dump_s1_1.json", "s10.json"):
        (folder / "sessions" / name).write_text("xylophone")
    done = run("erase", hermes, "--session", "s1", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "memories made of the session" in done.stdout
    assert [one.name for one in (folder / "sessions").iterdir()] == ["s10.json"]
    for file in folder.iterdir():
        if file.is_file():
            assert b"xylophone" not in file.read_bytes()
            assert b"sent otherwise" not in file.read_bytes()
    assert rows(hermes, PARENTS) == [("s2", None), ("s3", None)]


def test_hermes_export_is_what_it_imports(run: Run, hermes: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    assert run("export", hermes, "--as", "hermes", "-o", path).exit_code == 0
    [one, two, three] = json.loads(path.read_text())
    assert (one["id"], one["title"], two["parent_session_id"]) == ("s1", "The train", "s1")
    assert [message["content"] for message in three["messages"]] == [
        *("[SUMMARY] A post was written.", "Go on."),
    ]
    assert one["messages"][1]["tool_calls"][0]["function"]["name"] == "timetable"
    assert one["messages"][4]["content"][1]["type"] == "image_url"
    names = ("--user", "ada", "--session", "kyoto", "--all-messages")
    fails(run("export", FRIDAY, "--as", "hermes", "-o", path, "--force", *names), 9, "--lossy")
    assert (
        run(*("export", FRIDAY, "--as", "hermes", "-o", path, "--force", "--lossy")).exit_code == 0
    )
    [friday] = json.loads(path.read_text())
    assert [one["role"] for one in friday["messages"]][:3] == ["user", "user", "assistant"]


def test_hermes_sessions_go_into_other_stores(run: Run, hermes: str, tmp_path: Path) -> None:
    target = tmp_path / "agents.db"
    assert run("migrate", hermes, target).exit_code == 0
    found = contents(str(target))
    assert len(found[MemoryKey("", "s1")]) == 6
    assert run("verify", hermes, target).exit_code == 0


def test_hermes_other_databases_are_named(run: Run, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        database.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY)")
    fails(run("inspect", f"hermes:{tmp_path}"), 8, "it is no database of Hermes")
    fails(run("inspect", f"hermes:{tmp_path / 'no'}"), 4, "does not exist")
