"""Fleets: ordered lists of stores that a run in parts takes as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.shard import Shard
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report

STORES = ("prod-00", "prod-01")
EACH = 6
Fleets = Callable[..., None]


def of_store(number: int, each: int = EACH) -> dict[MemoryKey, list[samples.StoredMessage]]:
    """The memories of a store of the fleet."""
    return {
        MemoryKey(f"user {place % 2}", f"session {number}-{place}"): samples.entries(3)
        for place in range(each)
    }


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleets:
    """Write a configuration with four databases and the fleets."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("MEMCTL_CONFIG", str(path))

    def write(**fleets: list[str]) -> None:
        names = (*STORES, "next-00", "next-01", "new")
        text = "".join(
            f'[stores.{name}]\nurl = "sqlite:///{tmp_path}/{name}.db"\n' for name in names
        )
        text += "".join(f"[fleets.{name}]\nstores = {stores}\n" for name, stores in fleets.items())
        path.write_text(text)

    return write


@pytest.fixture
def fleet(configured: Fleets, tmp_path: Path) -> Path:
    """Two databases with memories, the fleet ``@prod``; return their folder."""
    configured(prod=[*STORES], next=["next-00", "next-01"])
    for number, name in enumerate(STORES):
        asyncio.run(fill(f"sqlite:///{tmp_path}/{name}.db", of_store(number)))
    return tmp_path


def in_parts(run: Run, *words: Any, of: int = 4, code: int = 0) -> list[dict[str, Any]]:
    return [report(run(*words, "--shard", f"{n}/{of}", "--json"), code) for n in range(of)]


def test_shards_of_a_fleet_are_those_of_its_stores() -> None:
    keys = [MemoryKey("u", f"s{number}") for number in range(100)]
    for number in range(12):
        inner = Shard(number % 4, 4)
        shard = Shard(number, 12, 3)
        assert shard.store == number // 4
        assert [shard.has(key) for key in keys] == [inner.has(key) for key in keys]
        assert (str(shard), shard.leads) == (f"{number}/12", number % 4 == 0)


@pytest.mark.usefixtures("fleet")
def test_each_part_is_on_one_store(run: Run) -> None:
    found = in_parts(run, "inspect", "@prod")
    assert [one["store"]["url"].rpartition("/")[2] for one in found] == [
        *("prod-00.db", "prod-00.db", "prod-01.db", "prod-01.db")
    ]
    for number in range(2):
        parts = found[2 * number : 2 * number + 2]
        sessions = {row["session"] for one in parts for row in one["memories"]}
        assert sessions == {key.session for key in of_store(number)}
        assert sum(one["totals"]["memories"] for one in parts) == EACH


@pytest.mark.slow
@pytest.mark.usefixtures("fleet")
def test_fleet_in_parts_is_one_report(run: Run) -> None:
    found = report(run("inspect", "@prod", "--shards", "2", "--json"))
    assert found["store"]["url"] == "@prod"
    assert found["totals"]["memories"] == 2 * EACH
    assert [part["store"] for part in found["parts"]] == [*STORES]


@pytest.mark.slow
def test_fleet_to_one_store_and_store_by_store(run: Run, fleet: Path) -> None:
    in_parts(run, "migrate", "@prod", "new")
    whole = {**of_store(0), **of_store(1)}
    assert contents(f"{fleet}/new.db").keys() == whole.keys()
    found = in_parts(run, "migrate", "@prod", "@next", of=2)
    assert [one["target"].rpartition("/")[2] for one in found] == ["next-00.db", "next-01.db"]
    assert all(one["verified"] for one in found)
    assert contents(f"{fleet}/next-01.db").keys() == of_store(1).keys()
    assert all(one["differences"] == [] for one in in_parts(run, "verify", "@prod", "@next"))


@pytest.mark.slow
def test_session_in_two_stores_is_a_conflict_in_one_target(run: Run, fleet: Path) -> None:
    both = MemoryKey("ada", "trip")
    for number, name in enumerate(STORES):
        entries = samples.entries(3 + number)[number:]
        asyncio.run(fill(f"sqlite:///{fleet}/{name}.db", {both: entries}))
    migrate = ("migrate", "@prod", "new", "--shard")
    number = next(number for number in range(2) if Shard(number, 2).has(both))
    assert run(*migrate, f"{number}/4").exit_code == 0
    found = report(run(*migrate, f"{2 + number}/4", "--json"), 5)
    assert [(one["session"], one["code"]) for one in found["failures"]] == [("trip", "conflict")]


