"""Written by one framework, carried by memctl, read by another."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from memctl.model import StoredMessage
from tests.interop_frameworks.conftest import Frameworks
from tests.support.cli import add, contents, report
from tests.support.servers.pool import Servers

LAYOUTS = {
    "langchain": "langchain",
    "openai-agents": "openai-agents",
    "openai-agents-sqlalchemy": "openai-agents",
    "openai-agents-advanced": "openai-branches",
    "llamaindex": "llamaindex",
    "adk": "adk",
    "agno": "agno",
}
PAGE = Path(__file__).parents[2] / "docs" / "stores" / "frameworks.md"
SHOWN = {
    "agentscope1": "AgentScope 1.x",
    "agentscope2": "AgentScope 2.x",
    "langchain": "LangChain",
    "openai-agents": "OpenAI Agents",
    "llamaindex": "LlamaIndex",
    "adk": "Google ADK",
    "agno": "Agno",
}


def place(framework: str, path: Path) -> str:
    """Return the URL of a framework's database."""
    if framework == "agentscope1":
        return f"sqlite:///{path}"
    layout = LAYOUTS.get(framework, framework)
    return f"sqlite:///{path}?layout={layout}" + ("&app=weather" if layout == "adk" else "")


def content(messages: list[Any]) -> dict[str, Any]:
    """Return what a conversation says, however it is cut into messages."""
    return {
        "text": [
            (one["role"], one["text"]) for one in messages if one["text"] and one["role"] != "tool"
        ],
        "calls": [call for one in messages for call in one["calls"]],
        "results": [result for one in messages for result in one["results"]],
        "images": sum(one["images"] for one in messages),
    }


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_a_conversation_goes_from_one_framework_to_another(
    run: Any, frameworks: Frameworks, tmp_path: Path, source: str, target: str
) -> None:
    """All that was said, called and answered arrives; the second framework goes on from it."""
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    frameworks("write", source, here)
    written = frameworks("read", source, here)
    moved = run("migrate", place(source, here), place(target, there), "--lossy", "--json")
    assert report(moved)["memories"]["written"] == 1
    arrived = frameworks("read", target, there)
    wanted = content(written)
    if target == "adk":  # it has no messages of the system: an agent of that name says them
        roles = {"system": "assistant"}
        wanted["text"] = [(roles.get(role, role), text) for role, text in wanted["text"]]
    assert content(arrived) == wanted
    frameworks("add", target, there)
    assert frameworks("read", target, there)[-1]["text"] == "one more"
    grown = report(run("inspect", place(target, there), "--json"))
    assert grown["totals"]["messages"] == len(arrived) + 1


@pytest.mark.parametrize("target", ["langchain", "openai-agents", "llamaindex", "adk"])
def test_offloaded_contents_come_back_in_another_framework(
    run: Any, frameworks: Frameworks, tmp_path: Path, target: str
) -> None:
    """The framework reads what it would have read if nothing had been offloaded."""
    chain, here, whole, slim = (tmp_path / f"{name}.db" for name in ("c", "h", "w", "s"))
    frameworks("write", "langchain", chain)
    assert run("migrate", place("langchain", chain), str(here)).exit_code == 0
    [key] = before = contents(str(here))
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD" * 2000}
    said = {"type": "text", "text": "Look."}
    picture = {"id": "a1", "role": "user", "content": [said, {"type": "image", "source": source}]}
    result = {"type": "tool_result", "id": "c9", "name": "read", "output": "A long page.\n" * 900}
    page = {"id": "a2", "role": "system", "content": [result]}
    more = [one | {"name": "x", "metadata": {}, "timestamp": ""} for one in (picture, page)]
    entries = [StoredMessage(str(one["id"]), json.dumps(one).encode()) for one in more]
    add(here, key, entries, len(before[key]))
    assert run("migrate", str(here), place(target, whole), "--lossy").exit_code == 0
    blobs = tmp_path / "blobs"
    offload = run("offload", str(here), "--to", blobs, "--larger", "5kB", "--yes", "--json")
    assert report(offload)["blobs"]["written"] == 2
    assert run("migrate", str(here), place(target, slim), "--lossy").exit_code == 0
    wanted = frameworks("read", target, whole)
    assert content(frameworks("read", target, slim))["images"] == content(wanted)["images"] - 1
    assert run("rehydrate", place(target, slim), "--from", blobs).exit_code == 0
    assert frameworks("read", target, slim) == wanted


