"""Rank sentences by how informative they are, with the method of H. P. Luhn.

Source: H. P. Luhn, "The Automatic Creation of Literature Abstracts", IBM Journal of Research and
Development 2 (1958), 159-165.  As in the library sumy, with which the
ratings agree, every word counts as significant that occurs twice and is not a stop word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence, Set

from memctl.summarizers.sentences import Sentence

LARGEST_GAP = 3
"""Other words between two significant words of a cluster.

Luhn allowed four or five; sentences in a conversation are shorter than those of his articles.
"""


def rank(sentences: Sequence[Sentence], stop_words: Set[str]) -> None:
    """Number the sentences by their rating: rank 0 is the most informative.

    Equal ratings keep the order of the conversation.
    """
    significant = significant_words([sentence.words for sentence in sentences], stop_words)
    best = sorted(sentences, key=lambda sentence: rating(sentence.words, significant), reverse=True)
    for number, sentence in enumerate(best):
        sentence.rank = number


def significant_words(sentences: Sequence[Sequence[str]], stop_words: Set[str]) -> set[str]:
    """Return the words that occur more than once and are not stop words."""
    counts = Counter(word for words in sentences for word in words)
    return {word for word, count in counts.items() if count > 1 and word not in stop_words}


def rating(words: Sequence[str], significant: Collection[str]) -> float:
    """Return the rating of the best cluster of a sentence; 0 where no two words make a cluster.

    A cluster runs from one significant word to another, with at most ``LARGEST_GAP`` other words
    between two of them.  Its rating is the square of the number of its significant words, divided
    by the number of all its words.
    """
    clusters: list[list[int]] = []
    for position, word in enumerate(words):
        if word not in significant:
            continue
        if clusters and position - clusters[-1][-1] <= LARGEST_GAP + 1:
            clusters[-1].append(position)
        else:
            clusters.append([position])
    return max(
        (len(one) ** 2 / (one[-1] - one[0] + 1) for one in clusters if len(one) > 1), default=0.0
    )
