"""Keys in Redis as AgentScope 2.x and agentscope-runtime write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import redis

BASE = "agentscope:user:u:session:s"


def message(id: str, *, role: str = "user", **fields: Any) -> dict[str, Any]:
    """Return a message of AgentScope 2.x, with its stored fields."""
    text = {"type": "text", "text": f"text of {id}", "id": f"b{id}"}
    about = {"name": role, "content": [text], "role": role, "id": id, "metadata": {}}
    return about | {"created_at": "2026-01-01T12:00:00", "usage": None} | fields


def result(id: str, call: str) -> dict[str, Any]:
    """Return a message with the result of a call."""
    block = {"type": "tool_result", "id": call, "name": "f", "output": "ok", "state": "success"}
    return message(id, role="assistant", content=[block])


def record(context: Sequence[dict[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    """Return the record of the session ``s`` of ``u``, with fields that memctl does not know."""
    state = {
        "session_id": "x",
        "summary": "sum",
        "context": list(context),
        "reply_context": {"n": 1},
    }
    about = {"id": "s", "updated_at": "2026-01-02T12:00:00", "created_at": "2026-01-01T12:00:00"}
    about |= {"user_id": "u", "agent_id": "a", "origin": {"type": "user"}, "team_id": None}
    return about | {"config": {"workspace_id": "w", "name": "n"}, "state": state, "new": 1} | fields


def put_session(
    client: redis.Redis,
    found: dict[str, Any],
    log: Iterable[dict[str, Any]],
    ttl: int | None = None,
) -> None:
    """Store a session like ``RedisStorage``."""
    base = f"agentscope:user:{found['user_id']}:session:{found['id']}"
    user, agent = f"agentscope:user:{found['user_id']}", found["agent_id"]
    client.set(base, json.dumps(found, separators=(",", ":")))
    for one in log:
        client.rpush(f"{base}:messages", json.dumps(one, separators=(",", ":")))
        client.sadd(f"{base}:message_ids", one["id"])
    if ttl is not None:
        for key in (base, f"{base}:messages", f"{base}:message_ids"):
            client.expire(key, ttl)
    about = {"id": agent, "user_id": found["user_id"], "data": {"id": agent, "name": agent}}
    client.set(f"{user}:agent:{agent}", json.dumps(about))
    client.sadd(f"{user}:agents", agent)
    client.sadd(f"{user}:agent:{agent}:sessions", found["id"])


def runtime_message(id: str, **fields: Any) -> dict[str, Any]:
    """Return a message of agentscope-runtime."""
    text = {"object": "content", "type": "text", "text": f"text of {id}", "delta": False}
    about = {"object": "message", "status": "created", "id": id, "type": "message"}
    return about | {"role": "user", "content": [text], "metadata": None} | fields


def history(user: str, session: str, ids: Iterable[str], **fields: Any) -> str:
    """Return the stored history of a session."""
    messages = [runtime_message(id) for id in ids]
    return json.dumps({"id": session, "user_id": user, "messages": messages} | fields)


def contents(client: redis.Redis) -> dict[bytes, tuple[Any, bool]]:
    """Return the value of every key, and whether the key expires.

    DUMP is not used, because it orders sets at random.
    """
    found: dict[bytes, tuple[Any, bool]] = {}
    for key in client.scan_iter():
        kind = client.type(key)
        if kind == b"set":
            value: Any = client.smembers(key)
        else:
            value = client.lrange(key, 0, -1) if kind == b"list" else client.get(key)
        found[key] = value, client.ttl(key) != -1
    return found
