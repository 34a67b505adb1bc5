"""Tests of policies of retention: a store loses exactly the archived messages."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from memctl.holds import HELD, Hold
from memctl.journal.holds import HoldRecord
from memctl.journal.runs import describe_run
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.change.change import RunOptions
from memctl.ops.holds import HoldSource
from memctl.ops.retain.actions import Acted, Surroundings
from memctl.ops.retain.delete import DeletionAction
from memctl.ops.stop import Stop
from memctl.registry import make_store
from memctl.retention import Policy, PolicyAction
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import plain, read, write_all
from memctl.testing.samples import Sample, sample
from tests.conformance.dialects import OnEachDialect

MESSAGES, KEPT = 10, 4


def deletion(place: Place, folder: Path, *holds: Hold) -> DeletionAction:
    """Return the action of a policy that keeps the newest messages of each memory."""
    around = Surroundings(
        RunOptions(holds=HoldSource(holds, record=HoldRecord(folder))),
        partial(describe_run, "retain", place.text, place.location),
        Stop(),
    )
    policy = Policy(
        *("chats", "store", PolicyAction.DELETE, "chats-{date}.ndjson", Selection(spare=KEPT)),
        backup=False,
    )
    return DeletionAction(policy, place.location, around)


async def messages(location: Location) -> dict[MemoryKey, list[tuple[str, str, tuple[str, ...]]]]:
    """Return the messages of each memory, without memories that have no messages."""
    store: Store = make_store(location)
    async with store:
        found = await read(store)
        return {
            key: [plain(entry, store) for entry in one.entries]
            for key, one in found.items()
            if one.entries
        }


async def two(place: Place) -> list[Sample]:
    """Write two memories, or the only one of the store, whose ids differ; return the memories."""
    found = [
        sample(key, samples.entries(MESSAGES, number * MESSAGES))
        for number, key in enumerate(place.keys(2))
    ]
    async with place.store() as store:
        await write_all(store, found)
    return found


class TestRetention(OnEachDialect):
    """Tests of policies of retention: a store loses exactly the archived messages."""

    async def test_retention_moves_messages_to_an_archive(
        self, place: Place, tmp_path: Path
    ) -> None:
        written = await two(place)
        archive = Location("archive", "the archive", path=tmp_path / "retired.ndjson")
        before, action = await messages(place.location), deletion(place, tmp_path)
        planned = await action.plan()
        found, acted = await action.export(archive), Acted()
        assert await messages(place.location) == before
        await action.carry_out(archive, acted)
        number = (MESSAGES - KEPT) * len(written)
        assert (planned.messages, found.messages, acted.messages) == (number, number, number)
        assert (acted.left, acted.failures) == (0, [])
        after, archived = await messages(place.location), await messages(archive)
        for key, entries in before.items():
            assert archived[key] == entries[:-KEPT]
            assert after[key] == entries[-KEPT:]

    async def test_retention_leaves_a_held_memory_alone(
        self, many_place: Place, tmp_path: Path
    ) -> None:
        held, other = await two(many_place)
        user, session, _ = held.key
        archive = Location("archive", "the archive", path=tmp_path / "retired.ndjson")
        action = deletion(many_place, tmp_path, Hold("a case", user, session))
        before, acted = await messages(many_place.location), Acted()
        found = await action.export(archive)
        await action.carry_out(archive, acted)
        assert [failure.code for failure in found.held.values()] == [HELD]
        after = await messages(many_place.location)
        assert after[held.key] == before[held.key]
        assert after[other.key] == before[other.key][-KEPT:]
        assert set(await messages(archive)) == {other.key}