@pytest.mark.parametrize("framework", LAYOUTS)
def test_agentscope_and_back_is_exact(
    run: Any, frameworks: Frameworks, tmp_path: Path, framework: str
) -> None:
    here, agents, back = (tmp_path / f"{name}.db" for name in ("here", "agents", "back"))
    frameworks("write", framework, here)
    assert run("migrate", place(framework, here), str(agents)).exit_code == 0
    assert run("migrate", str(agents), place(framework, back)).exit_code == 0
    assert run("verify", place(framework, here), place(framework, back)).exit_code == 0
    assert frameworks("read", framework, back) == frameworks("read", framework, here)


@pytest.mark.parametrize("framework", LAYOUTS)
def test_delete_and_undo_are_seen_by_the_framework(
    run: Any, frameworks: Frameworks, tmp_path: Path, framework: str
) -> None:
    path = tmp_path / "here.db"
    frameworks("write", framework, path)
    before = frameworks("read", framework, path)
    assert run("delete", place(framework, path), "--role", "user", "-y").exit_code == 0
    left = frameworks("read", framework, path)
    assert left == [one for one in before if one["role"] != "user"]
    frameworks("add", framework, path)
    assert run("undo", "-y").exit_code == 0
    after = frameworks("read", framework, path)
    assert after[:-1] == before
    assert after[-1]["text"] == "one more"


@pytest.mark.parametrize("framework", ["langchain", "openai-agents"])
def test_lists_in_redis_go_to_tables_and_back(
    run: Any, frameworks: Frameworks, tmp_path: Path, redis_url: str, framework: str
) -> None:
    """Also their time to live; the framework goes on from what memctl has written."""
    here, there = f"{redis_url}?layout={framework}", place(framework, tmp_path / "there.db")
    real = f"{framework}-redis"
    frameworks("write", real, redis_url)
    written = frameworks("read", real, redis_url)
    assert report(run("inspect", redis_url, "--json"))["totals"]["messages"] == len(written)
    assert run("migrate", here, there).exit_code == 0
    assert frameworks("read", framework, tmp_path / "there.db") == written
    assert run("delete", here, "--role", "user", "-y").exit_code == 0
    left = [one for one in written if one["role"] != "user"]
    assert frameworks("read", real, redis_url) == left
    assert run("undo", "--store", here, "-y").exit_code == 0
    assert frameworks("read", real, redis_url) == written
    assert run("erase", here, "--user", "", "--session", "kyoto", "--yes").exit_code == 0
    assert frameworks("read", real, redis_url) == []
    assert run("migrate", there, f"{here}&ttl=600").exit_code == 0
    frameworks("add", real, redis_url)
    assert frameworks("read", real, redis_url)[:-1] == written
    assert 0 < report(run("inspect", here, "--json"))["memories"][0]["ttl"] <= 600


