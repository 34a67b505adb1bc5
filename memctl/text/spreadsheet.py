"""Cells that spreadsheets would run as formulas."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")
"""The beginning of a cell that a spreadsheet may read as a formula, perhaps after apostrophes."""


def disarmed(text: str) -> str:
    """Return a text with an apostrophe in front if a spreadsheet would read it as a formula.

    If the text before a formula is only apostrophes, a further apostrophe is added.  So the
    original text of such a cell is always the text without its first apostrophe.
    """
    return f"'{text}" if _FORMULA.match(text) else text
