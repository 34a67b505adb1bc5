"""Sessions of 2.x in SQL that grow: what is asked of the database, and what it answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.engines.sql.database import Database
from memctl.model import PAGE_ENTRIES, Memory, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import Place
from memctl.testing.drive import write
from memctl.testing.samples import Sample
from memctl.wrappers.converted import ConvertedStore
from tests.support.backends import new_place, session_database
from tests.support.places import held, put
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

KEY = MemoryKey("u", "long")


@pytest.fixture(params=["sqlite-agentscope2", "postgresql-agentscope2", "mysql-agentscope2"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return new_place(request.param, tmp_path, servers)


def entry(id: str, *marks: str) -> StoredMessage:
    content = [{"type": "text", "text": f"this is {id}"}]
    text = {"id": id, "name": "u", "role": "user", "content": content}
    return StoredMessage(id, json.dumps(text).encode(), marks)


def many(count: int) -> list[MemoryKey]:
    return [MemoryKey("u", f"s{number:03}") for number in range(count)]


def grow(place: Place, keys: Sequence[MemoryKey], *, converted: bool = False) -> None:
    """Put a message behind the three of each."""

    async def add() -> None:
        async with place.store() as store:
            shown: Store = ConvertedStore(store, AGENTSCOPE1) if converted else store
            more = entry("n")._replace(message=NEW) if converted else entry("n")
            samples = [Sample(Memory(key), [more]) for key in keys]
            results = await write(shown, samples, offset=3)
            assert not any(one.failure for one in results.values()), results

    asyncio.run(add())


NEW = json.dumps(
    {"id": "n", "name": "u", "role": "user", "content": "new", "metadata": None, "timestamp": ""}
).encode()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, place: Place) -> Counter[str]:
    """The transactions and the rows, from now on."""
    count: Counter[str] = Counter()
    put(place, [Sample(Memory(key), [entry(id) for id in "abc"]) for key in many(40)])
    kind: type[Database] = type(session_database(place.store()))
    rows, execute, begin = kind.rows, kind.execute, kind.begin_write

    async def counting_rows(self: Any, *args: Any) -> AsyncGenerator[Sequence[Any]]:
        count["statements"] += 1
        async with aclosing(rows(self, *args)) as found:
            async for some in found:
                yield some

    async def counting_execute(self: Any, *args: Any) -> Sequence[Any]:
        count["statements"] += 1
        return await execute(self, *args)

    async def counting_begin(self: Any, *args: Any) -> None:
        count["transactions"] += 1
        await begin(self, *args)

    monkeypatch.setattr(kind, "rows", counting_rows)
    monkeypatch.setattr(kind, "execute", counting_execute)
    monkeypatch.setattr(kind, "begin_write", counting_begin)
    return count


def test_growth_of_many_sessions_takes_as_many_statements_as_that_of_few(
    place: Place, counted: Counter[str]
) -> None:
    keys = many(40)
    grow(place, keys[:2])
    few = counted["statements"]
    counted.clear()
    grow(place, keys[2:])
    assert counted["statements"] == few
    assert all([one[0] for one in held(place)[key][2]] == [*"abc", "n"] for key in keys)


def test_growth_of_many_converted_sessions_is_one_transaction(
    place: Place, counted: Counter[str]
) -> None:
    keys = many(40)
    grow(place, keys, converted=True)
    assert counted["transactions"] == 1
    assert all([one[0] for one in held(place)[key][2]] == [*"abc", "n"] for key in keys)


def test_messages_of_the_future_keep_their_distances_and_are_past(place: Place) -> None:
    start = datetime.now(UTC) + timedelta(days=1)
    times = [start + timedelta(seconds=second) for second in (0, 5, 60)]
    messages = [
        entry(id)._replace(shape=json.dumps({"at": time.isoformat()}))
        for id, time in zip("abc", times, strict=True)
    ]

    async def stored() -> list[datetime]:
        async with place.store() as store:
            results = await write(store, [Sample(Memory(KEY), messages)])
            assert results[KEY].failure is None
            pages = [page async for page in store.read(Selection())]
        shapes = [json.loads(one.shape) for page in pages for one in page.messages]
        return [datetime.fromisoformat(shape["at"]) for shape in shapes]

    found = asyncio.run(stored())
    assert [time - found[0] for time in found] == [time - times[0] for time in times]
    assert found[-1] < datetime.now(UTC)


def extra(context: list[str], *alone: str) -> str:
    parts = {"record": {"agent_id": "default"}, "payload": {}, "state": {"session_id": KEY.session}}
    return json.dumps(parts | {"context": context, "unlogged": list(alone)})


def test_a_session_whose_agent_is_not_a_text_is_refused_alone(place: Place) -> None:
    keys = many(3)
    agents: list[Any] = [5, {"id": "a"}, "a"]
    samples = []
    for key, agent in zip(keys, agents, strict=True):
        parts = {"record": {"agent_id": agent}, "payload": {}, "state": {}}
        samples.append(Sample(Memory(key, extra=json.dumps(parts)), [entry("m")]))

    async def add() -> list[str | None]:
        async with place.store() as store:
            results = await write(store, samples)
        failures = [results[key].failure for key in keys]
        return [one and one.code for one in failures]

    assert asyncio.run(add()) == ["refused", "refused", None]
    assert list(held(place)) == keys[2:]


@pytest.fixture(params=[8, PAGE_ENTRIES], ids=["short", "long"])
def session(request: pytest.FixtureRequest, place: Place) -> int:
    """A session with a few messages in its context, one of them there alone; their number."""
    old = [entry(f"o{number:05}", "compressed") for number in range(request.param)]
    messages = [*old, entry("first"), entry("alone"), entry("last")]
    memory = Memory(KEY, extra=extra(["first", "alone", "last"], "alone"))
    put(place, [Sample(memory, messages)])
    return len(messages)


def test_growth_of_a_session_counts_the_messages_of_its_context_alone(
    place: Place, session: int
) -> None:
    async def add() -> None:
        async with place.store() as store:
            for offset, id, code in (
                (session - 1, "more", "changed"),
                (session, "alone", "repeated-id"),
                (session, "more", None),
            ):
                sample = Sample(Memory(KEY), [entry(id)])
                failure = (await write(store, [sample], offset=offset))[KEY].failure
                assert (failure.code if failure else None) == code

    asyncio.run(add())
    ids = [one[0] for one in held(place)[KEY][2]]
    assert ids[-4:] == ["first", "alone", "last", "more"]
    assert len(ids) == session + 1


def test_messages_of_one_moment_are_read_in_the_order_of_their_ids(place: Place) -> None:
    ids = [f"{number * 7919 % 2000:05}" for number in range(2000)]
    put(place, [Sample(Memory(KEY), [entry(id) for id in ids])])
    assert [one[0] for one in held(place)[KEY][2]] == ids

    async def stop_the_clock() -> None:
        async with place.store() as store:
            database = session_database(store)
            async with database.connect() as connection, database.transaction(connection):
                sql = "UPDATE messages SET created_at = (SELECT created_at FROM sessions)"
                await connection.exec_driver_sql(sql)

    asyncio.run(stop_the_clock())
    assert [one[0] for one in held(place)[KEY][2]] == sorted(ids)
