"""A program that uses AgentScope's memories and sessions, for tests that run without it.

Runs in the environment ``.interop``, which knows nothing of memctl.  Each line of stdin is a
request, each line of stdout its answer, both JSON: ``{"do": "write" | "read", "place": {...},
"memories": [...]}``, answered by ``{"answer": [...]}`` or ``{"error": "..."}``.

A place is ``{"kind": "sql", "url"}`` (SQLAlchemy's URL), ``{"kind": "redis", "url", "prefix",
"ttl"}``, ``{"kind": "redis_session", "url"}``, ``{"kind": "state_dict", "path"}``, ``{"kind":
"own", "path", "encoded"}`` (see ``own_memory``) or ``{"kind": "json_session", "folder"}``; in a
session the memory is at ``memory``, or with ``"nested": true`` at ``agent.memory``, as a real agent
puts it there.  SQL and Redis may have a ``state``: the place of a session that is loaded and saved
around each use.  A memory to write has ``user``, ``session``, ``summary`` and ``messages``, a list
of pairs of a message and its marks; one to read has ``user``, ``session`` and the ``marks`` to ask
for.

``{"do": "call", ...}`` calls methods of each memory: ``calls`` are pairs of a name and keyword
arguments, and the answer is what they gave, such as ``["delete_by_mark", {"mark": ["hint"]}]``.

``{"do": "reply" | "compress" | "go_on", ...}`` has a real agent answer, compress its memory, or
answer by a model on loopback: see ``agents.reply``, ``agents.compress`` and ``agents.go_on``; a
memory may have a ``compression``, see ``agents.make``.

``{"do": "talk", "until": PATH, ...}`` adds exchanges to memories, in turn, until there is a file at
the path; each exchange is a question and its reply, added at once.  It answers with their numbers.
With ``"watch": true`` it reads each memory after each exchange, and answers with what was ``torn``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import agents
import words
from agentscope.agent import ReActAgent
from agentscope.memory import AsyncSQLAlchemyMemory, InMemoryMemory, MemoryBase, RedisMemory
from agentscope.message import Msg
from agentscope.module import StateModule
from agentscope.session import JSONSession, RedisSession
from own_memory import OwnMemory
from redis.asyncio import ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool


class Application(StateModule):
    """The state that an application keeps in a session next to the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "Friday"
        self.register_state("name")


class Holder(StateModule):
    """A module of an application whose state is its memory alone."""

    def __init__(self, memory: MemoryBase) -> None:
        super().__init__()
        self.memory = memory


@asynccontextmanager
async def opened(place: dict[str, Any], about: dict[str, Any]) -> AsyncGenerator[ReActAgent]:
    """An agent whose memory is at the place; what has no home but a state is loaded and saved."""
    async with stored(place, about) as memory:
        agent = agents.make(memory, about.get("compression"))
        at = place.get("state", place)
        if at["kind"] not in ("json_session", "redis_session"):
            yield agent
            return
        modules: dict[str, StateModule] = {"application": Application(), "memory": memory}
        if at.get("nested") == "alone":
            modules = {"agent": Holder(memory)}
        elif at.get("nested"):
            modules = {"agent": agent}
        states = session_of(at)
        await states.load_session_state(about["session"], about["user"], **modules)
        yield agent
        await states.save_session_state(about["session"], about["user"], **modules)
        if isinstance(states, RedisSession):
            await states.close()


@asynccontextmanager
async def stored(place: dict[str, Any], about: dict[str, Any]) -> AsyncGenerator[MemoryBase]:
    """The memory at the place, without what is in the state of a session."""
    user, session = about["user"], about["session"]
    kind = place["kind"]
    if kind == "sql":
        engine = create_async_engine(place["url"], poolclass=NullPool)
        async with AsyncSQLAlchemyMemory(engine, session_id=session, user_id=user) as memory:
            yield memory
        await engine.dispose()
    elif kind == "redis":
        pool = ConnectionPool.from_url(place["url"], decode_responses=True)
        prefix = place.get("prefix", "")
        async with RedisMemory(
            session, user, connection_pool=pool, key_prefix=prefix, key_ttl=place.get("ttl")
        ) as memory:
            yield memory
        await pool.aclose()
    elif kind == "own":
        yield OwnMemory(place["path"], session, encoded=place["encoded"])
    elif kind == "state_dict":
        memory = load(Path(place["path"]))
        yield memory
        save(Path(place["path"]), memory)
    else:
        yield InMemoryMemory()


