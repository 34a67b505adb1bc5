"""Sessions in Redis that the real AgentScope 2.x wrote, changed by memctl and read by it again."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.support.agentscope2 import AgentScope2
from tests.support.cli import Run, report

ALICE = {"user": "u", "agent": "a", "session": "s"}
BASE = "agentscope:user:u:session:s"


def message(id: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    text = {"type": "text", "text": f"text of {id}", "id": f"b-{id}"}
    about = {"name": role, "role": role, "id": id, "content": [text]}
    return about | {"created_at": "2026-01-01T12:00:00.000001"} | fields


def call(id: str, tool: str) -> dict[str, Any]:
    asked = {"type": "tool_call", "id": tool, "name": "f", "input": "{}", "state": "finished"}
    given = {"type": "tool_result", "id": tool, "name": "f", "output": "ok", "state": "success"}
    return message(id, "assistant", content=[asked, given])


LOG = [message("m1"), call("m2", "c1"), message("m3"), message("m4", "assistant")]
IDS = ["m1", "m2", "m3", "m4"]


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in messages]


@pytest.fixture
def url(client: redis.Redis, redis_url: str, agentscope2: AgentScope2) -> str:
    """Redis with two sessions, which expire, as a user of memctl writes it."""
    for session in ("s", "t"):
        about = {**ALICE, "session": session, "summary": "what was said"}
        agentscope2("write", redis_url, **about, messages=LOG, context=IDS[1:])
    for key in client.scan_iter():
        client.expire(key, 1000)
    return redis_url


def seen(agentscope2: AgentScope2, url: str) -> dict[str, Any]:
    return {one["session"]: one for one in agentscope2("list", url, user="u")}


def test_redis_sessions_are_found_by_their_keys(url: str, run: Run) -> None:
    found = report(run("inspect", url, "--json"))["memories"]
    assert {one["session"] for one in found} == {"s", "t"}
    assert all(one["marks"] == {"compressed": 1} for one in found)
    assert all(900 < one["ttl"] <= 1000 for one in found)
    healthy = run("doctor", url)
    assert healthy.exit_code == 0, healthy.stdout


@pytest.mark.parametrize("id", IDS)
def test_redis_message_goes_from_log_and_context(
    client: redis.Redis, url: str, run: Run, agentscope2: AgentScope2, id: str
) -> None:
    before = seen(agentscope2, url)
    words = ("delete", url, "--session", "s", "--id", id, "--yes")
    assert run(*words).exit_code == 0
    found = seen(agentscope2, url)
    assert ids(found["s"]["messages"]) == [one for one in IDS if one != id]
    assert ids(found["s"]["context"]) == [one for one in IDS[1:] if one != id]
    assert found["t"] == before["t"]
    for key in (BASE, f"{BASE}:messages", f"{BASE}:message_ids"):
        assert client.ttl(key) == pytest.approx(1000, abs=100)
    assert run("undo", "--yes").exit_code == 0
    assert seen(agentscope2, url) == before


def test_redis_session_is_compressed_and_restored(
    url: str, run: Run, agentscope2: AgentScope2
) -> None:
    before = seen(agentscope2, url)
    assert run("compress", url, "--session", "s", "--keep-recent", "1").exit_code == 0
    found = seen(agentscope2, url)["s"]
    assert ids(found["context"]) == ["m4"]
    assert ids(found["messages"]) == IDS
    assert found["summary"] != before["s"]["summary"]
    assert run("undo", "--yes").exit_code == 0
    assert seen(agentscope2, url) == before