def test_tables_of_langchain_postgres_go_to_others_and_back(
    run: Any, frameworks: Frameworks, tmp_path: Path, postgresql_url: str
) -> None:
    """Their rows keep their times; those that memctl writes get one of the database."""
    session, other = str(uuid4()), str(uuid4())
    frameworks("write", "langchain-postgres", postgresql_url, session)
    written = frameworks("read", "langchain-postgres", postgresql_url, session)
    [found] = report(run("stores", "detect", postgresql_url, "--json"))["tables"]
    assert (found["layout"], found["rows"]) == ("langchain", len(written))
    here = f"{postgresql_url}?layout=langchain&table={found['table']}"
    assert report(run("doctor", here, "--json"))["findings"] == []
    for framework in ("agentscope1", "agentscope2", "langchain"):
        there = tmp_path / f"{framework}.db"
        assert run("migrate", here, place(framework, there)).exit_code == 0
        assert run("verify", here, place(framework, there)).exit_code == 0
        old = report(run("delete", place(framework, there), "--older-than", "1d", "-n", "--json"))
        assert old["messages"]["selected"] == 0
    assert frameworks("read", "langchain", tmp_path / "langchain.db", session) == written
    assert run("delete", here, "--role", "user", "-y").exit_code == 0
    left = frameworks("read", "langchain-postgres", postgresql_url, session)
    assert left == [one for one in written if one["role"] != "user"]
    assert run("undo", "--store", here, "-y").exit_code == 0
    assert frameworks("read", "langchain-postgres", postgresql_url, session) == written
    frameworks("write", "langchain", tmp_path / "plain.db", other)
    plain = place("langchain", tmp_path / "plain.db")
    assert run("migrate", plain, here).exit_code == 0
    assert run("verify", plain, here, "--session", other).exit_code == 0
    assert frameworks("read", "langchain-postgres", postgresql_url, other) == written
    frameworks("add", "langchain-postgres", postgresql_url, other)
    grown = frameworks("read", "langchain-postgres", postgresql_url, other)
    assert (grown[:-1], grown[-1]["text"]) == (written, "one more")
    timed = report(run("inspect", here, "--session", other, "--newer-than", "1d", "--json"))
    assert (timed["totals"]["messages"], timed["untimed"]) == (1, len(written))


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_threads_of_langgraph_are_copied_out(
    run: Any,
    frameworks: Frameworks,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    engine: str,
) -> None:
    """Its checkpointer writes a checkpoint a message; a copy has each message once, and grows."""
    graph = tmp_path / "graph.db"
    real = str(graph) if engine == "sqlite" else request.getfixturevalue("postgresql_url")
    frameworks("write", "langgraph", real)
    written = frameworks("read", "langgraph", real)
    assert report(run("inspect", real, "--json"))["totals"]["messages"] == len(written)
    chain = tmp_path / "chain.db"
    assert run("migrate", real, place("langchain", chain)).exit_code == 0
    assert frameworks("read", "langchain", chain) == written
    frameworks("add", "langgraph", real)
    grown = frameworks("read", "langgraph", real)
    assert [one["text"] for one in grown][len(written) :] == ["one more"]
    moved = report(run("migrate", real, place("langchain", chain), "--json"))
    assert moved["messages"]["written"] == 1
    for framework in ("agentscope1", "agentscope2"):
        there, back = tmp_path / f"{framework}.db", tmp_path / f"{framework}-back.db"
        assert run("migrate", real, place(framework, there)).exit_code == 0
        assert run("verify", real, place(framework, there)).exit_code == 0
        assert run("migrate", place(framework, there), place("langchain", back)).exit_code == 0
        assert run("verify", real, place("langchain", back)).exit_code == 0
        assert frameworks("read", "langchain", back) == grown
    refused = run("delete", real, "--role", "user", "-y")
    assert (refused.exit_code, "only read" in refused.stderr) == (2, True)
    assert frameworks("read", "langgraph", real) == grown


def test_files_of_langchain_go_to_tables_and_back(
    run: Any, frameworks: Frameworks, tmp_path: Path
) -> None:
    files, back = tmp_path / "files", tmp_path / "back"
    table = place("langchain", tmp_path / "there.db")
    frameworks("write", "langchain-files", files)
    written = frameworks("read", "langchain-files", files)
    assert report(run("inspect", f"langchain:{files}/kyoto.json", "--json"))["memories"]
    assert run("migrate", f"langchain:{files}", table).exit_code == 0
    assert frameworks("read", "langchain", tmp_path / "there.db") == written
    assert run("delete", f"langchain:{files}", "--role", "user", "-y").exit_code == 0
    left = [one for one in written if one["role"] != "user"]
    assert frameworks("read", "langchain-files", files) == left
    assert run("undo", "-y").exit_code == 0
    assert frameworks("read", "langchain-files", files) == written
    assert run("migrate", table, f"langchain:{back}").exit_code == 0
    frameworks("add", "langchain-files", back)
    assert frameworks("read", "langchain-files", back)[:-1] == written


