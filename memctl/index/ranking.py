"""The ranking of messages: BM25 of a message, its surroundings and its block together.

An answer often stands next to the words of the query, in a conversation about them.  A message
therefore has three scores: for the words of the message, for the words of the message and its
neighbours as one text, and for the words of its block, which is a conversation or a part of one.
Facts are independent of each other and have only the first score.

The sender and the day of a message count, too, but only a word in its text makes it a hit of a
search by words.  The output of tools weighs less than what people and agents say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from memctl.index.database import Block, Candidates, IndexedMessage, IndexFile, heading
from memctl.index.query import Query

BATCH = 32
"""The number of blocks to rank first; more blocks follow if there are too few hits."""

_COMMON = 0.5
"""A word in more than this share of the blocks is common: rarer words of the query choose."""
_CHOOSING = 2
"""The number of words, the rarest of the query, that choose blocks if all words are common."""
_FEWEST = 20
"""The number of blocks below which no word counts as common."""

_NEIGHBOURS = (0.6, 0.3, 0.15)
"""The weights of words in neighbouring messages, by distance."""


class Saturation(NamedTuple):
    """BM25 with its parameters: ``k1`` limits the effect of repetition, ``b`` weighs the length."""

    k1: float
    b: float

    def __call__(self, count: float, length: float) -> float:
        """Return the BM25 score of a word that occurs ``count`` times in a text.

        ``length`` is the length of the text, divided by the mean length.
        """
        return count * (self.k1 + 1) / (count + self.k1 * (1 - self.b + self.b * length))


_MESSAGE = Saturation(0.9, 0.4)
_SURROUNDINGS = Saturation(0.7, 0.4)
_BLOCK = Saturation(2.0, 0.75)
_WEIGHTS = (0.7, 1.0, 1.0)
"""The weights of the scores of message, surroundings and block."""
_OUTPUT = 0.6
"""The weight of a message that is the output of tools: repeated words do not outweigh a person."""
_RARITY = 0.8
"""The exponent of a word's rarity: below 1, several words outweigh one rare word."""


