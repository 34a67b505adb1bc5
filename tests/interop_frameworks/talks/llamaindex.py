"""A ``FunctionAgent`` of LlamaIndex with ``Memory`` over ``SQLAlchemyChatStore``.

The integrations with servers are packages of their own.  So the model class records what it is
given.  Tokens are words: a real tokenizer is downloaded.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory

PICTURE = ImageBlock(image=b"iVBORw==", image_mimetype="image/png")
NO_LIMIT = 10**9


def weather(city: str) -> str:
    """Look at the weather."""
    return f"sunny in {city}"


class Talk:
    """A session of a user with an agent."""

    def __init__(self, path: str, session: str, limit: int = NO_LIMIT) -> None:
        self.last: Any = None
        self.memory = Memory.from_defaults(
            session_id=session,
            async_database_uri=f"sqlite+aiosqlite:///{path}",
            token_limit=limit,
            chat_history_token_ratio=0.7,
            token_flush_size=1,
            tokenizer_fn=str.split,
            image_token_size_estimate=1,
        )

    def answer(self, messages: Any, **_: Any) -> ChatMessage:
        self.last = [one.model_dump(mode="json") for one in messages]
        number, asked = len(messages), messages[-1]
        if asked.role == "user" and (asked.content or "").startswith("weather"):
            call = {"tool_call_id": f"call_{number}", "tool_name": "weather"}
            block = ToolCallBlock(**call, tool_kwargs={"city": "Kyoto"})
            return ChatMessage(role="assistant", blocks=[block])
        return ChatMessage(role="assistant", content=f"Answer {number}.")

    async def say(self, *blocks: Any) -> None:
        said = [TextBlock(text=one) if isinstance(one, str) else one for one in blocks]
        llm = MockFunctionCallingLLM(response_generator=self.answer)
        agent = FunctionAgent(tools=[weather], llm=llm, streaming=False)
        await agent.run(ChatMessage(role="user", blocks=said), memory=self.memory)


async def write(path: str, session: str, _: str) -> None:
    talk = Talk(path, session, limit=30 if session == "archived" else NO_LIMIT)
    await talk.say("Hello 会话 😀")
    await talk.say("weather in Kyoto?")
    await talk.say("Look:", PICTURE)
    if session == "archived":
        await talk.say("weather again?")
        await talk.say("Well then " * 5)


async def ask(path: str, session: str, _: str) -> Any:
    talk = Talk(path, session)
    await talk.say("And now?")
    return talk.last
