"""The sessions of OpenCode: read, deleted whole, put back, erased, and written for its import."""

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

SESSIONS = (Path(__file__).parents[1] / "support" / "opencode.sql").read_text("utf-8")
START = 1_763_700_000_000
"""The time of the first message that a test adds, in milliseconds since 1970."""


@pytest.fixture
def opencode(tmp_path: Path) -> str:
    """The folder of OpenCode with the session ``ses_one``; see ``opencode.sql``."""
    folder = tmp_path / "opencode"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "opencode.db")) as database:
        database.executescript(SESSIONS)
    return f"opencode:{folder}"


def rows(store: str, sql: str = "", *values: Any) -> Sequence[Any]:
    """The rows of a query; without one, all rows of a session that memctl keeps."""
    place = Path(store.removeprefix("opencode:")) / "opencode.db"
    with closing(sqlite3.connect(place)) as database:
        if sql:
            found = database.execute(sql, values).fetchall()
            database.commit()
            return found
        names = ("session", "message", "part", "todo")
        return [sorted(database.execute(f"SELECT * FROM {name}").fetchall()) for name in names]


def add(store: str, number: int, info: dict[str, Any], *parts: dict[str, Any]) -> None:
    """Add a message to the session ``ses_one``, which gets the id ``mN``."""
    moment = START + number
    values = (f"m{number}", "ses_one", moment, moment, json.dumps(info))
    rows(store, "INSERT INTO message VALUES (?, ?, ?, ?, ?)", *values)
    for at, part in enumerate(parts):
        more = (f"p{number}-{at}", *values[:4], json.dumps(part))
        rows(store, "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", *more)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def sent(run: Run, store: str) -> str:
    """The messages of the session that ``context`` shows."""
    done = run("context", store, "--session", "ses_one")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_opencode_context_begins_with_the_compaction(run: Run, opencode: str) -> None:
    shown = sent(run, opencode)
    assert "What did we do so far?" in shown
    assert "And now?" in shown
    assert "My train" not in shown
    assert "5 compacted" in shown
    [found] = report(run("inspect", opencode, "--json"))["memories"]
    assert (found["messages"], found["project"]) == (9, "/srv/shop")
    assert found["last"].startswith("2025-11-20T")
    assert report(run("search", opencode, "train", "--json"))["hits"]


def test_opencode_a_compaction_keeps_its_tail(run: Run, opencode: str) -> None:
    [[first]] = rows(
        opencode, "SELECT message_id FROM part WHERE data LIKE '%CALL bash%' AND data LIKE '%text%'"
    )
    sql = "UPDATE part SET data = json_set(data, '$.tail_start_id', ?) WHERE data LIKE ?"
    rows(opencode, sql, first, '%"compaction"%')
    about = report(run("context", opencode, "--json"))
    assert [json.loads(one["message"]["content"]["data"])["role"] for one in about["messages"]] == [
        *("user", "assistant", "user", "assistant", "assistant", "user", "assistant"),
    ]
    assert about["messages"][2]["id"] == first


def test_opencode_calls_that_run_failed_answers_and_what_was_taken_back(
    run: Run, opencode: str
) -> None:
    running = {"status": "running", "input": {"command": "sleep 9"}, "time": {"start": 1}}
    call = {"type": "tool", "callID": "c9", "tool": "bash", "state": running}
    add(opencode, 1, {"role": "user"}, text("Sleep."))
    add(opencode, 2, {"role": "assistant"}, text("Yes."), call)
    add(opencode, 3, {"role": "assistant", "error": {"name": "APIError"}}, text("Broken."))
    add(opencode, 4, {"role": "user"}, text("Forget this."), text("And this."))
    add(opencode, 5, {"role": "assistant"}, text("Forgotten."))
    shown = sent(run, opencode)
    assert "[Tool execution was interrupted]" in shown
    assert "Broken." not in shown
    assert "Forgotten." in shown
    sql = "UPDATE session SET revert = ?"
    rows(opencode, sql, json.dumps({"messageID": "m4"}))
    assert "Forget" not in sent(run, opencode)
    rows(opencode, sql, json.dumps({"messageID": "m4", "partID": "p4-1"}))
    shown = sent(run, opencode)
    assert "Forget this." in shown
    assert "And this." not in shown
    assert "Forgotten." not in shown


