"""The sentences of a conversation that may tell something, in any script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import sentencex
import stopwordsiso

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

_SAMPLE = 2000
"""Words by which the language of a conversation is recognized."""

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


def of_conversation(earlier: str, turns: list[Turn]) -> tuple[list[Sentence], str | None]:
    """Return the sentences of an earlier summary and of the turns, none twice, and their language.

    The language is an ISO 639-1 code, None where none is recognized.
    """
    whole = [Turn("summary", "", earlier), *turns] if earlier else turns
    lines = [
        (number, turn.role, field, line)
        for number, turn in enumerate(whole)
        for field, text in _parts(turn)
        for line in prose(text)
    ]
    language = recognize(line for *_, line in lines)
    seen: set[str] = set()
    sentences: list[Sentence] = []
    for number, role, field, line in lines:
        for sentence in split(line, language):
            found = words(sentence)
            known = " ".join(found) or sentence
            if known not in seen:
                seen.add(known)
                sentences.append(Sentence(len(sentences), number, role, sentence, found, field))
    return sentences, language


def prose(text: str) -> Iterator[str]:
    """Yield the lines of a text that are prose, without marks of lists, headings and emphasis."""
    for line in _CODE.sub("\n", _TAGS.sub("", clean(text))).split("\n"):
        line = _PLACEHOLDER.sub("", line, count=1) if _PLACEHOLDER.match(line) else line
        line = _LIST_MARKS.sub("", _RESULT_OF.sub("", line, count=1), count=1)
        line = _EMPHASIS.sub("", line)[:LONGEST].strip()
        if line and not line.startswith(("{", "|", "<")):  # arguments of tools, tables, markup
            yield line


def split(line: str, language: str | None = None) -> list[str]:
    """Return the sentences of a line; abbreviations and dates are those of the language."""
    # Without a language of its own, or one that sentencex knows, a text is split as English.
    found = (sentence.strip() for sentence in sentencex.segment(language or "en", line))
    return [sentence for sentence in found if sentence]


def recognize(texts: Iterable[str]) -> str | None:
    """Return the language of the texts, as an ISO 639-1 code: that of most of their stop words.

    None where there are no stop words of any language.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
        if counts.total() > _SAMPLE:
            break
    found = {
        language: sum(counts[word] for word in stopwordsiso.stopwords(language) & counts.keys())
        for language in sorted(stopwordsiso.langs())
    }
    best = max(found, key=lambda language: found[language])
    return best if found[best] else None


@cache
def stop_words(language: str | None) -> frozenset[str]:
    """Return the words of a language that carry no information, as ``words`` gives them."""
    if language is None:
        return frozenset()
    found: set[str] = set()
    for word in stopwordsiso.stopwords(language):
        parts = words(word)
        # Of a longer word in a script without spaces, the pairs of characters mean something else.
        if len(parts) == 1 or not _UNSPACED.search(word):
            found.update(parts)
    return frozenset(found)


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
