"""What the browser looks like: files to read, in ``screens/``.

``make screens`` writes them anew; read what has changed before you commit it.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.output import conversation
from memctl.testing import samples
from memctl.testing.samples import Style
from tests.browser.driver import LARGE, browsing, make_browser
from tests.support.cli import fill


class Clock(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Clock:
        return cls(2026, 10, 5, tzinfo=tz)


@pytest.mark.slow
async def test_browser_screens_on_a_small_terminal(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        driver.compare("memories")
        await driver.press("x")
        driver.compare("commands-of-user")
        await driver.press("escape", "/", "z", "z")
        driver.compare("filter-without-match")
        await driver.press("escape", "down", "enter")
        driver.compare("conversation")
        await driver.press("c")
        driver.compare("context")
        await driver.press("c", "g", "j", "j", "j", "t")
        driver.compare("tools")
        await driver.press("enter")
        driver.compare("message")
        await driver.press("v")
        driver.compare("message-as-json")
        await driver.press("escape", "x")
        driver.compare("commands-of-message")
        await driver.press("escape", "?")
        driver.compare("help")
        await driver.press("escape")
        await driver.resize(59, 14)
        driver.compare("too-small")


@pytest.mark.slow
async def test_browser_screens_on_a_large_terminal(agents: str) -> None:
    async with browsing(make_browser(agents), LARGE) as driver:
        driver.compare("memories")
        await driver.press("down", "enter")
        await driver.resize(112, 24)
        driver.compare("both")
        await driver.resize(*LARGE)
        await driver.press("tab", "down", "enter", "/", "7", "7", "enter")
        driver.compare("found")
        await driver.press("tab", "o", "o")
        driver.compare("by-messages")


async def test_browser_screens_in_ascii(agents: str) -> None:
    async with browsing(make_browser(agents, ascii_only=True)) as driver:
        assert "Enter Open" in driver.screen()
        await driver.press("down", "down", "enter")
        driver.compare("ascii")
        assert driver.screen().isascii()


async def test_browser_screens_of_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "datetime", Clock)
    samples.use(Style("fact", frozenset()))
    store = f"vault:{tmp_path}/notes"
    await fill(store, {MemoryKey("ada", "friday"): samples.entries(4)})
    async with browsing(make_browser(store), LARGE) as driver:
        await driver.press("down", "enter")
        driver.compare("facts")


async def test_browser_screens_of_a_store_without_memories(tmp_path: Path) -> None:
    path = str(tmp_path / "empty.db")
    await fill(path, {})
    async with browsing(make_browser(path)) as driver:
        driver.compare("no-memories")


async def test_browser_gives_each_speaker_a_colour(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    names = ["Alice", "Friday", "Saturday", "Friday", "Alice"]
    roles = ["user", "assistant", "assistant", "assistant", "user"]
    said = [
        samples.entry(f"m{n}", n, name=name, role=role)
        for n, (name, role) in enumerate(zip(names, roles, strict=True))
    ]
    await fill(path, {MemoryKey("ada", "kyoto"): said})
    async with browsing(make_browser(path)) as driver:
        for keys in (["down", "enter"], ["r"], ["g", "j"]):
            await driver.press(*keys)
            colours: dict[str, set[str]] = {}
            for one in driver.segments():
                if one.text in names and one.style and one.style.color:
                    colours.setdefault(one.text, set()).add(one.style.color.name)
            assert sorted(map(len, colours.values())) == [1, 1, 1], "one colour for one speaker"
            assert len({min(some) for some in colours.values()}) == 3, "another for another"


async def test_browser_shows_the_tabs_on_a_small_terminal(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        head = driver.screen().splitlines()[0]
        assert head.split("read-only")[1].split() == ["1", "Memories", "2", "3", "4", "5"]
        head = (await driver.press("3")).splitlines()[0]
        assert head.split("read-only")[1].split() == ["1", "2", "3", "Marks", "4", "5"]
        assert "read-only" in (await driver.resize(61, 24)).splitlines()[0]


@pytest.mark.slow
async def test_browser_screens_of_actions(agents: str) -> None:
    async with browsing(make_browser(agents, write=True)) as driver:
        driver.compare("write-memories")
        await driver.press("down", "enter", "k", "k", "space", "space")
        driver.compare("write-selected")
        await driver.press("d")
        driver.compare("write-delete")
        await driver.press("n", "escape", "f")
        await driver.answer("role:user since:2026-10-01")
        driver.compare("filter")
