"""The summary that a graph keeps in a channel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop_langgraph.conftest import Graphs
from tests.support.cli import Run, fails, report
from tests.support.servers.pool import Servers


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_the_summary_of_a_thread(
    engine: str, run: Run, graphs: Graphs, servers: Servers, tmp_path: Path
) -> None:
    place = f"{tmp_path}/graph.db" if engine == "sqlite" else servers.postgresql.fresh()
    state = graphs("summed", place)
    url = f"sqlite:///{place}" if engine == "sqlite" else place
    assert (state["summary"], len(state["messages"])) == ("They spoke of seats.", 1)
    assert "'summary' of 1 thread" in run("inspect", url).stderr
    named = f"{url}{'&' if '?' in url else '?'}layout=langgraph&summary=summary"
    shown = report(run("context", named, "--json"))["messages"]
    assert [one["summary"] for one in shown] == [True, False]
    assert shown[0]["message"]["content"]["data"]["content"] == "They spoke of seats."
    assert "are left out" not in run("inspect", named).stderr
    copy = f"{tmp_path}/sessions/"
    assert run("migrate", named, copy).exit_code == 0
    context = report(run("context", copy, "--json"))["messages"]
    assert [one["summary"] for one in context] == [True, False]
    chats = f"sqlite:///{tmp_path}/chats.db?layout=langchain"
    fails(run("migrate", named, chats), 9, "cannot store summaries")
    wrong = named.replace("&summary=summary", "&summary=messages")
    fails(run("inspect", wrong), 8, "its channel 'messages' holds no text")
