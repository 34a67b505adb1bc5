"""Tests of renames: a memory is the same under its new name, and no other memory changes."""

from __future__ import annotations

import pytest

from memctl.model import MemoryKey
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import case, changing, read, write_into
from memctl.testing.samples import sample
from memctl.testing.suite.erase import texts

NEW = "numbat"
Contents = dict[MemoryKey, list[tuple[str, bytes, tuple[str, ...]]]]


async def contents(store: Store) -> Contents:
    """Return the ids, texts and marks of all messages, by memory: shapes may hold names."""
    found = (await read(store)).values()
    return {one.key: [(e.id, e.message, e.marks) for e in one.entries] for one in found}


class RenameTests:
    """Tests of ``Store.rename``."""

    async def test_rename_changes_nothing_but_names(self, many_place: Place) -> None:
        keys = many_place.keys(2)
        one, other = keys[0]._replace(session="quokka"), keys[1]
        await write_into(many_place, [sample(key, samples.entries(5)) for key in (one, other)])
        async with changing(many_place) as store:
            before, renames = await contents(store), store.features.renames
        if not renames:
            pytest.skip("renames nothing")
        for what in sorted(renames - {"merge"}):
            moves = {one: one._replace(session=NEW)}
            if what == "user":  # with all sessions
                of_user = [MemoryKey(one.user, ""), *(key for key in before if key[0] == one.user)]
                moves = {key: key._replace(user=NEW) for key in of_user}
            with case(what):
                async with changing(many_place) as store:
                    store.refuse_rename(what)
                    done = [(one.key, one.failure) async for one in store.rename(moves)]
                    assert done == [(key, None) for key in moves]
                async with changing(many_place) as store:
                    after = await contents(store)
                assert after == {moves.get(key, key): was for key, was in before.items()}
                titled = many_place.backend.style.dialect == "agentscope2"
                if what == "session" and not titled:
                    assert "quokka" not in texts(many_place.dump())
                async with changing(many_place) as store:
                    back = {new: old for old, new in moves.items()}
                    assert all([not one.failure async for one in store.rename(back)])
                    assert await contents(store) == before
