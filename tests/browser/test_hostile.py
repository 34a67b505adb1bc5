"""Texts of a store are shown, and never obeyed: not by the terminal, not as markup."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from rich.style import Style

from memctl.browser.commands import word
from memctl.model import MemoryKey, StoredMessage
from tests.browser.driver import LARGE, Driver, browsing, make_browser
from tests.support.cli import fill
from tests.support.hostile import memories

NAMES = [
    *("\x1b[31mred\x1b]0;own\x07", "\u202eevil\u2066", "[red]bold[/]", "[@click=app.exit]x[/]"),
    *("a\nb\tc", "-rf", "$(reboot)", "'; DROP", "\U0001f469‍\U0001f467", "e\u0301" * 20),
    "x" * 200,
]


def assert_harmless(driver: Driver) -> None:
    """Check that each segment has printable text and no control code."""
    for text, _, control in driver.segments():
        assert control is None
        assert text.isprintable(), text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with hostile names, and a memory with hostile messages."""
    path = str(tmp_path_factory.mktemp("hostile") / "hostile.db")
    found = {MemoryKey(name, f"s{number}"): [said(name)] for number, name in enumerate(NAMES)}
    found[MemoryKey("", "all")] = [*map(said, NAMES), *next(memories(1)).entries]
    asyncio.run(fill(path, found))
    return path


def said(text: str) -> StoredMessage:
    """Return a message that says a hostile text, from a hostile speaker, with a hostile mark."""
    message = {"id": text, "name": text, "role": "user", "content": text, "timestamp": text}
    return StoredMessage(text, json.dumps(message).encode(), (text,))


@pytest.mark.slow
async def test_browser_shows_hostile_names_and_texts(hostile: str) -> None:
    async with browsing(make_browser(hostile), LARGE) as driver:
        assert_harmless(driver)
        screen = driver.screen()
        assert r"\x1b[31mred" in screen
        assert "[red]bold[/]" in screen
        assert r"\u202eevil" in screen
        await driver.press("down", "enter")
        assert "all" in driver.screen().splitlines()[1]
        for keys in (["g"], ["t"], ["enter"], ["v"], ["escape", "x"], ["escape", "G"], ["k"]):
            screen = await driver.press(*keys)
            assert_harmless(driver)


@pytest.mark.slow
async def test_browser_types_hostile_text(hostile: str) -> None:
    async with browsing(make_browser(hostile)) as driver:
        await driver.press("/")
        await driver.answer(NAMES[0])
        assert_harmless(driver)


@pytest.mark.slow
async def test_browser_without_colours(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with browsing(make_browser(hostile), LARGE) as driver:
        await driver.press("enter", "down", "enter")
        styles = {style for _, style, _ in driver.segments() if style}
        assert any(style.reverse or style.bold for style in styles)
        assert all(is_colourless(style) for style in styles)


def is_colourless(style: Style) -> bool:
    """Return whether a style has the colours of the terminal alone."""
    colours = [style.color, style.bgcolor]
    return all(colour is None or colour.is_default for colour in colours)


@pytest.mark.parametrize("name", NAMES)
def test_browser_quotes_commands_for_a_shell(name: str, tmp_path: Path) -> None:
    line = f"printf %s {word(name)}"
    assert line.isprintable()
    got = subprocess.run(["bash", "-c", line], capture_output=True, cwd=tmp_path, check=True)
    assert got.stdout.decode() == name.replace("%", "%%")