@pytest.mark.slow
def test_export_of_a_fleet_has_files_of_all_parts(run: Run, fleet: Path) -> None:
    found = in_parts(run, "export", "@prod", "-o", fleet / "n-{shard}.ndjson")
    files = sorted(path.name for path in fleet.glob("n-*"))
    assert files == [f"n-{number:04}-of-0004.ndjson" for number in range(4)]
    assert sum(one["memories"]["written"] for one in found) == 2 * EACH
    assert run("import", fleet / files[0], "new", "--shard", "0/4").exit_code == 0
    imported = in_parts(run, "import", fleet / "n-{shard}.ndjson", "new")
    assert imported[0]["memories"]["selected"] == found[0]["memories"]["written"]
    assert imported[0]["memories"]["written"] == 0
    assert contents(f"{fleet}/new.db").keys() == {**of_store(0), **of_store(1)}.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("fleet")
def test_doctor_of_a_fleet_examines_each_store_once_for_what_has_no_memory(run: Run) -> None:
    found = in_parts(run, "doctor", "@prod", "--ignore=leftover-hint", "--ignore=summary-elsewhere")
    codes = [[one["code"] for one in part["findings"]] for part in found]
    assert codes == [["no-session-index"], [], ["no-session-index"], []]


@pytest.mark.slow
def test_deletion_in_a_fleet_is_undone(run: Run, fleet: Path) -> None:
    before = [contents(f"{fleet}/{name}.db") for name in STORES]
    delete = ("delete", "@prod", "--user", "user 1", "--job", "clean", "--yes")
    found = in_parts(run, *delete)
    assert sum(one["messages"]["deleted"] for one in found) == 3 * EACH
    runs = report(run("history", "--json"))["runs"]
    assert {one["store"] for one in runs} == {*STORES}
    assert run("undo", "clean", "--yes").exit_code == 0
    assert [contents(f"{fleet}/{name}.db") for name in STORES] == before


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("inspect @prod", "@prod is a fleet of 2 stores", "--shards N, a multiple of 2"),
        ("inspect @prod --shards 3", "3 parts cannot be divided", "such as 4"),
        ("inspect @prod --shard 0/5", "among the 2 stores of @prod", "such as 6"),
        ("inspect @prot --shards 2", "no fleet named 'prot'", "did you mean '@prod'?"),
        ("inspect @moon --shards 2", "no fleet named 'moon'", "[fleets.NAME]"),
        ("search @prod word", "@prod is a fleet, not a store", "one of its stores: prod-00"),
        ("erase @prod --user ada --yes", "@prod is a fleet, not a store", "prod-00"),
        ("migrate @prod @three --shards 6", "2 stores, and @three 3", "same length"),
        ("migrate new @next --shards 2", "@next is a fleet, and new is not", "same length"),
        ("import new @next --shards 2", "@next is a fleet, and new is not", "as the source"),
        ("verify @prod new --shards 2", "new is not", "migrate @prod new --dry-run --shards 2"),
        ("delete @prod --all --yes --shards 4", "one file", "write --shards 2"),
    ],
)
def test_fleet_that_cannot_be_divided_is_refused(
    run: Run, configured: Fleets, words: str, said: str, hint: str
) -> None:
    configured(prod=[*STORES], next=["next-00", "next-01"], three=[*STORES, "new"])
    fails(run(*words.split()), 2, said, hint)


@pytest.mark.parametrize(
    ("stores", "said", "hint"),
    [
        (["prod-00", "prod-1"], "no store named 'prod-1'", "did you mean 'prod-01'?"),
        (["prod-00", "@next"], "no store named '@next'", "name stores, not a fleet"),
        ([], "must be a list of stores, each once", "stores = ["),
        (["prod-00", "prod-00"], "each store once", "remove"),
    ],
)
def test_fleet_in_the_configuration_is_checked(
    run: Run, configured: Fleets, stores: list[str], said: str, hint: str
) -> None:
    configured(prod=stores)
    fails(run("config", "show"), 2, said, hint)


def test_fleet_is_shown(run: Run, configured: Fleets) -> None:
    configured(prod=[*STORES])
    rows = report(run("config", "show", "--json"))["settings"]
    assert [one["value"] for one in rows if one["key"] == "fleets.prod.stores"] == [[*STORES]]
