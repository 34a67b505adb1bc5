"""Real agents whose model is not one: what it is asked is written down, its answers are fixed.

Runs in the worker, see there.
"""

from __future__ import annotations

from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import MemoryBase
from agentscope.message import Msg, TextBlock
from agentscope.model import ChatModelBase, ChatResponse, OpenAIChatModel
from agentscope.token import TokenCounterBase

ANSWER = "So be it."


class Model(ChatModelBase):
    """A model with one answer to every prompt, and one summary where asked for structure."""

    def __init__(self, summary: dict[str, str]) -> None:
        super().__init__("fake", stream=False)
        self.summary = summary
        self.prompts: list[list[dict[str, Any]]] = []
        self.compressions: list[list[dict[str, Any]]] = []

    async def __call__(
        self, prompt: list[dict[str, Any]], *, structured_model: Any = None, **_: Any
    ) -> ChatResponse:
        asked = self.prompts if structured_model is None else self.compressions
        asked.append(prompt)
        text = [TextBlock(type="text", text=ANSWER)]
        return ChatResponse(content=text, metadata=self.summary if structured_model else None)


class Counter(TokenCounterBase):
    """Every message is a token."""

    async def count(self, messages: list[dict[str, Any]], **_: Any) -> int:
        return len(messages)


def make(memory: MemoryBase, compression: dict[str, Any] | None) -> ReActAgent:
    """An agent with this memory; ``compression`` has a threshold, keep_recent and a summary."""
    config = None
    asked = compression or {}
    if compression is not None:
        config = ReActAgent.CompressionConfig(
            enable=True,
            agent_token_counter=Counter(),
            trigger_threshold=asked["threshold"],
            keep_recent=asked["keep_recent"],
        )
    agent = ReActAgent(
        "Friday",
        "You help Alice.",
        Model(asked.get("summary", {})),
        OpenAIChatFormatter(),
        memory=memory,
        compression_config=config,
    )
    agent.disable_console_output()
    return agent


async def reply(agent: ReActAgent, about: dict[str, Any]) -> dict[str, Any]:
    """The agent answers ``say``, a message; what its model was asked for that."""
    await agent(Msg.from_dict(about["say"]))
    return {"prompts": agent.model.prompts, "compressions": agent.model.compressions}


async def go_on(agent: ReActAgent, about: dict[str, Any]) -> str | None:
    """The agent answers ``say`` by the model at the URL ``model``; returns the answer."""
    kwargs = {"base_url": about["model"], "max_retries": 0}
    agent.model = OpenAIChatModel("none", "none", stream=False, client_kwargs=kwargs)
    answer = await agent(Msg.from_dict(about["say"]))
    return answer.get_text_content()


async def compress(agent: ReActAgent, _: dict[str, Any]) -> dict[str, Any]:
    """The agent compresses its memory, if it finds that needed; what its model was asked."""
    await agent._compress_memory_if_needed()
    return {"compressions": agent.model.compressions}
