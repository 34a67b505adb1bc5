"""What the real services write is read, migrated and erased by memctl."""

from __future__ import annotations

from typing import Any

import pytest

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.runtime import RUNTIME
from tests.interop_runtime.conftest import Runtime
from tests.support import sent
from tests.support.cli import Run, report
from tests.support.servers.pool import Servers

TEXT = "Where to?"
MESSAGES: list[dict[str, Any]] = [
    {"id": "m1", "name": "ada", "role": "user", "content": TEXT, "metadata": {"n": 1}},
    {
        "id": "m2",
        "name": "friday",
        "role": "assistant",
        "metadata": None,
        "content": [
            {"type": "thinking", "thinking": "a call is due"},
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "kyoto"}},
        ],
    },
    {
        "id": "m3",
        "name": "system",
        "role": "system",
        "metadata": None,
        "content": [{"type": "tool_result", "id": "c1", "name": "search", "output": "temples"}],
    },
    {"id": "m4", "name": "friday", "role": "assistant", "content": "To Kyoto.", "metadata": None},
]
STATE = {
    "memory": {"_compressed_summary": "", "content": [[{**MESSAGES[0], "timestamp": ""}, []]]},
    "name": "Friday",
}


@pytest.fixture
def url(redis_url: str, runtime: Runtime) -> str:
    """Redis with a session in all three services, and two rounds of its state."""
    about = {"user": "u", "session": "s"}
    runtime("write", redis_url, messages=MESSAGES, state=STATE, **about)
    runtime("write", redis_url, messages=[], state=STATE, **about)
    return redis_url


def seen(runtime: Runtime, url: str, round: int | None = None) -> Any:
    return runtime("read", url, user="u", session="s", round=round)


def test_runtime_services_are_listed(url: str, run: Run) -> None:
    found = report(run("inspect", f"{url}?layout=runtime", "--json"))
    rows = {(one["session"], one.get("path")): one for one in found["memories"]}
    assert len(rows) == 2
    assert all(one["messages"] == 5 for one in rows.values())
    assert all(900 < one["ttl"] <= 1000 for one in rows.values())
    found = report(run("inspect", f"{url}?layout=runtime-state", "--json"))
    assert len(found["memories"]) == 2
    text = run("context", f"{url}?layout=runtime", "--path", "history", "--user", "u").stdout
    assert TEXT in text
    assert "temples" in text


def test_runtime_session_is_erased(url: str, run: Run, runtime: Runtime) -> None:
    for layout in ("runtime", "runtime-state"):
        assert run("erase", f"{url}?layout={layout}", "--user", "u", "--yes").exit_code == 0
    found = seen(runtime, url)
    assert not found["history"]
    assert not found["memory"]
    assert not found["state"]


@pytest.mark.parametrize("target", ["memory", "agentscope2"])
def test_runtime_history_is_migrated(url: str, run: Run, servers: Servers, target: str) -> None:
    source = f"{url}?layout=runtime"
    to = f"{servers.redis.fresh()}?layout={target}"
    words = ("migrate", source, to, "--path", "history")
    assert run(*words).exit_code == 0
    shown = run("context", to, "--user", "u").stdout
    for text in (TEXT, "temples", "To Kyoto."):
        assert text in shown
    assert run("doctor", to).exit_code == 0


def test_context_is_what_the_services_give(url: str, run: Run, runtime: Runtime) -> None:
    """An application hands it to its agent: the services send nothing to a model themselves."""
    given = seen(runtime, url)
    for service in ("history", "memory"):
        words = ("context", f"{url}?layout=runtime", "--path", service, "--user", "u")
        rows = report(run(*words, "--json"))["messages"]
        shown = sent.shown([row["message"] for row in rows], RUNTIME)
        assert said(shown) == said(sent.shown(given[service], AGENTSCOPE1))


def said(messages: list[sent.Message]) -> list[sent.Message]:
    """Return messages that say something: in the runtime, reasoning is a message of its own."""
    return [one for one in messages if one[1]]
