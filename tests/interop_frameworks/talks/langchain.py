"""A chat model of LangChain with ``RunnableWithMessageHistory`` over ``SQLChatMessageHistory``.

The integrations with servers are packages of their own.  So the model class records what it is
given.
"""

from __future__ import annotations

from typing import Any

from langchain_community.chat_message_histories import SQLChatMessageHistory
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from talks.chat_model import PICTURE, Recorded


class Talk:
    """A session of a user with a model."""

    def __init__(self, path: str, session: str) -> None:
        self.session = session
        self.model = Recorded()
        self.history = SQLChatMessageHistory(session, connection=f"sqlite:///{path}")
        self.chain = RunnableWithMessageHistory(self.model, lambda _: self.history)

    def say(self, message: Any) -> None:
        config = {"configurable": {"session_id": self.session}}
        answer = self.chain.invoke([message], config)
        if answer.tool_calls:
            id = answer.tool_calls[0]["id"]
            self.chain.invoke([ToolMessage("sunny", tool_call_id=id, name="weather")], config)


async def write(path: str, session: str, _: str) -> None:
    talk = Talk(path, session)
    for content in (
        "Hello 会话 😀",
        "weather in Kyoto?",
        [{"type": "text", "text": "Look:"}, PICTURE],
    ):
        talk.say(HumanMessage(content))


async def ask(path: str, session: str, _: str) -> Any:
    talk = Talk(path, session)
    talk.say(HumanMessage("And now?"))
    return talk.model.last
