"""Folders of session files: states of AgentScope 2.x in channels, and JSON of something else."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_foreign import QWENPAW
from tests.support.cli import Run, fails, report

IDS = ("m8", "m9")
TIME = "2026-11-25T14:06:10.446917"


def message(id: str, role: str = "user") -> dict[str, Any]:
    block = {"type": "text", "text": f"this is {id}", "id": f"b{id}", "created_at": TIME}
    return {"name": "ada", "content": [block], "role": role, "id": id, "created_at": TIME}


def state(session: str, *ids: str, summary: Any = "") -> dict[str, Any]:
    """Return a state as AgentScope 2.x dumps it, with members of its own."""
    context = [message(id) for id in ids]
    more = {"reply_context": {"cur_iter": 0}, "tasks_context": {"tasks": []}}
    return {"session_id": session, "summary": summary, "context": context, **more}


def save(folder: Path, name: str, **modules: Any) -> Path:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(modules, indent=1))
    return path


def sessions(run: Run, store: object) -> list[tuple[str, str, int]]:
    found = report(run("inspect", store, "--json"))["memories"]
    return sorted((one["user"], one["session"], one["messages"]) for one in found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sessions of the channel ``console``; the name of one differs from that of its file."""
    found = tmp_path / "sessions"
    save(found, "console/ada_s1", agent={"state": state("s1", "m1", "m2", summary="Bees.")})
    save(found, "console/bob_console--s2", agent={"state": state("console:s2", "m3")})
    save(found, "console/eve_x_y", agent={"state": state("another", "m4")})
    return found


@pytest.mark.parametrize("place", ["sessions", "sessions/console", "sessions/console/ada_s1.json"])
def test_history_of_qwenpaw_is_not_reached(run: Run, folder: Path, place: str) -> None:
    history = folder.parent / "history.db"
    with closing(sqlite3.connect(history)) as database, database:
        database.execute("CREATE TABLE history (memory_id TEXT)")  # of mem0
    store = folder.parent / place
    assert "history.db" not in run("inspect", store).stderr
    with closing(sqlite3.connect(history)) as database, database:
        database.execute(f"CREATE TABLE {QWENPAW}")
    for command in ("export", "-o", folder.parent / "a.ndjson"), ("erase", "--user", "ada", "-y"):
        shown = run(command[0], store, *command[1:])
        assert shown.exit_code == 0, shown.stderr
        assert f"{history} is not reached" in shown.stderr
    assert "the turns that QwenPaw keeps in history.db" in shown.stdout


def test_state_folder_with_channels_is_read(run: Run, folder: Path) -> None:
    names = [("ada", "s1", 2), ("bob", "console:s2", 1), ("eve", "x_y", 1)]
    assert sessions(run, folder) == names
    assert sessions(run, folder / "console") == names
    assert sessions(run, folder / "console" / "ada_s1.json") == names[:1]
    assert run("doctor", folder).exit_code == 0
    shown = report(run("inspect", folder, "--user", "ada", "--json"))
    assert shown["totals"]["summaries"] == 1


