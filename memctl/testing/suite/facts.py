"""Tests of the contract of a store of facts: write, read, select, edit and erase facts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta

from msgspec.structs import replace

from memctl.dialects.fact import FACT, build, dimensions, vector_of
from memctl.model import Change, Edit, Memory, MemoryKey, StoredMessage, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import (
    ALL,
    assert_changed,
    changing,
    edit,
    edits,
    gone,
    infos,
    put,
    read,
    write,
    write_all,
    write_into,
)
from memctl.testing.samples import Sample, sample

Values = dict[MemoryKey, dict[str, object]]


def values(found: dict[MemoryKey, Sample]) -> Values:
    """Return the facts of read scopes, by scope and fact id, as parsed JSON."""
    return {
        key: {one.id: FACT.parse(one.message).value for one in memory.entries}
        for key, memory in found.items()
    }


def expected(memories: list[Sample]) -> Values:
    """Return the facts, by scope and fact id, that a read must return after these were written."""
    return values({one.key: one for one in memories if one.entries})


async def held(place: Place, where: Selection = ALL) -> Values:
    """Read the selected facts of a store with a new connection; return them by scope and id."""
    async with place.store(create=False) as store:
        return values(await read(store, where))


async def filled(place: Place, *counts: int) -> list[Sample]:
    """Write one scope for each count, with this number of facts; return the scopes."""
    found = []
    start = 0
    for key, count in zip(place.keys(len(counts)), counts, strict=True):
        found.append(sample(key, samples.entries(count, start)))
        start += count
    await write_into(place, found)
    return found


def changed(fact: StoredMessage, text: str = "something else") -> StoredMessage:
    """Return a copy of the fact in which ``text`` is the text."""
    return fact._replace(message=build(FACT.parse(fact.message).value | {"text": text}))


async def edited(store: Store, key: MemoryKey, changes: list[Change]) -> WriteResult:
    """Apply changes to the facts of one scope; return the result."""
    return (await edit(store, edits(key, changes)))[key]


HARD = ("null character", "beyond the basic plane", "quotes", "like another", "unknown keys")
"""The names in ``samples.MESSAGES`` of texts that a store of facts must hold too."""


class FactTests:
    """Tests of the contract of a store of facts: write, read, select, edit and erase facts."""

    async def test_facts_come_back(self, place: Place) -> None:
        written = await filled(place, 1300, 3, 40)
        assert await held(place) == expected(written)

    async def test_facts_come_by_time(self, place: Place) -> None:
        [key, *_] = place.keys(1)
        facts = samples.entries(30)
        async with place.store() as store:
            await write_all(store, [sample(key, reversed(facts))])
            found = (await read(store))[key].entries
        times = [FACT.outline(one.message).time or "" for one in found]
        assert times == sorted(times)

    async def test_facts_of_hard_texts_come_back(self, place: Place) -> None:
        [key, *_] = place.keys(1)
        names = [name for name in HARD if name not in place.backend.refuses]
        facts = [
            samples.entry(samples.style().name(name), number, **samples.MESSAGES[name])
            for number, name in enumerate(names)
        ]
        await write_into(place, [sample(key, facts)])
        assert await held(place) == expected([sample(key, facts)])

    async def test_facts_have_the_vectors_of_the_store(self, place: Place) -> None:
        written = await filled(place, 3)
        async with place.store(create=False) as store:
            assert (store.embedding.dimensions if store.embedding else 0) == (
                place.backend.style.dimensions
            )
            for one in (await read(store))[written[0].key].entries:
                vector = vector_of(one.message)
                assert (dimensions(vector) if vector else 0) == place.backend.style.dimensions

    async def test_facts_are_selected(self, place: Place) -> None:
        first, second, _ = await filled(place, 20, 10, 5)
        middle = samples.BEGIN + timedelta(minutes=15)
        wheres = [
            Selection(keys=frozenset({first.key})),
            Selection(users=frozenset({first.key.user}), sessions=frozenset({first.key.session})),
            Selection(ids=frozenset({first.entries[3].id, second.entries[2].id})),
            Selection(since=middle),
            Selection(until=middle),
            Selection(match="message 1"),
            Selection(last=2),
        ]
        everything = [first, second, _]
        for where in wheres:
            found = {}
            for one in everything:
                if where.has_key(one.key):
                    entries = [entry for entry in one.entries if where.matches(entry, FACT)]
                    entries = entries[-where.last :] if where.last else entries
                    if entries:
                        found[one.key] = Sample(one.memory, entries)
            assert await held(place, where) == values(found), where

    async def test_facts_are_counted(self, place: Place) -> None:
        written = await filled(place, 20, 10)
        async with place.store(create=False) as store:
            found = await infos(store)
            headers = [memory.key async for memory in store.headers(ALL)]
            names = {key async for key in store.names(ALL)}
        assert {key: info.messages for key, info in found.items()} == {
            one.key: len(one.entries) for one in written
        }
        assert all(info.roles == {"fact": info.messages} for info in found.values())
        assert sorted(headers) == sorted(names) == sorted(found)

    async def test_facts_written_again_are_the_same(self, place: Place) -> None:
        written = await filled(place, 12)
        async with place.store() as store:
            results = await write(store, [sample(written[0].key, samples.entries(20))])
        assert results[written[0].key].failure is None
        assert await held(place) == expected([sample(written[0].key, samples.entries(20))])

    async def test_fact_with_the_id_of_another_is_refused(self, place: Place) -> None:
        [before] = await filled(place, 5)
        other = [changed(before.entries[2]), *samples.entries(3, 5)]
        async with place.store() as store:
            results = await write(store, [sample(before.key, other)])
        assert_changed(results[before.key])
        assert await held(place) == expected([before])

    async def test_facts_with_one_id_are_refused(self, place: Place) -> None:
        [key, *_] = place.keys(1)
        async with place.store() as store:
            results = await write(store, [sample(key, samples.entries(3) + samples.entries(1))])
            failure = results[key].failure
            assert failure is not None
            assert failure.code == "repeated-id"
            assert await read(store) == {}

    async def test_facts_are_replaced(self, place: Place) -> None:
        first, second = await filled(place, 600, 5)
        new = [changed(first.entries[1]), *first.entries[2:550], *samples.entries(3, 700)]
        async with place.store() as store:
            results = await write(store, [sample(first.key, new)], WriteMode.REPLACE)
        assert results[first.key] == WriteResult(first.key, len(new), 51)
        assert await held(place) == expected([sample(first.key, new), second])

    async def test_facts_go_and_come_back(self, place: Place) -> None:
        first, second = await filled(place, 40, 5)
        before = place.dump() if place.backend.dump is not None else await held(place)
        going = first.entries[::3]
        async with changing(place) as store:
            result = await edited(store, first.key, [gone(one) for one in going])
            assert result == WriteResult(first.key, deleted=len(going))
            rest = [one for one in first.entries if one not in going]
            assert values(await read(store)) == expected([sample(first.key, rest), second])
            result = await edited(store, first.key, [put(one) for one in going])
            assert result == WriteResult(first.key, len(going))
        assert await held(place) == expected([first, second])
        assert (place.dump() if place.backend.dump is not None else await held(place)) == before

    async def test_facts_all_go_and_come_back(self, place: Place) -> None:
        [before] = await filled(place, 700)
        async with changing(place) as store:
            await edited(store, before.key, [gone(one) for one in before.entries])
            assert await read(store) == {}
            await edited(store, before.key, [put(one) for one in before.entries])
        assert await held(place) == expected([before])

    async def test_edit_of_a_fact_that_changed_is_refused(self, place: Place) -> None:
        [before] = await filled(place, 10)
        one, other = before.entries[2], before.entries[7]
        old = Change(other.id, (), message=changed(other).message)
        async with changing(place) as store:
            assert_changed(await edited(store, before.key, [gone(one), old]))
            assert_changed(await edited(store, before.key, [gone(one), put(changed(other))]))
        assert await held(place) == expected([before])

    async def test_edit_that_is_done_is_done(self, place: Place) -> None:
        [before] = await filled(place, 10)
        going = [gone(one) for one in before.entries[:4]]
        async with changing(place) as store:
            await edited(store, before.key, going[:2])
            result = await edited(store, before.key, [*going, put(before.entries[5])])
        assert result == WriteResult(before.key, deleted=2)
        assert await held(place) == expected([sample(before.key, before.entries[4:])])

    async def test_edits_of_several_scopes(self, place: Place) -> None:
        memories = await filled(place, 5, 6, 7)

        async def all_edits() -> AsyncGenerator[Edit]:
            for one in memories:
                yield Edit(Memory(one.key), [gone(one.entries[0])], 0, last=False)
                yield Edit(Memory(one.key), [gone(one.entries[1])], 1)

        async with changing(place) as store, aclosing(store.edit(all_edits())) as results:
            found = [result async for result in results]
        assert found == [WriteResult(one.key, deleted=2) for one in memories]
        left = [replace(one, entries=one.entries[2:]) for one in memories]
        assert await held(place) == expected(left)

    async def test_facts_are_erased(self, place: Place) -> None:
        first, second, third = await filled(place, 20, 600, 5)
        async with changing(place) as store:
            where = Selection(keys=frozenset({second.key}))
            async with aclosing(store.erase(where)) as results:
                assert [one async for one in results] == [WriteResult(second.key, deleted=600)]
            assert second.key not in {key async for key in store.names(ALL)}
        assert await held(place) == expected([first, third])
