"""A program that uses the storage and the agents of AgentScope 2.x, for tests that run without it.

Runs in the environment ``.interop2``, which knows nothing of memctl.  Each line of stdin is a
request, each line of stdout its answer, ``{"answer": ...}`` or ``{"error": "..."}``, both JSON.  A
request names a ``place``: ``{"sql": SQLAlchemy's URL}`` or ``{"redis": {"host", "port", "db"}}``.

``{"do": "write", "user", "agent", "session", "summary", "messages", "left"}`` makes a session whose
context is the messages but for the first ``left``, which are in the log alone.  ``{"do": "read",
"user"}`` returns what AgentScope lists for a user.  ``{"do": "reply", "user", "agent", "session",
"say", "model"}`` has a real agent of the session answer, by the model at a URL, and saves what it
leaves, as the application of AgentScope does (``app/_service/_chat.py``).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from agentscope.agent import Agent
from agentscope.app.storage import AgentData, AgentRecord, RedisStorage, SessionConfig, StorageBase
from agentscope.app.storage._sql import AsyncSQLAlchemyStorage
from agentscope.credential import OpenAICredential
from agentscope.message import Msg, UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.state import AgentState


def storage(place: dict[str, Any]) -> StorageBase:
    """Return AgentScope's storage of a place."""
    if "sql" in place:
        return AsyncSQLAlchemyStorage(place["sql"])
    return RedisStorage(**place["redis"])


async def write(store: StorageBase, about: dict[str, Any]) -> None:
    """Make a session with its messages."""
    user, agent, session = about["user"], about["agent"], about["session"]
    record = AgentRecord(id=agent, user_id=user, data=AgentData(id=agent, name=agent))
    await store.upsert_agent(user, record)
    messages = [Msg.model_validate(message) for message in about["messages"]]
    state = AgentState(session_id=session, summary=about["summary"])
    state.context = messages[about["left"] :]
    config = SessionConfig(workspace_id="w", name="A trip")
    await store.upsert_session(user, agent, config, state=state, session_id=session)
    for message in messages:
        await store.upsert_message(user, session, message)


async def read(store: StorageBase, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sessions of a user, as AgentScope lists and loads them."""
    user = about["user"]
    return [
        {
            "agent": agent.id,
            "session": session.id,
            "name": session.config.name,
            "summary": session.state.summary,
            "context": [one.model_dump(mode="json") for one in session.state.context],
            "messages": await log(store, user, session.id),
        }
        for agent in await store.list_agents(user)
        for session in await store.list_sessions(user, agent.id)
    ]


async def log(store: StorageBase, user: str, session: str) -> list[dict[str, Any]]:
    """Return all messages of a session, page by page from the newest."""
    messages: list[Msg] = []
    more = True
    while more:
        before = {"before": messages[0].id} if messages else {}
        page, more = await store.list_messages(user, session, limit=50, **before)
        messages = [*page, *messages]
    return [one.model_dump(mode="json") for one in messages]


async def reply(store: StorageBase, about: dict[str, Any]) -> dict[str, Any]:
    """Have the agent of a session answer; save what it leaves."""
    user, agent, session = about["user"], about["agent"], about["session"]
    record = await store.get_session(user, agent, session)
    assert record is not None
    credential = OpenAICredential(api_key="none", base_url=about["model"])
    model = OpenAIChatModel(credential, "none", stream=False, max_retries=0)
    friday = Agent("Friday", "You help Alice.", model, state=record.state)
    said = UserMsg("Alice", about["say"])
    answer = await friday.reply(said)
    await store.update_session_state(user, agent, session, friday.state)
    for message in (said, answer):
        await store.upsert_message(user, session, message)
    return answer.model_dump(mode="json")


DO = {"write": write, "read": read, "reply": reply}


async def answer(request: dict[str, Any]) -> Any:
    """Do what is asked."""
    async with storage(request["place"]) as store:
        return await DO[request["do"]](store, request)


def main() -> None:
    # AgentScope logs to stdout, which is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            given: dict[str, Any] = {"answer": asyncio.run(answer(json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - the test shows whatever AgentScope raised
            given = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(given), file=answers, flush=True)


if __name__ == "__main__":
    main()
