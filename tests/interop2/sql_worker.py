"""A program that uses AgentScope 2's storage and agents, for tests that run without it.

Runs in the environment ``.interop2``, which knows nothing of memctl.  Each line of stdin is a
request, each line of stdout its answer, both JSON: ``{"do": ..., "url": ..., "user": ...,
"session": ..., ...}``, answered by ``{"answer": ...}`` or ``{"error": "..."}``.  ``url`` is
SQLAlchemy's, ``agent`` the id of the agent of the session.

- ``write``: makes the agent and the session, ``messages`` in its log, those whose ids are in
  ``context`` in its context, ``variants`` being messages that the context has in the place of the
  log's, and ``summary``;
- ``read``: what ``get_agent``, ``list_sessions``, ``get_session`` and ``list_messages`` give;
- ``reply``: a real agent with the state of the session answers ``say``; the storage keeps both
  messages and the state, as AgentScope's own service does it.  The answer is what the model was
  sent, which is a server on loopback;
- ``migrate``: opens the storage with ``auto_migrate``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

from agentscope.agent import Agent
from agentscope.app.storage import (
    AgentRecord,
    AsyncSQLAlchemyStorage,
    SessionConfig,
)
from agentscope.app.storage._model._agent import AgentData
from agentscope.credential import OpenAICredential
from agentscope.message import Msg, UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.state import AgentState

ANSWER = "So be it."


class Model(BaseHTTPRequestHandler):
    """A model with one answer to every prompt, which it keeps."""

    prompts: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        """Answer a chat completion."""
        length = int(self.headers["Content-Length"])
        self.prompts.append(json.loads(self.rfile.read(length)))
        message = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "loopback"}
        body = json.dumps(answer | {"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


async def write(storage: AsyncSQLAlchemyStorage, about: dict[str, Any]) -> None:
    """Make a session as AgentScope's service does."""
    user, session, agent = about["user"], about["session"], about["agent"]
    record = AgentRecord(user_id=user, id=agent, data=AgentData(id=agent, name="Friday"))
    await storage.upsert_agent(user, record)
    messages = [Msg.model_validate(one) for one in about["messages"]]
    variants = {one["id"]: Msg.model_validate(one) for one in about.get("variants", [])}
    state = AgentState(summary=about.get("summary", ""))
    state.context = [variants.get(one.id, one) for one in messages if one.id in about["context"]]
    config = SessionConfig(workspace_id="w", name="A trip")
    await storage.upsert_session(user, agent, config, state, session)
    for one in messages:
        await storage.upsert_message(user, session, one)


async def read(storage: AsyncSQLAlchemyStorage, about: dict[str, Any]) -> dict[str, Any]:
    """Return all that AgentScope has of a session."""
    user, session, agent = about["user"], about["session"], about["agent"]
    found = await storage.get_session(user, agent, session)
    log: list[Msg] = []
    before, more = None, True
    while more:
        page, more = await storage.list_messages(user, session, limit=7, before=before)
        log[:0] = page
        before = page[0].id if page else None
    record = await storage.get_agent(user, agent)
    return {
        "agent": record.data.name if record else None,
        "sessions": [one.id for one in await storage.list_sessions(user, agent)],
        "session": found.model_dump(mode="json") if found else None,
        "log": [one.model_dump(mode="json") for one in log],
    }


async def reply(storage: AsyncSQLAlchemyStorage, about: dict[str, Any]) -> dict[str, Any]:
    """Let a real agent go on with a session."""
    user, session, agent = about["user"], about["session"], about["agent"]
    found = await storage.get_session(user, agent, session)
    assert found is not None
    record = await storage.get_agent(user, agent)
    assert record is not None
    server = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Model.prompts.clear()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    credential = OpenAICredential(api_key="none", base_url=url)
    model = OpenAIChatModel(credential, "loopback", stream=False)
    one = Agent(record.data.name, record.data.system_prompt, model, state=found.state)
    said = UserMsg("user", about["say"])
    await storage.upsert_message(user, session, said)
    answer = await one.reply(said)
    await storage.upsert_message(user, session, answer)
    await storage.update_session_state(user, agent, session, one.state)
    server.shutdown()
    return {"prompts": Model.prompts, "answer": answer.get_text_content()}


async def migrate(_: AsyncSQLAlchemyStorage, about: dict[str, Any]) -> None:
    """Run AgentScope's own migrations."""
    url = about["url"].replace("%", "%%")  # AgentScope hands it to a parser of settings
    async with AsyncSQLAlchemyStorage(url, auto_migrate=True, create_tables=False):
        pass


DOES = {"write": write, "read": read, "reply": reply, "migrate": migrate}


async def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    try:
        async with AsyncSQLAlchemyStorage(
            request["url"], create_tables=request["do"] == "write"
        ) as storage:
            return {"answer": await DOES[request["do"]](storage, request)}
    except Exception as error:  # noqa: BLE001 - the test that asked is to fail
        return {"error": repr(error)}


def main() -> None:
    """Answer requests until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(asyncio.run(answer(json.loads(line)))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
