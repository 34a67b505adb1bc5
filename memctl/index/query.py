"""The query language: words, "phrases", prefix*, -word, user:ada.

A query has no syntax errors: text that is not an operator is a word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unicodedata import category

from msgspec import Struct, field

from memctl.errors import UsageError
from memctl.index.text import SEPARATOR, prepare, runs
from memctl.selection import Selection

FIELDS = {
    "user": "users",
    "session": "sessions",
    "role": "roles",
    "name": "names",
    "mark": "marks",
}
"""The filters of a query, and their fields of ``Selection``."""

LONGEST = 256
"""The maximum number of words of a query."""

_ONE_WORD = 3
"""The number of characters up to which a text in a script without spaces is one word."""

_TOKEN = re.compile(
    r"""(?P<minus>-)?(?:(?P<field>[a-z]+):)?(?:"(?P<quoted>[^"]*)"?|(?P<bare>[^\s"]\S*))""",
    re.IGNORECASE,
)
_CATEGORIES = frozenset(("Mn", "Mc", "So", "Co"))
"""The categories of characters in words, besides letters and numbers; see ``TOKENIZER``."""

_ENGLISH = (
    "a an and are as at be but by did do does for from had has have he her his how i in is it "
    "its me my not of on or our s she t that the their them they this to was we were what "
    "when where which who whom whose why will with would you your"
)
STOP_WORDS = frozenset(_ENGLISH.split())
"""English words that are ignored, unless a query has only such words."""


class Query(Struct, frozen=True):
    """A search query, taken apart; words and phrases are expressions of FTS5.

    ``words`` raise the rank of a message.  ``wanted`` has the words in sets: a message that has
    more than half of a set has a word of the query.  ``phrases`` must be in a message and raise its
    rank.  ``excluded`` must not be in a message.  ``filters`` maps fields of ``Selection`` to the
    values in the query.  ``text`` is the query without operators and filters, for models that make
    vectors.
    """

    words: list[str]
    wanted: list[frozenset[str]]
    phrases: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    filters: dict[str, frozenset[str]] = field(default_factory=dict)
    text: str = ""

    @property
    def units(self) -> list[str]:
        """All words and phrases of the query that count for the rank, without duplicates."""
        return list(dict.fromkeys((*self.phrases, *self.words)))

    def is_in(self, units: Collection[str]) -> bool:
        """Return whether a message has a word of the query, and all phrases.

        ``units`` are the words and phrases in the text of the message.
        """
        if self.phrases:
            return all(one in units for one in self.phrases)
        return any(2 * sum(one in units for one in some) > len(some) for some in self.wanted)

    def narrowed(self, where: Selection) -> Selection | None:
        """Return ``where`` with the filters of the query added.

        None if no message can match both the selection and the query.
        """
        changed: dict[str, Any] = {}
        for name, values in self.filters.items():
            given: frozenset[str] = getattr(where, name)
            # More marks to exclude exclude more messages.  More values of other filters select
            # fewer.
            both = (
                given | values if name == "exclude_marks" else (given & values if given else values)
            )
            if not both:
                return None
            changed[name] = both
        return replace(where, **changed)


def parse(text: str) -> Query:
    """Parse a search query, such as ``knee "left leg" -bike user:ada``.

    Raises:
        UsageError: the text has no words to search for, or excludes a filter such as ``-user:ada``.
    """
    words: list[list[str]] = []
    phrases: list[str] = []
    excluded: list[str] = []
    filters: dict[str, set[str]] = {}
    said: list[str] = []
    for found in _TOKEN.finditer(text):
        minus, name = found["minus"], (found["field"] or "").lower()
        quoted, bare = found["quoted"], found["bare"]
        value = bare if quoted is None else quoted
        if name in FIELDS and value:
            if not minus:
                filters.setdefault(FIELDS[name], set()).add(value)
                continue
            if name == "mark":
                filters.setdefault("exclude_marks", set()).add(value)
                continue
            raise UsageError(
                f"a query cannot exclude a {name}: {found[0]}", "exclude words or marks: -word"
            )
        if name:
            value = f"{found['field']}:{value}"
            minus = found["minus"]
        if minus:
            excluded += phrase(value)
        elif quoted is not None and not name:
            said.append(value)
            phrases += phrase(value)
        else:
            said.append(value)
            words += _units(value)
    kept = [some for some in words if not all(map(_is_stop_word, some))]
    if not phrases:
        kept = kept or words
    if not kept and not phrases:
        raise UsageError(
            "the query has no words to look for",
            "name at least one word or phrase that messages should have",
        )
    units = list(dict.fromkeys(one for some in kept for one in some))[:LONGEST]
    return Query(
        units,
        [some for one in kept if (some := frozenset(one).intersection(units))],
        list(dict.fromkeys(phrases))[:LONGEST],
        list(dict.fromkeys(excluded))[:LONGEST],
        {name: frozenset(values) for name, values in filters.items()},
        " ".join(said),
    )


def field_of(word: str) -> str:
    """Return the field of a word that filters, such as ``user:ada``; empty for any other word."""
    name = word.removeprefix("-").partition(":")[0].lower()
    return name if name in FIELDS and ":" in word else ""


def phrase(text: str) -> list[str]:
    """Return a list with the FTS5 expression for a phrase; an empty list if it has no words."""
    prepared = prepare(text).replace('"', " ")
    return [f'"{prepared}"'] if any(map(_is_part_of_word, prepared)) else []


def _units(text: str) -> Iterator[list[str]]:
    """Yield the words of a text, each as a list of FTS5 expressions.

    In scripts without spaces between words, up to three characters are a word.  More characters may
    be several words: the expressions are their pairs of neighbouring characters.
    """
    for part, alone in runs(prepare(text)):
        if not alone:
            for word in _words(part):
                bare = word.rstrip("*")
                yield [f'"{bare}" *' if bare != word else f'"{bare.lower()}"']
        elif len(part) <= _ONE_WORD:
            yield [f'"{SEPARATOR.join(part)}"']
        else:
            yield [f'"{SEPARATOR.join(pair)}"' for pair in pairwise(part)]


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text; ``a_b`` is one word, and a final ``*`` stays in its word."""
    spaced = "".join(char if char in "_*" or _is_part_of_word(char) else " " for char in text)
    for word in spaced.split():
        if any(map(_is_part_of_word, word)):
            yield word.strip("_").lstrip("*") if word.endswith("*") else word.replace("*", " ")


def _is_part_of_word(char: str) -> bool:
    found = category(char)
    return found[0] in "LN" or found in _CATEGORIES


def _is_stop_word(unit: str) -> bool:
    return unit[1:-1] in STOP_WORDS
