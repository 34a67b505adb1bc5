"""Sets of ids, exact or as digests."""

from __future__ import annotations

import pytest

from memctl.storekit.catalog import IdSet


@pytest.mark.parametrize("count", [0, 3, 65_536, 65_537, 200_000])
def test_id_set_set_of_ids(count: int) -> None:
    ids = IdSet()
    for start in range(0, count, 1000):
        ids.add(b"%d" % number for number in range(start, min(start + 1000, count)))
    assert ids.duplicates == 0
    assert all(b"%d" % number in ids for number in range(0, count, 7))
    assert not any(b"%d" % number in ids for number in range(count, count + 1000))
    ids.add([b"x", b"0", b"x", b"x"])
    assert ids.duplicates == 2 + (count > 0)
    assert b"x" in ids
    assert b"y" not in ids


def test_id_set_texts() -> None:
    ids = IdSet()
    ids.add(["a", "\ud800", "会", "a"])
    assert ids.duplicates == 1
    assert "\ud800" in ids
