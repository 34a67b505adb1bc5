"""HTML pages from templates: stored texts are shown, never obeyed; a page loads nothing.

A page is one file with its style and, perhaps, its script.  A Content Security Policy with their
digests allows nothing else, so no stored text can run as a script or fetch anything.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from memctl.location import visible
from memctl.text.numbers import count

_JOINERS = "\u200c\u200d"
"""Invisible characters that Persian, Indic scripts and emoji need; they stay as they are."""
_SPACES = "\u00a0\u2000-\u200a\u202f\u3000"
"""Spaces that Python counts as not printable; Chinese and French texts and times need them."""
_IN_LINE = re.compile(f"[^ -~{_JOINERS}{_SPACES}]+")
_IN_TEXT = re.compile(f"[^ -~{_JOINERS}{_SPACES}\n\t]+")
"""Characters that are shown as escapes unless they are printable."""


def environment(package: str) -> Environment:
    """Return an environment with the templates of a package and those that all pages share.

    A template is in the folder ``templates`` of the package.  What it prints is escaped; in texts,
    control characters and bidi overrides become visible escapes, except line feeds, tabs and spaces
    of all widths.  CR LF is a line feed.

    Besides Jinja2's own filters there are ``name`` for stored names, ``line`` for attributes,
    ``count`` for a number with its noun, and ``sha256`` in base64.  ``source(file)`` is a style or
    a script; ``head.html`` and ``foot.html`` want it as ``style`` and ``script``, which may be
    empty, and want a ``title``.
    """
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("memctl.text")])
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters |= {"count": count, "line": line, "name": name, "sha256": _digest}
    made.globals["source"] = lambda file: Markup(loader.get_source(made, file)[0])
    return made


def shown(value: Any) -> Any:
    """Return what a template prints, with visible escapes in a text, but not escaped as HTML."""
    if type(value) is not str or value.isprintable():  # no Markup
        return value
    return _IN_TEXT.sub(_escapes, value.replace("\r\n", "\n"))


def line(stored: str) -> str:
    """Return a stored text on one line, with visible escapes, but not escaped as HTML."""
    return stored if stored.isprintable() else _IN_LINE.sub(_escapes, stored)


def name(stored: str) -> Markup:
    """Return a stored name as HTML on one line, isolated from the direction of the text around."""
    return Markup(f"<bdi>{escape(line(stored))}</bdi>")


def _escapes(found: re.Match[str]) -> str:
    return visible(found[0])


def _digest(code: str) -> str:
    return base64.b64encode(sha256(code.encode()).digest()).decode()
