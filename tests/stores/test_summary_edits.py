"""Edits of memories whose summaries lie elsewhere, in session states: both change, or neither."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from memctl.errors import Failure, Lost, MemctlError, Unavailable
from memctl.model import (
    Change,
    Edit,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.agentscope1.redis.store import RedisMemoryStore
from memctl.wrappers.timeout import Timeout
from tests.stores.archives import entries, entry
from tests.support.places import edited

KEYS = [MemoryKey(f"u{number}", "s") for number in range(3)]
KEY = KEYS[0]


@pytest.fixture(params=["redis", "folder"])
def place(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> str:
    """Three memories with a summary each."""
    beside = tmp_path / "states" if request.param == "folder" else "redis"
    text = f"{redis_url}?state={beside}"

    async def pages() -> AsyncGenerator[Page]:
        for key in KEYS:
            yield Page(Memory(key, "old"), entries(4))

    async def filled() -> None:
        async with make_store(parse(text), OpenMode.CREATE) as store:
            assert not [result async for result in store.write(pages()) if result.failure]

    asyncio.run(filled())
    return text


def store_of(text: str) -> Store:
    return make_store(parse(text), OpenMode.CHANGE)


def edit_of(
    key: MemoryKey, *changes: Change, new: str | None = None, old: str | None = None
) -> Edit:
    return Edit(Memory(key, new), list(changes), summary=old)


async def held(text: str) -> dict[MemoryKey, tuple[str | None, list[StoredMessage]]]:
    found: dict[MemoryKey, tuple[str | None, list[StoredMessage]]] = {}
    async with make_store(parse(text)) as store:
        async for page in store.read(Selection()):
            found.setdefault(page.memory.key, (page.memory.summary, []))[1].extend(page.messages)
    return found


def gone(number: int) -> Change:
    return Change(f"m{number}", ("hint",))


def code(result: WriteResult) -> str:
    return result.failure.code if result.failure else ""


async def test_summary_both_change(place: str) -> None:
    async with store_of(place) as store:
        results = await edited(
            store,
            edit_of(KEYS[0], gone(1), new="new", old="old"),
            edit_of(KEYS[1], new="alone", old="old"),
            edit_of(KEYS[2], gone(2)),
        )
    assert {result.key: (result.deleted, code(result)) for result in results} == {
        KEYS[0]: (1, ""),
        KEYS[1]: (0, ""),
        KEYS[2]: (1, ""),
    }
    some = entries(4)
    assert await held(place) == {
        KEYS[0]: ("new", [some[0], *some[2:]]),
        KEYS[1]: ("alone", some),
        KEYS[2]: ("old", [*some[:2], some[3]]),
    }


async def test_summary_neither_changes_where_one_is_otherwise(place: str) -> None:
    before = await held(place)
    async with store_of(place) as store:
        results = await edited(
            store,
            edit_of(KEYS[0], gone(1), new="new", old="another"),
            edit_of(KEYS[1], gone(9), new="new", old="old"),
            edit_of(KEYS[2], gone(1), old="another"),
        )
    assert {result.key: code(result) for result in results} == dict.fromkeys(KEYS, "changed")
    assert await held(place) == before


async def test_summary_order(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any message changes, the new summary is there."""
    edit = RedisMemoryStore.edit
    seen = []

    async def watched(
        store: RedisMemoryStore, edits: AsyncGenerator[Edit]
    ) -> AsyncGenerator[WriteResult]:
        async def passed() -> AsyncGenerator[Edit]:
            async for one in edits:
                seen.append((await held(place))[one.memory.key])
                yield one

        async for result in edit(store, passed()):
            yield result

    monkeypatch.setattr(RedisMemoryStore, "edit", watched)
    async with store_of(place) as store:
        await edited(store, edit_of(KEY, gone(1), new="new", old="old"))
    assert seen == [("new", entries(4))]


