"""A program that uses the services of agentscope-runtime, for tests that run without it.

Each line of stdin is a request, each line of stdout its answer, both JSON: ``{"do": ..., "place":
{"url", "ttl"}, ...}``, answered by ``{"answer": ...}`` or ``{"error": "..."}``.

``write`` has AgentScope's messages (``Msg.to_dict``) become the runtime's, and adds them to the
history and to the memory of a ``user`` and ``session``; ``state`` is saved as the next round.
``read`` answers the messages of both services, as AgentScope's again, and the state of a round.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import redis.asyncio
from agentscope.message import Msg
from agentscope_runtime.adapters.agentscope.message import (
    agentscope_msg_to_message,
    message_to_agentscope_msg,
)
from agentscope_runtime.engine.services.agent_state.redis_state_service import RedisStateService
from agentscope_runtime.engine.services.memory.redis_memory_service import RedisMemoryService
from agentscope_runtime.engine.services.session_history.redis_session_history_service import (
    RedisSessionHistoryService,
)


async def write(
    client: Any, ttl: int, user: str, session: str, messages: list[Any], state: Any
) -> None:
    """Add to what the services keep."""
    history = RedisSessionHistoryService(redis_client=client, ttl_seconds=ttl)
    memory = RedisMemoryService(redis_client=client, ttl_seconds=ttl)
    found = await history.get_session(user, session)
    found = found or await history.create_session(user, session)
    made = agentscope_msg_to_message([Msg.from_dict(one) for one in messages])
    await history.append_message(found, made)
    await memory.add_memory(user, made, session)
    if state is not None:
        await RedisStateService(redis_client=client, ttl_seconds=ttl).save_state(
            user, state, session
        )


async def read(client: Any, ttl: int, user: str, session: str, round: int | None) -> Any:
    """Return what the services give."""
    history = RedisSessionHistoryService(redis_client=client, ttl_seconds=ttl)
    memory = RedisMemoryService(redis_client=client, ttl_seconds=ttl)
    states = RedisStateService(redis_client=client, ttl_seconds=ttl)
    found = await history.get_session(user, session)
    kept = await memory.list_memory(user, {"page_size": 1000})
    return {
        "history": None if found is None else _dicts(found.messages),
        "memory": _dicts(kept),
        "state": await states.export_state(user, session, round),
    }


def _dicts(messages: list[Any]) -> list[Any]:
    found = message_to_agentscope_msg(messages) if messages else []
    return [{**one.to_dict(), "timestamp": ""} for one in found]


WORK = {"write": write, "read": read}


async def answer(request: dict[str, Any]) -> Any:
    """Return the answer to a request."""
    place = request.pop("place")
    work = WORK[request.pop("do")]
    async with redis.asyncio.from_url(place["url"], decode_responses=True) as client:
        return await work(client, place["ttl"], **request)


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        try:
            reply = {"answer": asyncio.run(answer(json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - the test that asked is to fail
            reply = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
