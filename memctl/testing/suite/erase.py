"""Tests that erased memories leave no trace in a place, and that all other data stay."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest

from memctl.machine import zstd
from memctl.model import MemoryKey, WriteResult
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import case, changing, read, write, write_all, write_into
from memctl.testing.samples import Sample, sample

ERASED = [
    "quokka",
    "quokka:session:x",
    "qu*kka?",
    "qu%kka_",
    "qu/kka",
    "😀quokka",
    "Quokka",
]
"""The names of users to erase."""
SECRET = "a word that nobody else writes"


def of_user(*users: str) -> Selection:
    """Return a ``Selection`` of all memories of the users."""
    return Selection(users=frozenset(users))


async def erase(store: Store, where: Selection) -> list[WriteResult]:
    """Erase the selected memories, assert that no erasure fails, and return the results."""
    results = [result async for result in store.erase(where)]
    assert not [result for result in results if result.failure], results
    return results


async def names(store: Store, where: Selection) -> set[MemoryKey]:
    """Return the keys of all selected memories, from ``Store.names``."""
    return {key async for key in store.names(where)}


def texts(value: Any) -> str:
    """Return all values in the dump of a store as one text; compressed bytes are decompressed."""
    if isinstance(value, bytes):
        if value.startswith(b"\x1f\x8b"):
            value = gzip.decompress(value)
        elif value.startswith(b"\x28\xb5\x2f\xfd"):
            value = zstd.ZstdFile(io.BytesIO(value)).read()
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, dict):
        return "\n".join(texts(one) for item in value.items() for one in item)
    if isinstance(value, list | tuple | set | frozenset):
        return "\n".join(texts(one) for one in value)
    return str(value)


def written(user: str) -> tuple[list[Sample], list[Sample]]:
    """Return the memories of ``user`` to write, and those of other users.

    Each message of ``user`` has a secret.
    """
    mine = [MemoryKey(user, "first trip"), MemoryKey(user, "second trip")]
    others = [samples.key(0), samples.key(1), MemoryKey("someone", "else's trip")]
    some = samples.entries(12)
    secret = [one._replace(message=_with_secret(one.message)) for one in some]
    return [sample(key, secret) for key in mine], [sample(key, some) for key in others]


def _with_secret(message: bytes) -> bytes:
    return message.replace(b"[true, null, 1.5]", json.dumps(SECRET).encode())


def _require_users(place: Place) -> None:
    if not place.backend.users:
        pytest.skip("its memories belong to no user")


async def assert_erases(place: Place, user: str, mine: list[Sample], others: list[Sample]) -> None:
    """Assert that an erasure of ``user`` removes ``mine``, and changes nothing of ``others``."""
    async with changing(place) as store:
        store.resolve_names([one.key for one in (*mine, *others)])
        before = await read(store)
        assert SECRET in texts(place.dump())
        assert await names(store, of_user(user)) >= {one.key for one in mine}
        results = await erase(store, of_user(user))
        assert {result.key for result in results} >= {one.key for one in mine}
        assert sum(result.deleted for result in results) == sum(len(one.entries) for one in mine)
    async with place.store(create=False) as store:
        store.resolve_names([one.key for one in others])
        after = await read(store)
        assert after == {key: one for key, one in before.items() if key.user != user}
        assert not await names(store, of_user(user))
    left = texts(place.dump())
    assert SECRET not in left
    for text in {user, json.dumps(user)[1:-1]}:
        assert text not in left


class EraseTests:
    """Tests that erased memories leave no trace in a place, and that all other data stay."""

    async def test_erase_leaves_nothing_of_a_user(self, many_place: Place) -> None:
        _require_users(many_place)
        await write_into(many_place, written("")[1])
        for user in ERASED:
            mine, others = written(user)
            async with many_place.store() as store:
                results = await write(store, mine)
            if any(result.failure for result in results.values()):
                assert many_place.backend.refuses_names
                continue
            with case(user):
                await assert_erases(many_place, user, mine, others)

    async def test_erase_of_a_session_keeps_the_others(self, many_place: Place) -> None:
        _require_users(many_place)
        mine, others = written("quokka")
        await write_into(many_place, [*mine, *others])
        async with changing(many_place) as store:
            before = await read(store)
            where = Selection(users=frozenset({"quokka"}), sessions=frozenset({"first trip"}))
            assert [one.key for one in await erase(store, where)] == [mine[0].key]
        async with many_place.store(create=False) as store:
            after = await read(store)
        assert after == {key: one for key, one in before.items() if key != mine[0].key}
        assert "first trip" not in texts(many_place.dump())

    async def test_erase_changes_nothing_where_nobody_is_named(self, many_place: Place) -> None:
        _require_users(many_place)
        _, others = written("quokka")
        await write_into(many_place, others)
        before = many_place.dump()
        async with changing(many_place) as store:
            assert await erase(store, of_user("quokka", "some", "user", "*")) == []
        assert many_place.dump() == before

    async def test_erase_again_finds_nothing(self, place: Place) -> None:
        [key] = place.keys(1)
        await write_into(place, [sample(key, samples.entries(5))])
        where = Selection(users=frozenset({key.user}), sessions=frozenset({key.session}))
        async with changing(place) as store:
            [result] = await erase(store, where)
            assert (result.key, result.deleted) == (key, 5)
        if place.backend.only:
            assert place.dump() == {}
            return
        async with changing(place) as store:
            assert await erase(store, where) == []

    async def test_erase_of_users_who_share_a_session(self, many_place: Place) -> None:
        keys = [MemoryKey(user, "shared") for user in ("quokka", "ada", "bob")]
        async with many_place.store() as store:
            if store.features.session_owners:
                pytest.skip("a session has one user")
            await write_all(store, [sample(key, samples.entries(5)) for key in keys])
            before = await read(store)
        async with changing(many_place) as store:
            await erase(store, of_user("quokka"))
        async with many_place.store(create=False) as store:
            assert await read(store) == {key: before[key] for key in keys[1:]}
        assert "quokka" not in texts(many_place.dump())
        async with changing(many_place) as store:
            await erase(store, of_user("ada", "bob"))
            assert await names(store, Selection()) == set()
