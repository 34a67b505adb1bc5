"""Tests that a search finds the stored messages, by memctl's index or the store's service."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import Dialect
from memctl.errors import UsageError
from memctl.model import MemoryKey, ServiceHit, StoredMessage
from memctl.ops.index import Target
from memctl.ops.search import By, Hit, SearchOptions, search
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import plain, read, write, write_all
from memctl.testing.samples import Sample, sample


async def find(
    place: Place, query: str, where: Selection | None = None, **options: Any
) -> list[Hit]:
    """Search the messages of a store with ``memctl.ops.search``."""
    target = Target(place.location, partial(place.store, create=False))
    return (await search([target], query, where or Selection(), SearchOptions(**options))).hits


class SearchTests:
    """Tests that a search finds the stored messages, and later the messages added since."""

    @pytest.mark.parametrize("keep", [True, False], ids=["kept", "unkept"])
    async def test_search_finds_what_is_there(
        self,
        make_place: Callable[[], Place],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        keep: bool,
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        place = make_place()
        first, second = samples.entries(40), samples.entries(3, start=700)
        keys = place.keys(2)
        async with place.store(create=True) as store:
            await write(store, [sample(keys[0], first)])
        [hit] = await find(place, '"message 7"', keep=keep)
        assert (hit.key, hit.id) == (keys[0], first[7].id)
        assert hit.spans
        assert not await find(place, '"message 701"', keep=keep)
        if len(keys) < 2:
            return
        async with place.store() as store:
            await write(store, [sample(keys[1], second)])
        [hit] = await find(place, '"message 701"', keep=keep)
        assert (hit.key, hit.id) == (keys[1], second[1].id)
        where = Selection(keys=frozenset({keys[0]}))
        assert not await find(place, '"message 701"', where, keep=keep)


WORD = "zeppelin"
"""The word that every second message has, and for which the tests search."""
_EACH = 12
"""The number of messages in a memory; messages with an even number have the word."""


def _id(number: int) -> str:
    return samples.style().name(f"m{number:07}")


def names(*found: str) -> frozenset[str]:
    return frozenset(found)


def at(minutes: float) -> datetime:
    return samples.BEGIN + timedelta(minutes=minutes)


def selections(keys: list[MemoryKey]) -> dict[str, Selection]:
    """Return selections of memories with these keys, by a name that describes the selection."""
    first, last = keys[0], keys[-1]
    return {
        "everything": Selection(),
        "a user": Selection(users=names(first.user, "nobody")),
        "a session": Selection(sessions=names(last.session)),
        "a memory": Selection(keys=frozenset({last})),
        "memories": Selection(keys=frozenset(keys[::2])),
        "all memories but one": Selection(done=frozenset({first})),
        "ids": Selection(ids=names(*(_id(number) for number in (0, 1, 2, 14)))),
        "a mark": Selection(marks=names("hint")),
        "an excluded mark": Selection(exclude_marks=names("hint", "compressed")),
        "roles": Selection(roles=names("user", "system")),
        "a name": Selection(names=names("Friday")),
        "since": Selection(since=at(5)),
        "until": Selection(until=at(4)),
        "period": Selection(since=at(2), until=at(8.5)),
        "match": Selection(match=f"{WORD} 2"),
        "match of something else": Selection(match="%"),
        "everything at once": Selection(
            users=names(first.user),
            sessions=names(first.session),
            marks=names("hint", "compressed"),
            exclude_marks=names("a"),
            roles=names("user", "assistant"),
            since=at(1),
            until=at(20),
            match=WORD,
        ),
        "a user who is not there": Selection(users=names("nobody")),
        "a name that is no text": Selection(users=names("caf\udce9")),
        "a session that is not there": Selection(sessions=names("\0", "*", "")),
        "many users": Selection(users=names(*(f"user{number}" for number in range(2000)))),
        "no memories": Selection(keys=frozenset()),
    }


QUERIES = (
    '"',
    f'"{WORD}',
    f"{WORD} AND (NOT OR NEAR/3) -a +b ^c ~d",
    f"{WORD[:3]}* ? %",
    f"text:{WORD} user:user0",
    "'; DROP TABLE message; --",
    '{"query": {"match_all": {}}, "$where": "1"}',
    '\\ \\" \\u0000',
    f"{WORD}\0{WORD}",
    "\0",
    "\x01\x1b[31m\x7f\n\r\t",
    f"half of a character: {WORD} \ud83d",
    "\udce9",
    "🎉 👩‍👩‍👧",
    "订机票",
    "z",
    f"{WORD} " * 1111 + "z",
    "z" * 10_000,
    '"' * 10_000,
    " ".join(f"word{number}" for number in range(1000)),
)
"""Queries whose syntax or size may make a search service fail."""


class Known(Struct, frozen=True):
    """A store location with searchable messages, and the memories written there."""

    place: Place
    memories: dict[MemoryKey, Sample]

    async def find(self, query: str, where: Selection, top: int = 100) -> list[ServiceHit]:
        """Search by the store's service, and return the hits.

        Asserts that the hits are selected messages, distinct, in order of scores, and at most
        ``top``.
        """
        async with self.place.store(create=False) as store:
            hits = await store.search(query, where, top)
            for hit in hits:
                entries = self.memories[hit.key].entries
                place = [entry.id for entry in entries].index(hit.message.id)
                assert plain(hit.message, store) == plain(entries[place], store)
                assert hit.position in (None, place)
        assert len(hits) <= top
        assert len(ids_of(hits)) == len(hits)
        assert all(where.has_key(hit.key) for hit in hits)
        assert all(where.matches(hit.message, _dialect()) for hit in hits)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        return hits

    def expected(self, where: Selection) -> set[tuple[MemoryKey, str]]:
        """Return the memory key and message id of each selected message with the word ``WORD``."""
        return {
            (key, entry.id)
            for key, one in self.memories.items()
            for entry in one.entries
            if WORD.encode() in entry.message
            and where.has_key(key)
            and where.matches(entry, _dialect())
        }


def _dialect() -> Dialect:
    return DIALECTS[samples.style().dialect]


def ids_of(hits: list[ServiceHit]) -> set[tuple[MemoryKey, str]]:
    return {(hit.key, hit.message.id) for hit in hits}


class ServiceSearchTests:
    """Tests that the search service of a store (see ``Features.search``) finds messages."""

    @pytest.fixture
    async def known(self, place: Place) -> Known:
        """Four written memories, with the word ``WORD`` in every second message."""
        async with place.store() as store:
            if not store.features.search:
                pytest.skip("its service does not search texts")
            starts = range(0, 4 * _EACH, _EACH)
            found = [
                sample(key, [_message(number) for number in range(start, start + _EACH)])
                for key, start in zip(place.keys(4), starts, strict=False)
            ]
            await write_all(store, found)
            memories = await read(store)
        if place.backend.make_searchable is not None:
            place.backend.make_searchable(place.text)
        return Known(place, memories)

    async def test_service_finds_what_is_selected(self, known: Known) -> None:
        for name, where in selections(list(known.memories)).items():
            hits = await known.find(WORD, where)
            assert ids_of(hits) >= known.expected(where), name

    async def test_service_finds_so_many_at_most(self, known: Known) -> None:
        for top in (1, 2, 7):
            assert len(await known.find(WORD, Selection(), top)) == top
        [key, *_] = known.memories
        where = Selection(keys=frozenset({key}), ids=names(_id(2), _id(4)))
        assert len(await known.find(WORD, where, 1)) == 1

    async def test_service_takes_any_query(self, known: Known) -> None:
        for query in QUERIES:
            await known.find(query, Selection())
        for query in ("", " \t\n "):
            with pytest.raises(UsageError):
                await known.find(query, Selection())

    async def test_service_cannot_count_the_newest(self, known: Known) -> None:
        for where in (Selection(last=1), Selection(spare=1)):
            with pytest.raises(UsageError):
                await known.find(WORD, where)

    async def test_search_by_service_shows_the_hits(self, known: Known) -> None:
        where = Selection(ids=names(_id(2)))
        [hit] = await find(known.place, WORD, where, by=By.SERVICE)
        assert (hit.key, hit.id) == known.expected(where).pop()
        assert WORD in hit.snippet
        assert hit.position in (None, 3)


def _message(number: int) -> StoredMessage:
    text = f"{WORD} {number}" if number % 2 == 0 else f"balloon {number}"
    return samples.entry(_id(number), number, samples.marks_of(number), content=text)
