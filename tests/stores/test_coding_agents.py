"""Sessions of Claude Code and Codex: kept to the byte, deleted and erased whole."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.dialects.session_lines import count_of, messages_of, piece_of
from memctl.machine.zstd import compress
from memctl.model import Change, Edit, Memory, MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from tests.support.agent_sessions import (
    CLAUDE,
    CODEX,
    PROJECT,
    beside,
    claude_line,
    claude_session,
    codex_session,
    files,
    settle,
)
from tests.support.cli import Run, contents, fails, fill, report

WRITTEN_BY_JAVA = Path(__file__).parent / "agentscope_java"
OTHER = "5c2d1e00-0000-4000-8000-00000000bbbb"
SAID = ("My train is at nine.", "Nine it is.", "Thanks", "You are welcome.")
ODD = (
    b'{"type":"from-the-future","deep":{"n":123456789012345678901234567890,"t":"\\ud83d"}}\n'
    b"not json\n\n"
    b'{"type":"mode","mode":"x"}\r\n'
    b'{"a" :\r 1}\n'
    b'\xff\xfe{"latin":"\xe9"}\n'
    b'{"type":"user","message":{"role":"user","cont'
)
"""Lines that memctl does not understand, or that are cut."""


@pytest.fixture
def claude(tmp_path: Path) -> Path:
    return tmp_path / "claude"


@pytest.fixture
def codex(tmp_path: Path) -> Path:
    return tmp_path / "codex"


def loaded(claude: Path) -> Path:
    """Write a session with everything beside it; return its file."""
    path = claude_session(claude, *SAID, lines=ODD)
    beside(path, "tool-results/b1.txt", b"kyoto\n" * 300_000)
    beside(path, "tool-results/raw.bin", bytes(range(256)) * 9000)
    beside(path, "subagents/agent-a1.jsonl", b'{"type":"user","isSidechain":true}\nhalf')
    history = claude / "file-history" / CLAUDE / "3f2a@v1"
    history.parent.mkdir(parents=True)
    history.write_bytes(b"old text\n")
    settle(claude)
    return path


# To the byte


@given(st.binary(max_size=300), st.sampled_from(["", "a/b.jsonl", "a/b.txt"]))
def test_any_bytes_come_back(data: bytes, file: str) -> None:
    messages = list(messages_of(BytesIO(data), file))
    pieces = [piece_of(text) for _, text in messages]
    assert b"".join(piece.data for piece in pieces) == data
    assert {piece.file for piece in pieces} <= {file}
    assert len(messages) == count_of(BytesIO(data), file)
    assert all(json.loads(text) == value for value, text in messages)


@pytest.mark.parametrize("suffix", [".ndjson", ".ndjson.zst"])
def test_an_archive_brings_back_every_byte(
    claude: Path, tmp_path: Path, run: Run, suffix: str
) -> None:
    loaded(claude)
    archive, back = tmp_path / f"a{suffix}", tmp_path / "back"
    assert run("export", f"claude-code:{claude}", "-o", archive).exit_code == 0
    assert run("migrate", archive, f"claude-code:{back}").exit_code == 0
    assert files(back) == files(claude)
    assert run("verify", archive, f"claude-code:{back}").exit_code == 0


def test_a_compressed_rollout_comes_back_as_a_plain_one(
    codex: Path, tmp_path: Path, run: Run
) -> None:
    path = codex_session(codex, *SAID)
    plain = path.read_bytes()
    path.with_name(f"{path.name}.zst").write_bytes(compress(plain))
    path.unlink()
    found = report(run("inspect", f"codex:{codex}", "--json"))
    assert [one["session"] for one in found["memories"]] == [CODEX]
    assert run("migrate", f"codex:{codex}", f"codex:{tmp_path / 'back'}").exit_code == 0
    assert [*files(tmp_path / "back").values()] == [plain]


@pytest.mark.parametrize(
    "name",
    [
        "../../../escaped.txt",
        "projects/-home-ada-shop/other.txt",
        f"projects/-home-ada-shop/{CLAUDE}/../x",
        "settings.json",
    ],
)
def test_a_file_of_an_archive_that_belongs_to_no_session_is_refused(
    claude: Path, tmp_path: Path, run: Run, name: str
) -> None:
    beside(claude_session(claude, *SAID), "tool-results/b1.txt", b"text")
    archive = tmp_path / "a.ndjson"
    assert run("export", f"claude-code:{claude}", "-o", archive).exit_code == 0
    own = f"projects/-home-ada-shop/{CLAUDE}/tool-results/b1.txt"
    *lines, end = archive.read_text().splitlines(keepends=True)
    text = "".join(lines).replace(own, name)
    whole = json.loads(end)
    whole["end"]["digest"] = f"sha256:{sha256(text.encode()).hexdigest()}"
    archive.write_text(text + json.dumps(whole, separators=(",", ":")) + "\n")
    back = tmp_path / "back"
    result = run("migrate", archive, f"claude-code:{back}")
    assert result.exit_code == 7, result.stderr
    assert "is no file of this session" in result.stdout
    assert not list(tmp_path.rglob("escaped.txt"))
    assert not back.exists() or not files(back)


# What is there


def test_inspect_shows_titles_projects_and_sizes(claude: Path, run: Run) -> None:
    path = loaded(claude)
    with path.open("ab") as file:
        file.write(b'\n{"type":"custom-title","customTitle":"The train"}\n')
    found = report(run("inspect", f"claude-code:{claude}", "--json"))["memories"]
    assert [(one["session"], one["title"], one["project"]) for one in found] == [
        (CLAUDE, "The train", PROJECT)
    ]
    assert found[0]["bytes"] == sum(map(len, files(claude).values()))


def test_inspect_counts_messages_only_if_asked(claude: Path, run: Run) -> None:
    loaded(claude)
    words = "inspect", f"claude-code:{claude}"
    quick, counted = (report(run(*words, *more, "--json")) for more in ([], ["--sort", "messages"]))
    assert quick["totals"]["messages"] is quick["memories"][0]["messages"] is None
    pages = report(run(*words, "--messages", "--json"))["messages"]
    assert counted["totals"]["messages"] == counted["memories"][0]["messages"] == len(pages)
    for one in quick, counted:
        del one["totals"]["messages"], one["memories"][0]["messages"]
    assert quick == counted
    assert "not counted" in run(*words).stdout


@pytest.mark.parametrize("where", ["head", "tail"])
def test_times_are_found_behind_lines_without_them(claude: Path, run: Run, where: str) -> None:
    """Lines without times at an end are longer than what is read of it at first."""
    path = claude_session(claude, *SAID)
    notes = b'{"type":"mode","mode":"%b"}\n' % (b"x" * 900)
    said, many = path.read_bytes(), notes * 300
    path.write_bytes(many + said + notes * 500 if where == "head" else said + many)
    settle(claude, days=100)
    found = report(run("inspect", f"claude-code:{claude}", "--json"))["memories"][0]
    assert found["messages"] is None
    assert (found["first"], found["last"]) == (
        "2026-11-20T10:00:00.000Z",
        "2026-11-20T10:00:03.000Z",
    )
    words = "delete", f"claude-code:{claude}", "--until", "2026-11-20 10:00:02", "--yes"
    assert run(*words).exit_code != 1
    assert path.exists()


def test_doctor_finds_lines_that_are_no_json_and_nothing_else(claude: Path, run: Run) -> None:
    loaded(claude)
    found = report(run("doctor", f"claude-code:{claude}", "--json"), 6)["findings"]
    assert [(one["code"], one["count"]) for one in found] == [("invalid-message", 4)]
    claude_session(claude, *SAID)
    report(run("doctor", f"claude-code:{claude}", "--json"))


def test_a_project_selects_its_sessions(claude: Path, run: Run) -> None:
    claude_session(claude, *SAID)
    claude_session(claude, "Elsewhere", id=OTHER, project="/srv/app")
    settle(claude)
    found = report(run("inspect", f"claude-code:{claude}", "--project", "/srv/app", "--json"))
    assert [one["session"] for one in found["memories"]] == [OTHER]
    result = run("delete", f"claude-code:{claude}", "--project", "/srv/app", "--yes")
    assert result.exit_code == 0, result.stderr
    assert [Path(name).stem for name in files(claude)] == [CLAUDE]
    fails(run("inspect", "sessions.db", "--project", "/srv"), 2, "--project is for coding agents")


def test_what_is_no_session_is_named(claude: Path, run: Run) -> None:
    path = claude_session(claude, *SAID)
    path.with_name("notes.jsonl").write_text("{}\n")
    twin = claude / "projects" / "-other" / path.name
    twin.parent.mkdir()
    twin.write_bytes(path.read_bytes())
    result = run("inspect", f"claude-code:{claude}")
    assert result.exit_code == 8
    assert "notes.jsonl" in result.stderr
    assert "two files are this session" in result.stdout + result.stderr
    (claude / "empty").mkdir()
    fails(run("inspect", f"claude-code:{claude / 'empty'}"), 4, "no sessions of Claude Code")


def test_agents_on_this_machine_are_listed_and_searched_together(
    claude: Path, codex: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(claude))
    monkeypatch.setenv("CODEX_HOME", str(codex))
    fails(run("search", "@agents", "train"), 2, "no coding agent has kept sessions")
    loaded(claude)
    codex_session(codex, "The night train", "It leaves at ten.")
    listed = report(run("stores", "--json"))["agents"]
    assert [one["store"] for one in listed] == ["claude-code:", "codex:"]
    assert listed[0]["bytes"] == sum(map(len, files(claude).values()))
    hits = report(run("search", "@agents", "train", "--json"))["hits"]
    assert {one["store"] for one in hits} == {"claude-code:", "codex:"}
    hits = report(run("search", "@agents", "kyoto", "--json"))["hits"]  # in a tool's result
    assert [one["session"] for one in hits][:1] == [CLAUDE]


def test_the_context_is_the_branch_of_the_last_prompt(claude: Path, run: Run) -> None:
    lines = [
        claude_line(4, "A side question", uuid="s4", isSidechain=True),
        claude_line(4, "Taken back", uuid="x4", parentUuid="u3"),
        claude_line(5, "Answer to it", uuid="x5", parentUuid="x4"),
        {"type": "last-prompt", "lastPrompt": "Thanks", "leafUuid": "u3"},
    ]
    claude_session(claude, *SAID, lines=b"".join(json.dumps(one).encode() + b"\n" for one in lines))
    found = report(run("context", f"claude-code:{claude}", "--session", CLAUDE, "--json"))
    assert [one["message"]["content"]["uuid"] for one in found["messages"]] == [
        "u0",
        "u1",
        "u2",
        "u3",
    ]
    shown = report(run("inspect", f"claude-code:{claude}", "--messages", "--not-live", "--json"))[
        "messages"
    ]
    assert [one["unread"] for one in shown] == ["other-branch"] * 3 + ["not-for-memory"]


PEAK = """
import re, sys
from memctl.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
"""Runs a command, and prints the largest size of the process in KiB."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc")
def test_a_report_does_not_hold_a_large_session(claude: Path) -> None:
    turns = 9000
    text = "0123456789abcdef" * 400
    lines = [claude_line(number, text, toolUseResult=text) for number in range(turns)]
    lines += [claude_line(turns, "Taken back", uuid="x", parentUuid=f"u{turns - 1}")]
    lines += [{"type": "last-prompt", "leafUuid": f"u{turns - 1}"}]
    claude_session(claude, lines=b"".join(json.dumps(one).encode() + b"\n" for one in lines))
    words = ("report", f"claude-code:{claude}", "--json")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], capture_output=True, check=True, text=True
    )
    assert json.loads(done.stdout)["totals"]["unread"] == {"other-branch": 1, "not-for-memory": 1}
    assert int(done.stderr.split()[-1]) < 150 * 1024  # the session has 116 MiB


def test_a_large_session_that_no_temporary_file_has_room_for_is_named(
    claude: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude_session(claude, *SAID * 300)
    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda **_: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    )
    fails(run("report", f"claude-code:{claude}"), 3, "cannot write a temporary file", "TMPDIR")


# Whole sessions


def test_a_deletion_and_its_undo_are_whole(claude: Path, run: Run) -> None:
    loaded(claude)
    before = files(claude)
    assert run("delete", f"claude-code:{claude}", "--older-than", "1m", "--yes").exit_code == 0
    assert files(claude) == {}
    assert run("undo", "--yes").exit_code == 0
    assert files(claude) == before


async def test_a_session_that_has_changed_since_the_plan_stays(claude: Path) -> None:
    path = claude_session(claude, *SAID)
    key = MemoryKey("", CLAUDE)
    async with make_store(parse(f"claude-code:{claude}"), OpenMode.CHANGE) as store:
        planned = await store.snapshot(key)
        path.write_bytes(path.read_bytes().replace(b"Thanks", b"Thank you"))
        settle(claude)
        before = files(claude)
        changes = [Change(one.id, (), None, one.message) for one in planned.messages]

        async def edits() -> AsyncGenerator[Edit]:
            yield Edit(Memory(key), changes)

        [result] = [one async for one in store.edit(edits())]
    assert result.failure is not None
    assert result.failure.code == "changed"
    assert files(claude) == before


def test_only_sessions_with_no_newer_line_are_older(claude: Path, run: Run) -> None:
    path = claude_session(claude, *SAID)
    path.write_bytes(path.read_bytes().replace(b"2026-11-20", b"2025-01-20", 1))
    path = claude_session(claude, "Old", id=OTHER)
    path.write_bytes(path.read_bytes().replace(b"2026-11-20", b"2025-01-20"))
    settle(claude)
    for until in ("2025-01-20", "2025-01-21"):
        assert run("delete", f"claude-code:{claude}", "--until", until, "--yes").exit_code == 0
        assert (f"projects/-home-ada-shop/{OTHER}.jsonl" in files(claude)) is (
            until == "2025-01-20"
        )
    assert f"projects/-home-ada-shop/{CLAUDE}.jsonl" in files(claude)


def test_a_size_selects_whole_sessions(claude: Path, run: Run) -> None:
    loaded(claude)
    claude_session(claude, "Small", id=OTHER)
    settle(claude)
    store = f"claude-code:{claude}"
    assert run("delete", store, "--larger-than", "1MB", "--yes").exit_code == 0
    assert [Path(name).stem for name in files(claude)] == [OTHER]
    fails(run("delete", "x.db", "--larger-than", "1MB", "--yes"), 4, "does not exist")


CHANGES: tuple[tuple[str, ...], ...] = (
    ("delete", "--role", "user", "--yes"),
    ("delete", "--id", "u1", "--yes"),
    ("delete", "--keep-last", "1", "--yes"),
    ("mark", "add", "seen", "--all"),
    ("compress", "--all", "--yes"),
    ("doctor", "--repair", "--yes"),
)


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_no_message_in_a_session_is_changed(claude: Path, run: Run, words: tuple[str, ...]) -> None:
    loaded(claude)
    before = files(claude)
    at = 2 if words[0] == "mark" else 1
    result = run(*words[:at], f"claude-code:{claude}", *words[at:])
    fails(result, 2, "adds and deletes its sessions whole", "delete whole sessions")
    assert files(claude) == before


def test_a_copy_adds_nothing_to_a_session(claude: Path, tmp_path: Path, run: Run) -> None:
    claude_session(claude, *SAID)
    store, archive = f"claude-code:{claude}", tmp_path / "a.ndjson"
    assert run("export", store, "-o", archive).exit_code == 0
    for texts, said in ((SAID[:2], "adds no messages to it"), ((*SAID, "And?"), "")):
        claude_session(claude, *texts)
        settle(claude)
        before = files(claude)
        result = run("migrate", archive, store)
        assert result.exit_code != 0
        assert said in result.stdout
        assert files(claude) == before
    result = run("migrate", archive, store, "--on-conflict", "replace", "--yes")
    assert result.exit_code == 0, result.stdout
    assert b"You are welcome." in b"".join(files(claude).values())
    assert run("undo", "--yes").exit_code == 0
    assert files(claude) == before


def test_a_held_session_stays(claude: Path, run: Run) -> None:
    loaded(claude)
    store = f"claude-code:{claude}"
    assert run("hold", "add", "--reason", "case 17", "--session", CLAUDE).exit_code == 0
    before = files(claude)
    assert run("delete", store, "--all", "--yes").exit_code != 0
    assert run("erase", "--session", CLAUDE, store, "--yes").exit_code != 0
    assert files(claude) == before


# Sessions at work


def at_work_by_write(claude: Path, codex: Path) -> None:
    now = {"type": "mode", "timestamp": f"{datetime.now(UTC).isoformat()[:23]}Z"}
    for path in (*claude.rglob("*.jsonl"), *codex.rglob("*.jsonl")):
        with path.open("a") as file:
            file.write(json.dumps(now) + "\n")


def at_work_by_process(claude: Path, codex: Path) -> None:
    (claude / "sessions").mkdir()
    process = {"pid": os.getpid(), "sessionId": CLAUDE}
    (claude / "sessions" / f"{os.getpid()}.json").write_text(json.dumps(process))
    locks = codex / "thread-writer-locks"
    locks.mkdir()
    lock = (locks / f"{CODEX}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    OPEN.append(lock)


OPEN: list[object] = []
"""Files whose locks last as long as the tests."""


@pytest.mark.parametrize("at_work", [at_work_by_write, at_work_by_process])
def test_a_session_at_work_is_left_alone(
    claude: Path, codex: Path, run: Run, at_work: Callable[[Path, Path], None]
) -> None:
    claude_session(claude, *SAID)
    codex_session(codex, *SAID)
    settle(claude)
    settle(codex)
    at_work(claude, codex)
    for store, session in ((f"claude-code:{claude}", CLAUDE), (f"codex:{codex}", CODEX)):
        folder = Path(store.partition(":")[2])
        before = files(folder)
        result = run("delete", store, "--all", "--yes")
        assert result.exit_code == 7, result.stderr
        assert "agent" in result.stdout
        assert run("erase", "--session", session, store, "--yes").exit_code != 0
        assert files(folder) == before


# Erasing


def test_an_erase_takes_the_index_and_the_history(
    claude: Path, codex: Path, tmp_path: Path, run: Run
) -> None:
    loaded(claude)
    codex_session(codex, *SAID)
    with closing(sqlite3.connect(codex / "state_5.sqlite")) as database, database:
        database.execute("CREATE TABLE threads (id TEXT, title TEXT)")
        database.execute("CREATE TABLE thread_items (thread_id TEXT, item_json TEXT)")
        for id in (CODEX, OTHER):
            database.execute("INSERT INTO threads VALUES (?, 'trains')", (id,))
            database.execute("INSERT INTO thread_items VALUES (?, 'trains')", (id,))
    for folder, id in ((claude, CLAUDE), (codex, CODEX)):
        (folder / "history.jsonl").write_text(f'{{"id":"{id}"}}\n{{"id":"{OTHER}"}}\n')
        settle(folder)
    for store, id in ((f"claude-code:{claude}", CLAUDE), (f"codex:{codex}", CODEX)):
        receipt = tmp_path / f"{id}.json"
        result = run("erase", "--session", id, store, "--yes", "--receipt", receipt)
        assert result.exit_code == 0, result.stderr
        assert "forks of the session" in receipt.read_text()
    assert files(claude) == {"history.jsonl": f'{{"id":"{OTHER}"}}\n'.encode()}
    assert (codex / "history.jsonl").read_text() == f'{{"id":"{OTHER}"}}\n'
    with closing(sqlite3.connect(codex / "state_5.sqlite")) as database:
        assert database.execute("SELECT id FROM threads").fetchall() == [(OTHER,)]
        assert database.execute("SELECT thread_id FROM thread_items").fetchall() == [(OTHER,)]


# Carrying over


def test_lines_of_an_agent_are_refused_under_a_name_that_no_session_can_have(
    claude: Path, tmp_path: Path, run: Run
) -> None:
    claude_session(claude, *SAID)
    archive, back = tmp_path / "a.ndjson", tmp_path / "back"
    assert run("export", f"claude-code:{claude}", "-o", archive).exit_code == 0
    *lines, end = archive.read_text().splitlines(keepends=True)
    text = "".join(lines).replace(f'"session":"{CLAUDE}"', '"session":"kyoto"')
    assert text != "".join(lines)
    whole = json.loads(end)
    whole["end"]["digest"] = f"sha256:{sha256(text.encode()).hexdigest()}"
    archive.write_text(text + json.dumps(whole, separators=(",", ":")) + "\n")
    result = run("migrate", archive, f"claude-code:{back}")
    assert result.exit_code == 7, result.stderr
    assert "bad-name" in result.stdout
    assert not files(back)


@pytest.mark.parametrize("kind", ["claude-code", "codex"])
def test_a_carried_conversation_keeps_its_names(tmp_path: Path, run: Run, kind: str) -> None:
    source, target, back = tmp_path / "talk.jsonl", f"{kind}:{tmp_path / 'a'}", tmp_path / "b.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    about = {"user": "ada", "session": "kyoto"}
    source.write_text(json.dumps({"messages": messages, "memctl": about}) + "\n")
    for words in ("1 written", "0 written, 1 unchanged"):
        result = run("migrate", source, target)
        assert result.exit_code == 0, result.stderr
        assert words in result.stdout
    assert run("verify", source, target).exit_code == 0
    assert run("migrate", target, back).exit_code == 0
    [line] = back.read_text().splitlines()
    found = json.loads(line)
    assert {name: found["memctl"][name] for name in about} == about
    assert [(one["role"], one["content"]) for one in found["messages"]] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]
    copy = tmp_path / "copy"
    assert run("migrate", target, f"{kind}:{copy}").exit_code == 0
    assert files(copy) == files(tmp_path / "a")


def test_what_no_model_gets_is_left_out_and_named(claude: Path, tmp_path: Path, run: Run) -> None:
    loaded(claude)
    result = run("migrate", f"claude-code:{claude}", tmp_path / "a.db")
    assert result.exit_code == 0, result.stderr
    assert "not-for-memory" in result.stderr
    assert "left out" in result.stderr
    found = report(run("inspect", tmp_path / "a.db", "--json"))["memories"]
    assert found[0]["messages"] == len(SAID)


@pytest.mark.parametrize("kind", ["claude-code", "codex"])
@pytest.mark.parametrize(
    "layout",
    ["memory", "agentscope2", "java", "langchain", "openai-agents", "llamaindex", "agno"],
)
def test_a_carried_conversation_comes_back_as_it_was(
    tmp_path: Path, run: Run, kind: str, layout: str
) -> None:
    """Sessions of AgentScope Java, through another store, with states, media and a compaction."""
    owner = "&owner=ada" if layout in ("langchain", "openai-agents", "llamaindex") else ""
    source, agent = f"sqlite:///{tmp_path}/a.db?layout={layout}", f"{kind}:{tmp_path / 'a'}"
    back = f"sqlite:///{tmp_path}/b.db?layout={layout}"
    first = run("migrate", WRITTEN_BY_JAVA, f"{source}{owner}", "--user", "ada", "--lossy")
    assert first.exit_code == 0, first.stderr
    for words in ("5 written", "0 written, 5 unchanged"):
        result = run("migrate", source, agent, "--lossy")
        assert result.exit_code == 0, result.stderr
        assert words in result.stdout
    assert run("migrate", agent, back, "--lossy").exit_code == 0
    for one in agent, back:
        result = run("verify", source, one)
        assert result.exit_code == 0, result.stdout
    assert run("migrate", agent, f"{kind}:{tmp_path / 'copy'}").exit_code == 0
    assert files(tmp_path / "copy") == files(tmp_path / "a")


CALL = [{"type": "tool_use", "id": "c1", "name": "look", "input": {"q": 1}}]


@pytest.mark.parametrize("kind", ["claude-code", "codex"])
@pytest.mark.parametrize("contents_of", [[[{"type": "text", "text": "ok"}]] * 2, [CALL]])
def test_equal_replies_stay_two_and_a_call_without_result_a_call(
    tmp_path: Path, run: Run, kind: str, contents_of: list[Any]
) -> None:
    """Claude Code sends lines with one id of a reply as one message."""
    about = {"name": "Friday", "role": "assistant", "metadata": {}}
    said = [
        about | {"id": f"m{at}", "content": content, "timestamp": "2026-11-20 10:00:01.000"}
        for at, content in enumerate(contents_of)
    ]
    source, agent, back = tmp_path / "a.db", f"{kind}:{tmp_path / 'a'}", tmp_path / "b.db"
    entries = [StoredMessage(one["id"], json.dumps(one).encode()) for one in said]
    asyncio.run(fill(str(source), {MemoryKey("ada", "kyoto"): entries}))
    assert report(run("migrate", source, agent, "--json"))["verified"]
    assert len(report(run("context", agent, "--json"))["messages"]) == len(said)
    assert report(run("migrate", agent, back, "--json"))["verified"]
    [found] = contents(str(back)).values()
    assert [json.loads(one.message) for one in found] == said


@pytest.mark.parametrize("kind", ["claude-code", "codex"])
def test_the_messages_of_one_reply_are_told_from_those_of_the_agent(
    tmp_path: Path, run: Run, kind: str
) -> None:
    """A text and its calls are several lines, and only the first of them needs notes."""
    blocks = [{"type": "text", "text": "I look."}]
    blocks += [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in "ab"]
    about = {"id": "m1", "name": "Friday", "role": "assistant", "metadata": {"k": 1}}
    message = about | {"content": blocks, "timestamp": "2026-11-20 10:00:01.000"}
    source, agent = tmp_path / "a.db", f"{kind}:{tmp_path / 'a'}"
    said = [StoredMessage("m1", json.dumps(message).encode())]
    asyncio.run(fill(str(source), {MemoryKey("ada", "kyoto"): said}))
    assert run("migrate", source, agent).exit_code == 0
    assert run("migrate", agent, tmp_path / "b.db").exit_code == 0
    [[entry]] = contents(str(tmp_path / "b.db")).values()
    assert json.loads(entry.message) == message
