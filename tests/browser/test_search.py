"""The search in the browser: its question, its hits, and what stops it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from memctl.errors import Lost
from memctl.index import folder
from memctl.model import MemoryKey, Page
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.samples import Style
from memctl.wrappers.wrapper import StoreWrapper
from tests.browser.driver import LARGE, Driver, browsing, make_browser
from tests.support.cli import fill


class Endless(StoreWrapper):
    """A store that never has its second page."""

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._store.read(where)) as pages:
            async for page in pages:
                yield page
                await asyncio.Event().wait()


class Closed(StoreWrapper):
    """A store whose connection is lost while it is read."""

    async def read(self, where: Selection) -> AsyncGenerator[Page]:  # noqa: ARG002
        raise Lost(f"{self.label}: the connection was closed", "try again")
        yield


async def search(driver: Driver, query: str) -> str:
    """Type a query, and return the screen."""
    await driver.press("s")
    return await driver.answer(query)


@pytest.mark.slow
async def test_search_asks_before_it_makes_an_index(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("2")
        driver.compare("search")
        await driver.answer("kyoto")
        driver.compare("search-asks")
        assert not folder.indexes()
        await driver.press("enter")
        driver.compare("search-hits")
        assert len(folder.indexes()) == 1
        screen = await driver.press("down", "enter")
        assert "▌ #1 ada (user)" in screen
        marked = [one.text for one in driver.segments() if one.style and one.style.reverse]
        assert set(marked) == {"Kyoto"}, "the hit is marked in the conversation"
        assert "of 11 messages" in screen
        screen = await driver.press("escape", "x")
        assert "--user ada --session kyoto --id Qm1 --messages" in screen
        screen = await driver.press("escape", "escape", "s", "enter")
        assert "3 hits in 1,249 messages" in screen, "it asks once"


@pytest.mark.slow
async def test_search_replaces_the_old_query(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await search(driver, "kyoto")
        assert "Search: kyoto" in (await driver.press("s")).splitlines()[-1]
        assert "Search: os" in (await driver.press("o", "s")).splitlines()[-1]


@pytest.mark.slow
async def test_search_hit_opens_beside_the_hits(agents: str) -> None:
    async with browsing(make_browser(agents), LARGE) as driver:
        await search(driver, "777")
        await driver.press("enter", "enter")
        driver.compare("search-opened")


@pytest.mark.slow
async def test_search_without_hits(agents: str) -> None:
    async with browsing(make_browser(agents, Selection(users=frozenset({"bob"})))) as driver:
        screen = await search(driver, "kyoto")
        assert "Reads all messages once and keeps an index in the cache folder." in screen
        assert "No message answers the query." in await driver.press("enter")


async def test_search_without_words_says_so(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await search(driver, "-kyoto")
        assert "the query has no words to look for" in await driver.press("enter")


@pytest.mark.slow
async def test_search_stops(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Endless)) as driver:
        await search(driver, "kyoto")
        await driver.pilot.press("enter")
        await driver.until("Esc stops")
        assert "stopped; r searches again" in await driver.press("escape")
        assert not folder.indexes()
        await driver.pilot.press("r")
        await driver.until("Esc stops")
        await driver.pilot.press("q")
    assert not folder.indexes()
    assert not list(folder.folder().iterdir())


@pytest.mark.slow
async def test_search_of_lost_connection(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Closed)) as driver:
        await search(driver, "kyoto")
        screen = await driver.press("enter")
        assert "r Read again" in screen.splitlines()[-1]
        assert re.search(r"│try again +│", screen)


@pytest.mark.slow
async def test_search_of_a_pipe_keeps_no_index(agents: str) -> None:
    browser = make_browser(agents, piped=True)
    async with browsing(browser) as driver:
        assert "Each search reads all messages" in await search(driver, "kyoto")
        assert "3 hits" in await driver.press("enter")
    assert not folder.indexes()


@pytest.mark.slow
async def test_search_of_facts(tmp_path: Path) -> None:
    samples.use(Style("fact", frozenset()))
    store = f"vault:{tmp_path}/notes"
    await fill(store, {MemoryKey("ada", "friday"): samples.entries(4)})
    async with browsing(make_browser(store)) as driver:
        await search(driver, "message")
        screen = await driver.press("enter")
        assert "4 hits in 4 facts" in screen
        assert "of 4 facts" in await driver.press("enter")


@pytest.mark.slow
async def test_search_of_hostile_texts(hostile: str) -> None:
    async with browsing(make_browser(hostile)) as driver:
        await search(driver, "kyoto")
        screen = await driver.press("enter")
        assert r"\x1b]0;own\x07 / [red]" in screen
        assert "[bold]no[/]" in screen
        driver.refuse_controls()
