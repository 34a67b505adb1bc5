"""``memctl retain``: what policies select goes to an archive first, and only then leaves a store."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import Held, held, put, runs_kept

KYOTO, BERLIN, ROME = (
    *(MemoryKey("quokka", "kyoto"), MemoryKey("quokka", "berlin"), MemoryKey("bob", "rome")),
)
ENTRIES = 8
STORES = ["sqlite", "postgresql", "redis", "sqlite-agentscope2", "redis-agentscope2", "archive"]
TODAY = f"{datetime.now():%Y-%m-%d}"


class Policies:
    """The configuration of a test, with policies of retention."""

    def __init__(self, path: Path, archives: Path) -> None:
        self.path = path
        self.archives = archives
        archives.mkdir()

    def write(self, store: str, *policies: dict[str, Any], more: str = "") -> None:
        """Write the configuration: the store ``prod``, and policies with some usual settings."""
        lines = ["[stores.prod]", f"url = {json.dumps(store)}", more]
        for number, policy in enumerate(policies, 1):
            usual = {
                "name": f"p{number}",
                "store": "prod",
                "action": "delete",
                "archive": f"{self.archives}/p{number}-{{date}}.ndjson.zst",
            }
            lines.append("[[retention]]")
            found = {key: value for key, value in (usual | policy).items() if value is not None}
            lines += [f"{key} = {toml(value)}" for key, value in found.items()]
        self.path.write_text("\n".join(lines) + "\n")

    def names(self) -> list[str]:
        """Return the names of the archives."""
        return sorted(os.listdir(self.archives))


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def policies(write: Path, tmp_path: Path) -> Policies:
    return Policies(write, tmp_path / "archives")


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, one: Callable[[str], Place]) -> Iterator[Place]:
    """A place of each store in turn, with two memories of quokka and one of bob."""
    place = one(request.param)
    samples.use(place.backend.style)
    put(place, [sample(key, samples.entries(ENTRIES)) for key in (KYOTO, BERLIN, ROME)])
    yield place
    samples.use(samples.Style())


@pytest.fixture
def store(database: str) -> str:
    """A SQLite database with two memories of quokka and one of bob."""
    asyncio.run(fill(database, dict.fromkeys((KYOTO, BERLIN, ROME), samples.entries(ENTRIES))))
    return database


def one_row(found: dict[str, Any]) -> dict[str, Any]:
    [row] = found["policies"]
    row_: dict[str, Any] = row
    return row_


def texts(found: Held) -> dict[MemoryKey, list[tuple[str, bytes]]]:
    """Return ids and texts of each memory."""
    return {key: [(id, text) for id, _, text in one[2]] for key, one in found.items()}


def ids_in(archive: Path) -> dict[MemoryKey, list[str]]:
    """Return the ids of the messages of an archive."""
    return {key: [entry.id for entry in found] for key, found in contents(str(archive)).items()}


# Every kind of store


def test_retain_archives_deletes_and_undoes(run: Run, place: Place, policies: Policies) -> None:
    before = held(place)
    policies.write(place.text, {"select": {"keep_last": 3}})
    planned = one_row(report(run("retain", "--dry-run", "--json")))
    assert (planned["state"], planned["memories"], planned["messages"]) == ("planned", 3, 15)
    assert policies.names() == []
    assert held(place) == before
    row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["memories"], row["messages"], row["left"]) == ("done", 3, 15, 0)
    for key in ("oldest", "newest", "bytes", "archive"):
        assert row[key] == planned[key]
    assert policies.names() == [f"p1-{TODAY}.ndjson.zst"]
    archive = policies.archives / policies.names()[0]
    after = held(place)
    for key, found in texts(before).items():
        assert texts(after)[key] == found[-3:]
        assert ids_in(archive)[key] == [id for id, _ in found[:-3]]
    again = one_row(report(run("retain", "--yes", "--json")))
    assert (again["state"], again["messages"], again["archive"]) == ("nothing", 0, None)
    assert len(policies.names()) == 1
    [id] = row["runs"]
    report(run("undo", id, "--json"))
    assert held(place) == before


def test_retain_brings_back_by_an_import(run: Run, place: Place, policies: Policies) -> None:
    before = held(place)
    policies.write(place.text, {"select": {"keep_last": 3}, "backup": False})
    assert one_row(report(run("retain", "--yes", "--json")))["runs"] == []
    archive = policies.archives / policies.names()[0]
    report(run("import", archive, place.text, "--on-conflict", "append", "--json"))
    after = texts(held(place))
    for key, found in texts(before).items():
        assert sorted(id for id, _ in after[key]) == sorted(id for id, _ in found)


def test_retain_leaves_held_memories(run: Run, place: Place, policies: Policies) -> None:
    before = texts(held(place))
    hold = '[[hold]]\nuser = "quokka"\nsession = "kyoto"\nreason = "case 17"'
    policies.write(place.text, {"select": {"keep_last": 3}}, more=hold)
    found = report(run("retain", "--yes", "--json"), 7)
    row = one_row(found)
    assert (row["state"], row["memories"], row["messages"], row["held"]) == ("done", 2, 10, 1)
    assert [(one["user"], one["session"], one["code"]) for one in found["failures"]] == [
        ("quokka", "kyoto", "held")
    ]
    assert texts(held(place))[KYOTO] == before[KYOTO]
    assert KYOTO not in ids_in(policies.archives / policies.names()[0])
    again = one_row(report(run("retain", "--yes", "--json"), 9))
    assert (again["state"], again["held"], again["archive"]) == ("nothing", 1, None)


def test_retain_compresses(run: Run, one: Callable[[str], Place], policies: Policies) -> None:
    place = one("sqlite")
    plain = [samples.entry(f"m{number}", number) for number in range(ENTRIES)]
    put(place, [sample(key, plain) for key in (KYOTO, BERLIN, ROME)])
    before = texts(held(place))
    policies.write(place.text, {"action": "compress", "keep_recent": 3})
    row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["memories"], row["messages"]) == ("done", 3, 15)
    archive = policies.archives / policies.names()[0]
    after = texts(held(place))
    for key, found in before.items():
        assert after[key][1:] == found[-3:]
        assert ids_in(archive)[key] == [id for id, _ in found[:-3]]
    again = one_row(report(run("retain", "--yes", "--json")))
    assert again["state"] == "nothing"
    report(run("undo", *row["runs"], "--json"))
    assert texts(held(place)) == before


def test_retain_erases_idle_users(run: Run, place: Place, policies: Policies) -> None:
    before = texts(held(place))
    now = int((datetime.now() - samples.BEGIN).total_seconds() // 60)
    put(place, [sample(MemoryKey("bob", "oslo"), samples.entries(2, now - 60))])
    policies.write(place.text, {"action": "erase", "select": {"older_than": "30d"}})
    row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["memories"], row["messages"]) == ("done", 2, 16)
    assert row["runs"] == []
    archive = policies.archives / policies.names()[0]
    assert {key.user for key in texts(held(place))} == {"bob"}
    assert texts(held(place))[ROME] == before[ROME]
    assert ids_in(archive) == {key: [id for id, _ in before[key]] for key in (KYOTO, BERLIN)}
    [receipt] = row["receipts"]
    run("verify", place.text, "--receipt", receipt)
    assert runs_kept() == []