class Statistics(Struct):
    """The frequency of words over all indexes of a search."""

    messages: int = 0
    blocks: int = 0
    frequencies: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The number of blocks with each word."""

    def add(self, index: IndexFile, units: Sequence[str]) -> None:
        """Add the counts of an index; ``units`` are the words and phrases to count."""
        self.messages += index.totals()[1]
        self.blocks += index.blocks()
        for unit in units:
            self.frequencies[unit] += index.frequency(unit)

    def rarity_in_blocks(self, unit: str) -> float:
        """Return the weight of a word or phrase in the ranking of blocks of messages.

        The fewer blocks have the word, the larger is its weight.
        """
        return _rarity(self.frequencies[unit], self.blocks)

    def rarity(self, unit: str) -> float:
        """Return the weight of a word or phrase in a message; rare words weigh more.

        The number of messages with the word is estimated from the number of blocks of messages
        with the word, as if every message had the word with the same probability.
        """
        blocks = max(self.blocks, 1)
        share = min(self.frequencies[unit], blocks - 0.5) / blocks
        each = 1 - (1 - share) ** (blocks / max(self.messages, 1))
        return math.pow(_rarity(self.messages * each, self.messages), _RARITY)

    def chooses_all(self, query: Query) -> bool:
        """Return whether the chosen blocks of messages include every block that may have a hit."""
        chosen = set(self.choosing(query))
        found = {unit for unit in query.units if self.frequencies[unit]}
        return chosen == found or not chosen.isdisjoint(query.phrases)

    def choosing(self, query: Query) -> list[str]:
        """Return the words and phrases of a query by which blocks of messages are chosen.

        Words in no block are left out.  Words in many blocks are left out, unless all words of the
        query are in many blocks.
        """
        found = [unit for unit in query.units if self.frequencies[unit]]
        if self.blocks < _FEWEST:
            return found
        limit = self.blocks * _COMMON
        rarest = sorted(found, key=self.frequencies.__getitem__)
        return [unit for unit in found if self.frequencies[unit] <= limit] or rarest[:_CHOOSING]


def _rarity(frequency: float, total: int) -> float:
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))


def expression(query: Query, choosing: Sequence[str]) -> str:
    """Return the FTS5 expression for blocks of messages that may have a hit.

    A block must have all phrases of the query, and a word or phrase of ``choosing``.
    """
    some = " OR ".join(choosing)
    return " AND ".join((*query.phrases, f"({some})")) if query.phrases else some


class Ranked(NamedTuple):
    """A message with its score for the words of a query."""

    score: float
    block: Block
    at: int
    """The index of the message in the block."""
    piece: int
    """The index of the piece of the message with the best score."""
    has_words: bool
    """True if the text of the message has a word of the query, and all phrases."""

    @property
    def entry(self) -> IndexedMessage:
        """The message."""
        return self.block.entries[self.at]


class _Row(NamedTuple):
    block: Block
    at: int
    piece: int
    length: int


class Ranker:
    """Scores messages for a query; with ``facts``, without the messages around them."""

    def __init__(self, query: Query, statistics: Statistics, *, facts: bool) -> None:
        self._query = query
        self._facts = facts
        self._units = [unit for unit in query.units if statistics.frequencies[unit]]
        self._rarity = {unit: statistics.rarity(unit) for unit in self._units}
        self._in_blocks = {unit: statistics.rarity_in_blocks(unit) for unit in self._units}

    def rank(
        self, blocks: Iterable[Block], candidates: Candidates, *, everything: bool = False
    ) -> list[Ranked]:
        """Return the messages of the blocks that match the query with their scores, unordered.

        ``candidates`` is an empty table that the method fills.  ``everything`` adds messages
        without a word of the query; the phrases and exclusions of the query still apply.
        """
        rows = _rows(blocks, candidates)
        if not rows:
            return []
        scores, units = self._scores(rows, candidates)
        places: dict[tuple[int, int], set[str]] = defaultdict(set)
        for number, row in rows.items():
            places[_place(row)] |= units[number]
        for phrase in self._query.excluded:
            for number in candidates.matching(phrase):
                places.pop(_place(rows[number]), None)
        found = {place: self._query.is_in(some) for place, some in places.items()}
        if not everything or self._query.phrases:
            found = {place: has_words for place, has_words in found.items() if has_words}
        best: dict[tuple[int, int], tuple[bool, Ranked]] = {}
        for number, row in rows.items():
            place = _place(row)
            if place not in found:
                continue
            one = Ranked(scores[number], row.block, row.at, row.piece, found[place])
            other = best.get(place)
            in_piece = bool(units[number])
            if other is None or (in_piece, one.score) > (other[0], other[1].score):
                best[place] = in_piece, one
        return [one for _, one in best.values()]

    def _scores(
        self, rows: dict[int, _Row], candidates: Candidates
    ) -> tuple[defaultdict[int, float], defaultdict[int, set[str]]]:
        """Return the score of each text, and the words and phrases in it, by number."""
        found: defaultdict[int, set[str]] = defaultdict(set)
        mean = sum(row.length for row in rows.values()) / len(rows) or 1.0
        scores: defaultdict[int, float] = defaultdict(float)
        in_blocks: dict[int, float] = defaultdict(float)
        sizes: dict[int, int] = defaultdict(int)
        for row in rows.values():
            sizes[row.block.number] += row.length
        mean_size = sum(sizes.values()) / len(sizes) or 1.0
        own, near, whole = _WEIGHTS
        for unit in self._units:
            counts = {}
            for number, (in_heading, in_text) in candidates.counts(unit).items():
                counts[number] = in_heading + in_text
                if in_text:
                    found[number].add(unit)
            weight = self._rarity[unit]
            for number, count in counts.items():
                worth = _MESSAGE(count, rows[number].length / mean)
                scores[number] += own * weight * worth
            if self._facts:
                continue
            for number, around in _spread(counts, rows).items():
                length = _length_around(number, rows) / mean
                scores[number] += near * weight * _SURROUNDINGS(around, length)
            totals: dict[int, int] = defaultdict(int)
            for number, count in counts.items():
                totals[rows[number].block.number] += count
            for block, count in totals.items():
                worth = _BLOCK(count, sizes[block] / mean_size)
                in_blocks[block] += whole * self._in_blocks[unit] * worth
        for number, score in scores.items():
            row = rows[number]
            weight = _OUTPUT if row.block.entries[row.at].is_output else 1.0
            scores[number] = weight * (score + in_blocks[row.block.number])
        return scores, found


def _place(row: _Row) -> tuple[int, int]:
    return row.block.number, row.at


def _rows(blocks: Iterable[Block], candidates: Candidates) -> dict[int, _Row]:
    """Number the texts of all messages of ``blocks`` and add them to ``candidates``.

    Return the place and length of each text by its number.  Texts that follow each other in a
    memory have consecutive numbers.
    """
    rows: dict[int, _Row] = {}
    texts: list[tuple[int, str, str]] = []
    number = 0
    follows = (0, 0)
    for block in sorted(blocks, key=lambda one: (one.memory, one.place)):
        if (block.memory, block.place) != follows:
            number += len(_NEIGHBOURS)  # out of reach of ``_NEIGHBOURS``
        for at, entry in enumerate(block.entries):
            above = heading(entry)
            for piece, text in enumerate(entry.pieces or [""]):
                rows[number] = _Row(block, at, piece, len(above) + len(text))
                texts.append((number, above, text))
                above = ""
                number += 1
        follows = block.memory, block.place + len(block.entries)
    candidates.add(texts)
    return rows


def _spread(counts: dict[int, int], rows: dict[int, _Row]) -> dict[int, float]:
    """Return the weighted occurrences of a word in each text and its neighbours, by number.

    ``counts`` has the occurrences in each text that has the word, by number of the text.
    """
    found: dict[int, float] = defaultdict(float)
    for number, count in counts.items():
        found[number] += count
        for distance, weight in enumerate(_NEIGHBOURS, 1):
            for other in (number - distance, number + distance):
                if other in rows:
                    found[other] += weight * count
    return found


def _length_around(number: int, rows: dict[int, _Row]) -> float:
    """Return the weighted mean length of the text ``number`` and its neighbours."""
    length, total = float(rows[number].length), 1.0
    for distance, weight in enumerate(_NEIGHBOURS, 1):
        for other in (number - distance, number + distance):
            if other in rows:
                length += weight * rows[other].length
                total += weight
    return length / total
