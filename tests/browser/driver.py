"""A browser without a terminal: its keys are pressed, and its screen is read as text."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs
from rich.segment import Segment
from textual.pilot import Pilot

from memctl.browser.app import Browser
from memctl.browser.overlay import Asking
from memctl.browser.source import Notices, Source
from memctl.commands._context import Run
from memctl.commands.browse import _writing
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import Store

SMALL = 80, 24
LARGE = 120, 40
SCREENS = Path(__file__).parent / "screens"


class Driver:
    """A running browser."""

    def __init__(self, browser: Browser, pilot: Pilot[None]) -> None:
        self.browser = browser
        self.pilot = pilot

    async def settle(self) -> None:
        """Wait until nothing is read or drawn any more, or the browser asks before a change."""
        await self.pilot.pause()  # for what the last key began
        while self.browser.is_running and self._is_at_work():
            await asyncio.sleep(0.01)
            await self.pilot.pause()

    def _is_at_work(self) -> bool:
        asks = bool(self.browser.screen.query(Asking))
        return not asks and any(not worker.is_finished for worker in self.browser.workers)

    async def press(self, *keys: str) -> str:
        """Press keys one after the other; return the screen after the last."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()
        return self.screen()

    async def answer(self, text: str) -> str:
        """Paste a text where the browser asks for one, and press Enter; return the screen."""
        self.browser._prompt.value = text
        return await self.press("enter")

    async def resize(self, columns: int, lines: int) -> str:
        """Change the size of the terminal; return the screen."""
        await self.pilot.resize_terminal(columns, lines)
        await self.settle()
        return self.screen()

    def screen(self) -> str:
        """Return the screen as text."""
        strips = self.browser.screen._compositor.render_strips()
        return "".join(f"{strip.text.rstrip()}\n" for strip in strips)

    def segments(self) -> list[Segment]:
        """Return the segments of the screen."""
        strips = self.browser.screen._compositor.render_strips()
        return [segment for strip in strips for segment in strip]

    async def until(self, text: str) -> None:
        """Wait until the screen has a text, while something goes on in the background."""
        async with asyncio.timeout(5):
            while text not in self.screen():
                await asyncio.sleep(0.02)
                await self.pilot.pause()

    def refuse_controls(self) -> None:
        """Fail if the screen has a character that commands the terminal."""
        text = "".join(segment.text for segment in self.segments())
        assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs")]

    def compare(self, name: str) -> None:
        """Compare the screen with the file of this name, or write it (``make screens``)."""
        file = SCREENS / f"{name}-{self.browser.size.width}.txt"
        if os.environ.get("MEMCTL_SCREENS") == "write":
            file.write_text(self.screen(), "utf-8")
        assert self.screen() == file.read_text("utf-8")


def make_browser(
    text: str,
    where: Selection | None = None,
    wrap: Callable[[Store], Store] = lambda store: store,
    *,
    ascii_only: bool = False,
    piped: bool = False,
    write: bool = False,
    max_delete: str | None = None,
) -> Browser:
    """Return a browser of the store at a URL or path, which ``wrap`` may change."""
    location = parse(text)
    writing = _writing(Run(), text, location, max_delete) if write else None
    label = location.path.name or location.label
    make = partial(make_store, location)
    shown = replace(location, label=label)
    chosen = where or Selection()
    source = Source(label, shown, chosen, lambda: wrap(make()), Notices(), parse)
    source = structs.replace(source, piped=piped, writing=writing)
    return Browser(source, ascii_only=ascii_only)


@asynccontextmanager
async def browsing(browser: Browser, size: tuple[int, int] = SMALL) -> AsyncIterator[Driver]:
    """Run a browser within the block; raise the error that ended it."""
    async with browser.run_test(size=size) as pilot:
        driver = Driver(browser, pilot)
        await driver.settle()
        yield driver
    await browser.close_stores()
    if browser.failure is not None:
        raise browser.failure