@pytest.mark.parametrize(
    ("framework", "wanted"),
    [
        ("adk", {"app:units": "metric", "user:home": "Kyoto", "step": 3}),
        ("agno", [{"session_state": {"units": "metric"}}, "friday", None]),
    ],
)
def test_states_travel(
    run: Any, frameworks: Frameworks, tmp_path: Path, framework: str, wanted: Any
) -> None:
    here, agents, back = (tmp_path / f"{name}.db" for name in ("here", "agents", "back"))
    frameworks("write", framework, here)
    assert frameworks("state", framework, here) == wanted
    assert run("migrate", place(framework, here), str(agents)).exit_code == 0
    assert run("migrate", str(agents), place(framework, back)).exit_code == 0
    assert frameworks("state", framework, back) == wanted


@pytest.mark.parametrize("engine", ["postgresql", "mysql"])
def test_agno_on_a_server(
    run: Any,
    frameworks: Frameworks,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    engine: str,
) -> None:
    """It keeps its tables in a schema of PostgreSQL; memctl makes the same ones.

    Agno itself cannot go on with tables that are there in MariaDB, whose JSON is a text to it.
    """
    server = request.getfixturevalue(f"{engine}_url")
    here = f"{server}?layout=agno"
    if engine == "postgresql":
        here += "&options=-csearch_path%3Dai"
    frameworks("write", "agno", server)
    written = frameworks("read", "agno", server)
    assert run("migrate", here, place("agno", tmp_path / "there.db")).exit_code == 0
    assert frameworks("read", "agno", tmp_path / "there.db") == written
    assert run("delete", here, "--role", "user", "-y").exit_code == 0
    left = [one for one in written if one["role"] != "user"]
    assert frameworks("read", "agno", server) == left
    assert run("undo", "--store", here, "-y").exit_code == 0
    assert frameworks("read", "agno", server) == written
    assert run("erase", here, "--user", "", "--session", "kyoto", "--yes").exit_code == 0
    assert frameworks("read", "agno", server) == []
    assert run("migrate", place("agno", tmp_path / "there.db"), here).exit_code == 0
    assert frameworks("read", "agno", server) == written
    if engine == "postgresql":
        frameworks("add", "agno", server)
        assert frameworks("read", "agno", server)[:-1] == written


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Shanghai"])
def test_openai_agents_in_a_database_with_another_time_zone(
    run: Any, frameworks: Frameworks, servers: Servers, tmp_path: Path, zone: str
) -> None:
    """The session goes on after a copy: the database fills the times, in its zone."""
    here, there = tmp_path / "here.db", servers.postgresql.create()
    name = there.rpartition("/")[2]
    servers.postgresql.execute(there, f"ALTER DATABASE {name} SET timezone = '{zone}'")
    target = f"{there}?layout=openai-agents"
    frameworks("write", "openai-agents", here)
    frameworks("write", "openai-agents-sqlalchemy", there, "first")
    assert run("migrate", place("openai-agents", here), target).exit_code == 0
    frameworks("add", "openai-agents-sqlalchemy", there)
    found = frameworks("read", "openai-agents-sqlalchemy", there)
    assert [one["text"] for one in found[:-1]] == [
        one["text"] for one in frameworks("read", "openai-agents", here)
    ]
    assert found[-1]["text"] == "one more"
    soon = datetime.now(UTC) + timedelta(hours=1)
    for period in f"--since={soon.isoformat()}", "--older-than=1h":
        gone = run("delete", target, period, "--dry-run", "--json")
        assert report(gone)["memories"]["selected"] == 0
    servers.postgresql.drop(there)


