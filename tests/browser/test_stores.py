"""Every kind of store can be browsed: its memories are listed, and the first one is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl import testing
from memctl.model import MemoryKey
from memctl.testing import Backend, samples
from memctl.testing.drive import write_all
from tests.browser.driver import Driver, browsing, make_browser
from tests.support.adk import event
from tests.support.backends import BACKENDS, FACT_BACKENDS, params
from tests.support.cli import fill
from tests.support.servers.pool import Servers

ALL = BACKENDS | FACT_BACKENDS


@pytest.fixture(params=params(ALL))
def backend(request: pytest.FixtureRequest, servers: Servers) -> Backend:
    """Each store in turn."""
    return ALL[request.param](servers)


@pytest.mark.slow
async def test_browser_of_each_store(backend: Backend, tmp_path: Path) -> None:
    samples.use(backend.style)
    place = testing.new_place(backend, tmp_path)
    keys = place.keys(2)
    async with place.store() as store:
        noun = store.dialect.noun
        await write_all(store, samples.several(keys, 5))
    async with browsing(make_browser(place.text)) as driver:
        screen = driver.screen()
        assert "1 memory" in screen or f"{len(keys)} memories" in screen
        screen = await opened_first(driver)
        assert f"of 5 {noun}s" in screen
        assert "message 4" in screen
        screen = await driver.press("escape", "4")
        assert f"{5 * len(keys)} {noun}s checked" in screen
        await driver.press("s")
        await driver.answer("message")
        screen = await driver.press("enter", "enter")
        assert f"of 5 {noun}s" in screen, "the place of a hit"


async def test_browser_folds_what_the_framework_does_not_read(tmp_path: Path) -> None:
    """ADK keeps the turns that the user took back."""
    path = f"sqlite:///{tmp_path}/adk.db?layout=adk&app=shop"
    taken_back = event(1, "user", "My card is " + "4000 " * 100, 1)
    marker = event(2, "user", rewind_before_invocation_id="turn-1")
    said = [taken_back, marker, event(3, "user", "Which seat?", 2)]
    await fill(path, {MemoryKey("ada", "trip"): said})
    async with browsing(make_browser(path)) as driver:
        screen = await opened_first(driver)
        assert "[not read: rewound]" in screen
        assert 0 < screen.count("4000") < 50
        assert "Enter shows more" in screen
        unfolded = await driver.press("t")
        assert unfolded.count("4000") > screen.count("4000")


async def opened_first(driver: Driver) -> str:
    """Go to the first memory, which may be below a user, and open it."""
    screen = await driver.press("enter")
    while "─ Memories ─" in screen:
        screen = await driver.press("enter", "down", "enter")
    return screen
