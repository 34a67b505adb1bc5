"""The findings of doctor in the browser, examined in the background."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from memctl.model import MemoryKey, Page
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.samples import Style
from memctl.wrappers.wrapper import StoreWrapper
from tests.browser.driver import LARGE, browsing, make_browser
from tests.browser.test_search import Closed, Endless
from tests.support.cli import fill


class Busy(StoreWrapper):
    """A store that reads for a long time without a pause, as a file does."""

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._store.read(where)) as pages:
            async for page in pages:
                for _ in range(1000):
                    time.sleep(0.01)  # noqa: ASYNC251 - that is the point
                    yield page


@pytest.mark.slow
async def test_findings_with_means_and_fix(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("4")
        driver.compare("findings")
        screen = await driver.press("x")
        assert "memctl doctor agents.db leftover-hint --repair --dry-run" in screen
        screen = await driver.press("escape", "down", "enter")
        assert "▌ #11 " in screen, "the message of the finding"
        screen = await driver.press("escape", "escape")
        assert "▸ warning leftover-hint" in screen


@pytest.mark.slow
async def test_findings_beside_a_conversation(agents: str) -> None:
    async with browsing(make_browser(agents), LARGE) as driver:
        await driver.press("4", "down", "enter")
        driver.compare("findings-opened")


@pytest.mark.slow
async def test_findings_of_a_healthy_store(tmp_path: Path) -> None:
    path = f"{tmp_path}/agents.ndjson"
    await fill(path, {MemoryKey("ada", "kyoto"): [samples.entry("a")]})
    async with browsing(make_browser(path)) as driver:
        screen = await driver.press("4")
        assert "healthy: 1 memory, 1 message checked" in screen
        await driver.press("enter", "x", "escape", "y")


@pytest.mark.slow
async def test_findings_do_not_block_the_browser(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Endless)) as driver:
        await driver.pilot.press("4")
        await driver.until("Esc stops")
        await driver.pilot.press("1", "down", "enter")
        await driver.until("of 11 messages")
        await driver.pilot.press("4")
        await driver.until("Esc stops")
        assert "stopped; r examines again" in await driver.press("escape")
        await driver.pilot.press("r")
        await driver.until("Esc stops")
        began = time.monotonic()
        await driver.pilot.press("q")
    assert time.monotonic() - began < 1


@pytest.mark.slow
async def test_findings_stop_although_the_store_never_pauses(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Busy)) as driver:
        await driver.pilot.press("4")
        await driver.until("Esc stops")
        began = time.monotonic()
        await driver.pilot.press("q")
    assert time.monotonic() - began < 1
    for _ in range(100):
        await asyncio.sleep(0.05)
        names = [thread.name for thread in threading.enumerate()]
        if "memctl-store" not in names:
            break
    assert "memctl-store" not in names


async def test_findings_of_lost_connection(agents: str) -> None:
    async with browsing(make_browser(agents, wrap=Closed)) as driver:
        screen = await driver.press("4")
        assert "r examines again" in screen
        assert "r Read again" in screen.splitlines()[-1]


async def test_findings_of_facts(tmp_path: Path) -> None:
    samples.use(Style("fact", frozenset()))
    store = f"vault:{tmp_path}/notes"
    await fill(store, {MemoryKey("ada", "friday"): samples.entries(4)})
    async with browsing(make_browser(store)) as driver:
        assert "4 facts checked" in await driver.press("4")


@pytest.mark.slow
async def test_findings_of_hostile_texts(hostile: str) -> None:
    async with browsing(make_browser(hostile)) as driver:
        screen = await driver.press("4", "down")
        assert r"\x1b]0;own\x07 / [red]  j\x1b[31m" in screen
        driver.refuse_controls()
        await driver.press("x")
        driver.refuse_controls()


@pytest.mark.slow
async def test_findings_in_ascii_have_no_boxes(agents: str) -> None:
    async with browsing(make_browser(agents, ascii_only=True)) as driver:
        for screen in (await driver.press("4"), await driver.press("3"), await driver.press("5")):
            assert not [char for char in screen if "─" <= char <= "◿"]
