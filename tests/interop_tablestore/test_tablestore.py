"""Tests that memctl reads and changes what the real classes write, and they read it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memctl.selection import Selection
from tests.interop_tablestore.conftest import Agents
from tests.support.cli import Run, contents, report
from tests.support.servers.pool import Servers
from tests.support.service_search import found as found_by_service

ADA = {"user": "ada", "session": "kyoto"}
BOB = {"user": "bob", "session": "kyoto"}


def message(id: str, second: int, content: Any = None, **about: Any) -> dict[str, Any]:
    time = f"2026-01-02 03:04:{second:02}.000"
    text = f"message {id}" if content is None else content
    value = {"id": id, "name": "ada", "role": "user", "content": text, "metadata": {}}
    return value | {"timestamp": time} | about


MESSAGES = [
    message("zulu", 1),
    message("alpha", 2, name="friday", role="assistant", metadata={"n": [1, None]}),
    message(
        "mike",
        3,
        [
            {"type": "thinking", "thinking": "a call is due"},
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "京都"}},
        ],
        role="assistant",
    ),
    message(
        "kilo",
        4,
        [{"type": "tool_result", "id": "c1", "name": "search", "output": "temples"}],
        role="system",
    ),
    message("echo", 5, "To Kyoto: 😀"),
]


@pytest.fixture
def url(servers: Servers, agents: Agents) -> str:
    """An instance with two memories of the real TablestoreMemory, one message marked."""
    url = servers.tablestore.fresh()
    agents("add", url, messages=MESSAGES[:2], **ADA)
    agents("add", url, messages=MESSAGES[2:4], marks=["note", "会话"], **ADA)
    agents("add", url, messages=MESSAGES[4:], **ADA)
    agents("add", url, messages=MESSAGES[:2], **BOB)
    return url


def ids(found: list[Any]) -> list[str]:
    return [one["id"] for one in found]


def test_memory_of_agentscope_is_read(url: str, agents: Agents, run: Run) -> None:
    assert agents("get", url, **ADA) == MESSAGES
    found = report(run("inspect", url, "--json"))
    assert [(one["user"], one["session"], one["messages"]) for one in found["memories"]] == [
        ("ada", "kyoto", 5),
        ("bob", "kyoto", 2),
    ]
    assert found["memories"][0]["marks"] == {"note": 2, "会话": 2}
    entries = next(iter(contents(url).values()))
    assert [one.id for one in entries] == ids(MESSAGES)
    assert [one.marks for one in entries] == [(), (), ("note", "会话"), ("note", "会话"), ()]
    assert not any(one.shape for one in entries), "memctl would write these rows as AgentScope does"
    found = run("doctor", url)
    assert found.exit_code == 0, found.stdout


def test_memory_of_agentscope_is_searched_by_the_service(url: str, agents: Agents) -> None:
    for query in ("kyoto", "message alpha", "nothing"):
        wanted = agents("search", url, query=query, **ADA)
        hits = found_by_service(url, query, 10, Selection(users=frozenset({"ada"})))
        assert [f"{hit.message.id}:::kyoto" for hit in hits] == wanted
        assert bool(hits) == (query != "nothing")
    everyone = found_by_service(url, "alpha", 10)
    assert {hit.key.user for hit in everyone} == {"ada", "bob"}


def test_memory_of_agentscope_is_changed(url: str, agents: Agents, run: Run) -> None:
    assert run("mark", "add", url, "seen", "--user", "ada", "--id", "zulu").exit_code == 0
    assert ids(agents("get", url, mark="seen", **ADA)) == ["zulu"]
    words = ("delete", url, "--user", "ada", "--mark", "note", "--yes")
    assert run(*words).exit_code == 0
    assert ids(agents("get", url, **ADA)) == ["zulu", "alpha", "echo"]
    assert agents("get", url, **BOB) == MESSAGES[:2]
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert agents("get", url, **ADA) == MESSAGES
    assert agents("get", url, mark="会话", **ADA) == MESSAGES[2:4]
    assert agents("mark", url, new_mark=None, old_mark="note", **ADA) == 2
    assert agents("get", url, exclude_mark="会话", **ADA) == [*MESSAGES[:2], MESSAGES[4]]


def test_undo_restores_the_rows_of_agentscope(url: str, servers: Servers, run: Run) -> None:
    def values() -> Any:
        dump = servers.tablestore.dump(url)
        return {
            key: {name: value for name, (value, _) in row.items()}
            for key, row in dump["agentscope_memory"].items()
        }

    before = values()
    assert run("delete", url, "--match", "message", "--yes").exit_code == 0
    assert len(values()) < len(before)
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert values() == before


def test_memory_of_agentscope_is_renamed(url: str, agents: Agents, run: Run) -> None:
    new = {"user": "ada@example.com", "session": "会话 2"}
    for what in new:
        words = ("rename", url, f"--{what}", ADA[what], new[what], "--yes")
        assert run(*words).exit_code == 0
    assert agents("get", url, **new) == MESSAGES
    assert agents("get", url, mark="会话", **new) == MESSAGES[2:4]
    assert agents("get", url, **ADA) == []
    agents("add", url, messages=[message("lima", 9, "More")], **new)
    assert ids(agents("get", url, **new)) == [*ids(MESSAGES), "lima"]
    assert agents("get", url, **BOB | {"session": new["session"]}) == MESSAGES[:2]


def test_memory_is_written_as_agentscope_writes_it(
    url: str, servers: Servers, agents: Agents, run: Run, tmp_path: Path
) -> None:
    archive, target = tmp_path / "a.ndjson", servers.tablestore.fresh()
    assert run("export", url, "-o", str(archive)).exit_code == 0
    assert run("import", str(archive), target).exit_code == 0
    assert run("verify", url, target).exit_code == 0
    assert agents("get", target, **ADA) == MESSAGES
    rows = [servers.tablestore.dump(one)["agentscope_memory"] for one in (url, target)]
    plain = [
        {key: {name: value for name, (value, _) in row.items()} for key, row in some.items()}
        for some in rows
    ]
    assert plain[0] == plain[1]
    agents("add", target, messages=[message("late", 9)], **ADA)
    assert ids(agents("get", target, **ADA)) == [*ids(MESSAGES), "late"]
    assert agents("delete", target, ids=["zulu"], **ADA) == 1
    assert run("verify", url, target).exit_code == 6


def test_order_survives_messages_of_one_time(
    servers: Servers, agents: Agents, run: Run, tmp_path: Path
) -> None:
    """AgentScope sorts by time alone: equal times, and those that go back, keep their places."""
    times = [5, 5, 5, 1, 9, 5]
    names = ["z", "y", "a", "m", "b", "c"]
    some = [message(name, time) for name, time in zip(names, times, strict=True)]
    source = tmp_path / "sessions"
    source.mkdir()
    pairs = ", ".join(f"[{json.dumps(one)}, []]" for one in some)
    state = f'{{"memory": {{"_compressed_summary": "", "content": [{pairs}]}}}}'
    (source / "ada_kyoto.json").write_text(state)
    target = servers.tablestore.fresh()
    moved = run("migrate", str(source), target)
    assert moved.exit_code == 0, moved.stderr
    assert agents("get", target, **ADA) == some
    assert run("verify", str(source), target).exit_code == 0
    agents("add", target, messages=[message("new", 10)], **ADA)
    assert ids(agents("get", target, **ADA)) == [*names, "new"]
    assert run("delete", target, "--id", "a", "--yes").exit_code == 0
    assert ids(agents("get", target, **ADA)) == ["z", "y", "m", "b", "c", "new"]
    assert run("undo", "--store", target, "--yes").exit_code == 0
    assert ids(agents("get", target, **ADA)) == [*names, "new"]


def test_a_search_index_that_lags_is_not_what_memctl_reads(
    url: str, servers: Servers, agents: Agents, run: Run
) -> None:
    servers.tablestore.instance(url).lag("agentscope_memory")
    assert run("delete", url, "--user", "ada", "--id", "echo", "--yes").exit_code == 0
    agents("add", url, messages=[message("fresh", 8)], **ADA)
    assert ids(agents("get", url, **ADA)) == ids(MESSAGES), "AgentScope reads the index"
    entries = next(iter(contents(url).values()))
    assert [one.id for one in entries] == ["zulu", "alpha", "mike", "kilo", "fresh"]


def test_session_of_agentscope(servers: Servers, agents: Agents, run: Run) -> None:
    url = servers.tablestore.fresh()
    agents("save", url, messages=MESSAGES, summary="so far", **ADA)
    agents("save", url, messages=MESSAGES[:2], summary="", user="", session="plain")
    found = report(run("inspect", url, "--json"))
    assert [(one["user"], one["session"], one["messages"]) for one in found["memories"]] == [
        ("ada", "kyoto", 5),
        ("default", "plain", 2),
    ]
    assert run("delete", url, "--user", "ada", "--id", "alpha", "--yes").exit_code == 0
    after = agents("load", url, **ADA)
    assert (ids(after["messages"]), after["summary"]) == (
        ["zulu", "mike", "kilo", "echo"],
        "so far",
    )
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert agents("load", url, **ADA) == {"messages": MESSAGES, "summary": "so far"}
    assert run("rename", url, "--user", "ada", "cleo", "--yes").exit_code == 0
    renamed = agents("load", url, **ADA | {"user": "cleo"})
    assert renamed == {"messages": MESSAGES, "summary": "so far"}
    assert {key.user for key in contents(url)} == {"cleo", "default"}


def test_session_is_written_for_agentscope(
    servers: Servers, agents: Agents, run: Run, tmp_path: Path
) -> None:
    source, target = servers.tablestore.fresh(), servers.tablestore.fresh()
    agents("add", source, messages=MESSAGES, **ADA)
    place = f"{target}&layout=session&path=agent_memory"
    moved = run("migrate", source, place)
    assert moved.exit_code == 0, moved.stderr
    assert agents("load", target, **ADA)["messages"] == MESSAGES
    assert run("verify", source, place).exit_code == 0
    state = '{"memory": {"_compressed_summary": "", "content": []}}'
    (tmp_path / "plain.json").write_text(state)
    nobody = run("migrate", str(tmp_path), place)
    assert nobody.exit_code == 7, nobody.stderr
    assert "without a user" in nobody.stderr + nobody.stdout


def test_runtime_services(servers: Servers, agents: Agents, run: Run, tmp_path: Path) -> None:
    url = servers.tablestore.fresh()
    agents("append", url, messages=MESSAGES, **ADA)
    agents("append", url, messages=MESSAGES[:1], user="bob", session="nara")
    before = agents("recall", url, **ADA)
    assert ids(before["history"]) == ids(MESSAGES)
    rows = servers.tablestore.dump(url)
    found = report(run("inspect", url, "--json"))
    counts = {
        (one["user"], one["session"], one.get("path")): one["messages"] for one in found["memories"]
    }
    assert counts == {
        ("ada", "kyoto", None): 6,
        ("ada", "kyoto", "memory"): 6,
        ("bob", "nara", None): 1,
        ("bob", "nara", "memory"): 1,
    }
    assert "京都" in run("context", f"{url}&layout=runtime&path=history", "--user", "ada").stdout
    refused = run("delete", url, "--user", "ada", "--match", "To Kyoto", "--yes")
    assert refused.exit_code == 2, refused.stderr
    assert "retired format" in refused.stderr
    assert servers.tablestore.dump(url) == rows
    moved = run("migrate", f"{url}&layout=runtime&path=history", str(tmp_path / "a.db"), "--lossy")
    assert moved.exit_code == 0, moved.stderr
    assert run("erase", url, "--user", "ada", "--yes").exit_code == 0
    left = servers.tablestore.dump(url)
    assert [len(rows) for rows in left.values()] == [1, 1, 1], "of each table, what is bob's"
    assert len(agents("recall", url, user="bob", session="nara")["history"]) == 1
