"""The place of a store: its kind, its address and its options; redacted for people."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")
SECRET_QUERY = re.compile(r"pass|secret|token|key|auth", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a store.

    ::

        parse("sqlite:///agents.db?state=sessions")  # of memctl.registry

    ``url`` is what the driver gets, without memctl's own ``options``; for a store in the file
    system it is ``path``.  ``label`` is what people see: no secrets, and control characters shown.
    """

    kind: str
    label: str
    url: str = ""
    path: Path = Path()
    options: dict[str, str] = field(default_factory=dict)


def redact(url: str) -> str:
    """Return the URL without its password and other secrets, control characters made visible."""
    if "://" not in url and not url.startswith("unix:"):
        return visible(url)
    parts = urlsplit(url)
    netloc = parts.netloc
    if "@" in netloc:
        login, _, host = netloc.rpartition("@")
        user, colon, _ = login.partition(":")
        netloc = f"{user}:***@{host}" if colon else f"{user}@{host}"
    elif not all(_HOST.fullmatch(host) for host in netloc.split(",")):
        # No port: the beginning of a password with a / ? or # that was not quoted.
        return visible(f"{parts.scheme}://{netloc.partition(':')[0]}:***")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    hidden = [(name, "***" if _is_secret(name) else _inner(value)) for name, value in pairs]
    query = urlencode(hidden, safe="*/:@", quote_via=quote)
    return visible(join_url(SplitResult(parts.scheme, netloc, parts.path, query, "")))


def join_url(parts: SplitResult) -> str:
    """Return the URL with its two slashes, which ``geturl`` drops where there is no host."""
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}{fragment}"


def _is_secret(name: str) -> bool:
    return bool(SECRET_QUERY.search(name))


def _inner(value: str) -> str:
    return redact(value) if "://" in value else value


def visible(text: str) -> str:
    """Return the text with control characters, and those that hide text, written as escapes."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def same_file(path: Path) -> str:
    """Return a text that two paths to one file share, links resolved."""
    return os.path.realpath(path)
