"""Search: the messages of several stores that best answer a query."""

from __future__ import annotations

import heapq
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import replace
from datetime import tzinfo
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, field, structs

from memctl.dialects.live import untagged
from memctl.dialects.view import local_time
from memctl.embedder import Embedder, EmbeddingReport, embed_all
from memctl.errors import Unavailable, UsageError
from memctl.index.database import (
    END,
    START,
    Block,
    Candidates,
    DamagedIndex,
    IndexedMessage,
    remove_file,
)
from memctl.index.folder import make_folder
from memctl.index.query import Query, parse
from memctl.index.ranking import BATCH, Ranked, Ranker, Statistics, expression
from memctl.index.text import plain, prepare
from memctl.index.vectors import require_numpy, similarities, smoothed, without_senders
from memctl.model import MemoryKey, ServiceHit
from memctl.ops.index import (
    IndexUse,
    OpenIndex,
    Target,
    embed,
    has_all_vectors,
    open_index,
    rebuilt,
)
from memctl.ops.report import Progress
from memctl.reports.search import NeighbourRow
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.words import nearest


class By(StrEnum):
    """The ways to search: by words, by meaning (vectors), by both, or by a store's own service."""

    WORDS = "words"
    MEANING = "meaning"
    BOTH = "both"
    SERVICE = "service"


class SearchOptions(Struct, frozen=True):
    """The options of a search.

    ``by`` is the way to search.  ``top`` is the largest number of hits.  ``around`` is the number
    of messages to show before and after each hit.  With ``keep``, the index stays in the cache
    folder; without ``keep``, it is temporary.
    """

    by: By = By.WORDS
    top: int = 10
    around: int = 0
    keep: bool = True


class Hit(Struct, frozen=True):
    """A found message.

    ``store`` is the label of the store.  ``position`` counts from 1 in the memory; None if the
    search service of the store does not know it.  ``has_words`` is True if the message has a word
    and all phrases of the query, False if it was found by its meaning alone.  ``unread`` is the
    reason why the framework does not read the message; empty if it does.  ``snippet`` is a part of
    the text on one line.  ``spans`` are the start and end of each match in the snippet.
    ``before`` and ``after`` are the messages before and after the hit in the memory, in order.
    """

    store: str
    key: MemoryKey
    id: str
    position: int | None
    time: str | None
    role: str | None
    name: str | None
    marks: tuple[str, ...]
    score: float
    has_words: bool
    snippet: str
    spans: tuple[tuple[int, int], ...] = ()
    before: tuple[NeighbourRow, ...] = ()
    after: tuple[NeighbourRow, ...] = ()
    unread: str = ""


class SearchReport(Struct):
    """The result of a search, best hits first."""

    hits: list[Hit] = field(default_factory=list)
    found: int | None = None
    """The number of hits, before the best were chosen; None unless the search was by words."""
    complete: bool = True
    """False if not all messages were looked at, so that ``found`` may be too small."""
    index: IndexUse = field(default_factory=IndexUse)
    warnings: list[str] = field(default_factory=list)
    noun: str = "message"
    """What the stores call a message: "message" or "fact"."""
    embedding: EmbeddingReport = field(default_factory=EmbeddingReport)
    """The vectors that the search made, with the vector of the query."""
    memories: int | None = None
    """The number of memories of the named users or sessions.

    None if the selection has no names, or if a service searched.
    """
    names: list[MemoryKey] = field(default_factory=list)
    """All memories, if none is of the named users or sessions."""
    similar: dict[str, str] = field(default_factory=dict)
    """For a search by words without hits: words that no message has, and a similar word of one."""


