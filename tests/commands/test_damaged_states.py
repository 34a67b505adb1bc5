"""Damaged session states: each fails alone, and the others go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import Backend, Place, samples
from memctl.testing.backend import new_place
from tests.support.backends import BACKENDS
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.servers.pool import Servers

GOOD, BAD, OTHER = MemoryKey("a", "1"), MemoryKey("b", "1"), MemoryKey("c", "1")


@pytest.fixture(params=["sessions", "redis-session"])
def states(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    """Three states, of which the second is cut off."""
    backend: Backend = BACKENDS[request.param](servers)
    place = new_place(backend, tmp_path)
    asyncio.run(fill(place.text, {key: samples.entries(5) for key in (GOOD, BAD, OTHER)}))
    if request.param == "sessions":
        [path] = place.folder.rglob("b_1.json")
        path.write_bytes(path.read_bytes()[:-9])
    else:
        with servers.redis.client(place.text.partition("?")[0]) as client:
            [name] = client.keys("*user_id:b:*")
            client.set(name, client.get(name)[:-9])
    return place


def test_damaged_state_is_left_out_of_a_copy(states: Place, run: Run, tmp_path: Path) -> None:
    target = f"{tmp_path}/t.db"
    found = report(run("migrate", states.text, target, "--json"), 7)
    assert found["memories"]["written"] == 2
    [failure] = found["failures"]
    assert (failure["session"], failure["user"], failure["code"]) == ("1", "b", "damaged")
    assert contents(target).keys() == {GOOD, OTHER}
    assert report(run("verify", states.text, target, "--json"), 7)["differences"] == []


def test_damaged_state_is_named_by_inspect(states: Place, run: Run) -> None:
    fails(run("inspect", states.text), 7, "b", "cut off")
    result = run("inspect", states.text, "--user", "a", "--json")
    assert report(result)["totals"]["memories"] == 1


def test_damaged_state_stays_while_others_change(states: Place, run: Run) -> None:
    before = states.dump()
    [bad] = [name for name in before if "b_1.json" in str(name) or ":b:" in str(name)]
    found = report(run("delete", states.text, "--last", "2", "--yes", "--json"), 7)
    assert [failure["code"] for failure in found["failures"]] == ["damaged"]
    assert found["messages"]["deleted"] == 4
    assert states.dump()[bad] == before[bad]
    assert run("undo", "--yes").exit_code == 0
    assert len(contents(states.text)[GOOD]) == 5
    assert states.dump()[bad] == before[bad]


def test_damaged_state_is_not_pruned_from_markdown(states: Place, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "markdown"
    words = ("--as", "markdown", "-o", folder)
    good = tmp_path / "good"
    parts = {key: samples.entries(5) for key in (BAD._replace(part="x.memory"), GOOD)}
    asyncio.run(fill(str(good), parts))
    assert run("export", good, *words).exit_code == 0
    before = {path.name for path in folder.rglob("*.md")}
    result = run("export", states.text, *words, "--prune")
    assert result.exit_code in (7, 8), result.stderr
    assert before <= {path.name for path in folder.rglob("*.md")}


@pytest.mark.slow
def test_damaged_state_leaves_out_its_memory_alone(run: Run, tmp_path: Path) -> None:
    """Of messages whose summaries are kept in states."""
    folder = tmp_path / "states"
    asyncio.run(fill(str(folder), {BAD: [], GOOD: []}, summary="S"))
    database = f"{tmp_path}/m.db"
    asyncio.run(fill(database, {key: samples.entries(3) for key in (GOOD, BAD)}))
    (folder / "b_1.json").write_text(json.dumps({"memory": {"_compressed_summary": "S"}})[:-3])
    store = f"sqlite:///{database}?state={folder}"
    target = tmp_path / "t.ndjson"
    fails(run("migrate", store, target), 7, "cut off")
    assert contents(str(target)).keys() == {GOOD}
    fails(run("inspect", store), 7, "cut off")
    fails(run("inspect", store, "--user", BAD.user), 8, "cut off")
    fails(run("delete", store, "--all", "--yes"), 7, "cut off")
    assert {key for key, messages in contents(database).items() if messages} == {BAD}


def test_nothing_is_written_beside_a_damaged_state(run: Run, tmp_path: Path) -> None:
    """Neither would its summary be, and the messages alone are no copy."""
    folder, archive, database = tmp_path / "states", tmp_path / "a.ndjson", tmp_path / "m.db"
    asyncio.run(fill(str(folder), {BAD: [], GOOD: []}, summary=""))
    (folder / "b_1.json").write_text('{"memory": {')
    asyncio.run(fill(str(database), {OTHER: samples.entries(1)}))
    new = {key: samples.entries(3) for key in (GOOD, BAD, OTHER)}
    asyncio.run(fill(str(archive), new, summary="S"))
    store = f"sqlite:///{database}?state={folder}"
    done = report(run("import", archive, store, "--json"), 7)
    assert (done["memories"]["written"], done["failures"][0]["user"]) == (2, BAD.user)
    assert {key: len(some) for key, some in contents(str(database)).items()} == {GOOD: 3, OTHER: 3}
    report(run("undo", "--yes", "--json"))
    assert {key: len(some) for key, some in contents(str(database)).items()} == {OTHER: 1}


@pytest.mark.parametrize("name", ["out.md", "out.csv"])
def test_damaged_states_alone_are_no_export(run: Run, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "states"
    asyncio.run(fill(str(folder), {BAD: samples.entries(2)}))
    path = folder / "b_1.json"
    path.write_bytes(path.read_bytes()[:-9])
    fails(run("export", folder, "-o", tmp_path / name), 8, "cut off")
    assert not (tmp_path / name).exists()
