"""Tests that a rewrite takes a text out of all of a place, and changes nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from memctl.dialects.fact import decode_vector, embedded_text, vector_of, with_vector
from memctl.errors import UsageError
from memctl.model import MemoryKey, StoredMessage
from memctl.selection import EVERYTHING, Selection
from memctl.store import Store
from memctl.storekit.texts import Hit, Rewriter, Rewritten, TextResult
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import changing, read, write_into
from memctl.testing.samples import Sample, sample
from memctl.testing.suite.erase import SECRET, texts

GONE = "[gone]"
"""The text that takes the place of the secret; shorter than the secret."""


class Replacing(Rewriter):
    """Replaces the secret."""

    def suspects(self, some: Sequence[bytes]) -> Iterable[int]:
        return [at for at, text in enumerate(some) if SECRET.encode() in text]

    def rewrite(self, text: bytes, key: str = "") -> Rewritten:  # noqa: ARG002
        hits = [Hit("text", SECRET)] * text.count(SECRET.encode())
        return Rewritten(text.replace(SECRET.encode(), GONE.encode()), hits, [])

    def vector(self, text: str) -> array[float]:
        return decode_vector(_vector(text))

    def find(self, text: str) -> list[Hit]:
        return [Hit("text", SECRET)] * text.count(SECRET)


async def rewrite(store: Store, where: Selection = EVERYTHING, *, writes: bool) -> list[TextResult]:
    """Take the secret out of a store; skip the test if memctl does not rewrite its texts."""
    try:
        return [one async for one in store.rewrite_texts(Replacing(), where, writes=writes)]
    except UsageError as error:
        pytest.skip(error.message)


def _with_secrets(some: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Return messages; every second message has the secret."""
    return [
        one._replace(message=one.message.replace(b"message ", f"{SECRET} ".encode()))
        if at % 2
        else one
        for at, one in enumerate(some)
    ]


def _seen(found: dict[MemoryKey, Sample]) -> dict[MemoryKey, Sample]:
    """Return memories without the forms in which the store holds their messages."""
    return {
        key: Sample(one.memory, [entry._replace(shape="") for entry in one.entries])
        for key, one in found.items()
    }


def _vector(text: str) -> str:
    """Return the vector that is made of the text of a fact."""
    return samples.vector(text, samples.style().dimensions)


def _redacted(message: bytes) -> bytes:
    new = message.replace(SECRET.encode(), GONE.encode())
    if new != message and samples.style().dimensions and vector_of(message) is not None:
        return with_vector(new, _vector(embedded_text(new)))
    return new


def _without(memory: Sample) -> Sample:
    about, entries = memory.memory, memory.entries
    summary = about.summary and about.summary.replace(SECRET, GONE)
    return Sample(
        replace(about, summary=summary, extra=about.extra.replace(SECRET, GONE)),
        [
            one._replace(
                message=_redacted(one.message),
                shape=one.shape.replace(SECRET, GONE),
            )
            for one in entries
        ],
    )


class RewriteTests:
    """Tests that a rewrite takes a text out of all of a place, and changes nothing else."""

    async def test_rewrite_leaves_nothing_of_a_text(self, place: Place) -> None:
        async with place.store() as store:
            summary = f"She wrote {SECRET}." if store.features.summaries else None
        await write_into(
            place,
            [
                sample(one.key, _with_secrets(one.entries), summary=summary)
                for one in samples.several(place.keys(2), 12)
            ],
        )
        before = place.dump()
        assert SECRET in texts(before)
        async with place.store(create=False) as store:
            there = await read(store)
            found = await rewrite(store, writes=False)
            assert [one for one in found if one.hits]
            assert place.dump() == before, "nothing changes without writes"
        async with changing(place) as store:
            done = await rewrite(store, writes=True)
        assert not [one.left for one in done if one.left]
        assert len(done) == len(found)
        assert SECRET not in texts(place.dump())
        async with place.store(create=False) as store:
            if not place.backend.shown_as:  # whose notes hold for one text of a message
                expected = {key: _without(one) for key, one in there.items()}
                assert _seen(await read(store)) == _seen(expected)
        async with changing(place) as store:
            assert await rewrite(store, writes=True) == []

    async def test_rewrite_of_selected_memories_changes_no_other(self, place: Place) -> None:
        async with place.store() as store:
            if not store.features.selects_texts:
                pytest.skip("its texts are rewritten as a whole")
        one, other = samples.several(place.keys(2), 12)
        some = [sample(each.key, _with_secrets(each.entries)) for each in (one, other)]
        await write_into(place, some)
        async with place.store(create=False) as store:
            there = await read(store)
        where = Selection(frozenset({one.key.user}), frozenset({one.key.session}))
        async with changing(place) as store:
            assert await rewrite(store, where, writes=True)
            assert not await rewrite(store, where, writes=True)
        async with place.store(create=False) as store:
            found = _seen(await read(store))
        if place.backend.shown_as:  # whose notes hold for one text of a message
            del found[one.key], there[one.key]
        expected = {key: _without(m) if key == one.key else m for key, m in there.items()}
        assert found == _seen(expected)
