"""A program that uses the frameworks themselves, for tests that run without them.

Runs in the environment ``.interop-frameworks``, which knows nothing of memctl.  Each line of stdin
is a request, each line of stdout its answer, both JSON: ``{"do": "write" | "read" | "add",
"framework": ..., "path": ..., "session": ...}``, answered by ``{"answer": ...}`` or ``{"error":
"..."}``.  ``write`` stores the same conversation in the words of each framework, ``add`` one more
question, ``read`` returns what the framework finds, as ``{"role", "text", "calls", "results",
"images"}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from agents import SQLiteSession
from agents.extensions.memory import (
    AdvancedSQLiteSession,
    EncryptedSession,
    RedisSession,
    SQLAlchemySession,
)
from agno.db.migrations.manager import MigrationManager
from agno.db.mysql import AsyncMySQLDb
from agno.db.postgres import AsyncPostgresDb
from agno.db.sqlite import AsyncSqliteDb
from agno.media import Image
from agno.models.message import Message
from agno.run.agent import RunInput, RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession
from agno.session.summary import SessionSummary
from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from langchain_community.chat_message_histories import (
    FileChatMessageHistory,
    RedisChatMessageHistory,
    SQLChatMessageHistory,
)
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_postgres import PostgresChatMessageHistory
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

PIXEL = "iVBORw0KGgo="
USER, APP = "", "weather"


def said(role: str, text: str, calls: Any = (), results: Any = (), images: int = 0) -> Any:
    return {
        "role": role,
        "text": text,
        "calls": [list(call) for call in calls],
        "results": [list(result) for result in results],
        "images": images,
    }


class LangChain:
    """SQLChatMessageHistory."""

    def history(self, path: str, session: str) -> Any:
        return SQLChatMessageHistory(session, connection=f"sqlite:///{path}")

    def messages(self) -> list[BaseMessage]:
        calls = [
            {"name": "weather", "args": {"city": "Kyoto", "days": [1, 2]}, "id": "c1"},
            {"name": "weather", "args": {"city": "Osaka"}, "id": "c2"},
        ]
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
        return [
            SystemMessage("Be brief. 会话 😀"),
            HumanMessage("How is it?", name="ada"),
            AIMessage("Let me look.", tool_calls=calls, id="run-1"),
            ToolMessage("sunny", tool_call_id="c1", name="weather"),
            ToolMessage("rain", tool_call_id="c2", name="weather", status="error"),
            AIMessage(
                [{"type": "text", "text": "Sun here,"}, {"type": "text", "text": "rain there."}]
            ),
            HumanMessage([{"type": "text", "text": "And this?"}, picture]),
            HumanMessage(""),
        ]

    async def write(self, path: str, session: str) -> None:
        self.history(path, session).add_messages(self.messages())

    async def add(self, path: str, session: str) -> None:
        self.history(path, session).add_messages([HumanMessage("one more")])

    async def read(self, path: str, session: str) -> list[Any]:
        return [self.normal(one) for one in self.history(path, session).messages]

    def normal(self, message: BaseMessage) -> Any:
        if isinstance(message, ToolMessage):
            return said("tool", "", results=[(message.tool_call_id, message.text)])
        calls = getattr(message, "tool_calls", None) or []
        content = message.content if isinstance(message.content, list) else []
        images = sum(isinstance(one, dict) and "image" in one.get("type", "") for one in content)
        role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
        named = [(call["id"], call["name"], call["args"]) for call in calls]
        return said(role, message.text, named, images=images)


class LangChainRedis(LangChain):
    """RedisChatMessageHistory; a path is the URL of the server."""

    def history(self, path: str, session: str) -> Any:
        return RedisChatMessageHistory(session, url=path)


class LangChainPostgres(LangChain):
    """PostgresChatMessageHistory of langchain-postgres; a path is the URL of the server."""

    TABLE = "chat_history"

    def connected(self, path: str, session: str) -> Any:
        connection = psycopg.connect(path)
        PostgresChatMessageHistory.create_tables(connection, self.TABLE)
        return closing(connection), PostgresChatMessageHistory(
            self.TABLE, session, sync_connection=connection
        )

    async def write(self, path: str, session: str) -> None:
        connection, history = self.connected(path, session)
        with connection:
            history.add_messages(self.messages())

    async def add(self, path: str, session: str) -> None:
        connection, history = self.connected(path, session)
        with connection:
            history.add_messages([HumanMessage("one more")])

    async def read(self, path: str, session: str) -> list[Any]:
        connection, history = self.connected(path, session)
        with connection:
            return [self.normal(one) for one in history.messages]


class LangGraph(LangChain):
    """SqliteSaver, or PostgresSaver where the path is a URL, as a graph of messages calls them."""

    def saver(self, path: str) -> Any:
        saver = PostgresSaver if path.startswith("postgresql:") else SqliteSaver
        return saver.from_conn_string(path)

    def put(self, saver: Any, config: Any, messages: list[BaseMessage]) -> Any:
        """Put the checkpoint after a step: its graph has given ids to the messages."""
        for message in messages:
            message.id = message.id or str(uuid4())
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages, "topic": "weather"}
        versions = {name: saver.get_next_version(None, None) for name in ("messages", "topic")}
        checkpoint["channel_versions"] = versions
        metadata = {"source": "loop", "step": len(messages), "parents": {}}
        return saver.put(config, checkpoint, metadata, versions)

    async def write(self, path: str, session: str) -> None:
        messages = self.messages()
        config = {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        with self.saver(path) as saver:
            saver.setup()
            for end in range(1, len(messages) + 1):
                if end > 1:  # a step writes at the checkpoint from which it began
                    saver.put_writes(config, [("messages", [messages[end - 1]])], str(uuid4()))
                config = self.put(saver, config, messages[:end])

    async def add(self, path: str, session: str) -> None:
        with self.saver(path) as saver:
            found = saver.get_tuple({"configurable": {"thread_id": session}})
            messages = found.checkpoint["channel_values"]["messages"]
            self.put(saver, found.config, [*messages, HumanMessage("one more")])

    async def read(self, path: str, session: str) -> list[Any]:
        with self.saver(path) as saver:
            found = saver.get_tuple({"configurable": {"thread_id": session}})
        return [self.normal(one) for one in found.checkpoint["channel_values"]["messages"]]


class LangChainFiles(LangChain):
    """FileChatMessageHistory, with a file for each session in a folder."""

    def history(self, path: str, session: str) -> Any:
        Path(path).mkdir(exist_ok=True)
        return FileChatMessageHistory(f"{path}/{session}.json")


class OpenAIAgents:
    """SQLiteSession."""

    def session(self, path: str, session: str) -> Any:
        return SQLiteSession(session, path)

    def items(self) -> list[Any]:
        picture = {"type": "input_image", "detail": "auto"}
        picture["image_url"] = f"data:image/png;base64,{PIXEL}"
        arguments = ['{"city": "Kyoto", "days": [1, 2]}', '{"city": "Osaka"}']
        call = {"type": "function_call", "name": "weather", "status": "completed"}
        text = {"type": "output_text", "text": "Let me look.", "annotations": []}
        return [
            {"role": "system", "content": "Be brief. 会话 😀"},
            {"role": "user", "content": "How is it?"},
            {"id": "rs_1", "type": "reasoning", "summary": []},
            {
                **{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"},
                "content": [text],
            },
            {**call, "id": "fc_1", "call_id": "c1", "arguments": arguments[0]},
            {**call, "id": "fc_2", "call_id": "c2", "arguments": arguments[1]},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "function_call_output", "call_id": "c2", "output": "rain"},
            {"role": "user", "content": [{"type": "input_text", "text": "And this?"}, picture]},
            {"role": "user", "content": ""},
        ]

    async def write(self, path: str, session: str) -> None:
        await self.session(path, session).add_items(self.items())

    async def add(self, path: str, session: str) -> None:
        await self.session(path, session).add_items([{"role": "user", "content": "one more"}])

    async def read(self, path: str, session: str) -> list[Any]:
        return [self.normal(one) for one in await self.session(path, session).get_items()]

    def normal(self, item: Any) -> Any:
        kind = item.get("type", "message")
        if kind == "function_call":
            call = (item["call_id"], item["name"], json.loads(item["arguments"]))
            return said("assistant", "", [call])
        if kind == "function_call_output":
            return said("tool", "", results=[(item["call_id"], item["output"])])
        if kind == "reasoning":
            return said("assistant", "")
        content = item["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [part["text"] for part in parts if "text" in part]
        images = sum("image" in part["type"] for part in parts)
        return said(item["role"], "".join(texts), images=images)


class OpenAIAgentsSQLAlchemy(OpenAIAgents):
    """SQLAlchemySession; a path may be the URL of a server."""

    def session(self, path: str, session: str) -> Any:
        url = path.replace("postgresql:", "postgresql+asyncpg:")
        url = url if "://" in path else f"sqlite+aiosqlite:///{path}"
        return SQLAlchemySession.from_url(session, url=url, create_tables=True)


class OpenAIAgentsAdvanced(OpenAIAgents):
    """AdvancedSQLiteSession."""

    def session(self, path: str, session: str) -> Any:
        return AdvancedSQLiteSession(session_id=session, db_path=path, create_tables=True)

    async def branch(self, path: str, session: str) -> None:
        """Begin a branch at the second question, and go on in it."""
        found = self.session(path, session)
        await found.create_branch_from_turn(2, "other")
        items = [
            {"role": "user", "content": "Or there?"},
            {"role": "assistant", "content": "Rain."},
        ]
        await found.add_items(items)

    async def read_raw(self, path: str, session: str) -> Any:
        return await self.session(path, session).get_items()

    async def branches(self, path: str, session: str) -> Any:
        """Return what the SDK says of each branch: its items, questions and tools."""
        found = self.session(path, session)
        names = [one["branch_id"] for one in await found.list_branches()]
        return {
            name: [
                [self.normal(one) for one in await found.get_items(branch_id=name)],
                [one["turn"] for one in await found.get_conversation_turns(name)],
                await found.get_tool_usage(name),
            ]
            for name in names
        }


class OpenAIAgentsEncrypted(OpenAIAgents):
    """EncryptedSession around SQLiteSession, or RedisSession where the path is a URL."""

    def session(self, path: str, session: str) -> Any:
        if "://" in path:
            plain = RedisSession.from_url(session, url=path)
        else:
            plain = SQLiteSession(session, path)
        return EncryptedSession(session, plain, encryption_key="k" * 40, ttl=3600)


class OpenAIAgentsRedis(OpenAIAgents):
    """RedisSession; a path is the URL of the server."""

    def session(self, path: str, session: str) -> Any:
        return RedisSession.from_url(session, url=path)


class LlamaIndex:
    """SQLAlchemyChatStore."""

    def store(self, path: str) -> Any:
        url = f"sqlite+aiosqlite:///{path}"
        return SQLAlchemyChatStore(async_database_uri=url, table_name="llama_index_memory")

    def messages(self) -> list[ChatMessage]:
        calls = [
            ToolCallBlock(
                tool_call_id="c1",
                tool_name="weather",
                tool_kwargs={"city": "Kyoto", "days": [1, 2]},
            ),
            ToolCallBlock(tool_call_id="c2", tool_name="weather", tool_kwargs={"city": "Osaka"}),
        ]
        picture = ImageBlock(image=b"iVBORw0KGgo=", image_mimetype="image/png")
        return [
            ChatMessage(role="system", content="Be brief. 会话 😀"),
            ChatMessage(role="user", content="How is it?"),
            ChatMessage(role="assistant", blocks=[TextBlock(text="Let me look."), *calls]),
            ChatMessage(
                role="tool",
                content="sunny",
                additional_kwargs={"tool_call_id": "c1", "name": "weather"},
            ),
            ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": "c2"}),
            ChatMessage(
                role="assistant",
                blocks=[TextBlock(text="Sun here,"), TextBlock(text="rain there.")],
            ),
            ChatMessage(role="user", blocks=[TextBlock(text="And this?"), picture]),
            ChatMessage(role="user", content=""),
        ]

    async def write(self, path: str, session: str) -> None:
        await self.store(path).add_messages(session, self.messages())

    async def add(self, path: str, session: str) -> None:
        await self.store(path).add_message(session, ChatMessage(role="user", content="one more"))

    async def read(self, path: str, session: str) -> list[Any]:
        return [self.normal(one) for one in await self.store(path).get_messages(session)]

    def normal(self, message: ChatMessage) -> Any:
        texts = [one.text for one in message.blocks if isinstance(one, TextBlock)]
        id = message.additional_kwargs.get("tool_call_id")
        if message.role.value == "tool":
            return said("tool", "", results=[(id, "\n".join(texts))])
        calls = [
            (one.tool_call_id, one.tool_name, one.tool_kwargs)
            for one in message.blocks
            if isinstance(one, ToolCallBlock)
        ]
        images = sum(isinstance(one, ImageBlock) for one in message.blocks)
        return said(message.role.value, "".join(texts), calls, images=images)


class Adk:
    """DatabaseSessionService."""

    def service(self, path: str) -> Any:
        return DatabaseSessionService(f"sqlite+aiosqlite:///{path}")

    def events(self) -> list[Event]:
        call = types.FunctionCall
        result = types.FunctionResponse
        spoken = [
            ("user", "user", [types.Part(text="How is it?")]),
            (
                "friday",
                "model",
                [
                    types.Part(text="Let me look."),
                    types.Part(
                        function_call=call(
                            id="c1", name="weather", args={"city": "Kyoto", "days": [1, 2]}
                        )
                    ),
                    types.Part(function_call=call(id="c2", name="weather", args={"city": "Osaka"})),
                ],
            ),
            (
                "friday",
                "user",
                [
                    types.Part(
                        function_response=result(id=id, name="weather", response={"result": text})
                    )
                    for id, text in (("c1", "sunny"), ("c2", "rain"))
                ],
            ),
            ("friday", "model", [types.Part(text="Sun here,"), types.Part(text="rain there.")]),
            (
                "user",
                "user",
                [
                    types.Part(text="And this? 会话 😀"),
                    types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png")),
                ],
            ),
            ("user", "user", [types.Part(text="")]),
        ]
        return [
            Event(
                author=author,
                invocation_id="i1",
                content=types.Content(role=role, parts=parts),
            )
            for author, role, parts in spoken
        ]

    async def write(self, path: str, session: str) -> None:
        service = self.service(path)
        state = {"app:units": "metric", "user:home": "Kyoto", "step": 3}
        made = await service.create_session(
            app_name=APP, user_id=USER, session_id=session, state=state
        )
        for event in self.events():
            await service.append_event(made, event)

    async def add(self, path: str, session: str) -> None:
        service = self.service(path)
        found = await service.get_session(app_name=APP, user_id=USER, session_id=session)
        content = types.Content(role="user", parts=[types.Part(text="one more")])
        await service.append_event(found, Event(author="user", invocation_id="i2", content=content))

    async def read(self, path: str, session: str) -> list[Any]:
        service = self.service(path)
        found = await service.get_session(app_name=APP, user_id=USER, session_id=session)
        return [self.normal(event) for event in found.events]

    async def state(self, path: str, session: str) -> Any:
        service = self.service(path)
        found = await service.get_session(app_name=APP, user_id=USER, session_id=session)
        return dict(found.state)

    def normal(self, event: Event) -> Any:
        parts = event.content.parts if event.content and event.content.parts else []
        calls = [part.function_call for part in parts if part.function_call]
        results = [part.function_response for part in parts if part.function_response]
        texts = [part.text for part in parts if part.text]
        images = sum(part.inline_data is not None for part in parts)
        role = "tool" if results else "user" if event.author == "user" else "assistant"
        return said(
            role,
            "".join(texts),
            [(call.id, call.name, call.args) for call in calls],
            [(result.id, result.response["result"]) for result in results],
            images,
        )


class AdkSqlite(Adk):
    """SqliteSessionService."""

    def service(self, path: str) -> Any:
        return SqliteSessionService(path)

    async def sessions(self, path: str, session: str) -> list[str]:  # noqa: ARG002
        listed = await self.service(path).list_sessions(app_name=APP)
        return sorted(one.id for one in listed.sessions)


class Agno:
    """AsyncSqliteDb; a path may be the URL of a server, AsyncPostgresDb's or AsyncMySQLDb's."""

    def db(self, path: str) -> Any:
        if path.startswith("postgresql://"):
            return AsyncPostgresDb(db_url=path.replace("://", "+asyncpg://", 1))
        if path.startswith("mysql://"):
            url = path.replace("://", "+aiomysql://", 1)
            return AsyncMySQLDb(db_url=url, db_schema=url.rpartition("/")[2])
        return AsyncSqliteDb(db_file=path)

    def turns(self) -> list[list[Message]]:
        calls = [
            {"id": id, "type": "function", "function": {"name": "weather", "arguments": said}}
            for id, said in (
                ("c1", '{"city": "Kyoto", "days": [1, 2]}'),
                ("c2", '{"city": "Osaka"}'),
            )
        ]
        prompt = Message(role="system", content="Be brief.")  # which is stored with each run
        asked = Message(role="user", content="How is it? 会话 😀")
        return [
            [
                prompt,
                asked,
                Message(role="assistant", content="Let me look.", tool_calls=calls),
                *(
                    Message(role="tool", content=text, tool_call_id=id, tool_name="weather")
                    for id, text in (("c1", "sunny"), ("c2", "rain"))
                ),
                Message(role="assistant", content="Sun here, rain there."),
            ],
            [
                prompt.model_copy(update={"id": "p2"}),
                asked.model_copy(update={"from_history": True}),
                Message(
                    role="user",
                    content="And this?",
                    images=[Image(content=b"\x89PNG", mime_type="image/png")],
                ),
                Message(role="user", content=""),
            ],
        ]

    def turn(self, session: str, number: int, messages: list[Message]) -> RunOutput:
        return RunOutput(
            run_id=f"run-{session}-{number}",
            agent_id="friday",
            session_id=session,
            messages=messages,
            content=messages[-1].get_content_string(),
            input=RunInput(input_content=messages[1].get_content_string()),
            status=RunStatus.completed,
        )

    async def run(self, db: Any, session: str, number: int, messages: list[Message]) -> None:
        run = self.turn(session, number, messages)
        await db.upsert_run(run, session_id=session, run_index=number)

    async def write(self, path: str, session: str) -> None:
        db = self.db(path)
        data = {"session_state": {"units": "metric"}}
        await db.upsert_session(AgentSession(session, "friday", session_data=data, created_at=1))
        for number, messages in enumerate(self.turns()):
            await self.run(db, session, number, messages)

    async def write_2(self, path: str, session: str) -> None:
        """Store the conversation as Agno 2 does: the runs in the row of the session."""
        columns = {
            "session_id": session,
            "session_type": "agent",
            "agent_id": "friday",
            "session_data": _twice({"session_state": {"units": "metric"}}),
            "metadata": "null",
            "summary": _twice({"summary": "They spoke about the weather."}),
            "runs": _twice([self.turn(session, *one).to_dict() for one in enumerate(self.turns())]),
            "created_at": 1,
        }
        others = ("team_id", "workflow_id", "user_id", "agent_data", "team_data", "workflow_data")
        names = [*columns, *others, "updated_at"]
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                "CREATE TABLE agno_sessions (session_id VARCHAR NOT NULL PRIMARY KEY, "
                + ", ".join(f"{name} {_TYPES.get(name, 'VARCHAR')}" for name in names[1:])
                + ")"
            )
            places = ", ".join("?" * len(columns))
            sql = f"INSERT INTO agno_sessions ({', '.join(columns)}) VALUES ({places})"
            database.execute(sql, list(columns.values()))

    async def migrate(self, path: str, session: str) -> None:  # noqa: ARG002
        await MigrationManager(self.db(path)).up()

    async def add(self, path: str, session: str) -> None:
        db = self.db(path)
        message = Message(role="user", content="one more")
        await self.run(db, session, 99, [Message(role="system", content="Be brief."), message])

    async def found(self, path: str, session: str) -> AgentSession | None:
        return await self.db(path).get_session(session, "agent")

    async def read(self, path: str, session: str) -> list[Any]:
        found = await self.found(path, session)
        # As an agent takes its history: without the prompt, where that is not all that there is.
        own = [one for run in (found.runs if found else None) or () for one in run.messages or ()]
        prompts = {one.id for one in own if one.content == "Be brief."}
        messages = found.get_messages() if found else []
        return [self.normal(one) for one in messages if one.id not in prompts]

    async def summarize(self, path: str, session: str) -> None:
        found = await self.found(path, session)
        found.summary = SessionSummary("They spoke about the weather.", topics=["weather"])
        await self.db(path).upsert_session(found)

    async def state(self, path: str, session: str) -> Any:
        found = await self.found(path, session)
        summary = found.summary and [found.summary.summary, found.summary.topics]
        return [found.session_data, found.agent_id, summary]

    def normal(self, message: Message) -> Any:
        text = message.get_content_string()
        if isinstance(message.content, list):
            text = "".join(one["text"] for one in message.content)
        if message.role == "tool":
            return said("tool", "", results=[(message.tool_call_id, text)])
        functions = [(one["id"], one["function"]) for one in message.tool_calls or ()]
        calls = [(id, one["name"], json.loads(one["arguments"])) for id, one in functions]
        return said(message.role, text, calls, images=len(message.images or ()))


_TYPES = {"created_at": "BIGINT NOT NULL", "updated_at": "BIGINT"} | dict.fromkeys(
    ("session_data", "agent_data", "team_data", "workflow_data", "metadata", "runs", "summary"),
    "JSON",
)
"""The types of the columns of Agno 2, but for texts."""


def _twice(value: Any) -> str:
    """Return a value as Agno 2 encodes it."""
    return json.dumps(json.dumps(value))


FRAMEWORKS: dict[str, Any] = {
    "langchain": LangChain(),
    "langchain-files": LangChainFiles(),
    "langchain-postgres": LangChainPostgres(),
    "langchain-redis": LangChainRedis(),
    "langgraph": LangGraph(),
    "openai-agents": OpenAIAgents(),
    "openai-agents-advanced": OpenAIAgentsAdvanced(),
    "openai-agents-encrypted": OpenAIAgentsEncrypted(),
    "openai-agents-redis": OpenAIAgentsRedis(),
    "openai-agents-sqlalchemy": OpenAIAgentsSQLAlchemy(),
    "llamaindex": LlamaIndex(),
    "adk": Adk(),
    "adk-sqlite": AdkSqlite(),
    "agno": Agno(),
}


async def answer(request: Any) -> Any:
    framework = FRAMEWORKS[request["framework"]]
    return await getattr(framework, request["do"])(request["path"], request["session"])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print, too
    for line in sys.stdin:
        try:
            found = {"answer": asyncio.run(answer(json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - the test is told
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
