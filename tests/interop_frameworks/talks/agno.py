"""An agent of Agno with ``SqliteDb``, which sends all earlier runs."""

from __future__ import annotations

from typing import Any

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.media import Image
from agno.models.openai import OpenAIChat
from agno.tools import tool

PICTURE = Image(content=b"\x89PNG", mime_type="image/png")


def weather(city: str) -> str:
    """Look at the weather."""
    return f"sunny in {city}"


@tool(requires_confirmation=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def agent(path: str, session: str, model: str) -> Agent:
    return Agent(
        id="clerk",
        model=OpenAIChat("m", base_url=model, api_key="k"),
        db=SqliteDb(db_file=path),
        session_id=session,
        user_id="ada",
        instructions="Be brief.",
        tools=[weather, pay],
        add_history_to_context=True,
        num_history_runs=10**6,
        telemetry=False,
    )


async def write(path: str, session: str, model: str) -> None:
    talk: Any = agent(path, session, model)
    talk.run("Hello 会话 😀")
    talk.run("weather in Kyoto?")
    talk.run("Look:", images=[PICTURE])
    if session in ("stopped", "continued"):
        stopped = talk.run("pay 200")
    if session == "continued":
        for one in stopped.active_requirements:
            one.confirm()
        talk.continue_run(run_response=stopped)


async def ask(path: str, session: str, model: str) -> None:
    agent(path, session, model).run("And now?")
