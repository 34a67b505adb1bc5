"""``memctl context`` shows what an agent of AgentScope 2.x sends to its model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.model import MemoryKey
from tests.interop2.test_sql_sessions import IN_CONTEXT, MESSAGES, SHORTER, text
from tests.support import sent
from tests.support.adk import COMPACTED
from tests.support.agentscope2 import AgentScope2
from tests.support.backends import SQL_PLACES
from tests.support.cli import Run, fill, report
from tests.support.model_server import RecordingServer
from tests.support.servers.pool import Servers

ADA = {"user": "ada", "session": "trip", "agent": "friday"}
DATA = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
LOOK = text("m5", "user", "Here?")
LOOK["content"].append({"type": "data", "source": DATA, "id": "m5c", "name": "here.png"})


@pytest.fixture
def model() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


@pytest.mark.parametrize("kind", [*SQL_PLACES, "redis"])
@pytest.mark.parametrize("context", [[], IN_CONTEXT, [*IN_CONTEXT, "m5"]])
def test_context_is_what_an_agent_sends(
    agentscope2: AgentScope2,
    model: RecordingServer,
    run: Run,
    servers: Servers,
    tmp_path: Path,
    kind: str,
    context: list[str],
) -> None:
    """The summary, then the context of the state: a result in it is shorter than in the log."""
    place = f"{servers.redis.fresh()}?layout=agentscope2"
    if kind != "redis":
        place = SQL_PLACES[kind](tmp_path, servers)
    about: dict[str, Any] = {"messages": [*MESSAGES, LOOK], "context": context}
    agentscope2("write", place, **ADA, **about, variants=[SHORTER], summary="They plan a trip.")
    rows = report(run("context", place, "--json"))["messages"]
    shown = sent.shown([row["message"] for row in rows], AGENTSCOPE2)
    agentscope2("reply", place, **ADA, say="And now?", model=model.url)
    found = sent.chat(model.requests[-1].body["messages"])
    assert said(found) == [*said(shown), ("text", "And now?")]


def test_context_of_a_copy_of_a_session_that_adk_had_compacted(
    agentscope2: AgentScope2, model: RecordingServer, run: Run, tmp_path: Path
) -> None:
    """The agent gets ADK's summary as its own, and compacted events do not come back."""
    place = f"sqlite:///{tmp_path}/sessions.db?layout=agentscope2&agent=friday"
    adk = f"sqlite:///{tmp_path}/adk.db?layout=adk&app=shop"
    asyncio.run(fill(adk, {MemoryKey("ada", "trip"): COMPACTED}))
    agentscope2("write", place, user="ada", session="other", agent="friday", messages=[])
    done = run("migrate", adk, place)
    assert done.exit_code == 0, done.output
    agentscope2("reply", place, **ADA, say="And now?", model=model.url)
    found = sent.chat(model.requests[-1].body["messages"])
    asked = ["They spoke of a card.", "Which seat?", "And now?"]
    assert said(found) == [("text", text) for text in asked]


def said(messages: list[sent.Message]) -> list[sent.Part]:
    """Return what messages say, without what the agent adds: it sends a result on its own."""
    parts = [part for _, some in messages for part in some]
    return [part for part in parts if "<system-reminder>" not in str(part[1])]
