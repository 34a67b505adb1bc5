"""Text in HTML pages: stored texts are shown, never obeyed; a page loads nothing.

A page is one file with its style and, perhaps, its script.  A Content Security Policy with their
digests allows nothing else, so no stored text can run as a script or fetch anything.
"""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from html import escape
from typing import Any

from memctl.location import visible

_JOINERS = "\u200c\u200d"
"""Invisible characters that Persian, Indic scripts and emoji need; they stay as they are."""
_SPACES = "\u00a0\u2000-\u200a\u202f\u3000"
"""Spaces that Python counts as not printable; Chinese and French texts and times need them."""
_IN_NAME = re.compile(f"[^ -~{_JOINERS}{_SPACES}]+")
_IN_TEXT = re.compile(f"[^ -~{_JOINERS}{_SPACES}\n\t]+")
"""Characters that are shown as escapes unless they are printable."""
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def text(stored: str) -> str:
    """Return a stored text as HTML; control characters and bidi overrides become visible escapes.

    Line feeds, tabs and spaces of all widths stay.  CR LF is a line feed.
    """
    return _escaped(stored.replace("\r\n", "\n"), _IN_TEXT)


def name(stored: str) -> str:
    """Return a stored name as HTML on one line, isolated from the direction of the text around."""
    return f"<bdi>{_escaped(stored, _IN_NAME)}</bdi>"


def attribute(stored: str) -> str:
    """Return a stored text as the value of an HTML attribute, without the quotes around."""
    return _escaped(stored, _IN_NAME)


def data(value: Any) -> str:
    """Return a value as JSON for a script element: ASCII, without characters of HTML."""
    compact = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for sign, escaped in _IN_SCRIPT.items():  # faster than ``translate``
        compact = compact.replace(sign, escaped)
    return compact


def _escaped(stored: str, unusual: re.Pattern[str]) -> str:
    if not stored.isprintable():
        stored = unusual.sub(lambda found: visible(found[0]), stored)
    return escape(stored)


def opening(title: str, style: str, script: str = "") -> str:
    """Return the beginning of a page up to the start tag of ``body``.

    ``title`` is plain text.  ``style`` and ``script`` are parts of memctl, never stored text.
    """
    sources = [f"style-src {_digest(style)}"] + [f"script-src {_digest(script)}"] * bool(script)
    policy = "; ".join(["default-src 'none'", *sources, "base-uri 'none'", "form-action 'none'"])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{attribute(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )


def closing(script: str = "") -> str:
    """Return the end of a page, with the script that ``opening`` was given."""
    return (f"<script>{script}</script>\n" if script else "") + "</body>\n</html>\n"


def _digest(code: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(code.encode()).digest()).decode()}'"
