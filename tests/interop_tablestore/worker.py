"""A program that uses the Tablestore classes of AgentScope, for tests that run without them.

Each line of stdin is a request, each line of stdout its answer, both JSON: ``{"do": ..., "place":
{...}, ...}``, answered by ``{"answer": ...}`` or ``{"error": "..."}``.  ``place`` has the arguments
by which the classes find the instance.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import tablestore
from agentscope.memory import InMemoryMemory, TablestoreMemory
from agentscope.message import Msg
from agentscope.session import TablestoreSession
from agentscope_runtime.adapters.agentscope.message import (
    agentscope_msg_to_message,
    message_to_agentscope_msg,
)
from agentscope_runtime.engine.services.memory.tablestore_memory_service import (
    TablestoreMemoryService,
)
from agentscope_runtime.engine.services.session_history import (
    tablestore_session_history_service as history_service,
)
from langchain_core.embeddings import DeterministicFakeEmbedding

_MADE: dict[Any, Any] = {}
"""The stores made so far: each waits a second for its tables when it is first used."""


def _made(kind: Any, place: dict[str, str], **about: str) -> Any:
    key = (kind, *sorted(place.items()), *sorted(about.items()))
    if key not in _MADE:
        _MADE[key] = kind(**place, **about)
    return _MADE[key]


def _memory(place: dict[str, str], user: str, session: str) -> TablestoreMemory:
    return _made(TablestoreMemory, place, user_id=user, session_id=session)


async def add(place: Any, user: str, session: str, messages: list[Any], marks: Any = None) -> None:
    """Add messages to a TablestoreMemory, one after the other."""
    for one in messages:
        await _memory(place, user, session).add(Msg.from_dict(one), marks)


async def get(place: Any, user: str, session: str, **about: Any) -> Any:
    """Return what ``get_memory`` gives; ``about`` are its marks."""
    found = await _memory(place, user, session).get_memory(**about)
    return [one.to_dict() for one in found]


async def search(place: Any, user: str, session: str, query: str) -> Any:
    """Return the documents that the full text search of the memory's store finds, best first."""
    memory = _memory(place, user, session)
    await memory.get_memory()  # it makes its table and its index when it is first used
    found = await memory._knowledge_store.full_text_search(query, user)
    return [one.document.document_id for one in found.hits]


async def mark(place: Any, user: str, session: str, **about: Any) -> int:
    """Change marks by ``update_messages_mark``."""
    return int(await _memory(place, user, session).update_messages_mark(**about))


async def delete(place: Any, user: str, session: str, ids: list[str]) -> int:
    """Delete messages by their ids."""
    return int(await _memory(place, user, session).delete(ids))


async def save(place: Any, user: str, session: str, messages: list[Any], summary: str) -> None:
    """Save the state of an agent with these messages in a TablestoreSession."""
    memory = InMemoryMemory()
    await memory.add([Msg.from_dict(one) for one in messages])
    await memory.update_compressed_summary(summary)
    saved = _made(TablestoreSession, place)
    await saved.save_session_state(session, user, agent_memory=memory)


async def load(place: Any, user: str, session: str) -> Any:
    """Return the messages of the memory in a saved state."""
    memory = InMemoryMemory()
    saved = _made(TablestoreSession, place)
    await saved.load_session_state(session, user, allow_not_exist=False, agent_memory=memory)
    found = await memory.get_memory(prepend_summary=False)
    return {
        "messages": [one.to_dict() for one in found],
        "summary": memory.state_dict()["_compressed_summary"],
    }


async def _service(kind: Any, place: Any, **about: Any) -> Any:
    key = (kind, *sorted(place.items()))
    if key not in _MADE:
        _MADE[key] = kind(tablestore.AsyncOTSClient(**place), **about)
        await _MADE[key].start()
    return _MADE[key]


async def _services(place: Any) -> tuple[Any, Any]:
    history = await _service(history_service.TablestoreSessionHistoryService, place)
    embedding = DeterministicFakeEmbedding(size=3)
    memory = await _service(
        TablestoreMemoryService, place, embedding_model=embedding, vector_dimension=3
    )
    return history, memory


async def append(place: Any, user: str, session: str, messages: list[Any]) -> None:
    """Add messages to the history of the runtime and, those that it takes, to its memory."""
    history, memory = await _services(place)
    found = await history.get_session(user, session)
    for one in agentscope_msg_to_message([Msg.from_dict(one) for one in messages]):
        await history.append_message(found, one)
        one.metadata = None  # a table: the memory service of 1.0.5 stores none
        await memory.add_memory(user, [one], session)


async def recall(place: Any, user: str, session: str) -> Any:
    """Return the messages of both services of the runtime, as AgentScope's."""
    history, memory = await _services(place)
    found = await history.get_session(user, session)
    kept = await memory.list_memory(user, {"page_size": 1000})
    return {
        "history": [{**one.to_dict(), "timestamp": ""} for one in _converted(found.messages)],
        "memory": [one.model_dump(exclude_none=True) for one in kept],
    }


def _converted(messages: list[Any]) -> list[Any]:
    return message_to_agentscope_msg(messages) if messages else []


WORK = {
    "add": add,
    "get": get,
    "search": search,
    "mark": mark,
    "delete": delete,
    "save": save,
    "load": load,
    "append": append,
    "recall": recall,
}


async def main() -> None:
    """Answer until stdin ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            request = json.loads(line)
            reply = {"answer": await WORK[request.pop("do")](**request)}
        except Exception as error:  # noqa: BLE001 - the test that asked is to fail
            reply = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
