"""A program that uses the storage and the agents of AgentScope 2.x, for tests that run without it.

Runs in the environment ``.interop2``, which knows nothing of memctl.  Each line of stdin is a
request, each line of stdout its answer, ``{"answer": ...}`` or ``{"error": "..."}``, both JSON.  A
request says what to ``do`` at a ``place``, ``{"sql": SQLAlchemy's URL}`` or ``{"redis": {"host",
"port", "db"}}``, with a ``user`` and mostly an ``agent`` and a ``session``, both ids:

- ``write`` makes the agent and the session, with its ``summary`` and ``messages`` in its log; those
  whose ids are in ``context`` are in its context, ``variants`` in the place of those of the log;
- ``list`` returns the sessions of a user, as AgentScope lists and loads them;
- ``read`` returns what AgentScope has of an agent and a session, one by one;
- ``reply`` has a real agent of the session answer what is ``say``, by the ``model`` at a URL, and
  saves what it leaves, as the application of AgentScope does (``app/_service/_chat.py``);
- ``confirm`` returns whether the agent takes the user's confirmation of the last call;
- ``migrate`` opens a SQL storage with ``auto_migrate``;
- ``save`` writes the state of a session into a ``{"file": path}``, as QwenPaw 2 does, and ``load``
  returns the state in one, as AgentScope loads it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from agentscope.agent import Agent
from agentscope.app.storage import AgentData, AgentRecord, RedisStorage, SessionConfig, StorageBase
from agentscope.app.storage._sql import AsyncSQLAlchemyStorage
from agentscope.credential import OpenAICredential
from agentscope.event import ConfirmResult, UserConfirmResultEvent
from agentscope.message import Msg, UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.state import AgentState


def storage(request: dict[str, Any]) -> AbstractAsyncContextManager[StorageBase | None]:
    """Return AgentScope's storage of the place of a request; files have none."""
    place = request["place"]
    if "file" in place:
        return nullcontext()
    if "sql" in place:
        return AsyncSQLAlchemyStorage(place["sql"], create_tables=request["do"] == "write")
    return RedisStorage(**place["redis"])


async def write(store: StorageBase, about: dict[str, Any]) -> None:
    """Make a session with its messages."""
    user, agent, session = about["user"], about["agent"], about["session"]
    record = AgentRecord(id=agent, user_id=user, data=AgentData(id=agent, name=agent))
    await store.upsert_agent(user, record)
    messages = [Msg.model_validate(message) for message in about["messages"]]
    variants = {one["id"]: Msg.model_validate(one) for one in about.get("variants", [])}
    state = AgentState(session_id=session, summary=about.get("summary", ""))
    state.context = [variants.get(one.id, one) for one in messages if one.id in about["context"]]
    config = SessionConfig(workspace_id="w", name="A trip")
    await store.upsert_session(user, agent, config, state=state, session_id=session)
    for message in messages:
        await store.upsert_message(user, session, message)


async def sessions(store: StorageBase, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sessions of a user."""
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


async def read(store: StorageBase, about: dict[str, Any]) -> dict[str, Any]:
    """Return all that AgentScope has of a session."""
    user, agent, session = about["user"], about["agent"], about["session"]
    record = await store.get_agent(user, agent)
    found = await store.get_session(user, agent, session)
    return {
        "agent": record.data.name if record else None,
        "sessions": [one.id for one in await store.list_sessions(user, agent)],
        "session": found.model_dump(mode="json") if found else None,
        "log": await log(store, user, session),
    }


async def log(store: StorageBase, user: str, session: str) -> list[dict[str, Any]]:
    """Return all messages of a session, page by page from the newest."""
    messages: list[Msg] = []
    more = True
    while more:
        before = {"before": messages[0].id} if messages else {}
        page, more = await store.list_messages(user, session, limit=7, **before)
        messages = [*page, *messages]
    return [one.model_dump(mode="json") for one in messages]


async def reply(store: StorageBase, about: dict[str, Any]) -> str | None:
    """Have the agent of a session answer; save what it leaves."""
    user, agent, session = about["user"], about["agent"], about["session"]
    record = await store.get_agent(user, agent)
    found = await store.get_session(user, agent, session)
    assert record is not None
    assert found is not None
    credential = OpenAICredential(api_key="none", base_url=about["model"])
    model = OpenAIChatModel(credential, "none", stream=False, max_retries=0)
    one = Agent(record.data.name, record.data.system_prompt, model, state=found.state)
    said = UserMsg("user", about["say"])
    await store.upsert_message(user, session, said)
    answer = await one.reply(said)
    await store.upsert_message(user, session, answer)
    await store.update_session_state(user, agent, session, one.state)
    return answer.get_text_content()


async def migrate(_: StorageBase, about: dict[str, Any]) -> None:
    """Run AgentScope's own migrations."""
    url = about["place"]["sql"].replace("%", "%%")  # AgentScope hands it to a parser of settings
    async with AsyncSQLAlchemyStorage(url, auto_migrate=True, create_tables=False):
        pass


async def save(_: None, about: dict[str, Any]) -> None:
    """Write the state of a session into a file."""
    state = AgentState(session_id=about["session"], summary=about["summary"])
    state.context = [Msg.model_validate(message) for message in about["messages"]]
    value = {"agent": {"state": state.model_dump(mode="json")}}
    await asyncio.to_thread(write_file, Path(about["place"]["file"]), value)


def write_file(file: Path, value: Any) -> None:
    """Write JSON into a file, whose folder need not be there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


async def load(_: None, about: dict[str, Any]) -> dict[str, Any]:
    """Return the state in a file."""
    text = await asyncio.to_thread(Path(about["place"]["file"]).read_text, "utf-8")
    return AgentState.model_validate(json.loads(text)["agent"]["state"]).model_dump(mode="json")


async def confirm(store: StorageBase, about: dict[str, Any]) -> bool:
    """Return whether the agent of a session takes the confirmation of its last call."""
    found = await store.get_session(about["user"], about["agent"], about["session"])
    assert found is not None
    one = Agent.__new__(Agent)
    one.name, one.state = about["agent"], found.state
    call = found.state.context[-1].get_content_blocks("tool_call")[-1]
    result = ConfirmResult(confirmed=True, tool_call=call)
    event = UserConfirmResultEvent(reply_id=found.state.reply_id, confirm_results=[result])
    return await one._check_incoming_event(event)


DO: dict[str, Any] = {
    **{"write": write, "list": sessions, "read": read, "reply": reply},
    **{"migrate": migrate, "save": save, "load": load, "confirm": confirm},
}


async def answer(request: dict[str, Any]) -> Any:
    """Do what is asked."""
    async with storage(request) as store:
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
