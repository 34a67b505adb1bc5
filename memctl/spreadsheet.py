"""Cells that spreadsheets would run as formulas."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")
"""The beginning of a cell that a spreadsheet may read as a formula, perhaps after apostrophes."""


def disarmed(text: str) -> str:
    """Return a text with an apostrophe in front if a spreadsheet would read it as a formula.

    A text with apostrophes before a formula gets a further apostrophe.  To get the original text of
    such a cell, remove the first apostrophe.
    """
    return f"'{text}" if _FORMULA.match(text) else text
