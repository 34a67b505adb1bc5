"""Real AgentScope agents add and delete messages while ``memctl search`` runs again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import Result

from tests.support.agentscope import place_of, writing
from tests.support.cli import contents, report
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

SEARCHES = 20
MESSAGES = 200
"""So many messages at least the last search finds, and as many are deleted."""
SECONDS = 150.0
"""It takes a tenth of that where nothing else is going on."""
SESSIONS = ["s0", "s1", "会话 *", "s3"]
USER = "it's *"

WRITER = r"""
import asyncio, json, sys, time
from pathlib import Path
from random import Random
from agentscope.memory import AsyncSQLAlchemyMemory, RedisMemory
from agentscope.message import Msg

kind, url, user, until, *sessions = sys.argv[1:]

def opened(session):
    if kind == "redis":
        from redis.asyncio import ConnectionPool
        pool = ConnectionPool.from_url(url, decode_responses=True)
        return RedisMemory(session, user, connection_pool=pool)
    from sqlalchemy.ext.asyncio import create_async_engine
    return AsyncSQLAlchemyMemory(create_async_engine(url), session_id=session, user_id=user)

async def write(session, enough, random, turn):
    # Adds and deletes; gives each message: id, text, and when each of it began and ended.
    wrote = {}
    left = []
    async with opened(session) as memory:
        async with turn:  # several that create the same user at once fail
            await memory.get_memory()
        while not enough():
            began = time.time()
            if len(left) > 120 or left and random.random() < 0.4:
                some = random.sample(left, min(len(left), random.choice([1, 5])))
                await memory.delete([id for id in some])
                left = [id for id in left if id not in some]
                times = [began, time.time()]
                for id in some:
                    wrote[id] += times
            else:
                texts = [f"umbrella {len(wrote) + n} " + "wet " * 20 for n in range(3)]
                messages = [Msg("Friday", text, "assistant") for text in texts]
                await memory.add(messages)
                for message in messages:
                    wrote[message.id] = [message.content, began, time.time()]
                    left.append(message.id)
            await asyncio.sleep(0.02)
    return [[id, *more] for id, more in wrote.items()]

async def main():
    enough, turn = Path(until).exists, asyncio.Lock()
    work = [write(one, enough, Random(n), turn) for n, one in enumerate(sessions)]
    return dict(zip(sessions, await asyncio.gather(*work)))

print(json.dumps(asyncio.run(main())))
"""


class Written(NamedTuple):
    """A message: when it was added, and deleted, as the beginning and the end of the call."""

    id: str
    text: str
    begin: float
    end: float
    gone_begin: float = float("inf")
    gone_end: float = float("inf")


class Search(NamedTuple):
    """A search: when it began and ended, and the snippets of its hits by session and id."""

    began: float
    ended: float
    found: dict[tuple[str, str], str]


PLACES: dict[str, Callable[[Path, Servers], str]] = {
    "sqlite": lambda folder, _: f"sqlite:///{folder}/m.db",
    "redis": lambda _, servers: servers.redis.fresh(),
}


@pytest.mark.parametrize("kind", PLACES)
def test_live_search_finds_what_is_there(
    run: Callable[..., Result], servers: Servers, tmp_path: Path, kind: str
) -> None:
    url = PLACES[kind](tmp_path, servers)

    def search(*options: str) -> Search:
        began = time.time()
        found = report(run("search", url, "umbrella", "--top", "100000", "--json", *options))
        assert not found["warnings"]
        return Search(began, time.time(), by_id(found["hits"]))

    searches: list[Search] = []
    deadline = time.monotonic() + SECONDS
    place = place_of(url, False)
    words = [place["kind"], place["url"], USER]
    with writing(tmp_path, WRITER, words, SESSIONS) as said:
        wait_for_messages(run, url)
        while len(searches) < SEARCHES or len(searches[-1].found) < MESSAGES:
            assert time.monotonic() < deadline, len(searches)
            searches.append(search(*["--no-index"] * (len(searches) % 5 == 4)))
    wrote = {
        (session, message[0]): Written(*message)
        for session, messages in said.items()
        for message in messages
    }
    assert sum(one.gone_end < float("inf") for one in wrote.values()) > MESSAGES
    for one in searches:
        assert_was_there(one, wrote)
    last = search()
    assert last.found.keys() == {
        (key.session, entry.id) for key, entries in contents(url).items() for entry in entries
    }
    assert last.found.keys() == {
        key for key, message in wrote.items() if message.gone_end == float("inf")
    }


def by_id(hits: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the snippets of hits; none comes twice."""
    found = {(hit["session"], hit["id"]): hit["snippet"] for hit in hits}
    assert len(found) == len(hits)
    return found


def wait_for_messages(run: Callable[..., Result], url: str) -> None:
    """Wait until the agents have made the store."""
    deadline = time.monotonic() + 60
    while run("search", url, "umbrella").exit_code:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def assert_was_there(search: Search, wrote: dict[tuple[str, str], Written]) -> None:
    """Each hit was there at some moment of the search; what was there all along was found."""
    for key, snippet in search.found.items():
        message = wrote[key]
        assert snippet.startswith(" ".join(message.text.split()[:2])), key
        assert message.begin < search.ended, key
        assert message.gone_end > search.began, key
    for key, message in wrote.items():
        if message.end < search.began and message.gone_begin > search.ended:
            assert key in search.found, key