def test_opencode_delete_and_undo_leave_no_difference(run: Run, opencode: str) -> None:
    rows(opencode, "INSERT INTO todo VALUES ('ses_one', 'buy', 'pending', 'high', 0, 1, 1)")
    before = rows(opencode)
    done = run("delete", opencode, "--session", "ses_one", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "VACUUM INTO" in done.stderr
    assert rows(opencode) == [[], [], [], []]
    assert rows(opencode, "SELECT COUNT(*) FROM event") == [(0,)]
    assert rows(opencode, "PRAGMA foreign_key_check") == []
    assert run("undo", "--yes").exit_code == 0
    assert rows(opencode) == before


def test_opencode_archive_brings_sessions_back_without_secrets(
    run: Run, opencode: str, tmp_path: Path
) -> None:
    sql = "INSERT INTO account VALUES ('a', 'ada@example.com', 'u', 'TOKEN1', 'TOKEN2', 1, 1, 1)"
    rows(opencode, sql)
    sql = "INSERT INTO session_share VALUES ('ses_one', 'share', 'TOKEN3', 'u', 1, 1)"
    rows(opencode, sql)
    before, archive = rows(opencode), tmp_path / "a.ndjson"
    assert run("export", opencode, "-o", archive).exit_code == 0
    assert b"TOKEN" not in archive.read_bytes()
    assert run("delete", opencode, "--all", "--yes").exit_code == 0
    assert run("import", archive, opencode).exit_code == 0
    assert rows(opencode) == before
    assert run("verify", archive, opencode).exit_code == 0
    assert run("delete", opencode, "--all", "--yes").exit_code == 0
    rows(opencode, "DELETE FROM project")
    done = run("import", archive, opencode)
    assert done.exit_code == 7
    assert "the project 'global' of the session is not there" in done.stderr


def test_opencode_keeps_what_memctl_cannot_change(run: Run, opencode: str) -> None:
    before = rows(opencode)
    fails(run("delete", opencode, "--match", "train", "--yes"), 2, "deletes its sessions whole")
    done = run("migrate", FRIDAY, opencode, "--user", "ada", "--session", "kyoto", "--lossy")
    assert done.exit_code == 7
    assert "export STORE --as opencode" in done.stderr
    assert rows(opencode) == before
    rows(opencode, "UPDATE message SET time_updated = ?", int(time.time() * 1000))
    done = run("delete", opencode, "--all", "--yes")
    assert "try it later" in done.stdout + done.stderr
    done = run("erase", opencode, "--session", "ses_one", "--yes")
    assert "try it later" in done.stdout + done.stderr
    assert rows(opencode, "SELECT id FROM session") == [("ses_one",)]


def test_opencode_erase_leaves_no_text(run: Run, opencode: str) -> None:
    folder = Path(opencode.removeprefix("opencode:"))
    changes = folder / "storage" / "session_diff"
    changes.mkdir(parents=True)
    (changes / "ses_one.json").write_text("My train")
    done = run("erase", opencode, "--session", "ses_one", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "snapshots" in done.stdout
    assert list(changes.iterdir()) == []
    for file in folder.iterdir():
        assert file.is_dir() or b"My train" not in file.read_bytes()


def test_opencode_export_is_what_it_imports(run: Run, opencode: str, tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    add(opencode, 1, {"role": "user"}, text("Forget this."))
    rows(opencode, "UPDATE session SET revert = ?", json.dumps({"messageID": "m1"}))
    assert run("export", opencode, "--as", "opencode", "-o", path).exit_code == 0
    found = json.loads(path.read_text())
    assert (found["info"]["id"], found["info"]["directory"]) == ("ses_one", "/srv/shop")
    assert len(found["messages"]) == 9
    assert found["messages"][0]["parts"][0]["text"] == "My train is at nine."
    fails(run("export", FRIDAY, "--as", "opencode", "-o", path, "--force"), 9, "--lossy")
    done = run("export", FRIDAY, "--as", "opencode", "-o", path, "--force", "--lossy")
    assert done.exit_code == 0, done.stderr
    friday = json.loads(path.read_text())["messages"]
    [tool] = [one for message in friday for one in message["parts"] if one["type"] == "tool"]
    assert (tool["tool"], tool["state"]["status"]) == ("search", "completed")
    assert friday[2]["info"]["parentID"] == friday[1]["info"]["id"]


def test_opencode_sessions_go_into_other_stores(run: Run, opencode: str, tmp_path: Path) -> None:
    target = tmp_path / "agents.db"
    assert run("migrate", opencode, target).exit_code == 0
    assert run("verify", opencode, target).exit_code == 0
    target = tmp_path / "all.db"
    assert run("migrate", opencode, target, "--all-messages").exit_code == 0
    found = [json.loads(one.message) for one in contents(str(target))[MemoryKey("", "ses_one")]]
    kinds = [block["type"] for one in found for block in one["content"] if "type" in block]
    assert kinds.count("tool_use") == kinds.count("tool_result") == 1
