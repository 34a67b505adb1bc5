"""The text of a message as the index has it: prepared for the tokenizer, in pieces.

SQLite's tokenizer ``unicode61`` makes a word of letters that follow one another.  Scripts without
spaces between words get a separator between their characters, so that each is a word, and a word
of these scripts is a phrase.  ``plain`` takes the separators out again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

SEPARATOR = "\x1f"
END_OF_PIECE = "\x1e"
"""The separator of pieces of text; no prepared text has it."""
PIECE = 32_768
"""The characters of a piece: a longer text is indexed as several."""

_BEHIND = 200
"""The characters before the end of a piece in which a space is looked for, to cut there."""

_ALONE = (  # few ranges: each makes the search slower
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u11ff\u1780-\u17ff"  # Burmese, Georgian, Hangul letters; Khmer
    "\u2600-\u27bf\U0001f000-\U0003ffff"  # symbols and emoji; rare Chinese
    "\u2e80-\ud7ff\uf900-\ufaff"  # Chinese, Japanese, Korean and what is between them
)
"""Scripts without spaces between words, or with particles that follow a word without one."""
_RUN = re.compile(f"([{_ALONE}]+)")
_IGNORED = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u0640\u064b-\u065f\u0670"  # vowel marks, tatweel
    "\u200b-\u200d\u2060\ufe00-\ufe0f\U0001f3fb-\U0001f3ff"  # joiners, variants, skin tones
    "\ud800-\udfff]"  # halves of characters, which are no text to SQLite
)
_RESERVED = ("\0", END_OF_PIECE, SEPARATOR)


def prepare(text: str) -> str:
    """Return a text as it is indexed; what it looks like may change, as with full-width letters."""
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
    """Return a prepared text without its separators."""
    return text.replace(SEPARATOR, "")


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a prepared text; True for those whose characters are words each."""
    for number, part in enumerate(_RUN.split(plain(text))):
        if part:
            yield part, number % 2 == 1


def pieces(text: str) -> list[str]:
    """Return a prepared text in pieces, cut at a space where there is one."""
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
