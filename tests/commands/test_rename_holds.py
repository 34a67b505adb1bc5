"""Holds follow a rename: what was held under the old name is held under the new one, always."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.testing import Place, samples
from tests.commands.test_rename import KILLED
from tests.support.cli import Run, contents, fails, fill, report

KYOTO, NARA = MemoryKey("quokka", "kyoto"), MemoryKey("quokka", "nara")
PARCEL = MemoryKey("bob", "parcel")
UNTIL = str(date.today() + timedelta(days=200))
USER = ("--user", "quokka", "numbat")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A folder of session states with two sessions of quokka and one of bob."""
    folder = tmp_path / "states"
    keys = (KYOTO, NARA, PARCEL)
    asyncio.run(fill(f"{folder}/", {key: samples.entries(3) for key in keys}))
    return f"{folder}/"


def hold(run: Run, *words: object) -> str:
    """Add a hold, and return its id."""
    found = report(run("hold", "add", *words, "--reason", "case 17", "--json"))
    return str(found["added"]["id"])


def holds(run: Run, *words: object) -> list[tuple[Any, ...]]:
    """Return the user, the session, the end and the state of each hold, without the store."""
    rows = report(run("hold", "list", *words, "--json"))["holds"]
    return [(row["user"], row["session"], row["until"], row["state"]) for row in rows]


def rename(run: Run, store: str, *words: object) -> Any:
    """Rename, and return the report."""
    return report(run("rename", store, *words, "--yes", "--json"))


def is_held(run: Run, store: str, *words: str) -> bool:
    """Return whether a deletion of all that is selected leaves everything alone."""
    code = run("delete", store, *words, "--dry-run").exit_code
    assert code in (0, 9)
    return code == 9


def test_hold_follows_its_name_and_the_undo_turns_it_back(run: Run, store: str) -> None:
    hold(run, "--user", "quokka", "--store", store, "--until", UNTIL)
    hold(run, "--user", "quokka", "--session", "lima", "--store", store)  # not there yet
    hold(run, "--user", "bob", "--store", store)
    before = holds(run)
    done = run("rename", store, *USER, "--dry-run")
    assert done.stderr.count(" follows: user 'numbat'") == 2
    assert holds(run) == before
    found = rename(run, store, *USER)
    assert holds(run) == [
        ("bob", None, None, "in-force"),
        ("numbat", None, UNTIL, "in-force"),
        ("numbat", "lima", None, "in-force"),
    ]
    assert [row[3] for row in holds(run, "--all")].count("removed") == 2
    assert is_held(run, store, "--user", "numbat")
    report(run("undo", found["run"], "--json"))
    assert sorted(holds(run), key=str) == sorted(before, key=str)
    assert is_held(run, store, "--user", "quokka")


