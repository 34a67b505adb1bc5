"""Edits of messages whose ids occur twice."""

from __future__ import annotations

import pytest

from memctl.model import Change, StoredMessage
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import write_all
from tests.conformance.editing import (
    assert_changed,
    assert_holds,
    changing,
    edit,
    edit_all,
    edits,
)
from tests.conformance.samples import sample


def twins() -> list[StoredMessage]:
    """Messages of which some share an id, with the same marks or with others."""
    return [
        samples.entry("a", 0),
        samples.entry("twin", 1, ("hint",)),
        samples.entry("b", 2),
        samples.entry("twin", 3),
        samples.entry("twin", 4, ("hint",)),
        samples.entry("c", 5),
        samples.entry("twin", 6, ("hint",)),
    ]


TWINS: dict[str, tuple[list[Change], list[int]]] = {
    "the first with these marks": ([Change("twin", ("hint",))], [0, 2, 3, 4, 5, 6]),
    "the first without": ([Change("twin", ())], [0, 1, 2, 4, 5, 6]),
    "two with these marks": ([Change("twin", ("hint",))] * 2, [0, 2, 3, 5, 6]),
    "all in order": (
        [Change("twin", ("hint",)), Change("twin", ()), *[Change("twin", ("hint",))] * 2],
        [0, 2, 5],
    ),
    "the next behind another": ([Change("twin", ()), Change("c", ())], [0, 1, 2, 4, 6]),
}


@pytest.mark.parametrize("name", TWINS)
async def test_repeated_ids(place: Place, name: str) -> None:
    """A change is for the next message in order that it fits."""
    [key] = place.keys(1)
    before = twins()
    async with place.store() as store:
        if not store.features.duplicate_ids:
            pytest.skip("an id occurs once")
        await write_all(store, [sample(key, before)])
    changes, left = TWINS[name]
    async with changing(place) as store:
        await edit_all(store, key, changes)
    await assert_holds(place, [sample(key, [before[n] for n in left])])


async def test_repeated_ids_that_are_too_few(place: Place) -> None:
    [key] = place.keys(1)
    one = sample(key, twins())
    async with place.store() as store:
        if not store.features.duplicate_ids:
            pytest.skip("an id occurs once")
        await write_all(store, [one])
    async with changing(place) as store:
        tallies = await edit(store, edits(key, [Change("twin", ("hint",))] * 4))
        assert_changed(tallies[key])
    await assert_holds(place, [one])
