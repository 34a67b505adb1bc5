"""What a STORE argument names: its kind, its address, and memctl's own options in the URL."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from memctl import plugins
from memctl.errors import UsageError

ARCHIVE_SUFFIXES = (".ndjson", ".ndjson.gz", ".ndjson.zst")
SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_PATH_SUFFIXES = (*ARCHIVE_SUFFIXES, *SQLITE_SUFFIXES, ".json")
LAYOUTS = ("memory", "session")
OWN_OPTIONS = frozenset({"prefix", "ttl", "state", "state_path", "layout", "path"})
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")
SECRET_QUERY = re.compile(r"pass|secret|token|key|auth", re.IGNORECASE)

_KIND_OF_SCHEME = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+unix": "redis",
}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a store is.

    ``url`` is what the driver gets, without memctl's own ``options``; for a store in the file
    system it is ``path``.  ``label`` is what people see: no secrets, and control characters shown.
    """

    kind: str
    label: str
    url: str = ""
    path: Path = Path()
    options: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Location:
    """Reads a URL or a path (aliases are the configuration's, see ``memctl.config``).

    Raises:
        UsageError: nothing that memctl knows is written so.
    """
    if not text:
        raise UsageError("the name of a store is empty", "is a variable unset? . is this folder")
    if text == "-":
        return Location("stdio", "-")
    if "://" in text or text.startswith("unix:"):
        return _parse_url(text)
    return _parse_path(text)


def _parse_path(text: str) -> Location:
    path = Path(text).expanduser()
    before, mark, _ = text.partition("?")
    if mark and before.lower().endswith(_PATH_SUFFIXES) and not path.exists():
        raise UsageError(
            f"{text!r} is a path, and options go with a URL", f"write sqlite:///{text}"
        )
    name = path.name.lower()
    if name.endswith(ARCHIVE_SUFFIXES):
        return Location("archive", text, path=path)
    if name.endswith(SQLITE_SUFFIXES):
        return Location("sqlite", text, path=path)
    if name.endswith(".json"):
        return Location("state", text, path=path)
    ending = path.suffix[1:].lower()
    if ending and ending in plugins.names(plugins.STORES):
        return Location(ending, text, path=path)
    if path.is_file():
        raise UsageError(
            f"{text!r} has no ending that memctl knows",
            "an archive ends in .ndjson, .ndjson.gz or .ndjson.zst; a state in .json; "
            "a SQLite database in .db, or is written sqlite:///PATH",
        )
    return Location("sessions", text, path=path)


def _parse_url(text: str) -> Location:
    parts = _split(text)
    scheme = parts.scheme.lower()
    kind = _KIND_OF_SCHEME.get(scheme) or _KIND_OF_SCHEME.get(scheme.split("+")[0])
    if kind is None and scheme in plugins.names(plugins.STORES):
        kind = scheme
    if kind is None:
        raise UsageError(
            f"memctl knows no store {visible(scheme)}://",
            "known are sqlite, postgresql, mysql, redis, rediss, unix; see 'memctl stores'",
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = {name: value for name, value in pairs if name in OWN_OPTIONS}
    others = [pair for pair in pairs if pair[0] not in OWN_OPTIONS]
    url = _join(parts._replace(query=urlencode(others, quote_via=quote)))
    if kind == "sqlite":
        return _sqlite(text, parts, url, options, others)
    if options.get("layout", "memory") not in LAYOUTS:
        raise UsageError(
            f"layout={visible(options['layout'])} is unknown", f"known are {', '.join(LAYOUTS)}"
        )
    if kind == "redis" and options.get("layout") == "session":
        kind = "redis-session"
    return Location(kind, redact(text), url, Path(), options)


def _split(text: str) -> SplitResult:
    """The parts of a URL.  No error shows any of it: what is out of place may be a password."""
    scheme = visible(text.partition(":")[0])
    hint = "in user and password write %2F for /, %3F for ?, %23 for #, %40 for @"
    try:
        parts = urlsplit(text)
        if "," not in parts.netloc:  # PostgreSQL takes several hosts
            _ = parts.port
    except ValueError:
        raise UsageError(
            f"what follows {scheme}:// is no address",
            f"a port is a number up to 65535; {hint}",
        ) from None
    if parts.fragment or text.endswith("#"):
        raise UsageError(f"what follows {scheme}:// holds a '#'", hint)
    return parts


def _sqlite(
    text: str,
    parts: SplitResult,
    url: str,
    options: dict[str, str],
    others: list[tuple[str, str]],
) -> Location:
    """sqlite:///relative and sqlite:////absolute, as SQLAlchemy has it."""
    if parts.netloc:
        raise UsageError(
            f"{redact(text)} names a host; SQLite has none",
            "write sqlite:///relative/path.db or sqlite:////absolute/path.db",
        )
    if others:
        raise UsageError(
            f"SQLite takes no option {visible(others[0][0])!r}", "known are state and state_path"
        )
    path = Path(unquote(parts.path.removeprefix("/"))).expanduser()
    return Location("sqlite", redact(text), url, path, options)


def redact(url: str) -> str:
    """The URL without its password and other secrets, control characters made visible."""
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
    return visible(_join(SplitResult(parts.scheme, netloc, parts.path, query, "")))


def _join(parts: SplitResult) -> str:
    """The URL with its two slashes, which ``geturl`` drops where there is no host."""
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}{fragment}"


def _is_secret(name: str) -> bool:
    return name not in OWN_OPTIONS and bool(SECRET_QUERY.search(name))


def _inner(value: str) -> str:
    return redact(value) if "://" in value else value


def visible(text: str) -> str:
    """The text with control characters, and what reorders or hides text, written as escapes."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def same_file(path: Path) -> str:
    """A text that two paths to one file share, links resolved."""
    return os.path.realpath(path)
