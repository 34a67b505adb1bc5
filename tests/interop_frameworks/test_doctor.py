"""What ``doctor`` and its repair make of messages that the real frameworks wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop_frameworks.conftest import Frameworks
from tests.support.cli import report
from tests.support.servers.pool import start
from tests.support.worker import environ, program

pytestmark = pytest.mark.slow

LANGCHAIN = """
import json, sys
from langchain_community.chat_message_histories import SQLChatMessageHistory
from langchain_core.messages import AIMessage, FunctionMessage, HumanMessage, ToolMessage

def history(session):
    return SQLChatMessageHistory(session, connection="sqlite:///" + sys.argv[2])

call = {"name": "ls", "arguments": json.dumps({"path": "/srv"})}
old = AIMessage("", additional_kwargs={
    "tool_calls": [{"id": "c1", "type": "function", "function": call}]})
old.tool_calls = []  # as versions before 0.1.37 stored it
sessions = {
    "kwargs": [HumanMessage("list"), old, ToolMessage("a b", tool_call_id="c1")],
    "function": [HumanMessage("list"), AIMessage("", additional_kwargs={"function_call": call}),
                 FunctionMessage("a b", name="ls")],
    "twice": [HumanMessage("list"), AIMessage("", tool_calls=[
        {"name": "ls", "args": {}, "id": "c2"}, {"name": "ls", "args": {}, "id": "c2"}]),
        ToolMessage("x", tool_call_id="c2")],
}
if sys.argv[1] == "write":
    for session, messages in sessions.items():
        history(session).add_messages(messages)
found = {session: [[one.type, one.content, len(getattr(one, "tool_calls", []))]
                   for one in history(session).messages] for session in sessions}
print(json.dumps(found))
"""

AGENTS = """
import asyncio, json, sys
from agents import SQLiteSession

def call(id, item):
    return {"type": "function_call", "call_id": id, "id": item, "name": "ls", "arguments": "{}"}

ITEMS = [
    {"role": "user", "content": "list"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    call("c1", "fc_1"),
    {"role": "user", "content": "well?"},
    {"type": "reasoning", "id": "rs_2", "summary": []},
    {"role": "user", "content": "hello?"},
]

async def main():
    session = SQLiteSession("s", sys.argv[2])
    if sys.argv[1] == "write":
        await session.add_items(ITEMS)
    print(json.dumps([one.get("type", one.get("role")) for one in await session.get_items()]))

asyncio.run(main())
"""


def ask(script: str, do: str, path: Path) -> Any:
    """Run a script of a framework on a database; return what it printed."""
    python = start(lambda: program(Frameworks.environment))
    words = [str(python), "-W", "ignore", "-c", script, do, str(path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environ())
    return json.loads(done.stdout)


def test_calls_of_older_versions_of_langchain_are_left(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    before = ask(LANGCHAIN, "write", path)
    assert before["kwargs"][1] == ["ai", "", 1]  # the loader of LangChain reads it, too
    shown = run("inspect", path, "--messages").stdout
    assert shown.count('→ ls  {"path": "/srv"}') == 2
    done = report(run("doctor", path, "--repair", "--yes", "--json"))
    assert [one["code"] for one in done["repaired"]] == ["repeated-tool-call"]
    after = ask(LANGCHAIN, "read", path)
    assert after["twice"] == [["human", "list", 0], ["ai", "", 1], ["tool", "x", 0]]
    assert after | {"twice": None} == before | {"twice": None}
    report(run("undo", done["run"], "--json"))
    assert ask(LANGCHAIN, "read", path) == before


def test_a_repair_is_read_in_order_by_openai_agents(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    before = ask(AGENTS, "write", path)
    done = report(run("doctor", path, "--repair", "--yes", "--json"))
    assert {one["code"] for one in done["repaired"]} == {
        "tool-call-without-result",
        "lone-reasoning",
    }
    assert ask(AGENTS, "read", path) == [
        *("user", "reasoning", "function_call", "function_call_output", "user", "user"),
    ]
    report(run("undo", done["run"], "--json"))
    assert ask(AGENTS, "read", path) == before
