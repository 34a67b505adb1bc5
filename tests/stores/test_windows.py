"""Lists of keys and windows of memories: through wrappers, while others write, of damaged rows."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from memctl.dialects.registry import DIALECTS
from memctl.model import Memory, MemoryKey, Page
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.agentscope1.sql import sqlite
from memctl.testing import samples
from memctl.testing.drive import read, write_all
from memctl.testing.samples import Sample, sample
from memctl.wrappers.converted import shown_as
from memctl.wrappers.dry_run import DryRun

KEY = samples.key(0)


async def keys(store: Store) -> list[MemoryKey]:
    return [key async for key in store.list_keys(Selection())]


def window_of(found: Sample, start: int, stop: int) -> Page:
    entries = found.entries[start:stop]
    return Page(found.memory, entries, start, start + len(entries) == len(found.entries))


async def test_windows_have_the_summary_of_a_session_state(tmp_path: Path) -> None:
    async def states() -> AsyncGenerator[Page]:
        yield Page(Memory(KEY, "so far"), samples.entries(5))
        yield Page(Memory(samples.key(1), "nothing else"), [])

    text = f"sqlite:///{tmp_path}/m.db?state={tmp_path}/states"
    async with make_store(parse(text), OpenMode.CREATE) as store:
        assert not [result async for result in store.write(states()) if result.failure]
        assert sorted(await keys(store)) == [KEY, samples.key(1)]
        found = await read(store)
        assert await store.window(KEY, 1, 2) == window_of(found[KEY], 1, 3)
        assert await store.window(samples.key(1), 0, 2) == Page(found[samples.key(1)].memory, [])
        assert await store.window(samples.key(2), 0, 2) is None


async def test_windows_of_a_converted_store_are_of_shown_messages(tmp_path: Path) -> None:
    tools = samples.MESSAGES["tools"]
    written = [samples.entry(f"m{n}", n, **(tools if n % 2 else {})) for n in range(6)]
    async with make_store(parse(f"{tmp_path}/a.ndjson"), OpenMode.CREATE) as store:
        await write_all(store, [sample(KEY, written)])
    async with shown_as(make_store(parse(f"{tmp_path}/a.ndjson")), DIALECTS["openai"]) as store:
        found = (await read(store))[KEY]
        assert len(found.entries) != len(written)
        assert not store.features.cheap_windows
        assert await keys(store) == [KEY]
        for start in range(len(found.entries)):
            assert await store.window(KEY, start, 2) == window_of(found, start, start + 2)


async def test_windows_of_a_missing_target_are_none(tmp_path: Path) -> None:
    target = DryRun(make_store(parse(f"sqlite:///{tmp_path}/none.db"), OpenMode.CREATE))
    async with target as store:
        assert await keys(store) == []
        assert await store.window(KEY, 0, 5) is None


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
async def test_windows_show_what_agents_write_meanwhile(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "m.db"
    async with make_store(parse(str(path)), OpenMode.CREATE) as agent:
        with closing(sqlite3.connect(path)) as driver:
            driver.execute(f"PRAGMA journal_mode = {journal}")
        await write_all(agent, [sample(KEY, samples.entries(3))])
        async with make_store(parse(str(path))) as store:
            for count in 3, 4, 5:
                page = await store.window(KEY, -2, 2)
                assert page is not None
                assert (page.offset, page.last) == (count - 2, True)
                more = Page(Memory(KEY), samples.entries(1, start=count), offset=count)
                assert not [one async for one in agent.write(pages_of(more)) if one.failure]


async def test_keys_name_all_users_of_a_session_of_scattered_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LISTED_ROWS", 2)
    path, users = tmp_path / "m.db", [MemoryKey(user, "shared") for user in ("a", "b", "c", "d")]
    async with make_store(parse(str(path)), OpenMode.CREATE) as store:
        await write_all(store, [sample(key, samples.entries(3)) for key in users])
    with closing(sqlite3.connect(path)) as driver, driver:
        for row, user in (2**63 - 1, "b"), (-(2**63), "c"):
            driver.execute(f"UPDATE message SET rowid = {row} WHERE id = '{user}-shared-m0000001'")
        driver.execute("DELETE FROM message WHERE id LIKE 'd-%' AND id NOT LIKE '%m0000002'")
    async with make_store(parse(str(path))) as store:
        assert sorted(await keys(store)) == users
        for key, number in zip(users, (3, 3, 3, 1), strict=True):
            page = await store.window(key, 0, 9)
            assert page is not None
            assert (len(page.messages), page.last) == (number, True)


@pytest.mark.parametrize(("walk", "kept"), [(0, 0), (sys.maxsize, 99), (sys.maxsize, 3)])
async def test_windows_count_anew_after_each_change_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: int, kept: int
) -> None:
    monkeypatch.setattr(sqlite, "WALK", walk)
    monkeypatch.setattr(sqlite, "MOST_KEPT", kept)
    path = tmp_path / "m.db"
    async with make_store(parse(str(path)), OpenMode.CREATE) as agent:
        await write_all(agent, [sample(KEY, samples.entries(9))])
        async with make_store(parse(str(path))) as store:
            for count in 9, 10:
                os.utime(path, ns=(0, count))  # a file at rest
                for start, first in (-2, count - 2), (count - 3, count - 3), (count - 1, count - 1):
                    page = await store.window(KEY, start, 2)
                    assert page is not None
                    assert (page.offset, page.last) == (first, first > count - 3)
                more = Page(Memory(KEY), samples.entries(1, start=count), offset=count)
                assert not [one async for one in agent.write(pages_of(more)) if one.failure]


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
async def test_windows_and_counts_do_not_wait_for_an_agent_that_writes(
    tmp_path: Path, journal: str
) -> None:
    path = tmp_path / "m.db"
    async with make_store(parse(str(path)), OpenMode.CREATE) as store:
        await write_all(store, [sample(KEY, samples.entries(3))])
    with closing(sqlite3.connect(path)) as agent:
        agent.execute(f"PRAGMA journal_mode = {journal}")
        async with make_store(parse(str(path))) as store, make_store(parse(str(path))) as counting:
            agent.execute("BEGIN IMMEDIATE")
            agent.execute("DELETE FROM message")
            assert await keys(store) == [KEY]
            page = await store.window(KEY, 0, 9)
            assert page is not None
            assert len(page.messages) == 3
            assert [info.messages async for info in counting.list_memories(Selection())] == [3]


async def pages_of(page: Page) -> AsyncGenerator[Page]:
    yield page


async def test_windows_of_a_table_leave_out_a_memory_with_a_damaged_row(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with closing(sqlite3.connect(path)) as driver, driver:
        driver.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id, message)")
        text = '{"type": "human", "data": {"content": "hi", "type": "human"}}'
        rows = [("good", text)] * 3 + [("bad", text)] * 3 + [("bad", "no JSON")]
        driver.executemany("INSERT INTO message_store VALUES (NULL, ?, ?)", rows)
    good, bad = MemoryKey("", "good"), MemoryKey("", "bad")
    async with make_store(parse(f"sqlite:///{path}?layout=langchain")) as store:
        assert await keys(store) == [good, bad]
        page = await store.window(bad, 0, 2)
        assert page is not None
        assert (len(page.messages), page.last) == (2, False)
        assert not store.left_out.failures
        assert await store.window(bad, -2, 2) is None
        assert store.left_out.failures.keys() == {bad}
        page = await store.window(good, -2, 2)
        assert page is not None
        assert (page.offset, len(page.messages), page.last) == (1, 2, True)


async def test_windows_in_redis_skip_ids_without_a_message(redis_url: str) -> None:
    async with make_store(parse(redis_url), OpenMode.CREATE) as store:
        await write_all(store, [sample(KEY, samples.entries(6))])
    with closing(redis.Redis.from_url(redis_url)) as client:
        [payload] = client.keys("*:msg:m0000002")
        client.delete(payload)
    async with make_store(parse(redis_url)) as store:
        found = (await read(store))[KEY]
        assert len(found.entries) == 5
        for start in 0, 2, 4:
            assert await store.window(KEY, start, 2) == window_of(found, start, start + 2)


async def test_windows_of_a_list_in_redis_leave_out_a_damaged_memory(redis_url: str) -> None:
    url, key = f"{redis_url}?layout=langchain", MemoryKey("", "s")
    with closing(redis.Redis.from_url(redis_url)) as client:
        sound = '{"type": "human", "data": {"content": "hi", "type": "human"}}'
        client.rpush("message_store:s", sound, sound, "no JSON")
    async with make_store(parse(url)) as store:
        page = await store.window(key, -2, 2)  # the newest message is the first in the list
        assert page is not None
        assert (page.offset, len(page.messages), page.last) == (1, 2, True)
        assert await store.window(key, 0, 2) is None
        assert store.left_out.failures.keys() == {key}
