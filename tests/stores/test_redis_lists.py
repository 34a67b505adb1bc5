"""Histories of other frameworks in Redis: their users, and what is no message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.cli import fails, report


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url) as client:
        for text in "first", "second":  # the newest comes first
            said = {"type": "human", "data": {"content": text, "type": "human", "id": None}}
            client.lpush("message_store:kyoto", json.dumps(said))
        yield client


def test_lists_of_one_user(run: Any, client: Any, redis_url: str, tmp_path: Path) -> None:  # noqa: ARG001
    owned = f"{redis_url}?layout=langchain&owner=ada"
    [found] = report(run("inspect", owned, "--json"))["memories"]
    assert (found["user"], found["session"], found["messages"]) == ("ada", "kyoto", 2)
    shown = run("inspect", owned, "--messages").stdout
    assert shown.index("first") < shown.index("second")
    target = f"{redis_url}?layout=openai-agents"
    refused = run("migrate", owned, target, "--lossy")
    fails(refused, 7, "the keys name no user, not 'ada'; add ?owner=ada")
    assert run("migrate", owned, f"{target}&owner=ada", "--lossy").exit_code == 0
    assert client.llen("agents:session:kyoto:messages") == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"\xff", "holds no JSON at index 2"), (b"5", "holds no JSON object at index 2")],
)
def test_lists_name_what_is_damaged(
    run: Any, client: Any, redis_url: str, value: bytes, reason: str
) -> None:
    client.lpush("message_store:kyoto", value)
    client.lpush("message_store:osaka", json.dumps({"type": "human", "data": {"content": "x"}}))
    client.set("message_store:text", "no list")
    found = run("inspect", f"{redis_url}?layout=langchain", "--json")
    assert [one["session"] for one in report(found, 7)["memories"]] == ["osaka"]
    assert reason in found.stderr