def test_state_folder_is_written_in_its_shape(run: Run, folder: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    save(more, "ada_s3", agent={"state": state("s3", "m5")})
    save(more, "ada_s1", agent={"state": state("s1", "m1", "m2", "m6", summary="Bees.")})
    assert run("migrate", more, folder).exit_code == 0
    assert ("ada", "s3", 1) in sessions(run, folder)
    assert ("ada", "s1", 3) in sessions(run, folder)
    written = json.loads((folder / "console" / "ada_s3.json").read_text())
    assert written == {"agent": {"state": state("s3", "m5")}}
    assert run("undo", "--yes").exit_code == 0
    assert ("ada", "s1", 2) in sessions(run, folder)
    assert not (folder / "console" / "ada_s3.json").exists()


def test_state_folder_with_several_channels_is_told_them(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    save(folder, "feishu/ada_s1", agent={"state": state("s1", "m7")})
    assert ("ada", "console/s1", 2) in sessions(run, folder)
    assert ("ada", "feishu/s1", 1) in sessions(run, folder)
    more = tmp_path / "more"
    save(more, "ada_s3", agent={"state": state("s3", "m5")})
    result = run("migrate", more, folder)
    fails(result, 7)
    assert "console, feishu" in result.stdout + result.stderr
    assert run("migrate", more, folder / "feishu").exit_code == 0
    assert ("ada", "s3", 1) in sessions(run, folder)


def test_state_file_keeps_every_byte_but_those_of_the_edit(run: Run, folder: Path) -> None:
    path = folder / "console" / "ada_s1.json"
    text = path.read_text()
    assert run("delete", folder, "--id", "m2", "--yes").exit_code == 0
    kept = json.loads(text)
    del kept["agent"]["state"]["context"][1]
    after = path.read_text()
    assert json.loads(after) == kept
    assert after.partition('"context"')[0] == text.partition('"context"')[0]
    assert after.partition('"reply_context"')[2] == text.partition('"reply_context"')[2]
    assert run("undo", "--yes").exit_code == 0
    assert json.loads(path.read_text()) == json.loads(text)


def test_state_file_takes_no_messages_outside_of_the_context(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old.json"
    pairs = [[message(id) | {"timestamp": TIME}, ["compressed"] * (id == "m8")] for id in IDS]
    old.write_text(json.dumps({"_compressed_summary": "Before.", "content": pairs}))
    copy = ("import", old, folder, "--user", "ada", "--session", "s9")
    result = run(*copy)
    fails(result, 7)
    assert "--exclude-mark compressed" in result.stdout + result.stderr
    assert run(*copy, "--exclude-mark", "compressed").exit_code == 0


def test_state_file_of_several_agents_has_parts(run: Run, tmp_path: Path) -> None:
    two = {"agent": {"state": state("s1", "m1")}, "helper": {"state": state("s1", "m2", "m3")}}
    path = save(tmp_path / "sessions", "ada_s1", **two)
    found = report(run("inspect", path, "--json"))["memories"]
    assert {one["path"]: one["messages"] for one in found} == {"agent.state": 1, "helper.state": 2}
    assert run("export", path.parent, "-o", tmp_path / "a.ndjson").exit_code == 0
    back = tmp_path / "back"
    assert run("import", tmp_path / "a.ndjson", f"agentscope2:{back}").exit_code == 0
    assert json.loads((back / "ada_s1.json").read_text()) == two


def test_state_folder_names_damaged_files(run: Run, folder: Path) -> None:
    path = folder / "console" / "ada_s1.json"
    path.write_text(path.read_text()[:-100])
    result = run("inspect", folder)
    assert result.exit_code == 7, result.stderr
    result = run("doctor", folder, "--json")
    assert [one["code"] for one in report(result, 6)["findings"]] == ["damaged-state"]


def test_state_folder_of_both_versions_has_to_be_told(run: Run, folder: Path) -> None:
    memory = {"_compressed_summary": "", "content": []}
    save(folder, "ada_old", agent={"memory": memory})
    for command in ("inspect", "doctor"):
        fails(run(command, folder), 2, "1.x and 2.x", f"agentscope1:{folder}")
    assert len(sessions(run, f"agentscope2:{folder}")) == 3
    assert sessions(run, f"agentscope1:{folder}") == [("ada", "old", 0)]
    for version in (1, 2):
        warned = run("inspect", f"agentscope{version}:{folder}").stderr
        assert "left out" in warned


@pytest.mark.parametrize("command", ["inspect", "doctor", "export", "migrate"])
def test_folder_of_other_json_is_named(run: Run, tmp_path: Path, command: str) -> None:
    folder = tmp_path / "data"
    save(folder, "package", version="1.0")
    more = {"export": ("-o", tmp_path / "a.ndjson"), "migrate": (tmp_path / "b.db",)}
    words = (command, folder, *more.get(command, ()))
    fails(run(*words), 8, "holds no session state, but other files", "package.json")
    (folder / "chats").mkdir()
    talk = [{"role": "user", "content": "hello"}]
    (folder / "chats" / "a.json").write_text(json.dumps([{"chat_messages": talk}]))
    fails(run(*words), 8, "a.json (an export of claude.ai)", "docs/stores/other-formats.md")
    save(folder, "ada_s1", memory={"_compressed_summary": "", "content": []})
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert "files without a session state are left out" in result.stderr


def test_folder_of_other_json_is_left_when_its_sessions_are_erased(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    save(folder, "package", version="1.0")
    save(folder, "ada_s1", memory={"_compressed_summary": "Bees.", "content": []})
    assert run("erase", "--user", "ada", folder, "--yes").exit_code == 0
    fails(run("inspect", folder), 8, "package.json")


@pytest.mark.parametrize("command", ["inspect", "doctor", "export"])
@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("x.jsonl", {"type": "summary", "summary": "", "leafUuid": "u"}, "Claude Code"),
        ("s1/memory_messages.jsonl", {"role": "USER", "content": []}, "AgentScope Java"),
        ("chats.jsonl", {"messages": []}, "chats.jsonl"),
    ],
)
def test_folder_of_json_lines_is_named(
    run: Run, tmp_path: Path, command: str, name: str, line: Any, said: str
) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(line) + "\n")
    more = ("-o", tmp_path / "a.ndjson") if command == "export" else ()
    fails(run(command, tmp_path / "data", *more), 8, "holds no session state", name, said)


@pytest.mark.slow
def test_states_without_a_memory_are_a_place_for_summaries(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "states", "u_s", toolkit={"active_groups": []})
    chat = tmp_path / "c.jsonl"
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    assert run("migrate", chat, tmp_path / "m.db").exit_code == 0
    place = f"sqlite:///{tmp_path}/m.db?state={tmp_path}/states"
    for words in (("inspect", place), ("doctor", place), ("delete", place, "--all", "--yes")):
        done = run(*words)
        assert (done.exit_code, done.stderr) == (0, "")
