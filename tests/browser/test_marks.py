"""The marks in the browser, and the memories that have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from memctl.testing.samples import Style
from tests.browser.driver import LARGE, browsing, make_browser
from tests.support.cli import fill


async def test_marks_with_their_memories(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        screen = await driver.press("3")
        assert "compressed" in screen
        await driver.press("down", "enter", "down")
        driver.compare("marks")
        screen = await driver.press("x")
        assert "memctl mark remove agents.db compressed --mark compressed" in screen
        screen = await driver.press("escape", "escape")
        assert "▾" not in screen, "the mark is folded"
        assert "─ Memories ─" in await driver.press("escape")


@pytest.mark.slow
async def test_marks_open_the_first_message_that_has_one(agents: str) -> None:
    async with browsing(make_browser(agents), LARGE) as driver:
        await driver.press("3", "down", "enter", "down", "down", "enter")
        driver.compare("marks-opened")


@pytest.mark.slow
async def test_marks_have_only_what_they_opened_beside_them(agents: str) -> None:
    async with browsing(make_browser(agents), LARGE) as driver:
        assert "─ ada / kyoto ─" in await driver.press("down", "enter")
        assert "─ ada / kyoto ─" not in await driver.press("3", "tab")
        assert "─ ada / kyoto ─" in await driver.press("1")


async def test_marks_of_a_store_without_any(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    await fill(path, {MemoryKey("ada", "kyoto"): [samples.entry("a")]})
    async with browsing(make_browser(path)) as driver:
        assert "no message has a mark" in await driver.press("3", "enter", "x", "escape")


async def test_marks_after_a_change(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    await fill(path, {MemoryKey("ada", "kyoto"): [samples.entry("a")]})
    async with browsing(make_browser(path)) as driver:
        await driver.press("3")
        await fill(path, {MemoryKey("ada", "oslo"): [samples.entry("b", 1, ("hint",))]})
        assert "hint" in await driver.press("r")


async def test_marks_of_facts(tmp_path: Path) -> None:
    samples.use(Style("fact", frozenset()))
    store = f"vault:{tmp_path}/notes"
    await fill(store, {MemoryKey("ada", "friday"): samples.entries(4)})
    async with browsing(make_browser(store)) as driver:
        assert "facts have no marks" in await driver.press("3")


async def test_marks_of_hostile_texts(hostile: str) -> None:
    async with browsing(make_browser(hostile)) as driver:
        screen = await driver.press("3", "enter")
        assert r"m\x1b]0;own\x07[red]" in screen
        driver.refuse_controls()
        await driver.press("x")
        driver.refuse_controls()