def test_branches_of_openai_agents(run: Any, frameworks: Frameworks, tmp_path: Path) -> None:
    """What memctl shows is what the SDK has, in each branch; a copy has both."""
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    real = "openai-agents-advanced"
    frameworks("write", real, here)
    frameworks("branch", real, here)
    written = frameworks("branches", real, here)
    assert written.keys() == {"main", "other"}
    found = report(run("inspect", here, "--json"))["memories"]
    assert {one.get("path", ""): one["messages"] for one in found} == {
        "": len(written["main"][0]),
        "other": len(written["other"][0]),
    }
    assert run("migrate", here, place(real, there)).exit_code == 0
    assert frameworks("branches", real, there) == written
    assert run("delete", here, "--path", "main", "--role", "user", "-y").exit_code == 0
    changed = frameworks("branches", real, here)
    left = [one for one in written["main"][0] if one["role"] != "user"]
    assert (changed["main"][0], changed["other"]) == (left, written["other"])
    assert run("undo", "--store", here, "-y").exit_code == 0
    assert frameworks("branches", real, here) == written
    frameworks("add", real, here)
    assert frameworks("branches", real, here)["main"][0][:-1] == written["main"][0]
    assert run("erase", here, "--user", "", "--session", "kyoto", "--yes").exit_code == 0
    assert frameworks("branches", real, here) == {}


@pytest.mark.parametrize("target", ["openai-agents", "openai-branches", "redis"])
def test_encrypted_items_of_openai_agents(
    run: Any, frameworks: Frameworks, tmp_path: Path, redis_url: str, target: str
) -> None:
    """A store of the SDK gets them as they are, so that its own key opens them."""
    real = "openai-agents-encrypted"
    source = redis_url if target == "redis" else tmp_path / "here.db"
    there = tmp_path / "there.db"
    frameworks("write", real, source)
    written = frameworks("read", real, source)
    layout = "openai-agents" if target == "redis" else target
    assert run("migrate", source, f"sqlite:///{there}?layout={layout}").exit_code == 0
    checked = report(run("doctor", there, "--json"))["findings"]
    assert [(one["code"], one["count"]) for one in checked] == [("encrypted-message", len(written))]
    refused = run("migrate", there, tmp_path / "agents.db")
    assert (refused.exit_code, "encrypted" in refused.stderr) == (9, True)
    if target == "openai-branches":
        assert len(frameworks("read_raw", "openai-agents-advanced", there)) == len(written)
        there = tmp_path / "again.db"
        back = f"sqlite:///{there}?layout=openai-agents"
        assert run("migrate", tmp_path / "there.db", back).exit_code == 0
    assert frameworks("read", real, there) == written


def test_adk_with_times_as_numbers(run: Any, frameworks: Frameworks, tmp_path: Path) -> None:
    """SqliteSessionService reads all sessions of a user, or none."""
    here, there, more = (tmp_path / f"{name}.db" for name in ("here", "there", "more"))
    for path in here, there:
        frameworks("write", "adk-sqlite", path)
    written = frameworks("read", "adk-sqlite", here)
    frameworks("write", "langchain", more, "osaka")
    assert run("migrate", place("langchain", more), here).exit_code == 0
    assert frameworks("sessions", "adk-sqlite", here) == ["kyoto", "osaka"]
    said = content(frameworks("read", "langchain", more, "osaka"))
    assert content(frameworks("read", "adk-sqlite", here, "osaka"))["calls"] == said["calls"]
    assert frameworks("read", "adk-sqlite", here) == written
    frameworks("add", "adk-sqlite", here, "osaka")
    assert frameworks("read", "adk-sqlite", here, "osaka")[-1]["text"] == "one more"
    assert run("delete", there, "--role", "user", "-y").exit_code == 0
    left = [one for one in written if one["role"] != "user"]
    assert frameworks("read", "adk-sqlite", there) == left
    assert run("undo", "--store", there, "-y").exit_code == 0
    assert frameworks("read", "adk-sqlite", there) == written
    database = place("adk", tmp_path / "database.db")
    assert run("migrate", there, database).exit_code == 0
    assert frameworks("read", "adk", tmp_path / "database.db") == written


