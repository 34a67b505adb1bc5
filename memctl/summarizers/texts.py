"""Text as it may be sent, stored and shown: no control characters, no half characters."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_SENTENCE_END = re.compile(r"(?:[.!?…؟।](?=\s|$)|[。！？])[\"'”’»)\]」』）]*")
_JOINERS = "\u200d\ufe0f"
"""What ties the characters of an emoji together."""


def clean(text: str) -> str:
    """The text without escape sequences and control characters; newlines and tabs stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return encodable(_CONTROLS.sub("", text))


def encodable(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair: JSON may hold these, UTF-8 not."""
    return _SURROGATES.sub("\ufffd", text)


def one_line(text: str, limit: int = 300) -> str:
    """The text as part of a message: one line, no longer than ``limit`` characters."""
    return shorten(" ".join(clean(text).split()), limit)


def shorten(text: str, limit: int) -> str:
    """The text, cut at the end of a sentence or a word where it has more than ``limit`` characters.

    What was cut ends with ``…``, within the limit.
    """
    if len(text) <= limit:
        return text
    room = limit - 1
    # Less than half of what fits would say less than a sentence that breaks off.
    ends = [end.end() for end in _SENTENCE_END.finditer(text, 0, room)]
    if ends and ends[-1] >= limit // 2:
        return text[: ends[-1]].rstrip() + "…"
    cut = text[: _whole_characters(text, room)]
    word = cut if text[len(cut)].isspace() else cut.rsplit(None, 1)[0]
    return (word if len(word) >= limit // 2 else cut).rstrip() + "…"


def _whole_characters(text: str, end: int) -> int:
    """The last place up to ``end`` that parts no letter from its accents, and no emoji."""
    for place in range(end, max(0, end - 16), -1):
        after = text[place]
        if not (unicodedata.combining(after) or after in _JOINERS or text[place - 1] == "\u200d"):
            return place
    return end