async def search(
    targets: Sequence[Target],
    query: str,
    where: Selection,
    options: SearchOptions,
    progress: Progress | None = None,
    embedder: Embedder | None = None,
) -> SearchReport:
    """Return the selected messages of the stores ``targets`` that answer the query best.

    ``embedder`` makes vectors for a search by meaning.  A damaged index is made anew.  If no index
    can be kept, the stores are read as without ``options.keep``, with a warning.

    Raises:
        UsageError: the query has no words to search for, or the way to search is not possible.
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    if options.by is By.SERVICE:
        return await _by_service(targets, query, where, options)
    notes: list[str] = []
    if options.keep:
        try:
            make_folder()
        except Unavailable as error:
            notes.append(f"{error.message}: no index is kept, and each search reads all messages")
            options = structs.replace(options, keep=False)
    while True:
        try:
            report = await _search(targets, query, where, options, progress, embedder)
        except DamagedIndex as error:
            if not options.keep or len(notes) == len(targets):
                raise Unavailable(f"the index {error.path} cannot be read") from error
            notes.append(rebuilt(error))
            remove_file(error.path)
            continue
        report.warnings[:0] = notes
        return report


async def _by_service(
    targets: Sequence[Target], query: str, where: Selection, options: SearchOptions
) -> SearchReport:
    """Search with the stores' own services; order the hits by score."""
    report = SearchReport()
    parsed = parse(query)
    narrowed = parsed.narrowed(where)
    for target in targets if narrowed is not None else ():
        async with target.make() as store:
            report.noun = store.dialect.noun
            for found in await store.search(parsed.text, narrowed or where, options.top):
                report.hits.append(_service_hit(store, found, parsed))
            report.warnings += store.warnings
    report.hits = heapq.nlargest(options.top, report.hits, key=lambda hit: hit.score)
    return report


def _service_hit(store: Store, found: ServiceHit, query: Query) -> Hit:
    view = store.dialect.outline(found.message.message)
    text = prepare(view.searchable())
    with Candidates() as candidates:
        candidates.add([(1, "", text)])
        has_words = query.is_in([one for one in query.units if candidates.matching(one)])
    snippet, spans = excerpt(text, query.units)
    place = found.position
    return Hit(
        *(store.label, found.key, found.message.id),
        None if place is None else place + 1,
        view.time,
        view.role,
        view.name,
        found.message.marks,
        round(found.score, 4),
        has_words,
        snippet,
        spans,
        unread=untagged(found.message.marks)[1],
    )


async def _search(
    targets: Sequence[Target],
    query: str,
    where: Selection,
    options: SearchOptions,
    progress: Progress | None,
    embedder: Embedder | None,
) -> SearchReport:
    parsed = parse(query)
    report = SearchReport()
    report.embedding.embedder = embedder
    narrowed = parsed.narrowed(where)
    vector: array[float] | None = None
    by_meaning = options.by in (By.MEANING, By.BOTH)
    if by_meaning:
        require_numpy()
        if embedder is None:
            raise UsageError(
                f"a search by {options.by} needs an embedder", "name one with --embedder"
            )
    async with AsyncExitStack() as stack:
        indexes = []
        for target in targets:
            opening = open_index(target, progress, keep=options.keep, where=narrowed or where)
            index = await stack.enter_async_context(opening)
            report.warnings += index.use.warnings
            report.index.add(index.use)
            report.noun = index.noun
            indexes.append(index)
        if embedder is not None and by_meaning:
            senders = {name for index in indexes for name in index.file.senders()}
            wanted = await embed_all(embedder, [without_senders(parsed.text or query, senders)])
            report.embedding.usage = report.embedding.usage.plus(wanted.usage)
            vector = wanted.vectors[0]
            for index in indexes:
                held = await _embedded(index, embedder, len(vector), report.embedding, progress)
                stack.enter_context(held)
        else:
            for index in indexes:
                stack.enter_context(index.file.snapshot())
        if narrowed is not None:
            found = _Search(parsed, narrowed, options, indexes, vector)
            report.hits = found.hits()
            report.complete = found.complete
            report.found = found.count
        elif options.by is By.WORDS:
            report.found = 0
        if where.named:
            report.memories = sum(
                where.has_key(row.key)
                for index in indexes
                for row in index.file.memories(where.users)
            )
            if not report.memories:
                report.names = [row.key for index in indexes for row in index.file.memories()]
        if report.found == 0:
            report.similar = _similar(parsed, indexes)
    return report


def _similar(query: Query, indexes: Sequence[OpenIndex]) -> dict[str, str]:
    """Map words of the query that no message has to the most similar word of a message."""
    found = {}
    for unit in query.words:
        word = unit.strip('" *')
        if len(word) < _LEAST_WORD or any(index.file.frequency(unit) for index in indexes):
            continue
        sizes = len(word) - 2, len(word) + 1
        near = {stem: index for index in indexes for stem in index.file.stems(word[0], *sizes)}
        best = nearest(word, near)
        if best and (whole := _word_of(near[best], best)):
            found[word] = whole
    return found


