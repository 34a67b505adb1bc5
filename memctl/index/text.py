"""The text of a message as the index has it: prepared for the tokenizer, in pieces.

SQLite's tokenizer ``unicode61`` makes a word of letters that follow one another.  Scripts without
spaces between words get a separator between their characters, so that each is a word, and a word
of these scripts is a phrase.  ``plain`` takes the separators out again.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from memctl.dialects.view import MessageView, ToolCallBlock

SEPARATOR = "\x1f"
PIECE = 32_768
"""The characters of a piece: a longer text is indexed as several."""

_BEHIND = 200
"""The characters before the end of a piece in which a space is looked for, to cut there."""

_ALONE = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Hangul, whose particles follow without a space
    "\u2600-\u27bf\U0001f000-\U0001faff"  # symbols and emoji
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u302f\u3031-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"  # Chinese and Japanese
)
_RUN = re.compile(f"([{_ALONE}]+)")
_IGNORED = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u0640\u064b-\u065f\u0670"  # vowel marks, tatweel
    "\u200b-\u200d\u2060\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]"  # joiners, variants, skin tones
)
_UNSAFE = re.compile("[\x00\x1f\ud800-\udfff]")
"""NUL, the separator itself, and halves of characters, which are no text to SQLite."""


def prepare(text: str) -> str:
    """Return a text as it is indexed; what it looks like may change, as with full-width letters."""
    if text.isascii():
        return _UNSAFE.sub(" ", text) if "\0" in text or SEPARATOR in text else text
    text = _UNSAFE.sub(" ", text)
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


def text_of(view: MessageView) -> str:
    """Return all that can be searched in a message: what is said, tool calls, their results."""
    texts = list(view.texts())
    calls = (block for block in view.blocks if isinstance(block, ToolCallBlock))
    texts += (f"{call.name} {_values(call.input)}" for call in calls)
    return "\n".join(texts)


def _values(value: Any) -> str:
    """Return the arguments of a call as text."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


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
