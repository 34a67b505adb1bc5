"""``memctl restore``: what was lost comes back, what is newer stays, and undo reverts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import Place, samples
from tests.support.cli import Run, fails, fill, report
from tests.support.places import append, held, put, sample

OTHER = samples.key(7)
STORES = (
    *("sqlite", "postgresql", "mysql", "redis", "tablestore", "sessions", "archive"),
    *("sqlite-agentscope2", "sqlite-adk", "mysql-agno", "postgresql-openai-agents"),
    *("redis-langchain", "sqlite-openai-branches"),
)


def ids(place: Place, key: MemoryKey) -> list[str]:
    return [entry[0] for entry in held(place)[key][2]]


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_restore_puts_messages_back_in_their_places(
    run: Run, one: Callable[[str], Place], tmp_path: Path, name: str
) -> None:
    place = one(name)
    samples.use(place.backend.style)
    try:
        key, whole = (place.backend.keys(number) for number in range(2))
        put(place, [sample(key, samples.entries(8)), sample(whole, samples.entries(3, 20))])
        old = ids(place, key)
        archive = tmp_path / "night.ndjson.zst"
        assert run("export", place.text, "-o", archive).exit_code == 0
        gone = [arg for id in (old[0], old[3], old[7]) for arg in ("--id", id)]
        user = ("--user", key.user) if key.user else ()
        words = (*user, "--session", key.session, "--yes")
        assert run("delete", place.text, *gone, *words).exit_code == 0
        append(place, key, [samples.entry("newer", 90)])
        assert run("delete", place.text, "--session", whole.session, "--all", "--yes").exit_code
    finally:
        samples.use(samples.Style())
    newer = ids(place, key)[-1]
    before = held(place)
    dry = report(run("restore", archive, place.text, "--dry-run", "--json"))
    [plan] = dry["plan"]
    assert (plan["session"], plan["back"], plan["changed"], plan["stay"]) == (key.session, 3, 0, 1)
    assert held(place) == before
    done = report(run("restore", archive, place.text, "--yes", "--json"))
    assert done["memories"]["written"] == 1
    assert ids(place, key) == [*old, newer]
    again = report(run("restore", archive, place.text, "--yes", "--json"))
    assert (again["plan"], again["memories"]["selected"]) == ([], 0)
    assert run("undo", done["run"], "--store", place.text).exit_code == 0
    assert held(place) == before


def test_restore_brings_back_whole_memories_and_changed_messages(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place = one("sqlite")
    keys = [samples.key(number) for number in range(3)]
    put(place, [sample(key, samples.entries(4)) for key in keys])
    before, archive = held(place), tmp_path / "night.ndjson"
    assert run("export", place.text, "-o", archive).exit_code == 0
    assert run("mark", "add", place.text, "odd", "--session", keys[1].session).exit_code == 0
    erased = ("erase", "--user", keys[0].user, "--session", keys[0].session, place.text, "--yes")
    assert run(*erased).exit_code == 0
    put(place, [sample(OTHER, samples.entries(2))])
    shown = run("restore", archive, place.text, "--dry-run").stdout.splitlines()
    assert [line.split()[1:] for line in shown[1:]] == [
        [keys[0].session, "all", "0", "0"],
        [keys[1].session, "0", "4", "0"],
    ]
    imported = run("import", archive, place.text, "--on-conflict", "merge", "--dry-run").stdout
    assert imported.splitlines()[:3] == shown
    plan = report(run("import", archive, place.text, "--dry-run", "--json"), 5)["plan"]
    assert [(row["whole"], row["changed"]) for row in plan] == [(True, 0), (False, 4)]
    new = report(run("import", archive, tmp_path / "new.db", "--dry-run", "--json"))
    assert "plan" not in new, "all is new in a new store"
    only = ("--user", keys[1].user, "--session", keys[1].session)
    assert (
        len(report(run("restore", archive, place.text, *only, "--dry-run", "--json"))["plan"]) == 1
    )
    assert run("restore", archive, place.text, "--yes").exit_code == 0
    after = held(place)
    assert {key: after[key] for key in keys} == before
    assert OTHER in after


@pytest.mark.parametrize("name", ["sqlite-agentscope2", "redis-agentscope2", "agentscope2-files"])
def test_restore_lets_the_agent_read_what_came_back_and_what_is_newer(
    run: Run, one: Callable[[str], Place], tmp_path: Path, name: str
) -> None:
    """AgentScope 2.x sends the context in the state of a session, which goes on."""
    place, archive = one(name), tmp_path / "night.ndjson"
    samples.use(place.backend.style)
    try:
        [key] = place.keys(1)
        put(place, [sample(key, samples.entries(4))])
        assert run("export", place.text, "-o", archive).exit_code == 0
        words = ("--user", key.user, "--session", key.session)
        read = [
            one["id"] for one in report(run("context", place.text, *words, "--json"))["messages"]
        ]
        assert run("delete", place.text, *words, "--id", read[0], "--yes").exit_code == 0
        append(place, key, [samples.entry("newer", 90)])
    finally:
        samples.use(samples.Style())
    assert run("restore", archive, place.text, "--yes").exit_code == 0
    found = report(run("context", place.text, *words, "--json"))["messages"]
    assert [one["id"] for one in found] == [*read, "newer"]


def test_restore_tells_equal_messages_without_ids_apart(run: Run, tmp_path: Path) -> None:
    folder, archive = tmp_path / "histories", tmp_path / "night.ndjson"
    folder.mkdir()
    file = folder / "chat.json"

    def write(*texts: str) -> None:
        said = [{"type": "human", "data": {"content": text, "type": "human"}} for text in texts]
        file.write_text(json.dumps(said))

    write("yes", "tea", "yes", "milk")
    assert run("export", f"langchain:{folder}", "-o", archive).exit_code == 0
    write("yes", "one", "yes", "two", "milk", "yes", "three")
    assert run("restore", archive, f"langchain:{folder}", "--yes").exit_code == 0
    found = [message["data"]["content"] for message in json.loads(file.read_text())]
    assert found == ["yes", "one", "tea", "yes", "two", "milk", "yes", "three"]


def test_restore_says_what_becomes_of_a_summary(run: Run, tmp_path: Path) -> None:
    store, archive = tmp_path / "sessions", tmp_path / "night.ndjson"
    key = samples.key(0)
    asyncio.run(fill(str(store), {key: samples.entries(4)}, summary="old"))
    assert run("export", store, "-o", archive).exit_code == 0
    state = next(store.glob("*.json"))
    state.write_text(state.read_text().replace('"old"', '"new"'))
    shown = run("restore", archive, store, "--dry-run").stdout
    assert "replaced" in shown
    assert run("restore", archive, store, "--yes").exit_code == 0
    assert '"old"' in state.read_text()


def test_restore_leaves_held_memories(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place, archive, key = one("sqlite"), tmp_path / "night.ndjson", samples.key(0)
    put(place, [sample(key, samples.entries(4))])
    assert run("export", place.text, "-o", archive).exit_code == 0
    assert run("delete", place.text, "--last", "2", "--yes").exit_code == 0
    append(place, key, [samples.entry("newer", 90)])
    assert run("hold", "add", "--user", key.user, "--reason", "case 17").exit_code == 0
    before = held(place)
    fails(run("restore", archive, place.text, "--yes"), 9, "held: case 17")
    assert held(place) == before


def test_restore_refuses(run: Run, one: Callable[[str], Place], tmp_path: Path) -> None:
    place, archive = one("sqlite"), tmp_path / "night.ndjson"
    put(place, [sample(samples.key(0), samples.entries(4))])
    assert run("export", place.text, "-o", archive).exit_code == 0
    fails(run("restore", archive, place.text), 2, "refusing without confirmation", "--dry-run")
    fails(run("restore", place.text, archive, "--yes"), 2, "is not an archive", "memctl migrate")
    missing = tmp_path / "none.db"
    fails(run("restore", archive, missing, "--yes"), 4, "does not exist")
    assert not missing.exists()
    words = ("restore", archive, place.text, "--user", "usr0", "--yes")
    fails(run(*words), 4, "has no memory of 'usr0'", "did you mean 'user0'")
    gone = tmp_path / "night.ndjson@2026-01-01"
    fails(run("restore", gone, place.text, "--yes"), 4, "there is no rotation")
