"""The order of what was found: BM25 of a message, of its surroundings and of its block together.

An answer often stands next to the words that are looked for, in a conversation about them.  So a
message has three scores: for the words in it; for those in it and its neighbours, taken as one
text; and for those in its block, which is a conversation or a part of a long one.  Facts stand for
themselves, and have the first alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memctl.index.database import Block, Candidates, Entry, IndexFile, heading
from memctl.index.query import Query

BATCH = 32
"""The blocks of which the messages are ranked first; there are more where these are not enough."""

_COMMON = 0.5
"""A word in more than this share of the blocks chooses none, where there is another word."""
_CHOOSING = 2
"""Of words that are all common, so many of the rarest choose."""
_FEWEST = 20
"""The number of blocks from which words are counted as common."""

_NEIGHBOURS = (0.6, 0.3, 0.15)
"""The weights of words in the messages next to one, by distance."""


class Saturation(NamedTuple):
    """The parameters of BM25: how soon repetition stops to count, and how much length does."""

    k1: float
    b: float

    def __call__(self, count: float, length: float) -> float:
        """Return what so many occurrences are worth; ``length`` is relative to the mean."""
        return count * (self.k1 + 1) / (count + self.k1 * (1 - self.b + self.b * length))


_MESSAGE = Saturation(0.9, 0.4)
_SURROUNDINGS = Saturation(0.7, 0.4)
_BLOCK = Saturation(2.0, 0.75)
_WEIGHTS = (0.7, 1.0, 1.0)
"""Of the scores of message, surroundings and block."""
_RARITY = 0.8
"""The exponent of the weight of rare words: below one, several words count more than a rare one."""


@dataclass(slots=True)
class Statistics:
    """The frequency of words over all indexes of a search."""

    messages: int = 0
    blocks: int = 0
    frequencies: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The number of blocks with each word."""

    def add(self, index: IndexFile, units: Sequence[str]) -> None:
        """Take an index in."""
        self.messages += index.totals()[1]
        self.blocks += index.blocks()
        for unit in units:
            self.frequencies[unit] += index.frequency(unit)

    def rarity_in_blocks(self, unit: str) -> float:
        """Return the weight of a word in a block."""
        return _rarity(self.frequencies[unit], self.blocks)

    def rarity(self, unit: str) -> float:
        """Return the weight of a word in a message.

        How many messages have the word is estimated from the blocks that do, as if it were in any
        message of a block with the same probability.
        """
        blocks = max(self.blocks, 1)
        share = min(self.frequencies[unit], blocks - 0.5) / blocks
        each = 1 - (1 - share) ** (blocks / max(self.messages, 1))
        return math.pow(_rarity(self.messages * each, self.messages), _RARITY)

    def choosing(self, query: Query) -> list[str]:
        """Return the words that choose blocks: without common ones, where there are others."""
        found = [unit for unit in query.units if self.frequencies[unit]]
        if self.blocks < _FEWEST:
            return found
        limit = self.blocks * _COMMON
        rarest = sorted(found, key=self.frequencies.__getitem__)
        return [unit for unit in found if self.frequencies[unit] <= limit] or rarest[:_CHOOSING]


def _rarity(frequency: float, total: int) -> float:
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))


def expression(query: Query, choosing: Sequence[str]) -> str:
    """Return the expression of FTS5 for blocks that may have a hit."""
    some = " OR ".join(choosing)
    return " AND ".join((*query.phrases, f"({some})")) if query.phrases else some


class Ranked(NamedTuple):
    """A message with its score by words."""

    score: float
    block: Block
    at: int
    """Its index in the block."""
    piece: int
    """The index of its piece that answers best."""

    @property
    def entry(self) -> Entry:
        """The message."""
        return self.block.entries[self.at]


class _Row(NamedTuple):
    block: Block
    at: int
    piece: int
    length: int


