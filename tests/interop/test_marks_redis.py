"""ReActAgent's own marks in Redis: members of an enum, which from Python 3.11 on name other lists.

The worker passes marks as plain strings, as applications do; here they are what an agent passes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_compress import NAMED, NAMES, Message, Run, text
from tests.support.agentscope import PYTHON, AgentScope
from tests.support.cli import report
from tests.support.servers.pool import Servers

PROGRAM = """
import asyncio, json, os, sys
from agentscope.agent._react_agent import _MemoryMark
from agentscope.memory import RedisMemory
from agentscope.message import Msg
from redis.asyncio import ConnectionPool

def passed(name, value):
    if name == "memories":
        return [Msg.from_dict(one) for one in value]
    members = {str(member): member for member in _MemoryMark}
    return members.get(value, value) if isinstance(value, str) else value

async def main(url, names, calls):
    pool = ConnectionPool.from_url(url, decode_responses=True)
    given = []
    async with RedisMemory(names["session"], names["user"], connection_pool=pool) as memory:
        for name, arguments in calls:
            arguments = {key: passed(key, value) for key, value in arguments.items()}
            answer = await getattr(memory, name)(**arguments)
            given.append([one.id for one in answer] if isinstance(answer, list) else answer)
    await pool.aclose()
    return given

os.write(1, json.dumps(asyncio.run(main(*map(json.loads, sys.argv[1:])))).encode())
"""

HINT = "_MemoryMark.HINT"
COMPRESSED = "_MemoryMark.COMPRESSED"
ALL: list[Any] = ["get_memory", {}]
HINTS: list[Any] = ["get_memory", {"mark": HINT}]
SEEN: list[Any] = ["get_memory", {"exclude_mark": COMPRESSED}]
MARKS = ["hint", "compressed", HINT, COMPRESSED]


@pytest.fixture
def url(servers: Servers) -> str:
    """A new Redis."""
    return servers.redis.fresh()


def agent(url: str, *calls: list[Any]) -> list[Any]:
    """Return the results of an agent's memory, messages as ids; marks may be members' names."""
    arguments = map(json.dumps, (url, NAMES, calls))
    done = subprocess.run([PYTHON, "-c", PROGRAM, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    given: list[Any] = json.loads(done.stdout)
    return given


def added(mark: str | None, *messages: Message) -> list[Any]:
    return ["add", {"memories": messages, "marks": mark}]


def marks_in(servers: Servers, url: str) -> list[str]:
    """The keys about marks."""
    with servers.redis.client(url) as client:
        found: Any = client.keys("*:mark*")
    return [key.decode() for key in found]


def test_interop_redis_what_an_agent_has_marked(
    agentscope: AgentScope, run: Run, servers: Servers, url: str, tmp_path: Path
) -> None:
    """It is seen, deleted, restored and migrated under its plain name."""
    agent(
        url,
        added(HINT, text("m0")),
        added(None, text("m1"), text("m2")),
        added("hint", text("m3")),
        ["update_messages_mark", {"new_mark": COMPRESSED, "msg_ids": ["m1"]}],
    )
    [found] = report(run("inspect", url, *NAMED, "--json"))["memories"]
    assert found["marks"] == {"compressed": 1, "hint": 2}
    codes = {one["code"] for one in report(run("doctor", url, "--json"), 6)["findings"]}
    assert codes == {"leftover-hint", "summary-elsewhere"}

    database = f"sqlite:///{tmp_path}/m.db"
    report(run("migrate", url, database, "--json"))
    [there] = agentscope.read(database, [{**NAMES, "marks": MARKS}])
    assert there["marked"] == {"hint": ["m0", "m3"], "compressed": ["m1"], HINT: [], COMPRESSED: []}

    done = report(run("delete", url, *NAMED, "--mark", "hint", "--yes", "--json"))
    assert agent(url, ALL, SEEN) == [["m1", "m2"], ["m2"]]
    report(run("undo", done["run"], "--json"))
    # Restored as the agent had written them: m3 has the other spelling.
    assert agent(url, ALL, HINTS, ["delete_by_mark", {"mark": HINT}], ALL, SEEN) == [
        ["m0", "m1", "m2", "m3"],
        ["m0"],
        1,
        ["m1", "m2", "m3"],
        ["m2", "m3"],
    ]
    left = [key for key in marks_in(servers, url) if "hint" in key.lower()]
    assert left == ["user_id:alice:session:s1:mark:hint"]


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (["clear", {}], []),
        (["delete", {"msg_ids": ["m0", "m1", "m2", "m3"]}], ["marks_index"]),
        (["delete_by_mark", {"mark": [HINT, COMPRESSED]}], ["marks_index"]),
    ],
)
def test_interop_redis_what_memctl_has_written(
    agentscope: AgentScope,
    run: Run,
    servers: Servers,
    url: str,
    tmp_path: Path,
    end: list[Any],
    left: list[str],
) -> None:
    """An agent sees it, in which spelling so ever, and leaves nothing of it when it deletes."""
    database = f"sqlite:///{tmp_path}/m.db"
    pairs = [(text("m0"), ["hint"]), (text("m1"), []), (text("m2"), ["compressed"])]
    agentscope.write(database, [{**NAMES, "messages": pairs}])
    report(run("migrate", database, url, "--json"))
    report(run("mark", "add", url, "compressed", *NAMED, "--id", "m1", "--json"))
    assert agent(
        url,
        *[added(COMPRESSED, text("m3")), ALL, HINTS, SEEN],
        *[["get_memory", {"mark": mark}] for mark in ("hint", "compressed", COMPRESSED)],
        *[end, ["size", {}]],
    )[1:-2] == [
        ["m0", "m1", "m2", "m3"],
        ["m0"],
        ["m0"],
        ["m0"],
        ["m1", "m2"],
        ["m1", "m2", "m3"],
    ]
    assert [key.rpartition(":")[2] for key in marks_in(servers, url)] == left
