"""Edits beside others: long lists, clients that are faster, runs that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import redis

from memctl.errors import Failure
from memctl.model import Edit, Memory, WriteResult
from memctl.selection import Selection
from memctl.stores.redis.edit import ChangeApplier
from tests.conftest import Servers
from tests.stores.redis_edits import back, dump, edit, filled, gone, ids
from tests.stores.redis_memories import BASE, KEY, entry, put, read, store_of

# Size


@pytest.fixture
def counted(servers: Servers, request: pytest.FixtureRequest) -> Iterator[tuple[redis.Redis, str]]:
    """A database of a server that counts the commands of this test alone."""
    server = servers.redis_with(request.function.__name__)
    url = server.fresh()
    with server.client(url) as client:
        yield client, url


async def test_a_large_list_is_not_gone_through_for_every_id(
    counted: tuple[redis.Redis, str],
) -> None:
    """It is written anew, and only from where it differs."""
    client, url = counted
    found = filled(client, 30_000)
    client.config_resetstat()
    async with store_of(url) as store:
        await edit(store, *(gone(id, "hint") for id in found[20_000::2]), size=1000)
        stats: Any = client.info("commandstats")
        assert "cmdstat_lrem" not in stats
        assert stats["cmdstat_rpush"]["calls"] <= 4
        assert ids(client, "messages") == [*found[:20_000], *found[20_001::2]]
        assert ids(client, "mark:hint") == found[:20_000:2]
        await edit(store, gone("m1", "a"))
        stats = client.info("commandstats")
        assert stats["cmdstat_lrem"]["calls"] == 2
        coming = (back(id, "hint", after=found[n - 1]) for n, id in enumerate(found[2:], 2))
        tally = await edit(store, *[c for c in coming if int(c.id[1:]) >= 20_000][::2], size=700)
        assert tally.written == 5000
    assert ids(client, "messages") == ["m0", *found[2:]]
    assert ids(client, "mark:hint") == found[::2]


async def test_only_memories_with_the_mark_are_looked_at(counted: tuple[redis.Redis, str]) -> None:
    client, url = counted
    for number in range(50):
        put(client, f"user_id:u:session:s{number}", ["a", "b"], x=["a"])
    put(client, BASE, ["a", "b", "c"], hint=["b"])
    async with store_of(url) as store:
        await read(store, Selection(users=frozenset({"nobody"})))
        for where in (Selection(marks=frozenset({"hint"})), Selection(ids=frozenset({"c"}))):
            await read(store, where)  # scans once
            client.config_resetstat()
            assert set(await read(store, where)) == {KEY}
            stats: Any = client.info("commandstats")
            assert stats["cmdstat_lrange"]["calls"] <= 4


# Rivals


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("times", "code"), [(1, None), (99, "changed")])
async def test_another_client_is_faster(
    client: redis.Redis,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    split: bool,
    times: int,
    code: str | None,
) -> None:
    """What Redis refuses is tried again, and in the end left alone."""
    commands = ChangeApplier.commands
    interruptions = 0

    def interrupted(self: ChangeApplier) -> Iterator[Any]:
        nonlocal interruptions
        yield from commands(self)
        if self.changes.key == KEY and interruptions < times:
            interruptions += 1
            client.rpush(f"{BASE}:messages", f"new{interruptions}")
            client.set(f"{BASE}:msg:new{interruptions}", entry("new").message)

    monkeypatch.setattr(ChangeApplier, "commands", interrupted)
    count = 3000 if split else 6
    found = filled(client, count)
    async with store_of(redis_url) as store:
        changes = [*(gone(id, "hint") for id in found[::2]), back("b", "a", after="m1")]
        tally = await edit(store, *changes, size=1000)
        failure = Failure("changed", "another client keeps changing it")
        assert tally == (
            WriteResult(KEY, failure=failure) if code else WriteResult(KEY, 1, deleted=count // 2)
        )
        new = [f"new{number + 1}" for number in range(interruptions)]
        left = found if code else ["m1", "b", *found[3::2]]
        assert ids(client, "messages") == [*left, *new]
    assert not client.keys("memctl:*")


RIVALS = {
    "a message": [("RPUSH", "messages", "new"), ("SET", "msg:new", "{}")],
    "a mark": [("RPUSH", "mark:hint", "m1"), ("SADD", "marks_index", "hint")],
    "a new mark": [("RPUSH", "mark:fresh", "m0"), ("SADD", "marks_index", "fresh")],
    "a deletion": [
        ("LREM", "messages", 0, "m0"),
        ("DEL", "msg:m0"),
        ("LREM", "mark:hint", 0, "m0"),
    ],
    "everything": [("DEL", "messages", "marks_index", "mark:a", "mark:hint")],
    "an expiry": [("PEXPIRE", "messages", 100_000)],
}


@pytest.mark.parametrize("rival", RIVALS)
async def test_whatever_changes_between_look_and_transaction(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    """Each such change is seen: the edit is done upon it, or not at all."""
    commands = ChangeApplier.commands
    rounds: list[ChangeApplier] = []

    def interrupted(self: ChangeApplier) -> Iterator[Any]:
        yield from commands(self)
        rounds.append(self)
        if len(rounds) == 1:
            for name, *arguments in RIVALS[rival]:
                keys = arguments if name == "DEL" else arguments[:1]
                rest = arguments[len(keys) :]
                client.execute_command(name, *(f"{BASE}:{key}" for key in keys), *rest)

    monkeypatch.setattr(ChangeApplier, "commands", interrupted)
    filled(client)
    async with store_of(redis_url) as store:
        tally = await edit(store, gone("m0", "hint"), gone("m1", "a"))
    if rival in ("a message", "an expiry"):
        assert tally == WriteResult(KEY, deleted=2)
        assert len(rounds) == 2
    else:
        assert tally.failure
        assert tally.failure.code == "changed"
        assert len(rounds) == 1
        assert client.exists(f"{BASE}:msg:m1")


def kill_when_staged(program: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert run.stdout
    assert run.stdout.readline() == b"staged\n"
    run.kill()
    run.communicate()


async def test_a_run_that_is_killed_leaves_nothing_for_ever(
    client: redis.Redis, redis_url: str
) -> None:
    """What it had staged belongs to no memory, and expires."""
    put(client, BASE, ["m0"], hint=["m0"])
    before = dump(client, BASE)
    program = f"""