class Ranker:
    """Ranks the messages of some blocks."""

    def __init__(self, query: Query, statistics: Statistics, *, facts: bool) -> None:
        self._query = query
        self._facts = facts
        self._units = [unit for unit in query.units if statistics.frequencies[unit]]
        self._rarity = {unit: statistics.rarity(unit) for unit in self._units}
        self._in_blocks = {unit: statistics.rarity_in_blocks(unit) for unit in self._units}

    def rank(
        self, blocks: Iterable[Block], candidates: Candidates, *, everything: bool = False
    ) -> list[Ranked]:
        """Return the messages that answer the query, in any order; ``candidates`` is empty.

        With ``everything`` messages without its words come, too, if they may.
        """
        rows = _rows(blocks, candidates)
        if not rows:
            return []
        scores = self._scores(rows, candidates)
        if everything:
            scores = dict.fromkeys(rows, 0.0) | scores
        places = {_place(row) for row in rows.values()}
        for phrase in self._query.phrases:
            places &= {_place(rows[number]) for number in candidates.matching(phrase)}
        for phrase in self._query.excluded:
            places -= {_place(rows[number]) for number in candidates.matching(phrase)}
        best: dict[tuple[int, int], Ranked] = {}
        for number, score in scores.items():
            row = rows[number]
            place = _place(row)
            if place in places and (place not in best or best[place].score < score):
                best[place] = Ranked(score, row.block, row.at, row.piece)
        return list(best.values())

    def _scores(self, rows: dict[int, _Row], candidates: Candidates) -> dict[int, float]:
        mean = sum(row.length for row in rows.values()) / len(rows) or 1.0
        scores: dict[int, float] = defaultdict(float)
        in_blocks: dict[int, float] = defaultdict(float)
        sizes: dict[int, int] = defaultdict(int)
        for row in rows.values():
            sizes[row.block.number] += row.length
        mean_size = sum(sizes.values()) / len(sizes) or 1.0
        own, near, whole = _WEIGHTS
        for unit in self._units:
            counts = candidates.counts(unit)
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
        return {
            number: score + in_blocks[rows[number].block.number] for number, score in scores.items()
        }


def _place(row: _Row) -> tuple[int, int]:
    return row.block.number, row.at


def _rows(blocks: Iterable[Block], candidates: Candidates) -> dict[int, _Row]:
    """Put the pieces of all messages into the candidates; those of one conversation in a row."""
    rows: dict[int, _Row] = {}
    texts: list[tuple[int, str]] = []
    number = 0
    follows = (0, 0)
    for block in sorted(blocks, key=lambda one: (one.memory, one.place)):
        if (block.memory, block.place) != follows:
            number += len(_NEIGHBOURS)  # out of reach of the neighbours
        for at, entry in enumerate(block.entries):
            for piece, text in enumerate(entry_texts(entry)):
                rows[number] = _Row(block, at, piece, len(text))
                texts.append((number, text))
                number += 1
        follows = block.memory, block.place + len(block.entries)
    candidates.add(texts)
    return rows


def entry_texts(entry: Entry) -> list[str]:
    """Return what is searched of a message, a text for each piece; the first has the heading."""
    first, *others = entry.pieces or [""]
    return [f"{heading(entry)}\n{first}", *others]


def _spread(counts: dict[int, int], rows: dict[int, _Row]) -> dict[int, float]:
    """Return the occurrences in the surroundings of each message, by distance less."""
    found: dict[int, float] = defaultdict(float)
    for number, count in counts.items():
        found[number] += count
        for distance, weight in enumerate(_NEIGHBOURS, 1):
            for other in (number - distance, number + distance):
                if other in rows:
                    found[other] += weight * count
    return found


def _length_around(number: int, rows: dict[int, _Row]) -> float:
    """Return the length of a message and its surroundings, as long as one message on average."""
    length, total = float(rows[number].length), 1.0
    for distance, weight in enumerate(_NEIGHBOURS, 1):
        for other in (number - distance, number + distance):
            if other in rows:
                length += weight * rows[other].length
                total += weight
    return length / total