def test_agno_2_is_migrated_by_agno_3(run: Any, frameworks: Frameworks, tmp_path: Path) -> None:
    """Its backup of the runs is read by Agno 3, so that a deletion is one in both."""
    here = tmp_path / "here.db"
    frameworks("write_2", "agno", here)
    refused = run("inspect", here)
    assert (refused.exit_code, "MigrationManager(db).up()" in refused.stderr) == (8, True)
    frameworks("migrate", "agno", here)
    written = frameworks("read", "agno", here)
    found = report(run("inspect", here, "--json"))
    assert (found["totals"]["messages"], found["totals"]["summaries"]) == (len(written), 1)
    there = tmp_path / "there.db"
    assert run("migrate", here, place("agno", there)).exit_code == 0
    assert frameworks("read", "agno", there) == written
    for chosen in ("assistant", "user"):
        assert run("delete", here, "--role", chosen, "-y").exit_code == 0
        left = [one for one in written if one["role"] != chosen]
        assert frameworks("read", "agno", here) == left
        assert run("undo", "--store", here, "-y").exit_code == 0
        assert frameworks("read", "agno", here) == written
    assert run("delete", here, "--all", "--yes").exit_code == 0
    assert frameworks("read", "agno", here) == []
    assert run("undo", "--store", here, "-y").exit_code == 0
    assert frameworks("read", "agno", here) == written
    frameworks("add", "agno", here)
    assert frameworks("read", "agno", here)[:-1] == written


def test_the_summary_of_agno_travels(run: Any, frameworks: Frameworks, tmp_path: Path) -> None:
    """Where there is no place for it, it is the first message."""
    here, chain = tmp_path / "here.db", tmp_path / "langchain.db"
    frameworks("write", "agno", here)
    frameworks("summarize", "agno", here)
    for target in ("langchain", "agentscope2"):
        there, back = (tmp_path / f"{name}.db" for name in (target, f"{target}-back"))
        assert run("migrate", place("agno", here), place(target, there)).exit_code == 0
        assert run("migrate", place(target, there), place("agno", back)).exit_code == 0
        state = frameworks("state", "agno", back)
        assert state == frameworks("state", "agno", here)
        assert state[2] == ["They spoke about the weather.", ["weather"]]
    assert "They spoke about the weather." in frameworks("read", "langchain", chain)[0]["text"]


def test_the_matrix_of_the_docs_is_what_runs(
    run: Any, frameworks: Frameworks, tmp_path: Path
) -> None:
    """``exact`` is all of it, and the way back; ``lossy`` takes ``--lossy``."""
    sources = [name for name in LAYOUTS if name in SHOWN]
    for name in sources:
        frameworks("write", name, tmp_path / f"{name}.db")
    origin = place("langchain", tmp_path / "langchain.db")
    for name in ("agentscope1", "agentscope2"):
        assert run("migrate", origin, place(name, tmp_path / f"{name}.db")).exit_code == 0
    names = ["agentscope1", "agentscope2", *sources]
    lines = ["| from \\ to | " + " | ".join(SHOWN[name] for name in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for source in names:
        cells = []
        for target in names:
            there = tmp_path / f"{source}-{target}.db"
            here = place(source, tmp_path / f"{source}.db")
            code = run("migrate", here, place(target, there)).exit_code
            assert code in (0, 9)
            back = place(source, tmp_path / f"{source}-{target}-back.db")
            if code == 0:
                assert run("migrate", place(target, there), back, "--lossy").exit_code == 0
                assert run("verify", here, back).exit_code == 0
            cells.append("exact" if code == 0 else "lossy")
        lines.append(f"| {SHOWN[source]} | " + " | ".join(cells) + " |")
    matrix = "\n".join(lines)
    assert matrix in PAGE.read_text("utf-8"), matrix