@pytest.mark.parametrize("error", [Lost("the server went away"), OSError("a bug")])
async def test_summary_store_of_messages_that_fails(
    place: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    before = await held(place)

    async def failing(_: Store, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async for one in edits:
            if one.memory.key == KEYS[1]:
                raise error
            yield WriteResult(one.memory.key)

    monkeypatch.setattr(RedisMemoryStore, "edit", failing)
    async with store_of(place) as store:
        edits = [edit_of(key, gone(1), new="new", old="old") for key in KEYS]
        with pytest.raises(type(error)):
            await edited(store, *edits)
        assert store.warnings == []
    found = await held(place)
    assert found[KEYS[0]][0] == "new"
    assert [found[key] for key in KEYS[1:]] == [before[key] for key in KEYS[1:]]


@pytest.mark.parametrize("fails", [False, True])
async def test_summary_that_an_agent_has_changed_meanwhile_stays(
    place: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It is newer than the one that would be restored."""

    async def slow(_: Store, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        edit = RedisMemoryStore.edit
        async for one in edits:
            monkeypatch.undo()
            async with store_of(place) as agent:
                await edited(agent, edit_of(one.memory.key, new="newer"))
            monkeypatch.setattr(RedisMemoryStore, "edit", edit)
            if fails:
                raise Unavailable("no longer there")
            yield WriteResult(one.memory.key, failure=Failure("changed", "it is another"))

    monkeypatch.setattr(RedisMemoryStore, "edit", slow)
    async with store_of(place) as store:
        try:
            [result] = await edited(store, edit_of(KEY, gone(1), new="new", old="old"))
            said = result.failure.message if result.failure else ""
        except MemctlError:
            [said] = store.warnings
    assert "summary" in said
    assert (await held(place))[KEY] == ("newer", entries(4))


async def test_summary_session_saved_without_a_user(redis_url: str, tmp_path: Path) -> None:
    """Then the state of the default user is that of nobody."""
    key = MemoryKey("default_user", "s")
    state = tmp_path / "s.json"
    state.write_text('{"memory": {"_compressed_summary": "old"}, "x": 1}')

    async def page() -> AsyncGenerator[Page]:
        yield Page(Memory(key), [entry("a")])

    text = f"{redis_url}?state={tmp_path}"
    async with make_store(parse(text), OpenMode.CREATE) as store:
        assert not [result async for result in store.write(page()) if result.failure]
    async with store_of(text) as store:
        [result] = await edited(store, edit_of(key, Change("a", ()), new="new", old="old"))
        assert result == WriteResult(key, deleted=1)
    assert json.loads(state.read_text()) == {"memory": {"_compressed_summary": "new"}, "x": 1}


async def test_summary_edit_that_hangs(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs while the store works, and stands still while the next edit is awaited."""

    async def slow() -> AsyncGenerator[Edit]:
        for key in KEYS[:2]:
            await asyncio.sleep(0.5)
            yield edit_of(key, gone(1))

    async with Timeout(store_of(place), 0.4) as store:
        assert [code(result) async for result in store.edit(slow())] == ["", ""]

        async def hanging(_: Store, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
            async for _one in edits:
                await asyncio.sleep(60)
            yield WriteResult(KEY)

        monkeypatch.setattr(RedisMemoryStore, "edit", hanging)
        with pytest.raises(Lost, match="not answered"):
            await edited(store, edit_of(KEY, gone(2)))


@pytest.mark.parametrize("there", [True, False], ids=["there", "new"])
async def test_summary_is_not_written_where_the_messages_are_not(
    place: str, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    key = KEY if there else MemoryKey("new", "s")
    before = await held(place)

    async def failing(
        _: Store, pages: AsyncGenerator[Page], __: WriteMode
    ) -> AsyncGenerator[WriteResult]:
        async for page in pages:
            yield WriteResult(page.memory.key, failure=Failure("refused", "no place for it"))

    async def page() -> AsyncGenerator[Page]:
        yield Page(Memory(key, "new"), entries(2))

    monkeypatch.setattr(RedisMemoryStore, "write", failing)
    async with store_of(place) as store:
        [result] = [one async for one in store.write(page(), WriteMode.REPLACE)]
    assert code(result) == "refused"
    assert await held(place) == before


async def test_messages_are_not_written_where_the_summary_is_not(tmp_path: Path) -> None:
    """No file can have the name of the state."""
    long = MemoryKey("u" * 120, "s" * 130)

    async def pages() -> AsyncGenerator[Page]:
        for key in (long, KEY):
            yield Page(Memory(key, "new"), entries(2))

    text = f"sqlite:///{tmp_path}/m.db?state={tmp_path}"
    async with make_store(parse(text), OpenMode.CREATE) as store:
        results = {one.key: code(one) async for one in store.write(pages())}
    assert results == {long: "refused", KEY: ""}
    assert list(await held(f"sqlite:///{tmp_path}/m.db")) == [KEY]


@pytest.mark.parametrize("summary", [None, "new"])
async def test_messages_are_not_written_beside_a_damaged_state(
    tmp_path: Path, summary: str | None
) -> None:
    (tmp_path / "u0_s.json").write_text('{"memory": ')

    async def pages() -> AsyncGenerator[Page]:
        for key in KEYS[:2]:
            yield Page(Memory(key, summary), entries(2))

    text = f"sqlite:///{tmp_path}/m.db?state={tmp_path}"
    async with make_store(parse(text), OpenMode.CREATE) as store:
        results = {one.key: code(one) async for one in store.write(pages())}
    assert results == {KEYS[0]: "damaged", KEYS[1]: ""}
    assert list(await held(f"sqlite:///{tmp_path}/m.db")) == KEYS[1:2]
