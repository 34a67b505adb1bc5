"""The filter of the browser: by role, mark, name and time, in the list and in conversations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.browser.driver import Driver, browsing, make_browser
from tests.support.cli import fill


async def filter_by(driver: Driver, text: str) -> str:
    """Type a filter, and return the screen."""
    assert "Filter:" in await driver.press("f")
    return await driver.answer(text)


@pytest.mark.slow
async def test_filter_of_a_conversation(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("down", "enter", "g", "j", "j")
        screen = await filter_by(driver, "role:user")
        assert "only role:user" in screen.splitlines()[1]
        assert re.findall(r"#(\d+) (\w+)", screen) == [("1", "ada"), ("3", "ada"), ("7", "ada")]
        assert "▌ #3 ada" in screen, "the cursor stays on its message"
        assert "1–3 of 3 messages" in screen
        assert "only role:user" not in await driver.press("escape")
        assert "▌ #3 ada" in driver.screen()
        assert "of 11 messages" in driver.screen()
        assert "─ Memories ─" in await driver.press("escape")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("mark:hint", 1),
        ("role:user mark:compressed", 2),
        ("role:user role:system", 6),
        ("name:Friday", 5),
        ("since:2026-10-02T09:20", 5),
        ("until:2026-10-02T09:20 role:user", 2),
        ("mark:none", 0),
        ("until:3650d", 0),
    ],
)
async def test_filter_fields(agents: str, text: str, number: int) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("down", "enter")
        screen = await filter_by(driver, text)
        assert f"of {number} messages" in screen or (
            number < 2 and ("no message matches the filter" in screen or "1 of 1 message" in screen)
        )
        screen = await driver.press("r")
        assert f"only {text}" in screen
        assert "deleted meanwhile" not in screen


@pytest.mark.slow
async def test_filter_of_the_list_counts_what_matches(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        screen = await filter_by(driver, "since:2026-01-01 role:user")
        assert re.search(r"kyoto +3 ", screen)
        assert "parcel" not in screen
        assert "3 messages" in screen.splitlines()[0]
        await driver.press("down", "enter")
        assert "1–3 of 3 messages" in driver.screen()
        await driver.press("tab", "escape", "escape", "escape")
        assert "parcel" in driver.screen()
        screen = await filter_by(driver, "mark:none")
        assert "No message matches the filter." in screen
        assert "parcel" in await driver.press("escape")


@pytest.mark.slow
async def test_filter_of_names_and_messages(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("/")
        screen = await driver.answer("kyo role:user")
        assert re.search(r"kyoto +3 ", screen)
        assert "long" not in screen
        assert "filter 'kyo'" in screen
        assert "Filter: role:user kyo" in await driver.press("/")
        await driver.press("enter")
        screen = await driver.press("escape")
        assert "long" in screen, "the names first"
        assert "only role:user" in screen
        assert "only role:user" not in await driver.press("escape")


@pytest.mark.slow
async def test_filter_names_what_it_does_not_understand(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("down", "enter")
        screen = await filter_by(driver, "role:user sinse:7d")
        assert "'sinse:7d' is no filter of messages" in screen
        assert "of 11 messages" in screen, "it is not applied"
        await driver.press("escape")
        assert "since: 'never' is not a valid time" in await filter_by(driver, "since:never")
        await driver.press("escape")
        said = "the selected time ends"
        assert said in await filter_by(driver, "since:today until:2001-01-01")
        await driver.press("escape", "escape")
        assert "No name contains 'sinse:7d'" in await filter_by(driver, "sinse:7d")


@pytest.mark.slow
async def test_filter_tells_messages_without_a_time(tmp_path: Path) -> None:
    path = f"{tmp_path}/agents.db"
    untimed = samples.entry("b", timestamp=None)
    await fill(path, {MemoryKey("ada", "kyoto"): [samples.entry("a"), untimed]})
    async with browsing(make_browser(path)) as driver:
        screen = await filter_by(driver, "since:2001-01-01")
        assert "1 message without a time left out" in screen.splitlines()[1]


@pytest.mark.slow
async def test_filter_narrows_what_actions_take(agents: str) -> None:
    async with browsing(make_browser(agents, write=True)) as driver:
        await driver.press("down", "enter")
        await filter_by(driver, "role:user")
        screen = await driver.press("a", "d")
        assert re.search(r"ada +kyoto +3 +8", screen)
        screen = await driver.press("n", "a", "tab", "d")
        assert re.search(r"ada +kyoto +3 +8", screen), "of the list, too"


@pytest.mark.slow
async def test_filter_of_hostile_texts(hostile: str) -> None:
    async with browsing(make_browser(hostile)) as driver:
        await filter_by(driver, 'mark:"m\x1b]0;own\x07[red]"')
        driver.refuse_controls()
        await driver.press("down", "enter")
        assert "kyoto" in driver.screen()
        driver.refuse_controls()
