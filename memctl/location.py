"""The location of a store: its kind, address and options; and the redaction of secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote_plus, urlsplit

from memctl.encryption import Encryption, is_encrypted

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")
SECRET_QUERY = re.compile(
    r"pass(?!file)|pwd|secret|token|(?<!ssl)key|auth|credential", re.IGNORECASE
)
"""The names of options with secrets; ``passfile`` and ``sslkey`` are paths."""
_URL_START = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(?=/|(?<=unix:))(/*)(.*)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,63}:/(?:(?!:\s)[^\s'\"])*")
"""A URL in a text.  A colon at the end, as before the words of an error, is not part of the URL.

A scheme has a limit, so that a search in a long word takes a time that is linear.
"""
_PAIRS = re.compile("[&;]")
_USER = re.compile(r"[^/?#@\[\]\s]*")
_WITH_AT = frozenset(
    ["state", "state_path", "path", "prefix", "user", "session", "host", "options"]
)
"""Options of URLs whose values may contain an ``@`` that is not the end of a password."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a store: its kind, its address and its options.

    ::

        parse("sqlite:///agents.db?state=sessions")  # from memctl.registry

    ``url`` is the URL for the driver, without memctl's own ``options``.  ``path`` is set for a
    store in the file system.  ``label`` is the name to show to people: without secrets, with
    control characters visible.
    """

    kind: str
    label: str
    url: str = ""
    path: Path = Path()
    options: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    """The word and colon before ``path`` that name the kind, such as ``mem0:``."""
    encryption: Encryption = field(default=Encryption(), compare=False, repr=False)
    """The keys for an archive that is encrypted."""
    follows: bool = field(default=True, compare=False)
    """False if a symbolic link at ``path`` may be planted: it is then no archive."""

    @property
    def encrypts(self) -> bool:
        """True if the name of the file or object says that it is encrypted."""
        return is_encrypted(self.path.name or self.url.partition("?")[0])

    def with_password(self, password: str) -> Location:
        """Return the location of a server with a password in its URL."""
        parts = urlsplit(self.url)
        login, _, host = parts.netloc.rpartition("@")
        user = login.partition(":")[0]
        netloc = f"{user}:{quote(password, safe='')}@{host}"
        return replace(self, url=parts._replace(netloc=netloc).geturl())


def redact(url: str) -> str:
    """Return a URL without its password and other secrets, with control characters visible.

    Separators such as ``@`` and ``?`` in a password should be percent-encoded.  If a ``@`` may be
    part of a password, everything up to the last such ``@`` is left out.
    """
    found = _URL_START.match(url)
    if found is None:
        return visible(url)
    start, slashes, rest = found.groups()
    rest, _, fragment = rest.partition("#")
    if "@" in fragment:  # the end of a password
        rest, fragment = f"{rest}#{fragment}", ""
    where, mark, query = rest.partition("?")
    pairs = _PAIRS.split(query)
    unsure = [at for at, pair in enumerate(pairs) if "@" in pair and not _is_option(pair)]
    if unsure:
        where += f"?{'&'.join(pairs[: unsure[-1] + 1])}"
        pairs = pairs[unsure[-1] + 1 :]
    if ":" in where and "@" not in where and "@" in "".join(pairs):
        where = f"{where.partition(':')[0]}:***"  # may be a password, not a port
        pairs = [pair for pair in pairs if "@" not in pair]
    where = _hide_login(where) if slashes == "//" else _hide_password(where)
    shown = "&".join(_shown(pair) for pair in pairs)
    return visible(f"{start}{slashes}{where}{mark if shown else ''}{shown}")


def without_secrets(label: str, *names: str) -> str:
    """Return the label of a store without hidden secrets, to be typed or pasted.

    The options ``names`` are left out, too.
    """
    place, mark, query = label.replace(":***@", "@").partition("?")
    pairs = [pair for pair in query.split("&") if not pair.endswith("=***")]
    kept = "&".join(pair for pair in pairs if pair.partition("=")[0] not in names)
    return place + (mark if kept or not query else "") + kept


def _hide_password(text: str) -> str:
    """Return a text with ``***`` between its first colon and the last ``@`` after this colon."""
    before, _, rest = text.partition(":")
    _, at, after = rest.rpartition("@")
    return f"{before}:***@{after}" if at else text


def _hide_login(where: str) -> str:
    login, at, rest = where.rpartition("@")
    host, slash, path = rest.partition("/")
    if not all(_HOST.fullmatch(one) for one in host.split(",")):
        # Not a port: the beginning of a password, and the text after the slash may be the rest.
        return f"{host.partition(':')[0]}:***" if not at else "***"
    user, colon, _ = login.partition(":")
    if not _USER.fullmatch(user):
        user, colon = "***", ""
    return f"{user}{':***' if colon else ''}{at}{host}{slash}{path}"


def _is_option(pair: str) -> bool:
    name = pair.partition("=")[0]
    return name in _WITH_AT or bool(SECRET_QUERY.search(unquote_plus(name)))


def _shown(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if SECRET_QUERY.search(unquote_plus(name)):
        return f"{name}{equals}***"
    return name + equals + quote(_inner(unquote_plus(value)), safe="*/:@")


def redact_value(text: str) -> str:
    """Return a text typed by a user, without the password of a URL in the text."""
    found = _URL.search(text)
    if found is None:
        return visible(_hide_password(text))
    return visible(text[: found.start()]) + redact(text[found.start() :])


def redact_quoted(text: str, arguments: Iterable[str]) -> str:
    """Return ``text``, which may quote the command-line ``arguments``, without their passwords."""
    for argument in chain.from_iterable((one, *one.split("=", 1)) for one in arguments):
        shown = redact_value(argument)
        if shown != visible(argument):
            for form in (argument, os.fspath(Path(argument))):
                for quoted in (form, visible(form), repr(form)[1:-1]):
                    text = text.replace(quoted, shown)
    return text


def redact_text(text: str, arguments: Iterable[str] = ()) -> str:
    """Return a message without the passwords of URLs and of the command-line ``arguments``."""
    return _URL.sub(lambda found: redact(found[0]), redact_quoted(text, arguments))


def join_url(parts: SplitResult) -> str:
    """Join the parts of a URL; ``//`` is included even if the URL has no host."""
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}{fragment}"


def _inner(value: str) -> str:
    return redact(value) if "://" in value else value


def visible(text: str) -> str:
    """Return the text with escapes in place of control characters and invisible characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def same_file(path: Path) -> str:
    """Return, as a text, the path with symbolic links resolved: equal for all paths to one file."""
    return os.path.realpath(path)


def is_one_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file, even by symbolic or hard links."""
    if same_file(one) == same_file(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:  # one does not exist
        return False