def _word_of(index: OpenIndex, stem: str) -> str | None:
    """Return a word with a stem from a message of the index."""
    unit = f'"{stem}" *'
    for number in index.file.find(unit, 1):
        for entry in index.file.block(number).entries:
            for piece in entry.pieces:
                text, spans = excerpt(piece, [unit])
                if spans:
                    return text[slice(*spans[0])].casefold()
    return None


async def _embedded(
    index: OpenIndex,
    embedder: Embedder,
    size: int,
    report: EmbeddingReport,
    progress: Progress | None,
) -> ExitStack:
    """Make the missing vectors of an index; return an open snapshot of the index with all vectors.

    ``size`` is the number of dimensions of a vector.
    """
    while True:
        made = await embed(index.file, embedder, progress, size=size)
        report.texts += made.texts
        report.usage = report.usage.plus(made.usage)
        with ExitStack() as held:
            held.enter_context(index.file.snapshot())
            if has_all_vectors(index.file, embedder, size):
                return held.pop_all()


class _Found(NamedTuple):
    """A found message, its index ``where``, and the similarity of its meaning to the query."""

    where: OpenIndex
    ranked: Ranked
    meaning: float = 0.0


class _Search(Struct):
    """A search by words or meaning in up-to-date indexes."""

    query: Query
    where: Selection
    options: SearchOptions
    indexes: Sequence[OpenIndex]
    vector: array[float] | None
    """The vector of the query; None searches by words only."""
    count: int | None = None
    """After ``hits``, the number of all hits of a search by words."""
    complete: bool = True
    """After ``hits``, False if there may be more than ``count``."""
    _statistics: Statistics = field(default_factory=Statistics)

    def hits(self) -> list[Hit]:
        """Return the best hits of all indexes, the best first.

        Raises:
            DamagedIndex: an index cannot be read.
        """
        for index in self.indexes:
            self._statistics.add(index.file, self.query.units)
        found = [one for index in self.indexes for one in self._found(index)]
        if self.vector is None:
            self.count = len(found)
            self.complete &= self._statistics.chooses_all(self.query)
        scored = self._mixed(found)
        best = heapq.nlargest(self.options.top, scored, key=lambda one: one[0])
        return [self._hit(score, one) for score, one in best]

    def _mixed(self, found: list[_Found]) -> Iterator[tuple[float, _Found]]:
        match self.options.by:
            case By.WORDS:
                yield from ((one.ranked.score, one) for one in found)
            case By.MEANING:
                yield from ((one.meaning, one) for one in found)
            case _:
                most = max((one.ranked.score for one in found), default=0.0) or 1.0
                for one in found:
                    yield one.ranked.score / most + MEANING * one.meaning, one

    def _found(self, index: OpenIndex) -> Iterator[_Found]:
        """Yield the selected messages that match the query; weak matches may be missing."""
        allowed = self._memories(index)
        if allowed == []:
            return
        ranker = Ranker(self.query, self._statistics, facts=index.facts)
        newest = _Newest(index, self.where) if self.where.last is not None else None
        always = replace(self.where, since=None, until=None)
        hits = untimed = 0
        for blocks, more in self._blocks(index, allowed):
            with Candidates() as candidates:
                ranked = ranker.rank(blocks, candidates, everything=self.vector is not None)
            for one in self._with_meaning(index, blocks, ranked):
                if admits(self.where, one.ranked.entry, index.zone) and (
                    newest is None or newest.has(one.ranked.block, one.ranked.at)
                ):
                    hits += 1
                    yield one
                elif self.where.has_period and admits(always, one.ranked.entry, None):
                    untimed += local_time(one.ranked.entry.time) is None
                    noun = "fact" if index.facts else "message"
                    self.where.untimed.note(index.file.path, untimed, noun)
            if more and hits >= self.options.top:
                self.complete = False
                return

    def _blocks(
        self, index: OpenIndex, allowed: list[int] | None
    ) -> Iterator[tuple[list[Block], bool]]:
        """Yield lists of blocks that may have hits, and whether more may follow; the best first.

        ``allowed`` are the numbers of the memories to search; None searches all.
        """
        limit = max(BATCH, self.options.top)
        seen: set[int] = set()
        while True:
            words, nearest = self._by_words(index, limit, allowed), []
            if self.vector is not None:
                nearest = self._by_meaning(index, limit, allowed)
            numbers = list(dict.fromkeys(one for one in (*words, *nearest) if one not in seen))
            seen.update(numbers)
            last = max(len(words), len(nearest)) < limit
            for start in range(0, len(numbers), 2 * BATCH):  # holds only some blocks
                some = numbers[start : start + 2 * BATCH]
                more = not last or start + 2 * BATCH < len(numbers)
                yield [index.file.block(number) for number in some], more
            if last:
                return
            limit *= 4

    def _by_words(self, index: OpenIndex, limit: int, allowed: list[int] | None) -> list[int]:
        choosing = self._statistics.choosing(self.query)
        if self.options.by is By.MEANING or not choosing:
            return []
        return index.file.find(expression(self.query, choosing), limit, allowed)

    def _by_meaning(self, index: OpenIndex, limit: int, allowed: list[int] | None) -> list[int]:
        assert self.vector is not None
        vector = self.vector
        with closing(index.file.vectors(allowed)) as rows:
            best = ((max(_near(index, matrix, vector)), number) for number, matrix in rows)
            return [number for _, number in heapq.nlargest(limit, best)]

    def _with_meaning(
        self, index: OpenIndex, blocks: list[Block], ranked: list[Ranked]
    ) -> Iterator[_Found]:
        """Yield the messages ``ranked`` with the similarity of their meaning to the query.

        In a search by words only, the similarity is zero.
        """
        if self.vector is None:
            yield from (_Found(index, one) for one in ranked)
            return
        meanings: dict[tuple[int, int], tuple[float, int]] = {}
        for block in blocks:
            pieces = sum(len(entry.pieces) for entry in block.entries)
            found = _near(index, index.file.vectors_of(block.number), self.vector, pieces)
            near = iter(found)
            best = [
                max((value, -piece) for piece, value in enumerate(islice(near, len(entry.pieces))))
                for entry in block.entries
            ]
            values = [value for value, _ in best]
            if not index.facts:
                values = smoothed(values)
            for at, (value, (_, piece)) in enumerate(zip(values, best, strict=True)):
                meanings[block.number, at] = value, -piece
        for one in ranked:
            meaning, piece = meanings[one.block.number, one.at]
            # A message without the words shows the piece with the most similar meaning.
            yield _Found(index, one if one.has_words else one._replace(piece=piece), meaning)

    def _memories(self, index: OpenIndex) -> list[int] | None:
        """Return the numbers of the selected memories; None if all are."""
        where = self.where
        if not (where.users or where.sessions or where.parts or where.keys is not None):
            return None
        rows = index.file.memories(where.users)
        return [row.number for row in rows if where.has_key(row.key)]

    def _hit(self, score: float, found: _Found) -> Hit:
        index, ranked = found.where, found.ranked
        entry, place = ranked.entry, ranked.block.place + ranked.at
        memory = index.file.memory_of(ranked.block.memory)
        snippet, spans = excerpt(entry.pieces[ranked.piece], self.query.units)
        marks, unread = untagged(entry.marks)
        hit = Hit(
            *(index.label, memory.key, entry.id, place + 1),
            *(entry.time, entry.role, entry.name, marks),
            round(score, 4),
            ranked.has_words,
            snippet,
            spans,
            unread=unread,
        )
        if not self.options.around or index.facts:
            return hit
        before, after = self._around(index, memory.number, place)
        return structs.replace(hit, before=before, after=after)

    def _around(
        self, index: OpenIndex, memory: int, place: int
    ) -> tuple[tuple[NeighbourRow, ...], tuple[NeighbourRow, ...]]:
        """Return the messages to show before and after a message."""
        first, last = place - self.options.around, place + self.options.around
        before: list[NeighbourRow] = []
        after: list[NeighbourRow] = []
        for block in index.file.blocks_between(memory, first, last):
            for at, entry in enumerate(block.entries, block.place):
                if first <= at <= last and at != place:
                    text, _ = excerpt("\n".join(entry.pieces[:1]), [])
                    one = NeighbourRow(entry.id, at + 1, entry.time, entry.role, entry.name, text)
                    (before if at < place else after).append(one)
        return tuple(before), tuple(after)


