"""``memctl rename --project``: sessions of coding agents follow a folder that has moved."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.machine.zstd import compress, decompress
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.commands.test_rename import KILLED
from tests.support.agent_sessions import (
    CLAUDE,
    beside,
    claude_line,
    claude_session,
    codex_session,
    settle,
)
from tests.support.cli import Run, add, fails, report
from tests.support.places import runs_folder

SUPPORT = Path(__file__).parents[1] / "support"
OLD, NEW = "/home/ada/shop", "/srv/work/my.market"
IDS = [f"5c2d1e00-0000-4000-8000-{number:012x}" for number in range(1, 6)]
FOLDERS = [OLD, f"{OLD}/web", "/home/ada/shoptalk", NEW]


def lines(*found: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in found)


def claude(place: Path) -> Path:
    """Write the folder of Claude Code, with sessions of four projects and all that names one."""
    folder = place / ".claude"
    for id, project in zip(IDS, FOLDERS, strict=False):
        claude_session(folder, f"I work in {OLD}", "So be it.", id=id, project=project)
    both = claude_line(2, "It was moved meanwhile", sessionId=CLAUDE, cwd=NEW)
    links = f"<persisted-output> {folder}/projects/-home-ada-shop/{CLAUDE}/tool-results/1.txt"
    more: list[dict[str, Any]] = [
        both,
        claude_line(4, links, sessionId=CLAUDE, cwd=f"{OLD}/web"),
        {"type": "worktree-state", "worktreeSession": {"originalCwd": OLD, "worktreePath": "/w"}},
        {"type": "file-history-snapshot", "snapshot": {"trackedFileBackups": {f"{OLD}/a": {}}}},
        {"type": "attachment", "attachment": {"snapshot": {"workingDirectory": OLD}}},
    ]
    session = claude_session(folder, "Hi", "Hello", lines=lines(*more) + b'{"cwd": "cut')
    beside(session, "subagents/agent-1.jsonl", lines(claude_line(0, "Go", cwd=OLD)))
    beside(session, "subagents/agent-1.meta.json", json.dumps({"worktreePath": OLD}).encode())
    beside(session, "tool-results/1.txt", OLD.encode())
    notes = session.parent / "memory" / "MEMORY.md"
    notes.parent.mkdir()
    notes.write_text("The shop sells tea.")
    (folder / "history.jsonl").write_bytes(
        lines(
            {"display": "Hi", "project": OLD, "sessionId": CLAUDE, "timestamp": 1},
            {"display": f"See {OLD}", "project": NEW, "sessionId": IDS[3], "timestamp": 2},
            {"display": "Long ago", "project": OLD, "timestamp": 3},
            {"display": "Here already", "project": NEW, "timestamp": 4},
        )
    )
    settings = {"projects": {OLD: {"allowedTools": ["Bash"]}, "/home/ada/shoptalk": {}}, "n": 1.50}
    (place / ".claude.json").write_text(json.dumps(settings, indent=2))
    return folder


def codex(place: Path) -> Path:
    """Write the folder of Codex, with a session of each project, one of them compressed."""
    folder = place / "codex"
    settings = {"cwd": OLD, "runtime_workspace_roots": [OLD, "/tmp"]}
    event = {"type": "event_msg", "payload": {"type": "x", "thread_settings": settings}}
    turn = {"type": "turn_context", "payload": {"cwd": f"{OLD}/web"}}
    told = {"type": "world_state", "payload": {"state": {"cwd": OLD}}}
    path = codex_session(folder, f"I work in {OLD}", "Yes", lines=lines(turn, event, told))
    for number, id in enumerate(IDS):
        data = path.read_bytes().replace(path.stem[-36:].encode(), id.encode())
        other = path.with_name(path.name.replace(path.stem[-36:], id))
        other.write_bytes(data.replace(OLD.encode(), f"/elsewhere/{number}".encode()))
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(compress(path.read_bytes()))
    path.unlink()
    with closing(sqlite3.connect(folder / "state_5.sqlite")) as database, database:
        database.execute("CREATE TABLE threads (id TEXT PRIMARY KEY, cwd TEXT, title TEXT)")
        for id, cwd in ((path.stem[-36:], OLD), (IDS[0], NEW), ("gone", f"{OLD}/web"), ("x", NEW)):
            database.execute("INSERT INTO threads VALUES (?, ?, ?)", (id, cwd, f"Of {OLD}"))
        database.execute("CREATE TABLE thread_items (thread_id TEXT, item_json TEXT)")
        database.execute("INSERT INTO thread_items VALUES (?, 'x')", (path.stem[-36:],))
    return folder


def in_sqlite(kind: str, file: str) -> Any:
    def make(place: Path) -> Path:
        (place / kind).mkdir()
        with closing(sqlite3.connect(place / kind / file)) as database, database:
            script = (SUPPORT / f"{kind}.sql").read_text("utf-8")
            database.executescript(script.replace("srv/shop", "home/ada/shop"))
            if kind == "opencode":
                database.execute("UPDATE project SET worktree = ?", (f"{OLD}/web",))
                sql = "UPDATE message SET data = json_set(data, '$.path.root', ?) WHERE id LIKE ?"
                database.execute(sql, (NEW, "msg_22795944%"))
                columns = "id, worktree, time_created, time_updated, sandboxes"
                sandboxes = json.dumps([OLD, NEW])
                sql = f"INSERT INTO project ({columns}) VALUES ('p', ?, 1, 1, ?)"
                database.execute(sql, (NEW, sandboxes))
            else:
                sql = "UPDATE sessions SET git_repo_root = ? WHERE id = 's1'"
                database.execute(sql, (NEW,))
        return place / kind

    return make


KINDS = {
    "claude-code": claude,
    "codex": codex,
    "opencode": in_sqlite("opencode", "opencode.db"),
    "hermes": in_sqlite("hermes", "state.db"),
}
SESSIONS = {"claude-code": 3, "codex": 1, "opencode": 1, "hermes": 2}
"""The sessions of the old folder and its subfolders."""


def stored(place: Path) -> dict[str, str]:
    """Return the files with their texts, rows for SQLite files, and paths."""
    found = {}
    for path in place.rglob("*"):
        name = str(path.relative_to(place))
        if not path.is_file() or "memctl" in path.name or name.endswith(("-wal", "-shm")):
            continue
        if path.read_bytes().startswith(b"SQLite format 3"):
            with closing(sqlite3.connect(path)) as database:
                found[name] = "\n".join(database.iterdump())
        else:
            packed = name.endswith(".zst")
            data = path.read_bytes()
            found[name] = (decompress(data) if packed else data).decode()
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(kind: str, place: Path) -> str:
    """Make the folder of an agent, as of yesterday; return it as the name of a store."""
    folder = KINDS[kind](place)
    settle(place)
    return f"{kind}:{folder}"


RENAME = ("--project", OLD, NEW)


def test_sessions_follow_a_folder_and_go_back(run: Run, tmp_path: Path, kind: str) -> None:
    store = made(kind, tmp_path)
    before = stored(tmp_path)
    dry = report(run("rename", store, *RENAME, "--dry-run", "--json"))
    assert stored(tmp_path) == before
    found = report(run("rename", store, *RENAME, "--yes", "--json"))
    assert dry["messages"] == found["messages"]
    assert found["memories"]["written"] == SESSIONS[kind]
    after = stored(tmp_path)
    listed = report(run("inspect", store, "--json"))["memories"]
    folders = [one["project"] for one in listed]
    assert OLD not in folders
    assert sum(one in (NEW, f"{NEW}/web") for one in folders) >= SESSIONS[kind]
    assert f"{OLD}talk" in folders or kind != "claude-code"
    fails(
        run("rename", store, *RENAME, "--yes"), 4, "has no session of the folder '/home/ada/shop'"
    )
    assert stored(tmp_path) == after
    undone = report(run("undo", found["run"], "--json"))
    back = stored(tmp_path)
    for name in before:
        if kind == "codex" and name.endswith(".sqlite"):  # Codex makes these rows anew
            item = 'INSERT INTO "thread_items"'
            assert back[name] == "\n".join(
                one for one in before[name].splitlines() if not one.startswith(item)
            )
        else:
            assert back[name] == before[name], name
    assert back.keys() == before.keys()
    report(run("undo", undone["run"], "--json"))
    assert stored(tmp_path) == after


def test_the_old_folder_stays_in_what_was_said_alone(run: Run, tmp_path: Path, kind: str) -> None:
    store = made(kind, tmp_path)
    report(run("rename", store, *RENAME, "--yes", "--json"))
    said = (f"I work in {OLD}", f"See {OLD}", f"Of {OLD}", f"{OLD}talk", '"state": {"cwd": "/home')
    said += ('"workingDirectory": "/home', "tool-results/1.txt")
    for name, text in stored(tmp_path).items():
        assert "-home-ada-shop/" not in name
        for line in text.splitlines():
            assert OLD not in line or name.endswith("1.txt") or any(one in line for one in said)
    data = b"".join(one.read_bytes() for one in tmp_path.rglob("*.db*"))
    assert f'"{OLD}"'.encode() not in data


def test_files_of_claude_code_follow(run: Run, tmp_path: Path) -> None:
    store = made("claude-code", tmp_path)
    report(run("rename", store, *RENAME, "--yes", "--json"))
    folder = tmp_path / ".claude"
    there = folder / "projects" / "-srv-work-my-market"
    assert {one.name for one in there.iterdir()} == {
        *(f"{id}.jsonl" for id in (CLAUDE, IDS[0], IDS[3])), CLAUDE, "memory"
    }  # fmt: skip
    assert (folder / "projects" / "-srv-work-my-market-web" / f"{IDS[1]}.jsonl").exists()
    assert str(there / CLAUDE / "tool-results" / "1.txt") in (there / f"{CLAUDE}.jsonl").read_text()
    assert json.loads((tmp_path / ".claude.json").read_text())["projects"].keys() == {
        NEW, "/home/ada/shoptalk"
    }  # fmt: skip
    ages = [time.time() - one.stat().st_mtime for one in folder.rglob("*.jsonl")]
    assert min(ages) > 80_000  # the latest session is the same one as before


def test_a_long_path_gets_the_name_that_claude_code_gives_it(run: Run, tmp_path: Path) -> None:
    long = f"/srv/{'market-' * 40}é😀"
    report(run("rename", made("claude-code", tmp_path), "--project", OLD, long, "--yes", "--json"))
    [path] = (tmp_path / ".claude").rglob(f"{IDS[0]}.jsonl")
    assert path.parent.name == f"-srv-{'market-' * 40}"[:200] + "-2xe3f"


def test_sessions_join_those_of_the_new_folder_or_name_what_is_in_both(
    run: Run, tmp_path: Path
) -> None:
    store = made("claude-code", tmp_path)
    projects = tmp_path / ".claude" / "projects"
    there = projects / "-srv-work-my-market"
    (there / "memory").mkdir()
    (there / "memory" / "MEMORY.md").write_text("Another note.")
    shutil.copy(projects / "-home-ada-shop" / f"{IDS[0]}.jsonl", there)
    settings = tmp_path / ".claude.json"
    settings.write_text(json.dumps({"projects": {OLD: {"a": 1}, NEW: {"b": 2}}}))
    (projects / "-home-ada-shop" / "sessions-index.json").write_text("{}")
    settle(tmp_path)
    both = f"projects/-home-ada-shop/{IDS[0]}.jsonl"
    fails(run("rename", store, *RENAME, "--yes"), 5, both)
    (there / f"{IDS[0]}.jsonl").unlink()
    fails(run("rename", store, *RENAME, "--yes"), 5, "my-market/memory/MEMORY.md")
    (there / "memory" / "MEMORY.md").unlink()
    before = stored(tmp_path)
    done = run("rename", store, *RENAME, "--yes", "--json")
    found = report(done)
    assert "the old folder stays in projects/-home-ada-shop/sessions-index.json" in done.stderr
    assert ".claude.json for /home/ada/shop" in done.stderr
    assert json.loads(settings.read_text())["projects"] == {OLD: {"a": 1}, NEW: {"b": 2}}
    assert (there / "memory" / "MEMORY.md").read_text() == "The shop sells tea."
    assert {one.name for one in there.iterdir()} >= {f"{IDS[0]}.jsonl", f"{IDS[3]}.jsonl"}
    report(run("undo", found["run"], "--json"))
    assert stored(tmp_path) == before


def test_an_undo_takes_back_what_went_on_and_leaves_what_began_since(
    run: Run, tmp_path: Path
) -> None:
    store, folder = made("claude-code", tmp_path), tmp_path / ".claude"
    found = report(run("rename", store, *RENAME, "--yes", "--json"))
    projects = folder / "projects"
    with (projects / "-srv-work-my-market" / f"{CLAUDE}.jsonl").open("ab") as session:
        session.write(b"\n" + lines({"type": "user", "cwd": f"{NEW}/since", "uuid": "u9"}))
    claude_session(folder, "A new day", id=IDS[4], project=NEW)
    with (folder / "history.jsonl").open("ab") as history:
        history.write(lines({"project": NEW, "sessionId": IDS[4], "timestamp": 5}))
    settle(tmp_path)
    report(run("undo", found["run"], "--json"))
    back = (projects / "-home-ada-shop" / f"{CLAUDE}.jsonl").read_text()
    assert f'"cwd": "{OLD}/since"' in back
    assert back.count(NEW) == 1  # the line from before the rename
    there = projects / "-srv-work-my-market"
    assert {one.stem for one in there.iterdir()} == {IDS[3], IDS[4]}
    assert NEW in (there / f"{IDS[4]}.jsonl").read_text()
    *_, last = (folder / "history.jsonl").read_text().splitlines()
    assert NEW in last


def test_a_session_at_work_stays_and_is_named(run: Run, tmp_path: Path) -> None:
    store = made("claude-code", tmp_path)
    before = stored(tmp_path)
    running = tmp_path / ".claude" / "sessions" / "1.json"
    running.parent.mkdir()
    running.write_text(json.dumps({"pid": 1, "sessionId": CLAUDE}))
    found = report(run("rename", store, *RENAME, "--yes", "--json"), 7)
    assert [one["session"] for one in found["failures"]] == [CLAUDE]
    assert found["memories"]["written"] == 2
    after = stored(tmp_path)
    mine = [name for name in before if CLAUDE in name or "memory" in name or "history" in name]
    assert all(after[name] == before[name] for name in [*mine, ".claude.json"])
    running.unlink()
    report(run("rename", store, *RENAME, "--yes", "--json"))
    assert json.loads((tmp_path / ".claude.json").read_text())["projects"].keys() >= {NEW}
    assert not [name for name in stored(tmp_path) if "-home-ada-shop/" in name]


def test_rename_of_a_project_refuses_what_it_cannot_mean(run: Run, tmp_path: Path) -> None:
    store = made("claude-code", tmp_path)
    before = stored(tmp_path)
    for words, code, said in (
        (("--project", OLD, f"{OLD}/web"), 2, "one of both folders is inside the other"),
        (("--project", OLD, OLD), 2, "both names are the same"),
        (("--project", OLD, "~/x", "--merge"), 2, "--merge makes two users one"),
        (("--project", "/home/ada/shopp", NEW), 4, "did you mean '/home/ada/shop'?"),
    ):
        fails(run("rename", store, *words, "--yes"), code, said)
    fails(run("rename", f"{store}?project={OLD}", *RENAME, "--yes"), 2, "leave out ?project=")
    report(
        run("hold", "add", "--store", store, "--session", CLAUDE, "--reason", "case 7", "--json")
    )
    fails(run("rename", store, *RENAME, "--yes"), 9, "case 7")
    assert stored(tmp_path) == before
    database = tmp_path / "a.db"
    add(database, MemoryKey("ada", "s"), samples.entries(2), 0)
    fails(run("rename", database, *RENAME, "--yes"), 2, "name no folder that an agent worked in")


def test_data_of_a_project_without_sessions_follow(run: Run, tmp_path: Path) -> None:
    history = tmp_path / ".claude" / "history.jsonl"
    (history.parent / "projects").mkdir(parents=True)
    history.write_bytes(lines({"display": "Hi", "project": OLD, "timestamp": 1}))
    before = history.read_bytes()
    done = run("rename", f"claude-code:{history.parent}", *RENAME, "--yes")
    assert "no session names the folder; the other data of the project follow" in done.stdout
    assert history.read_bytes() == before.replace(OLD.encode(), NEW.encode())
    assert run("undo", "--yes").exit_code == 0
    assert history.read_bytes() == before


def test_an_erased_session_is_in_no_record_of_a_rename(run: Run, tmp_path: Path) -> None:
    store = made("claude-code", tmp_path)
    found = report(run("rename", store, *RENAME, "--yes", "--json"))
    report(run("erase", "--session", CLAUDE, store, "--yes", "--json"))
    kept = b"".join(one.read_bytes() for one in runs_folder().rglob("project.ndjson"))
    assert CLAUDE.encode() not in kept
    assert IDS[0].encode() in kept
    report(run("undo", found["run"], "--json"))
    assert (tmp_path / ".claude" / "projects" / "-home-ada-shop" / f"{IDS[0]}.jsonl").exists()


@pytest.mark.slow
def test_a_killed_rename_is_ended_by_the_same_command(run: Run, tmp_path: Path, kind: str) -> None:
    expected, kills, killed = None, 0, True
    while killed:
        place = tmp_path / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        store = made(kind, place)
        before = stored(place)
        if expected is None:
            report(run("rename", store, *RENAME, "--yes", "--json"))
            expected = stored(place)
            continue
        kills += 1
        words = ("rename", store, *RENAME, "--yes")
        child = subprocess.run([sys.executable, "-c", KILLED, str(kills), *words], check=False)
        killed = child.returncode == -signal.SIGKILL
        assert killed or child.returncode == 0
        between = stored(place)
        assert run(*words).exit_code in (0, 4)
        assert stored(place) == expected
        if killed and between != before:  # each of both runs has its part
            while run("undo", "--store", store, "--yes").exit_code == 0 and stored(place) != before:
                pass
            assert stored(place) == before or kind == "codex"  # which makes rows anew
    assert kills > 5