import asyncio
from memctl.model import Edit, Memory
from tests.stores.redis_edits import back
from tests.stores.redis_memories import KEY, store_of

async def endless():
    for start in (0, 800, 1600):
        changes = [back(f"n{{n}}", "a", after="m0") for n in range(start, start + 800)]
        yield Edit(Memory(KEY), changes, start, last=False)
    print("staged", flush=True)
    await asyncio.sleep(60)

async def main():
    async with store_of({redis_url!r}) as store:
        async for _ in store.edit(endless()):
            pass

asyncio.run(main())
"""
    kill_when_staged(program)
    keys: Any = client.keys("memctl:*")
    assert len(keys) >= 1600
    assert all(0 < client.ttl(key) <= 6 * 3600 for key in keys)
    assert dump(client, BASE) == before
    async with store_of(redis_url) as store:
        assert (await edit(store, gone("m0", "hint"))).deleted == 1


async def test_staged_messages_that_are_lost(client: redis.Redis, redis_url: str) -> None:
    filled(client)
    before = dump(client, BASE)

    async def evicted() -> AsyncGenerator[Edit]:
        for start in (0, 1000):
            changes = [back(f"n{n}", after="m0") for n in range(start, start + 1000)]
            if start:
                keys: Any = client.keys("memctl:*")
                client.delete(keys[3])
            yield Edit(Memory(KEY), changes, start, last=bool(start))

    async with store_of(redis_url) as store:
        [tally] = [tally async for tally in store.edit(evicted())]
    assert tally.failure
    assert tally.failure.code == "changed"
    assert dump(client, BASE) == before
    assert not client.keys("memctl:*")