def _near(
    index: OpenIndex, matrix: bytes, vector: array[float], pieces: int | None = None
) -> list[float]:
    """Return the similarity of each vector of a block to the vector of the query.

    ``matrix`` are the vectors of the block.  ``pieces`` is their expected number, None if unknown.

    Raises:
        DamagedIndex: the vectors are invalid, or their number is not ``pieces``.
    """
    try:
        found = similarities(matrix, vector)
    except ValueError as error:
        raise DamagedIndex(index.file.path, error) from error
    if not found or pieces not in (None, len(found)):
        raise DamagedIndex(index.file.path, f"{len(found)} vectors of {pieces} pieces")
    return found


def admits(where: Selection, entry: IndexedMessage, zone: tzinfo | None) -> bool:
    """Return whether a message of a selected memory is selected, if ``where.last`` is ignored.

    ``zone`` is the zone of a time without one; None for the local zone.
    """
    return (
        where.matches_outside(entry.id, entry.marks)
        and where.matches_fields(entry.role, entry.name, lambda: local_time(entry.time, zone))
        and (where.match is None or where.has_match([plain("".join(entry.pieces))]))
    )


class _Newest:
    """A test whether a message is among the last ``where.last`` selected messages of its memory."""

    def __init__(self, index: OpenIndex, where: Selection) -> None:
        self._index = index.file
        self._zone = index.zone
        self._where = where
        self._first: dict[int, int] = {}
        """For each memory, by its number, the index of the first message that passes the test."""

    def has(self, block: Block, at: int) -> bool:
        """Return whether the message ``at`` of a block is among the newest selected ones."""
        first = self._first.get(block.memory)
        if first is None:
            first = self._first[block.memory] = self._oldest(block.memory)
        return block.place + at >= first

    def _oldest(self, memory: int) -> int:
        left = self._where.last or 0
        for mark in reversed(self._index.marks_of(memory)):
            block = self._index.block(mark.number)
            for at in reversed(range(len(block.entries))):
                if admits(self._where, block.entries[at], self._zone):
                    left -= 1
                    if not left:
                        return block.place + at
        return 0


