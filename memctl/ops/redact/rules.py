"""Rules that find values in a text: secrets by the expressions of gitleaks, texts and expressions.

``secrets.toml`` has the rules for secrets; ``tools/secret_rules.py`` makes it.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from memctl.errors import UsageError

TEXT, PATTERN = "text", "match"
"""The kinds of what a text and an expression of the user find."""
_PLAIN = re.compile(r"[\w \-.@:+=#~]+", re.ASCII)
"""A text that every JSON writer writes as it is."""


_WORDS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_AS_WORDS = bytes(byte if byte in _WORDS else 32 for byte in range(256))
"""Leaves letters and digits, and makes every other byte a space."""


_BEGIN_JSON = ("{", "[", '"')
"""The beginnings of strings that may be JSON again."""


class Match(NamedTuple):
    """A value in a text: its place, and the kind of the rule."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True)
class Rule:
    """A rule that finds values of one kind.

    A text has such a value only if it has one of ``keywords``, which are in small letters; without
    keywords, each text may have a value.  A value has at least ``entropy`` bits for each character.
    ``group`` is the group of the expression with the value; None means the first group that
    matched.
    """

    kind: str
    regex: str
    keywords: Sequence[str] = ()
    entropy: float = 0.0
    group: int | None = None
    allowed: Sequence[str] = ()
    """Expressions of values that are no secrets."""
    flags: int = 0
    known: Callable[[str], bool] | None = None
    """Returns whether a value is one of those that a receipt remembers; None takes each."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression; made when it is needed, for there are hundreds."""
        return re.compile(self.regex, self.flags)

    def find(self, text: str) -> Iterator[Match]:
        """Yield the values in a text."""
        for found in self.pattern.finditer(text):
            group = self.group
            if group is None:
                group = next((at for at, one in enumerate(found.groups(), 1) if one), 0)
            start, stop = found.span(group)
            if start < stop and self._counts(text[start:stop]):
                yield Match(start, stop, self.kind)

    def _counts(self, value: str) -> bool:
        if self.known is not None and not self.known(value):
            return False
        if self.entropy and _entropy(value) < self.entropy:
            return False
        return not any(re.search(one, value) for one in self.allowed)


@dataclass(frozen=True)
class Rules:
    """All rules of a run."""

    rules: Sequence[Rule]
    texts: Sequence[str] = ()
    """Texts to find as they are."""
    _keywords: dict[str, list[Rule]] = field(init=False, repr=False, default_factory=dict)
    _others: list[Rule] = field(init=False, repr=False, default_factory=list)
    _parts: list[tuple[bytes, bytes]] = field(init=False, repr=False, default_factory=list)
    """Each keyword, with the longest of its parts of letters and digits."""

    def __post_init__(self) -> None:
        for rule in self.rules:
            for word in rule.keywords:
                self._keywords.setdefault(word, []).append(rule)
            if not rule.keywords:
                self._others.append(rule)
        for keyword in map(str.encode, self._keywords):
            parts = keyword.translate(_AS_WORDS).split()
            self._parts.append((keyword, max(parts, key=len, default=b"")))

    def find(self, text: str) -> list[Match]:
        """Return the values in a text, in order; of values that overlap, the one found first."""
        found: list[Match] = []
        for one in self.texts:
            at = text.find(one)
            while at >= 0:
                found.append(Match(at, at + len(one), TEXT))
                at = text.find(one, at + len(one))
        small = text.lower() if self._keywords else ""
        rules = {
            id(rule): rule
            for word, some in self._keywords.items()
            if word in small
            for rule in some
        }
        for rule in (*self._others, *rules.values()):
            found += rule.find(text)
        return list(_apart(found))

    def suspects(self, texts: Sequence[bytes]) -> Iterable[int]:
        """Return the indexes of the JSON or plain texts that may have a value."""
        if self._others or not all(map(_PLAIN.fullmatch, self.texts)):
            return [at for at, text in enumerate(texts) if self._may_have(text)]
        whole = b"\n".join(texts)
        plain = [one for one in map(str.encode, self.texts) if one in whole]
        words: list[bytes] = []
        if self._keywords:
            # Texts repeat their words: the distinct ones are a tenth, and searched for hundreds.
            whole = whole.lower()
            distinct = b" ".join({*whole.translate(_AS_WORDS).split()})
            words = [one for one, part in self._parts if part in distinct and one in whole]
        if not words:
            return [at for at, text in enumerate(texts) if any(one in text for one in plain)]
        found = []
        for at, text in enumerate(texts):
            small = text.lower()
            if any(one in text for one in plain) or any(one in small for one in words):
                found.append(at)
        return found

    def _may_have(self, text: bytes) -> bool:
        """Return whether a text may have a value, by its strings if it is JSON."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            plain = text.decode("utf-8", "surrogateescape")
            return text[:1] in (b"{", b"[", b'"') or self._may_be_in(plain)
        return any(map(self._may_be_in, _strings(value)))

    def _may_be_in(self, text: str) -> bool:
        if text.lstrip()[:1] in _BEGIN_JSON or any(one in text for one in self.texts):
            return True
        if any(rule.pattern.search(text) for rule in self._others):
            return True
        small = text.lower() if self._keywords else ""
        return any(word in small for word in self._keywords)


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings, the keys and the numbers of a JSON value as texts."""
    match value:
        case str():
            yield value
        case dict():
            for name, one in value.items():
                yield name
                yield from _strings(one)
        case list():
            for one in value:
                yield from _strings(one)
        case int() | float():
            yield repr(value)


def _apart(found: list[Match]) -> Iterator[Match]:
    """Yield the matches that do not overlap; of two that begin alike, the longer one."""
    end = 0
    for match in sorted(found, key=lambda one: (one.start, -one.stop)):
        if match.start >= end:
            yield match
            end = match.stop


def _entropy(value: str) -> float:
    """Return Shannon's entropy in bits for each character."""
    counts = Counter(value).values()
    return -sum(number / len(value) * math.log2(number / len(value)) for number in counts)


def secrets() -> list[Rule]:
    """Return the rules for secrets."""
    text = files(__package__).joinpath("secrets.toml").read_text("utf-8")
    document = tomllib.loads(text)
    return [
        Rule(
            one["id"],
            one["regex"],
            one.get("keywords", ()),
            one.get("entropy", 0.0),
            one.get("group"),
            (*document["allowed"], *one.get("allowed", ())),
        )
        for one in document["rules"]
    ]


def expression(regex: str) -> Rule:
    """Return the rule for an expression of the user.

    Raises:
        UsageError: it is no expression, or it finds the empty text.
    """
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UsageError(f"--regex {regex!r} is not a regular expression: {error}") from error
    if pattern.search("") is not None:
        raise UsageError(f"--regex {regex!r} matches the empty text", "make it match something")
    return Rule(PATTERN, regex, group=0)
