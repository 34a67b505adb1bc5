"""The text of a message in the index: prepared for the tokenizer, in pieces.

SQLite's tokenizer ``unicode61`` makes a word of consecutive letters.  In scripts without spaces
between words, a separator is inserted between characters: each character becomes a word, and a
word of the script becomes a phrase.  ``plain`` removes the separators.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

SEPARATOR = "\x1f"
END_OF_PIECE = "\x1e"
"""The separator of pieces; no prepared text contains it."""
PIECE = 32_768
"""The maximum number of characters of a piece; a longer text has several pieces."""

_BEHIND = 200
"""The characters at the end of a piece that are searched for a space to cut at."""

_ALONE = (  # as few ranges as possible: each makes the search slower
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u11ff\u1780-\u17ff"  # Burmese, Georgian, Hangul letters; Khmer
    "\u2600-\u27bf\U0001f000-\U0003ffff"  # symbols and emoji; rare Chinese
    "\u2e80-\ud7ff\uf900-\ufaff"  # Chinese, Japanese, Korean and the ranges between
)
"""Scripts without spaces between words, or with particles attached to words."""
_RUN = re.compile(f"([{_ALONE}]+)")
_IGNORED = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u0640\u064b-\u065f\u0670"  # vowel marks, tatweel
    "\u200b-\u200d\u2060\ufe00-\ufe0f\U0001f3fb-\U0001f3ff"  # joiners, variants, skin tones
    "\ud800-\udfff]"  # surrogates, which SQLite cannot store as text
)
_RESERVED = ("\0", END_OF_PIECE, SEPARATOR)


def prepare(text: str) -> str:
    """Return a text as the search index stores it.

    Characters are normalized (NFKC), vowel marks and joiners are removed, and ``SEPARATOR`` is
    inserted between characters of scripts without spaces between words.
    """
    for char in _RESERVED:
        if char in text:
            text = text.replace(char, " ")
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    parts = _RUN.split(_IGNORED.sub("", text))
    if len(parts) == 1:
        return parts[0]
    parts[1::2] = map(SEPARATOR.join, parts[1::2])
    return SEPARATOR.join(parts)


def plain(text: str) -> str:
    """Return a text without the separators that ``prepare`` has inserted."""
    return text.replace(SEPARATOR, "")


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text from ``prepare``, and whether the script of each lacks spaces.

    The text is split where a script with spaces between words meets a script without spaces.
    """
    for number, part in enumerate(_RUN.split(plain(text))):
        if part:
            yield part, number % 2 == 1


def pieces(text: str) -> list[str]:
    """Cut a text into pieces of at most ``PIECE`` characters, at spaces if possible."""
    if len(text) <= PIECE:
        return [text]
    found = []
    start = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            space = max(text.rfind(" ", end - _BEHIND, end), text.rfind("\n", end - _BEHIND, end))
            end = space + 1 if space > 0 else end
        found.append(text[start:end])
        start = end
    return found