_LEAST_WORD = 4
"""The length of the shortest word for which a similar word is suggested."""

MEANING = 1.5
"""The weight of meaning in a search by words and meaning; the best score of words weighs 1."""

SNIPPET = 200
"""The approximate length of a snippet, in characters."""


def excerpt(text: str, units: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the part of a text with the most matches, on one line, and the span of each match.

    ``text`` is in the form that the index stores.  ``units`` are the words and phrases to match;
    without ``units``, the part is the beginning.  A span is a start and an end in the part.
    """
    marked = text
    if units:
        with Candidates() as candidates:
            candidates.add([(1, "", text)])
            marked = candidates.highlighted(1, " OR ".join(units))
    whole, spans = _unmark(" ".join(plain(marked).split()))
    start = _best_start(spans)
    start = start and whole.rfind(" ", 0, start) + 1 if start < len(whole) else 0
    end = min(len(whole), start + SNIPPET)
    if end < len(whole):
        space = whole.rfind(" ", start, end)
        end = space if space > start else end
    head, tail = "…" if start else "", "…" if end < len(whole) else ""
    shift = len(head) - start
    inside = [
        (max(a, start) + shift, min(b, end) + shift) for a, b in spans if a < end and b > start
    ]
    return head + whole[start:end] + tail, tuple(inside)


def _unmark(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without the marks ``START`` and ``END`` of matches, and the matches' spans."""
    text: list[str] = []
    spans: list[tuple[int, int]] = []
    length = begin = 0
    for part in re.split(f"([{START}{END}])", marked):
        if part == START:
            begin = length
        elif part == END:
            spans.append((begin, length))
        else:
            text.append(part)
            length += len(part)
    return "".join(text), spans


def _best_start(spans: Sequence[tuple[int, int]]) -> int:
    """Return the start of the snippet with the most ``spans``."""
    best, start = 0, 0
    for begin, _ in spans:
        inside = sum(begin <= other < begin + SNIPPET * 3 // 4 for other, _ in spans)
        if inside > best:
            best, start = inside, begin
    return max(0, start - SNIPPET // 5)