def load(path: Path) -> InMemoryMemory:
    """The memory whose state_dict the file holds, if there is one."""
    memory = InMemoryMemory()
    if path.exists():
        memory.load_state_dict(json.loads(path.read_bytes().decode("utf-8", "surrogatepass")))
    return memory


def save(path: Path, memory: InMemoryMemory) -> None:
    """Write the state_dict of the memory to the file."""
    path.write_text(json.dumps(memory.state_dict()))


def session_of(place: dict[str, Any]) -> JSONSession | RedisSession:
    """AgentScope's session store of the place."""
    if place["kind"] == "json_session":
        return JSONSession(place["folder"])
    pool = ConnectionPool.from_url(place["url"], decode_responses=True)
    return RedisSession(connection_pool=pool, key_prefix=place.get("prefix", ""))


async def write(memory: MemoryBase, about: dict[str, Any]) -> dict[str, Any]:
    """Add the messages; those that follow one another with the same marks at once."""
    for marks, group in groupby(about["messages"], key=lambda pair: pair[1]):
        messages = [Msg.from_dict(message) for message, _ in group]
        await memory.add(messages, marks=marks or None)
    if about.get("summary"):
        await memory.update_compressed_summary(about["summary"])
    return {"size": await memory.size()}


async def read(memory: MemoryBase, about: dict[str, Any]) -> dict[str, Any]:
    """Return an agent's view: everything, and by each mark."""
    found = await memory.get_memory(prepend_summary=False)
    marked, excluded = {}, {}
    for mark in about["marks"]:
        with_mark = await memory.get_memory(mark=mark, prepend_summary=False)
        without = await memory.get_memory(exclude_mark=mark, prepend_summary=False)
        marked[mark] = [message.id for message in with_mark]
        excluded[mark] = [message.id for message in without]
    return {
        "size": await memory.size(),
        "summary": memory._compressed_summary,
        "messages": [message.to_dict() for message in found],
        "marked": marked,
        "excluded": excluded,
    }


async def call(memory: MemoryBase, about: dict[str, Any]) -> list[Any]:
    """Call methods of the memory in turn; return what they gave."""
    return [await getattr(memory, name)(**arguments) for name, arguments in about["calls"]]


async def talk(
    place: dict[str, Any],
    memories: list[dict[str, Any]],
    enough: Callable[[], bool],
    *,
    watch: bool = False,
) -> dict[str, Any]:
    """Add exchanges to the memories until it is enough; return how many each got."""
    number = 0
    torn: list[list[str]] = []
    async with AsyncExitStack() as stack:
        opening = [opened(place, about) for about in memories]
        talks = [(await stack.enter_async_context(one)).memory for one in opening]
        while not enough():
            marks = [
                mark for mark, every in (("hint", 3), ("compressed", 4)) if number % every == 0
            ]
            for memory in talks:
                question = Msg("Alice", f"question {number}", "user")
                reply = Msg("Friday", f"reply {number}", "assistant")
                await memory.add([question, reply], marks=marks or None)
                await asyncio.sleep(0.002)
                if watch:
                    seen = await memory.get_memory(exclude_mark="compressed")
                    texts = [message.get_text_content() for message in seen]
                    if words.told(texts) != words.exchanges(number + 1):
                        torn.append(texts)
            number += 1
    return {"exchanges": number, "torn": torn}


WITH_MEMORIES = {"write": write, "read": read, "call": call}
WITH_AGENTS = {"reply": agents.reply, "compress": agents.compress, "go_on": agents.go_on}


async def answer(request: dict[str, Any]) -> list[Any]:
    """Do what is asked for each memory in turn."""
    if request["do"] == "talk":
        enough = Path(request["until"]).exists
        watch = request.get("watch", False)
        return [await talk(request["place"], request["memories"], enough, watch=watch)]
    answers: list[Any] = []
    for about in request["memories"]:
        async with opened(request["place"], about) as agent:
            if request["do"] in WITH_AGENTS:
                answers.append(await WITH_AGENTS[request["do"]](agent, about))
            else:
                answers.append(await WITH_MEMORIES[request["do"]](agent.memory, about))
    return answers


def main() -> None:
    # AgentScope logs to stdout, which is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply: dict[str, Any] = {"answer": asyncio.run(answer(json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - the test shows whatever AgentScope raised
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
