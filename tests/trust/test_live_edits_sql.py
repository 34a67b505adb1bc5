"""SQL memories that an agent writes to and marks while memctl deletes, restores and marks."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memctl.model import Change, MemoryKey, Page, StoredMessage
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing.drive import read
from tests.support.agentscope import place_of, writing
from tests.support.backends import SQL_PLACES, sql_database
from tests.support.servers.pool import Servers
from tests.trust.operator import Operator

pytestmark = pytest.mark.slow

EDITS = 200
"""For each database."""
MISSED = 5
"""So often at least an agent was faster, and the edit left the memory alone."""
SECONDS = 150.0
"""It takes a tenth of that where nothing else is going on."""
SESSIONS = ["s0", "s1", "会话 *", "s-1", "%", "s5"]
USER = "it's *"
KEYS = [MemoryKey(USER, session) for session in SESSIONS]

WRITER = r"""
import asyncio, json, sys
from pathlib import Path
from random import Random
from agentscope.memory import AsyncSQLAlchemyMemory
from agentscope.message import Msg
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

url, user, until, *sessions = sys.argv[1:]

def check_foreign_keys(connection, _):
    connection.execute("PRAGMA foreign_keys = ON")

async def write(session, enough, random, begun, turn):
    # Adds and marks; gives what it wrote: id, text, and what must become of it.
    engine = create_async_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", check_foreign_keys)
    wrote = {}
    texts = {}
    async with AsyncSQLAlchemyMemory(engine, session_id=session, user_id=user) as memory:
        async with turn:  # several that create the same user at once fail
            await memory.get_memory()
        await begun.wait()
        while not enough():
            kind = random.choice(["plain", "plain", "hint", "hint", "keep", "keep", "spare"])
            if kind in ("keep", "spare"):
                # Hints that memctl may be about to delete.
                hints = [id for id, fate in wrote.items() if fate == "hint"][-6:]
                if not hints:
                    continue
                ids = random.sample(hints, random.randint(1, len(hints)))
                try:
                    if kind == "keep":
                        done = await memory.update_messages_mark("keep", msg_ids=ids)
                        some = "kept or gone" if done else "gone"
                        fate = "kept" if done == len(ids) else some
                    else:
                        # A message that goes in between is not noticed: nothing tells it.
                        await memory.update_messages_mark(None, old_mark="hint", msg_ids=ids)
                        fate = "spared or gone"
                    wrote |= dict.fromkeys(ids, fate)
                except IntegrityError:  # one was deleted in between, and the others are as before
                    pass
            else:
                text = kind * random.randint(1, 50)
                messages = [Msg("Friday", text, "assistant") for _ in range(random.choice([1, 4]))]
                await memory.add(messages, marks=None if kind == "plain" else kind)
                for message in messages:
                    wrote[message.id] = kind
                    texts[message.id] = text
            await asyncio.sleep(0.02)
    await engine.dispose()
    return [[id, texts[id], fate] for id, fate in wrote.items()]

async def main():
    enough = Path(until).exists
    begun, turn = asyncio.Barrier(len(sessions)), asyncio.Lock()
    work = [write(one, enough, Random(n), begun, turn) for n, one in enumerate(sessions)]
    return dict(zip(sessions, await asyncio.gather(*work)))

print(json.dumps(asyncio.run(main())))
"""


class Written(NamedTuple):
    """A message of the writer, and what must become of it."""

    id: str
    text: str
    fate: str


HINTS = Selection(marks=frozenset({"hint"}), exclude_marks=frozenset({"keep"}))
PLAIN = Selection(exclude_marks=frozenset({"hint", "keep"}), last=30)


def back(page: Page) -> list[Change]:
    """Return changes that restore hints of every other memory, by their index."""
    if page.memory.key not in KEYS[::2]:
        return []
    return [
        Change(entry.id, None, entry.marks, entry.message, None, entry.position)
        for entry in page.messages
    ]


@pytest.mark.parametrize("kind", SQL_PLACES)
async def test_live_sql_agent_writes_while_messages_are_deleted(
    servers: Servers, tmp_path: Path, kind: str
) -> None:
    url = str(SQL_PLACES[kind](tmp_path, servers))
    async with make_store(parse(url), OpenMode.CREATE):
        pass
    async with make_store(parse(url), OpenMode.CHANGE) as store:
        database = sql_database(store)
        operator = Operator(store, HINTS, PLAIN, back)
        place = [place_of(url, False)["url"], USER]
        with writing(tmp_path, WRITER, place, SESSIONS) as wrote:
            end = time.monotonic() + SECONDS
            while len([memory async for memory in store.headers(Selection())]) < len(KEYS):
                assert time.monotonic() < end, "it has not begun"
            missed = 0
            while operator.done.total() < EDITS or missed < MISSED:
                assert time.monotonic() < end, f"so far {operator.done}"
                await operator.round()
                missed = operator.done["deleted: changed"]
        await operator.delete_all()
        found = await read(store)
        assert set(found) == set(KEYS)
        for key in KEYS:
            messages = [Written(*message) for message in wrote[key.session]]
            assert_nothing_lost(found[key].entries, messages, order=key in KEYS[1::2])
        async with database.snapshot(find_huge=False) as connection:
            orphans = await connection.exec_driver_sql(
                "SELECT * FROM message_mark WHERE msg_id NOT IN (SELECT id FROM message)"
            )
            assert orphans.all() == []
    assert min(operator.done[what] for what in ("deleted", "put back", "marked")) > EDITS / 40


def assert_nothing_lost(entries: list[StoredMessage], wrote: list[Written], *, order: bool) -> None:
    """Assert that messages never deleted, or marked before they were, are there unchanged."""
    found = {entry.id: entry for entry in entries}
    fates = defaultdict[str, set[str]](set)  # a slow machine may write no message of a fate
    for one in wrote:
        fates[one.fate].add(one.id)
        if one.id in found:
            assert json.loads(found[one.id].message)["content"] == one.text
    must = fates["plain"] | fates["kept"]
    assert must - set(found) == set(), "lost"
    may = fates["kept or gone"] | fates["spared or gone"]
    assert set(found) - must - may == set(), "not deleted"
    for id, entry in found.items():
        kept = fates["kept"] | fates["kept or gone"]
        marks: Any = {"hint", "keep"} if id in kept else set()
        assert set(entry.marks) - {"seen"} == marks
    if order:  # where a message comes back, the index that another took is taken from that
        ids = [one.id for one in wrote if one.id in found]
        assert [entry.id for entry in entries] == ids
