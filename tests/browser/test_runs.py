"""The runs in the browser, with the commands that undo them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from memctl.errors import Unavailable
from memctl.journal.runs import Runs
from memctl.model import MemoryKey
from memctl.testing import samples
from memctl.testing.samples import Style
from tests.browser.driver import LARGE, browsing, make_browser
from tests.support.cli import Run, fill


@pytest.fixture
def changed(tmp_path: Path, run: Run) -> str:
    """A store on which two runs are kept: a deletion that is undone, and its undo."""
    path, other = str(tmp_path / "agents.db"), f"{tmp_path}/other.db"
    for one in (path, other):
        asyncio.run(fill(one, {MemoryKey("ada", "kyoto"): samples.entries(5)}))
    for words in (["delete", path, "--mark", "hint"], ["undo"], ["delete", other, "--user", "ada"]):
        assert run(*words, "--yes").exit_code == 0
    return path


@pytest.mark.slow
async def test_runs_with_their_undo_commands(changed: str) -> None:
    async with browsing(make_browser(changed)) as driver:
        screen = await driver.press("5")
        assert re.search(r"│\w{5}  undo +\d restored +done +20\d\d-\d\d-\d\d \d\d:\d\d", screen)
        assert re.search(r"│\w{5}  delete +\d deleted +undone by \w{5}  20", screen)
        assert "2 runs" in screen, "and not that on the other store"
        name = re.findall(r"│(\w{5})  undo", screen)[0]
        assert f"undo   memctl undo {name} " in screen
        screen = await driver.press("x")
        assert f"│memctl undo {name} --dry-run " in screen
        assert "│memctl history agents.db " in screen
        screen = await driver.press("escape", "down")
        assert "undo   it cannot be undone" in screen


@pytest.mark.slow
async def test_runs_show_their_details_on_the_right(changed: str) -> None:
    async with browsing(make_browser(changed), LARGE) as driver:
        screen = await driver.press("5", "enter")
        assert "─ Runs ─" in screen
        assert re.search(r"││store +/", screen)
        assert re.search(r"││undoes +20\d{6}-\d{6}-\w{5} ", screen)
        assert "5 Runs" in await driver.press("escape")


async def test_runs_of_a_store_without_any(tmp_path: Path) -> None:
    samples.use(Style("fact", frozenset()))
    store = f"vault:{tmp_path}/notes"
    await fill(store, {MemoryKey("ada", "friday"): samples.entries(4)})
    async with browsing(make_browser(store)) as driver:
        screen = await driver.press("5", "enter", "y")
        assert "No run that can be undone has changed this store." in screen
        assert "memctl undo" not in await driver.press("x")


@pytest.mark.slow
async def test_runs_that_cannot_be_read(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Runs) -> None:
        raise Unavailable("cannot read the runs: Permission denied")

    async with browsing(make_browser(changed)) as driver:
        monkeypatch.setattr(Runs, "all", refuse)
        screen = await driver.press("5")
        assert "cannot read the runs" in screen.splitlines()[-1]


@pytest.mark.slow
async def test_runs_with_hostile_texts(changed: str) -> None:
    kept = Runs()
    run = kept.all()[1]
    kept.update(replace(run, command="del\x1b[31m", outcome="\x1b]0;own\x07"))
    async with browsing(make_browser(changed)) as driver:
        assert r"del\x1b[31m" in await driver.press("5", "enter")
        driver.refuse_controls()
