"""What the browser shows of a store, and what its keys do."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.browser.driver import LARGE, browsing, make_browser
from tests.support.cli import fill


@pytest.fixture
async def store(tmp_path: Path) -> str:
    path = f"{tmp_path}/agents.db"
    await fill(
        path,
        {
            MemoryKey("ada", "kyoto"): samples.entries(500),
            MemoryKey("ada", "lisbon"): samples.entries(3),
            MemoryKey("bob", "parcel"): samples.entries(7),
        },
    )
    return path


@pytest.mark.slow
async def test_browser_lists_the_memories_and_opens_one(store: str) -> None:
    async with browsing(make_browser(store)) as driver:
        screen = driver.screen()
        assert "2 users · 3 memories · by name" in screen
        assert "510 messages" in screen
        screen = await driver.press("down", "enter")
        assert "─ ada / kyoto ─" in screen
        assert "of 500 messages" in screen
        assert "#500 " in screen
        screen = await driver.press("escape")
        assert "─ Memories ─" in screen


@pytest.mark.slow
async def test_browser_shows_both_on_a_large_terminal(store: str) -> None:
    async with browsing(make_browser(store), LARGE) as driver:
        screen = await driver.press("down", "enter")
        assert "─ Memories ─" in screen
        assert "─ ada / kyoto ─" in screen


async def test_browser_quits(store: str) -> None:
    browser = make_browser(store)
    async with browsing(browser) as driver:
        await driver.pilot.press("q")
        await driver.pilot.pause()
        assert not browser.is_running
