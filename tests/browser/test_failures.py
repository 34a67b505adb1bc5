"""What goes wrong while a store is browsed: it is said, and what was read stays."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.browser.source import Reader
from memctl.errors import Lost, NotFound
from memctl.model import MemoryInfo, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.wrappers.wrapper import StoreWrapper
from tests.browser.driver import LARGE, browsing, make_browser
from tests.support.cli import fill

KEY = MemoryKey("ada", "kyoto")


class Watched(StoreWrapper):
    """A store that counts its reads that have begun and not ended, and loses its connection."""

    running = 0
    lost = False
    called: set[str]

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        Watched.called = set()

    async def _watched(self, name: str, items: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        Watched.called.add(name)
        Watched.running += 1
        try:
            self._connected()
            async for item in items:
                yield item
        finally:
            await items.aclose()
            Watched.running -= 1

    def _connected(self) -> None:
        if Watched.lost:
            raise Lost("the connection was closed", "try again")

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return self._watched("read", self._store.read(where))

    def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self._watched("list_keys", self._store.list_keys(where))

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        return self._watched("list_memories", self._store.list_memories(where))

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        Watched.called.add("window")
        self._connected()
        return await self._store.window(key, start, count)


@pytest.fixture
def _connected() -> Any:
    yield
    Watched.lost = False


@pytest.mark.slow
async def test_browser_leaves_no_read_open_between_two_keys(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Watched)) as driver:
        keys = ["down", "down", "enter", "pageup", "g", "pagedown", "m", "c", "c", "escape", "r"]
        for key in keys:
            await driver.press(key)
            assert Watched.running == 0, key
        assert Watched.called <= {"list_keys", "list_memories", "window", "read"}


@pytest.mark.slow
@pytest.mark.usefixtures("_connected")
async def test_browser_keeps_what_it_read_when_the_connection_is_lost(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Watched)) as driver:
        before = await driver.press("down", "enter")
        Watched.lost = True
        screen = await driver.press("r")
        assert re.search(r"the connection was closed +r Read again", screen)
        assert "#11 system" in screen
        assert screen.splitlines()[:-1] == before.splitlines()[:-1]
        Watched.lost = False
        assert await driver.press("r") == before


@pytest.mark.slow
async def test_browser_reads_names_and_counts_anew_from_a_conversation(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    await fill(path, {KEY: samples.entries(3)})
    async with browsing(make_browser(path), LARGE) as driver:
        assert "3 messages" in await driver.press("down", "enter")
        await fill(path, {MemoryKey("ada", "oslo"): samples.entries(4)})
        screen = await driver.press("r")
        assert "7 messages" in screen.splitlines()[0]
        assert re.search(r"oslo +4 ", screen)
        assert driver.browser.focused is driver.browser.right


@pytest.mark.slow
async def test_browser_says_that_messages_were_deleted(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    await fill(path, {KEY: samples.entries(900)})
    async with browsing(make_browser(path)) as driver:
        assert "of 900 messages" in await driver.press("down", "enter")
        with closing(sqlite3.connect(path)) as database, database:
            database.execute('DELETE FROM message WHERE "index" >= 300')
            database.execute("DELETE FROM message_mark")
        screen = await driver.press("r")
        assert "of 300 messages" in screen
        assert "600 messages were deleted" in screen


@pytest.mark.slow
async def test_browser_says_that_a_memory_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    await fill(path, {KEY: samples.entries(3), MemoryKey("bob", "b"): samples.entries(3)})
    async with browsing(make_browser(path)) as driver:
        with closing(sqlite3.connect(path)) as database, database:
            for table in ("message_mark", "message", "session"):
                database.execute(f"DELETE FROM {table}")
        screen = await driver.press("down", "enter")
        assert "is not there any more" in screen


@pytest.mark.slow
async def test_browser_leaves_long_texts_out_of_a_large_message(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    long = samples.entry("big", content="All work and no play. " * 70_000)
    await fill(path, {KEY: [samples.entry("small", content="x" * 30_000), long]})
    async with browsing(make_browser(path)) as driver:
        screen = await driver.press("down", "enter")
        assert "1.5 MB, long texts left out" in screen
        assert "10,000 characters more: Enter shows more" in screen
        assert "All work and no play." in await driver.press("enter"), "the message alone"


async def test_browser_names_damaged_memories(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    await fill(str(folder), {KEY: samples.entries(3)})
    (folder / "bob_broken.json").write_text('{"memory": {"content": [[', "utf-8")
    async with browsing(make_browser(str(folder))) as driver:
        screen = driver.screen()
        assert re.search(r"broken +damaged", screen)
        assert "1 damaged" in screen
        screen = await driver.press("end", "enter")
        assert "is damaged" in screen


@pytest.mark.slow
async def test_browser_names_a_memory_with_a_damaged_row(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    await fill(path, {KEY: samples.entries(3)})
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE message SET msg = '{' WHERE session_id = 'kyoto'")
    async with browsing(make_browser(path)) as driver:
        screen = await driver.press("down", "enter")
        text = " ".join(screen.replace("│", " ").split())  # the message is wrapped
        assert "'kyoto' is damaged: the message" in text
        assert "not there any more" not in text


async def test_browser_ends_with_the_error_of_a_missing_user(agents: str) -> None:
    where = Selection(users=frozenset({"adda"}))
    with pytest.raises(NotFound) as error:
        async with browsing(make_browser(agents, where)):
            pass
    assert error.value.hint == "did you mean 'ada'?"


async def test_browser_opens_the_only_memory_of_a_selection(agents: str) -> None:
    where = Selection(users=frozenset({"bob"}))
    async with browsing(make_browser(agents, where)) as driver:
        assert "─ bob / parcel ─" in driver.screen()
        head = driver.screen().splitlines()[0]
        assert re.search(r"3 messages · [\d.]+ k?B · only bob   read-only", head)


async def test_browser_ends_with_an_error_in_a_worker(
    agents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    browser = make_browser(agents)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the end of the block raises it
        async with browsing(browser) as driver:
            monkeypatch.setattr(Reader, "run", fail)
            await driver.press("r")
    assert not browser.is_running
