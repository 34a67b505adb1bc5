"""Screens that are compared with a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

SCREENS = Path(__file__).with_name("screens")

Screen = Callable[[str, str], None]


@pytest.fixture
def screen() -> Screen:
    """Compare a text with a file in ``screens``, which ``make screens`` writes."""

    def compare(name: str, text: str) -> None:
        file = SCREENS / name
        if os.environ.get("MEMCTL_SCREENS") == "write":
            file.write_text(text, "utf-8")
        assert text == file.read_text("utf-8")

    return compare
