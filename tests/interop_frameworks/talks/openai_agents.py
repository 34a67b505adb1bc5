"""Agents of the OpenAI Agents SDK with each kind of session that is in SQLite."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.extensions.memory import AdvancedSQLiteSession, SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI

set_tracing_disabled(True)
PICTURE = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw=="}


def call(id: str, number: int) -> dict[str, Any]:
    about = {"type": "function_call", "id": f"fc_{number}", "call_id": id, "name": "weather"}
    return about | {"arguments": f'{{"city": "{number}"}}'}


def output(id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


def thought(number: int) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": []}


ODD = [
    *(thought(1), call("c1", 1), thought(2), thought(3), call("c2", 2)),
    *({"role": "user", "content": "Both?"}, call("c1", 3), output("c1", "sun"), thought(1)),
    *(output("c1", "rain"), output("c9", "snow"), {"role": "user", "content": "Again."}),
]
"""Calls without outputs, outputs without calls, and items with the ids of others."""
BRANCHED = ("advanced", "branched", "other")


@function_tool
def weather(city: str) -> str:
    return f"sunny in {city}"


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


class Talk:
    """A session of a user with an agent."""

    def __init__(self, path: str, session: str, model: str) -> None:
        self.client = AsyncOpenAI(base_url=model, api_key="k", max_retries=0)
        asked = OpenAIResponsesModel("gpt-5", self.client)
        self.agent = Agent("clerk", instructions="Be brief.", model=asked, tools=[weather, pay])
        self.session = self.open(path, session)

    def open(self, path: str, session: str) -> Any:
        if session == "sqlalchemy":
            url = f"sqlite+aiosqlite:///{path}"
            return SQLAlchemySession.from_url(session, url=url, create_tables=True)
        if session in BRANCHED:
            return AdvancedSQLiteSession(session_id=session, db_path=path, create_tables=True)
        return SQLiteSession(session, path)

    async def say(self, *parts: Any) -> None:
        said: Any = parts[0]
        if len(parts) > 1:
            content = [
                {"type": "input_text", "text": part} if isinstance(part, str) else part
                for part in parts
            ]
            said = [{"role": "user", "content": content}]
        await Runner.run(self.agent, said, session=self.session)


async def write(path: str, session: str, model: str) -> None:
    talk = Talk(path, session, model)
    await talk.say("Hello 会话 😀")
    await talk.say("weather in Kyoto?")
    await talk.say("Look:", PICTURE)
    match session:
        case "rewound":
            await talk.say("A slip")
            await talk.session.pop_item()
            await talk.session.pop_item()
        case "compacted":
            compacting = OpenAIResponsesCompactionSession(
                session, talk.session, client=talk.client, compaction_mode="input"
            )
            await compacting.run_compaction({"force": True})
            await talk.say("weather again?")
        case "branched" | "other":
            await talk.session.create_branch_from_turn(2, "other")
            await talk.say("Or there?")
            await talk.session.switch_to_branch("main")
            await talk.say("Only here.")
        case "stopped":
            await talk.say("pay 200")
        case "odd":
            await talk.session.add_items(ODD)


async def ask(path: str, session: str, model: str) -> None:
    talk = Talk(path, session, model)
    if session == "other":
        await talk.session.switch_to_branch("other")
    await talk.say("And now?")
