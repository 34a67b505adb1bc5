"""Tests that the catalog agrees with the messages read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from memctl.dialects.registry import DIALECTS
from memctl.model import MemoryInfo
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import case, infos, read, write_all
from memctl.testing.samples import Sample, sample

SELECTIONS = {
    "all": Selection(),
    "a user": Selection(users=frozenset({"user0"})),
    "marked": Selection(marks=frozenset({"hint"})),
    "a role": Selection(roles=frozenset({"assistant"})),
    "the last": Selection(last=7),
    "a session's last": Selection(sessions=frozenset({"session0"}), last=1100),
}


def _assert_agrees(info: MemoryInfo, found: Sample) -> None:
    dialect = DIALECTS[samples.style().dialect]
    messages = [dialect.parse(entry.message) for entry in found.entries]
    roles = [message.role for message in messages if message.role is not None]
    times = [message.time for message in messages if message.time is not None]
    assert info.messages == len(messages)
    assert info.marks == Counter(mark for entry in found.entries for mark in entry.marks)
    assert info.roles == Counter(roles)
    assert (info.first, info.last) == ((min(times), max(times)) if times else (None, None))
    assert info.bytes == pytest.approx(sum(len(entry.message) for entry in found.entries), rel=0.2)
    assert info.ttl is None
    assert info.repeated in (0, None)


class CatalogTests:
    """Tests that the catalog agrees with the messages read."""

    async def test_catalog_agrees_with_reading(self, place: Place) -> None:
        counts = (place.size(1234), 3, 40, 1)
        written = [
            sample(key, samples.entries(n)) for key, n in zip(place.keys(4), counts, strict=False)
        ]
        async with place.store() as store:
            await write_all(store, written)
            for name, where in SELECTIONS.items():
                with case(name):
                    found = await read(store, where)
                    listed = await infos(store, where)
                    assert set(listed) == set(found)
                    for key, info in listed.items():
                        _assert_agrees(info, found[key])
                        assert (info.summary is None) == (not store.features.summaries)

    async def test_catalog_counts_hard_messages(self, place: Place) -> None:
        [key] = place.keys(1)
        written = sample(
            key, samples.nasty_entries(skip=place.backend.refuses | place.backend.alters)
        )
        async with place.store() as store:
            await write_all(store, [written])
            _assert_agrees((await infos(store))[key], (await read(store))[key])

    async def test_catalog_ignores_missing_roles_and_times(self, place: Place) -> None:
        """The catalog does not count roles and times that are missing or not text."""
        [key] = place.keys(1)
        odd: list[dict[str, Any]] = [
            {"role": None},
            {"role": 5},
            {"role": ["user"]},
            {"timestamp": 17},
        ]
        written = sample(key, [samples.entry(f"o{n}", n, **fields) for n, fields in enumerate(odd)])
        async with place.store() as store:
            await write_all(store, [written])
            _assert_agrees((await infos(store))[key], (await read(store))[key])
