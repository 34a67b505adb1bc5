"""Cleaning and shortening of text, to send, store and show it."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Format characters that are invisible or reverse text: they hide what a text says.
# Not among them: the joiners U+200C and U+200D, which words and emoji need, and visible signs.
_FORMATS = re.compile(
    r"[\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_SENTENCE_END = re.compile(r"(?:[.!?…؟।](?=\s|$)|[。！？])[\"'”’»)\]」』）]*")
_JOINERS = "\u200d\ufe0f"
"""The zero-width joiner and the variation selector, both used inside emoji."""


def clean(text: str) -> str:
    """Return the text without escape sequences, control characters and format characters.

    Newlines, tabs and joiners stay.
    """
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return encodable(_FORMATS.sub("", _CONTROLS.sub("", text)))


def encodable(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD, so that it can be encoded.

    JSON may contain lone surrogates, UTF-8 may not.
    """
    return _SURROGATES.sub("\ufffd", text)


def one_line(text: str, limit: int = 300) -> str:
    """Return the text as one line of at most ``limit`` characters, for messages."""
    return shorten(" ".join(clean(text).split()), limit)


def shorten(text: str, limit: int) -> str:
    """Return the text, cut to at most ``limit`` characters at the end of a sentence or a word.

    A cut text ends with ``…``, which counts as one of the characters.
    """
    if len(text) <= limit:
        return text
    room = limit - 1
    # A broken sentence is better than complete sentences that fill less than half of the room.
    ends = [end.end() for end in _SENTENCE_END.finditer(text, 0, room)]
    if ends and ends[-1] >= limit // 2:
        return text[: ends[-1]].rstrip() + "…"
    cut = text[: _whole_characters(text, room)]
    word = cut if text[len(cut)].isspace() else cut.rsplit(None, 1)[0]
    return (word if len(word) >= limit // 2 else cut).rstrip() + "…"


def _whole_characters(text: str, end: int) -> int:
    """Return the last position up to ``end`` that splits no accented letter or emoji."""
    for place in range(end, max(0, end - 16), -1):
        after = text[place]
        if not (unicodedata.combining(after) or after in _JOINERS or text[place - 1] == "\u200d"):
            return place
    return end
