"""Redis memories that an agent writes to and marks while memctl deletes, restores and marks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import Change, MemoryKey, Page
from memctl.registry import parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.agentscope1.redis.edit import Editor
from memctl.stores.agentscope1.redis.store import RedisMemoryStore
from tests.support.agentscope import writing
from tests.support.servers.pool import Servers
from tests.trust.operator import Operator

pytestmark = pytest.mark.slow

EDITS = 1500
REFUSED = 100
"""So often at least an agent gets into the way: then the server refuses the transaction."""
SECONDS = 150.0
"""It takes a tenth of that where nothing else is going on."""
SESSIONS = ["s0", "s1", "会话 *", "s1:mark:x", "s4", "s5"]
USER = "it's *"

WRITER = r"""
import asyncio, json, sys
from pathlib import Path
from random import Random
from agentscope.memory import RedisMemory
from agentscope.message import Msg
from redis.asyncio import ConnectionPool

url, user, until, *sessions = sys.argv[1:]
BURST = 12  # so many hints that a list is written anew when they go

async def write(session, enough, random):
    # Adds and marks; gives what it wrote: id, marks, and whether it ever was a hint.
    pool = ConnectionPool.from_url(url, decode_responses=True)
    wrote = {}
    async with RedisMemory(session, user, connection_pool=pool) as memory:
        while not enough():
            kind = random.choice(["plain", "plain", "hint", "hint", "compressed", "keep", "spent"])
            if kind in ("keep", "spent"):
                plain = [id for id, (marks, hint) in wrote.items() if not marks and not hint]
                if not plain:
                    continue
                some = random.sample(plain[-20:], min(2, len(plain[-20:])))
                for id in some:
                    wrote[id] = (["keep"], False) if kind == "keep" else ([], True)
                mark = "hint" if kind == "spent" else kind
                await memory.update_messages_mark(new_mark=mark, msg_ids=some)
            else:
                count = random.choice([1, BURST]) if kind == "hint" else 2
                messages = [Msg("Friday", kind, "assistant") for _ in range(count)]
                marks = [] if kind == "plain" else [kind]
                for message in messages:
                    wrote[message.id] = (marks, kind == "hint")
                await memory.add(messages, marks=marks or None)
    await pool.aclose()
    return [[id, marks, hint] for id, (marks, hint) in wrote.items()]

async def main():
    enough = Path(until).exists
    work = [write(one, enough, Random(n)) for n, one in enumerate(sessions)]
    return dict(zip(sessions, await asyncio.gather(*work)))

print(json.dumps(asyncio.run(main())))
"""

HINTS = Selection(marks=frozenset({"hint"}))
UNMARKED = Selection(exclude_marks=frozenset({"hint", "keep", "compressed"}), last=30)


def back(page: Page) -> list[Change]:
    """Return changes that restore hints after the messages that they followed."""
    return [
        Change(entry.id, None, entry.marks, entry.message, after)
        for entry, after in zip(page.messages, page.anchors or [], strict=True)
    ]


async def test_live_redis_agent_writes_while_messages_are_deleted(
    servers: Servers, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    attempt = Editor._attempt

    def counted(self: Editor, memories: Any) -> Any:
        nonlocal refused
        done = attempt(self, memories)
        refused += done is None
        return done

    monkeypatch.setattr(Editor, "_attempt", counted)
    store = RedisMemoryStore(parse(redis_url), OpenMode.CHANGE)
    store.resolve_names(MemoryKey(USER, session) for session in SESSIONS)
    async with store:
        operator = Operator(store, HINTS, UNMARKED, back)
        with writing(tmp_path, WRITER, [redis_url, USER], SESSIONS) as wrote:
            while not [memory async for memory in store.headers(Selection())]:
                continue  # it is still importing AgentScope
            end = time.monotonic() + SECONDS
            while operator.done.total() < EDITS or refused < REFUSED:
                assert time.monotonic() < end, f"so far {operator.done}, {refused} refused"
                await operator.round()
        await operator.delete_all()
    with servers.redis.client(redis_url) as client:
        for session in SESSIONS:
            assert_nothing_lost(client, f"user_id:{USER}:session:{session}", wrote[session])
    assert min(operator.done[what] for what in ("deleted", "put back", "marked")) > EDITS / 20


def assert_nothing_lost(
    client: redis.Redis, base: str, wrote: list[tuple[str, list[str], bool]]
) -> None:
    """Assert that every message that never was a hint is there, unchanged, and nothing else."""
    found: Any = client.lrange(f"{base}:messages", 0, -1)
    assert [id.decode() for id in found] == [id for id, _, hint in wrote if not hint]
    names: Any = client.keys("*")
    own = {name.decode() for name in names if name.decode().startswith(f"{base}:")}
    if base.endswith("s1"):
        own = {name for name in own if not name.startswith(f"{base}:mark:x:")}
    payloads = {name for name in own if name.startswith(f"{base}:msg:")}
    assert payloads == {f"{base}:msg:{id.decode()}" for id in found}
    lists: dict[str, list[str]] = {}
    for name in own:
        if name.startswith(f"{base}:mark:"):
            ids: Any = client.lrange(name, 0, -1)
            lists[name.removeprefix(f"{base}:mark:")] = [id.decode() for id in ids]
    marks: Any = client.smembers(f"{base}:marks_index")
    assert {mark.decode() for mark in marks} == set(lists)
    assert set(lists) <= {"keep", "compressed", "seen"}
    for mark, its in lists.items():
        assert len(its) == len(set(its))
        if mark != "seen":
            assert set(its) == {id for id, some, hint in wrote if mark in some and not hint}
        assert set(its) <= {id.decode() for id in found}
