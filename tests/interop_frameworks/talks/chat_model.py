"""A chat model of LangChain that records what it is given."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, messages_to_dict
from langchain_core.outputs import ChatGeneration, ChatResult

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}


class Recorded(BaseChatModel):
    """A model that calls the tool ``weather`` if the last message begins with its name."""

    last: Any = None
    """The messages of the last call."""

    @property
    def _llm_type(self) -> str:
        return "recorded"

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        self.last = messages_to_dict(messages)
        number, asked = len(messages), messages[-1]
        answer = AIMessage(f"Answer {number}.")
        if isinstance(asked, HumanMessage) and asked.text.startswith("weather"):
            call = {"name": "weather", "args": {"city": "Kyoto"}, "id": f"call_{number}"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])
