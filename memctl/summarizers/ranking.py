"""Which sentences tell most, by the words that recur: Luhn's method, from the library sumy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from sumy.models.dom import ObjectDocumentModel, Paragraph
from sumy.models.dom import Sentence as SumySentence
from sumy.summarizers.luhn import LuhnSummarizer
from sumy.utils import get_stop_words

from memctl.summarizers.sentences import Sentence, words

LANGUAGES = (
    "arabic", "czech", "english", "french", "german", "greek", "hebrew", "italian", "korean",
    "polish", "portuguese", "slovak", "spanish", "swedish", "ukrainian",
)  # fmt: skip
"""The languages whose words that tell nothing sumy knows; others have words without spaces."""
_LOOKED_AT = 2000
"""Words by which the language is told."""


class _Tokenizer:
    """Hands sumy the words that are known already; its own needs data that is downloaded."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self._words = {sentence.text: tuple(sentence.words) for sentence in sentences}

    def to_words(self, text: str) -> tuple[str, ...]:
        return self._words[text]


class _Luhn(LuhnSummarizer):  # type: ignore[misc]  # sumy has no types
    """Luhn's method, with the words that recur looked up: sumy searches a tuple for each."""

    _stems: Any = ()
    _known: frozenset[str] = frozenset()

    def rate_sentence(self, sentence: Any, significant_stems: Any) -> float:
        if significant_stems is not self._stems:
            self._stems, self._known = significant_stems, frozenset(significant_stems)
        rating: float = super().rate_sentence(sentence, self._known)
        return rating


def rank(sentences: list[Sentence]) -> None:
    """Numbers the sentences by how much they tell: rank 0 tells most."""
    if not sentences:
        return
    tokenizer = _Tokenizer(sentences)
    by_text = {sentence.text: sentence for sentence in sentences}
    document = ObjectDocumentModel(
        [Paragraph([SumySentence(sentence.text, tokenizer) for sentence in sentences])]
    )
    summarizer = _Luhn()
    summarizer.stop_words = _without_meaning(sentences)
    ranked: list[Any] = []

    def all_of(infos: list[Any]) -> list[Any]:
        ranked.extend(infos)
        return infos

    # The place of a number may be taken by what chooses from the ranked sentences.
    summarizer(document, all_of)
    for number, info in enumerate(ranked):
        by_text[str(info.sentence)].rank = number


def _without_meaning(sentences: list[Sentence]) -> frozenset[str]:
    """The words of the conversation's language that tell nothing."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.words)
        if counts.total() > _LOOKED_AT:
            break
    fits = {language: sum(counts[word] for word in _stop_words(language)) for language in LANGUAGES}
    best = max(LANGUAGES, key=lambda language: fits[language])
    return _stop_words(best) if fits[best] else frozenset()


@cache
def _stop_words(language: str) -> frozenset[str]:
    return frozenset(part for word in get_stop_words(language) for part in words(word))
