"""A search finds what is in the store, and the next one what came since."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from memctl.ops.index import Target
from memctl.ops.search import Hit, SearchOptions, search
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import write
from memctl.testing.samples import sample


async def find(
    place: Place, query: str, where: Selection | None = None, *, keep: bool = True
) -> list[Hit]:
    """Search a place."""
    target = Target(place.location, partial(make_store, place.location))
    options = SearchOptions(keep=keep)
    return (await search([target], query, where or Selection(), options)).hits


class SearchTests:
    """A search finds what is in the store, and the next one what came since."""

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
