"""Catalog entries and windows, computed from pages."""

from __future__ import annotations

import pytest

from memctl.storekit.catalog import window
from memctl.testing import samples
from memctl.testing.drive import pages
from memctl.testing.samples import sample


@pytest.mark.parametrize(
    ("start", "first", "stop"),
    [
        (0, 0, 7),
        (5, 5, 12),
        (20, 20, 25),
        (25, 25, 25),
        (99, 25, 25),
        (-1, 24, 25),
        (-7, 18, 25),
        (-12, 13, 20),
        (-99, 0, 7),
    ],
)
@pytest.mark.asyncio
async def test_window_spans_pages(start: int, first: int, stop: int) -> None:
    memory = sample(samples.key(0), samples.entries(25))
    found = await window(pages([memory], size=10), start, 7)
    assert found is not None
    assert found.messages == memory.entries[first:stop]
    assert (found.offset, found.last) == (first, stop == 25)
