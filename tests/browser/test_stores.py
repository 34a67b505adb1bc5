"""Every kind of store can be browsed: its memories are listed, and the first one is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl import testing
from memctl.testing import Backend, samples
from memctl.testing.drive import write_all
from tests.browser.driver import Driver, browsing, make_browser
from tests.support.backends import BACKENDS, FACT_BACKENDS, params
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


async def opened_first(driver: Driver) -> str:
    """Go to the first memory, which may be below a user, and open it."""
    screen = await driver.press("enter")
    while "─ Memories ─" in screen:
        screen = await driver.press("enter", "down", "enter")
    return screen