def test_hold_that_holds_more_than_the_renamed_stays(run: Run, store: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    asyncio.run(fill(other, {KYOTO: samples.entries(3)}))
    hold(run, "--user", "quokka")
    hold(run, "--store", store)
    done = run("rename", store, *USER, "--yes", "--json")
    assert "it stays on the old name, too" in done.stderr
    assert [one[0] for one in holds(run)] == ["quokka", None, "numbat"]
    assert is_held(run, other, "--user", "quokka")
    report(run("undo", report(done)["run"], "--json"))
    assert [one[0] for one in holds(run)] == ["quokka", None]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_hold_on_a_database_stays_if_there_are_other_tables(
    run: Run, one: Callable[[str], Place], engine: str, shared: bool
) -> None:
    place = one(engine)
    asyncio.run(fill(place.text, {KYOTO: samples.entries(3), PARCEL: samples.entries(2)}))
    if shared:
        rows = f"{place.text}{'&' if '?' in place.text else '?'}layout=agno"
        samples.use(samples.Style("agno", frozenset()))
        try:
            asyncio.run(fill(rows, {MemoryKey("quokka", "rome"): samples.entries(3)}))
        finally:
            samples.use(samples.Style())
    hold(run, "--user", "quokka", "--store", place.text)
    found = rename(run, place.text, *USER)
    assert [one[0] for one in holds(run)] == (["quokka"] if shared else []) + ["numbat"]
    assert is_held(run, place.text, "--user", "numbat")
    if shared:
        assert is_held(run, rows, "--user", "quokka")
    report(run("undo", found["run"], "--store", place.text, "--json"))
    assert [one[0] for one in holds(run)] == ["quokka"]
    assert is_held(run, place.text, "--user", "quokka")


def test_hold_on_a_session_and_on_a_file_follow(run: Run, store: str) -> None:
    hold(run, "--session", "kyoto", "--store", store)
    hold(run, "--store", f"{store}bob_parcel.json")
    rename(run, store, "--session", "kyoto", "uji")
    rename(run, store, "--user", "bob", "kea")
    assert [one[:2] for one in holds(run)] == [(None, None), (None, "uji"), ("kea", "parcel")]
    assert is_held(run, store, "--session", "uji")
    assert is_held(run, store, "--user", "kea")
    assert not is_held(run, store, "--session", "nara")


def test_hold_of_a_user_who_becomes_another_holds_both_after_the_undo(run: Run, store: str) -> None:
    hold(run, "--user", "bob", "--store", store)
    found = rename(run, store, "--user", "bob", "quokka", "--merge")
    assert [one[0] for one in holds(run)] == ["quokka"]
    report(run("undo", found["run"], "--json"))
    assert [one[0] for one in holds(run)] == ["quokka", "bob"]


def test_undo_brings_no_hold_back_that_was_lifted(run: Run, store: str) -> None:
    hold(run, "--user", "quokka", "--store", store)
    found = rename(run, store, *USER)
    [row] = report(run("hold", "list", "--json"))["holds"]
    assert run("hold", "remove", row["id"], "--yes").exit_code == 0
    report(run("undo", found["run"], "--json"))
    assert holds(run) == []
    assert not is_held(run, store, "--user", "quokka")


def test_hold_of_the_configuration_follows_if_the_new_name_is_held_as_long(
    run: Run, store: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    table = '[[hold]]\nuser = "{}"\nreason = "audit"\nuntil = "{}"\n'
    config.write_text(table.format("quokka", UNTIL))
    words = ("--config", config, "rename", store, *USER, "--yes")
    there = contents(store)
    fails(run(*words), 9, "2 memories are held", "hold the new name, too, where this hold is")
    config.write_text(table.format("quokka", UNTIL) + table.format("numbat", date.today()))
    fails(run(*words), 9, "held: audit")
    assert contents(store) == there
    config.write_text(table.format("quokka", UNTIL) + table.format("numbat", "2999-01-01"))
    assert run(*words).exit_code == 0
    assert {key.user for key in contents(store)} == {"numbat", "bob"}


def test_name_that_a_file_writes_in_several_ways_is_refused_if_held(
    run: Run, tmp_path: Path
) -> None:
    store = f"{tmp_path}/several/"
    asyncio.run(fill(store, {MemoryKey("a", "b_c"): samples.entries(3)}))
    hold(run, "--user", "a_b", "--session", "c")
    fails(run("rename", store, "--user", "a", "x", "--yes"), 9, "held: case 17")
    assert list(contents(store)) == [MemoryKey("a", "b_c")]


def test_refused_rename_leaves_the_holds_as_they_were(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "agents.db")
    asyncio.run(fill(store, {KYOTO: samples.entries(3)}))
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("CREATE TABLE notes (of TEXT REFERENCES session (id))")
    hold(run, "--user", "quokka", "--store", store)
    before = holds(run)
    fails(run("rename", store, *USER, "--yes"), 2, "the table 'notes' of an application refers")
    assert holds(run) == before
    assert [one[3] for one in holds(run, "--all")] == ["in-force", "removed"]


@pytest.mark.slow
@pytest.mark.parametrize("undoing", [False, True])
def test_session_is_held_at_whatever_step_a_rename_is_killed(
    run: Run, tmp_path: Path, undoing: bool
) -> None:
    kills, killed, seen = 0, True, set[str]()
    while killed:
        kills += 1
        store = f"{tmp_path}/{kills}/"
        asyncio.run(fill(store, {key: samples.entries(3) for key in (KYOTO, NARA, PARCEL)}))
        hold(run, "--user", "quokka", "--store", store)
        words: tuple[str, ...] = ("rename", store, *USER, "--yes")
        if undoing:
            words = ("undo", rename(run, store, *USER)["run"], "--yes")
        child = subprocess.run(
            [sys.executable, "-c", KILLED, str(kills), *words], capture_output=True, check=False
        )
        killed = child.returncode == -signal.SIGKILL
        assert killed or child.returncode == 0, child.stderr
        there = {key for key in contents(store) if key.user != "bob"}
        assert {key.session for key in there} == {"kyoto", "nara"}
        for key in there:
            seen.add(key.user)
            assert is_held(run, store, "--user", key.user), (kills, key)
        if not undoing:
            assert run(*words).exit_code in (0, 4)
            assert {key.user for key in contents(store)} == {"numbat", "bob"}
            here = [row for row in _rows(run) if row["store"].rstrip("/") == store.rstrip("/")]
            assert [row["user"] for row in here] == ["numbat"]
    assert seen == {"quokka", "numbat"}
    assert kills > 5


def _rows(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("hold", "list", "--json").stdout)["holds"]
    return found
