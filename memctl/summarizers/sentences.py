"""The sentences of a conversation that may tell something, in any script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import sentencex

from memctl.summarizer import Turn
from memctl.summarizers.texts import clean
from memctl.summary import LIMITS, read_headings

LONGEST = 2000
"""Characters of a line that are looked at: what goes on longer is data."""

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAGS = re.compile(r"</?\s*system-[\w-]*\s*>", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\s*\[(?:calls|image|audio|video)\b[^\]]*\]")
_RESULT_OF = re.compile(r"\s*\[result of [^\]]*\]\s*")
_LIST_MARKS = re.compile(r"\s*(?:#{1,6}\s+|>\s+|[-*+•]\s+|\d{1,3}[.)]\s+)*")
_EMPHASIS = re.compile(r"\*\*|__|~~")

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Scripts that put no spaces between words: also Thai, Lao, Burmese and Khmer.
_UNSPACED = re.compile(f"[{_CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+")
# Not \w: the vowel signs of Indic and other scripts are no letters to it.
_WORD = re.compile(r"[^\s\d!-/:-@\[-`{-~¡-¿–-⁞،؛؟।、-〿！-／：-＠［-｠…]+")
_HAN = re.compile(f"[{_CJK}]")

_LEAST_WORDS = 4
"""A sentence with fewer words tells little; a greeting, mostly.  See ``words``."""
_LEAST_LETTERS = 0.6
"""The part of letters in a sentence that is prose; code and tables have less."""


@dataclass(slots=True)
class Sentence:
    """A sentence of a turn, with its place in the conversation.

    ``field`` is the field of an earlier summary that it stood in, else empty.
    """

    place: int
    turn: int
    role: str
    text: str
    words: list[str]
    field: str = ""
    rank: int = 0

    @property
    def telling(self) -> bool:
        """Whether it is prose of some length."""
        letters = sum(map(len, _WORD.findall(self.text)))
        dense = letters >= _LEAST_LETTERS * len(self.text.replace(" ", ""))
        return dense and len(self.words) >= _LEAST_WORDS

    @property
    def asks(self) -> bool:
        """Whether it is a question."""
        return self.text.rstrip("\"'”’»)」』").endswith(("?", "？", "؟"))


def of_conversation(earlier: str, turns: list[Turn]) -> list[Sentence]:
    """The sentences of an earlier summary and of the turns, none twice, in order."""
    whole = [Turn("summary", "", earlier), *turns] if earlier else turns
    seen: set[str] = set()
    sentences: list[Sentence] = []
    for number, turn in enumerate(whole):
        for field, text in _parts(turn):
            for sentence in split(text):
                found = words(sentence)
                known = " ".join(found) or sentence
                if known not in seen:
                    seen.add(known)
                    place = len(sentences)
                    sentences.append(Sentence(place, number, turn.role, sentence, found, field))
    return sentences


def split(text: str) -> Iterator[str]:
    """The sentences of a text, without the marks of lists, headings and emphasis."""
    for line in _CODE.sub("\n", _TAGS.sub("", clean(text))).split("\n"):
        line = _PLACEHOLDER.sub("", line, count=1) if _PLACEHOLDER.match(line) else line
        line = _LIST_MARKS.sub("", _RESULT_OF.sub("", line, count=1), count=1)
        line = _EMPHASIS.sub("", line)[:LONGEST].strip()
        if line.startswith(("{", "|", "<")):
            continue  # arguments of tools, tables, markup
        for sentence in sentencex.segment("en", line):
            if sentence.strip():
                yield sentence.strip()


def words(text: str) -> list[str]:
    """What may recur in a text: its words, and pairs of characters where no space parts words."""
    found: list[str] = []
    for word in _WORD.findall(text.casefold()):
        start = 0
        for run in _UNSPACED.finditer(word):
            found += [word[start : run.start()]] if run.start() > start else []
            pairs = run.group()
            found += [pairs[i : i + 2] for i in range(max(1, len(pairs) - 1))]
            start = run.end()
        found += [word[start:]] if start < len(word) else []
    return found


def joined(sentences: list[str]) -> str:
    """The sentences as one text: scripts without spaces have none between sentences either."""
    text = ""
    for sentence in sentences:
        close = not text or (_HAN.match(sentence) and not text[-1].isascii())
        text += sentence if close else f" {sentence}"
    return text


def _parts(turn: Turn) -> Iterator[tuple[str, str]]:
    """The text of a turn; that of a summary by its fields, where it has headings for them."""
    fields = read_headings(turn.text) if turn.role == "summary" else None
    if fields is None:
        yield "", turn.text
    else:
        for name in LIMITS:
            yield name, getattr(fields, name)
