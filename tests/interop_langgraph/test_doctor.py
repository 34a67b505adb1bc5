"""A thread that waits for a person is sound, and a copy says that the thread waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop_langgraph.conftest import Graphs
from tests.support.cli import Run, fails, report
from tests.support.servers.pool import Servers


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_thread_that_waits_is_sound(
    engine: str, run: Run, graphs: Graphs, servers: Servers, tmp_path: Path
) -> None:
    url = str(tmp_path / "graph.db") if engine == "sqlite" else servers.postgresql.fresh()
    graphs("make", url)
    found = report(run("doctor", url, "--json"))
    shown = [(one["code"], one["session"], one["repairable"]) for one in found["findings"]]
    assert shown == [("waiting-call", "chat-asks", False)]
    target = tmp_path / "agents.db"
    fails(run("migrate", url, target), 9, "calls that wait", "sum 1")
    assert run("migrate", url, target, "--lossy").exit_code == 0
    copied = report(run("doctor", target, "--json"))["findings"]
    assert [one["code"] for one in copied] == ["no-session-index"]
    chats = f"sqlite:///{tmp_path}/chats.db?layout=langchain"
    assert run("migrate", url, chats, "--lossy").exit_code == 0
    assert report(run("doctor", chats, "--json"))["findings"] == []
    assert graphs("go", url)["chat-asks"][0][1] == []  # the graph has ended its step
    again = run("migrate", url, target, "--session", "chat-asks", "--lossy", "--json")
    assert report(again)["verified"]
    assert report(run("migrate", url, chats, "--lossy", "--json"))["verified"]
    assert report(run("doctor", chats, "--json"))["findings"] == []
