"""Undo after a store was recreated under its name: no message of the old store comes back."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import runs_folder
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

KYOTO, OSAKA = MemoryKey("ada", "kyoto"), MemoryKey("bob", "osaka")
STORES = ["sqlite", "postgresql", "mysql", "redis"]
EMPTY = "holds nothing that the run"


class Target(NamedTuple):
    """A store with two memories, and what drops everything in its place."""

    url: str
    drop: Callable[[], object]


@pytest.fixture
def target(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Target:
    match request.param:
        case "postgresql":
            url = servers.postgresql.socket_url(servers.postgresql.fresh())
            sql = "DROP OWNED BY memctl; CREATE SCHEMA IF NOT EXISTS public"
            found = Target(url, lambda: servers.postgresql.execute(url, sql))
        case "mysql":
            url = servers.mariadb.fresh()
            name = url.rpartition("/")[2]

            def drop() -> None:
                time.sleep(1.1)  # the times of creation are in seconds
                servers.mariadb.execute(f"DROP DATABASE {name}")
                servers.mariadb.execute(f"CREATE DATABASE {name} COLLATE utf8mb4_bin")

            found = Target(url, drop)
        case "redis":
            url = servers.redis.fresh()

            def flush() -> None:
                with servers.redis.client(url) as client:
                    client.flushdb()

            found = Target(url, flush)
        case _:
            path = tmp_path / "agents.db"
            found = Target(f"sqlite:///{path}", path.unlink)
    asyncio.run(fill(found.url, {KYOTO: samples.entries(20), OSAKA: samples.entries(20)}))
    return found


def recreate(target: Target) -> None:
    """Make the store anew, with other messages in a memory of an old name."""
    target.drop()
    asyncio.run(fill(target.url, {OSAKA: samples.entries(5, start=500)}))


def undo(run: Run, target: Target, words: tuple[object, ...]) -> list[object]:
    """Return an undo of a deletion; a URL with a password is named again."""
    done = report(run("delete", target.url, *words, "--yes", "--json"))["run"]
    named = target.url.startswith("mysql:")
    return ["undo", done, *(("--store", target.url) if named else ()), "--yes"]


@pytest.mark.parametrize("target", STORES, indirect=True)
@pytest.mark.parametrize("words", [("--user", "ada"), ("--keep-last", "3")], ids=str)
def test_recreated_store_gets_no_deleted_messages(
    run: Run, target: Target, words: tuple[object, ...]
) -> None:
    undoing = undo(run, target, words)
    recreate(target)
    before = contents(target.url)
    fails(run(*undoing), 5, EMPTY, "--store STORE")
    fails(run(*undoing, "--dry-run"), 5, EMPTY)
    assert contents(target.url) == before


@pytest.mark.parametrize("target", ["postgresql", "mysql"], indirect=True)
def test_recreated_database_is_told_by_its_generation(run: Run, target: Target) -> None:
    before = contents(target.url)
    undoing = undo(run, target, ("--all",))
    assert run(*undoing).exit_code == 0
    assert contents(target.url) == before
    undoing = undo(run, target, ("--all",))
    recreate(target)
    fails(run(*undoing), 5, EMPTY)


@pytest.mark.parametrize("target", ["postgresql", "mysql"], indirect=True)
def test_recreated_database_is_not_one_whose_messages_were_all_deleted(
    run: Run, target: Target
) -> None:
    undoing = undo(run, target, ("--user", "ada"))
    assert run("delete", target.url, "--all", "--yes").exit_code == 0
    assert run(*undoing).exit_code == 0
    assert len(contents(target.url)[KYOTO]) == 20


@pytest.mark.parametrize("target", STORES, indirect=True)
def test_recreated_store_loses_what_a_copy_added(run: Run, target: Target, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    new = {MemoryKey("eve", "new"): samples.entries(5)}
    asyncio.run(fill(source, new))
    done = report(run("migrate", source, target.url, "--json"))["run"]
    recreate(target)
    before = contents(target.url)
    assert run("migrate", source, target.url).exit_code == 0
    assert run("undo", done, "--store", target.url, "--yes").exit_code == 0
    assert contents(target.url) == before


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_recreated_database_that_was_restored_has_its_messages(
    run: Run, target: Target, servers: Servers
) -> None:
    before = contents(target.url)
    undoing = undo(run, target, ("--user", "ada"))
    backup = servers.postgresql.dump(target.url)
    target.drop()
    psql = [servers.postgresql.program("psql"), target.url, "-Xq"]
    subprocess.run(psql, input=backup, check=True, capture_output=True, text=True)
    assert run(*undoing).exit_code == 0
    assert contents(target.url) == before


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_recreated_file_that_was_restored_has_its_messages(
    run: Run, target: Target, tmp_path: Path
) -> None:
    before = contents(target.url)
    undoing = undo(run, target, ("--user", "ada"))
    shutil.copy(tmp_path / "agents.db", tmp_path / "backup.db")
    recreate(target)
    (tmp_path / "backup.db").replace(tmp_path / "agents.db")
    assert run(*undoing).exit_code == 0
    assert contents(target.url) == before


@pytest.mark.parametrize("target", ["sqlite", "postgresql"], indirect=True)
def test_recreated_store_that_is_named_is_accepted(run: Run, target: Target) -> None:
    undoing = undo(run, target, ("--user", "ada"))
    recreate(target)
    fails(run("undo", "--store", target.url, "--yes"), 5, EMPTY)
    assert run(*undoing, "--store", target.url).exit_code == 0
    assert len(contents(target.url)[KYOTO]) == 20


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_recreated_store_is_told_without_erased_users(run: Run, target: Target) -> None:
    undoing = undo(run, target, ("--user", "ada"))
    [path] = runs_folder().rglob("run.json")
    assert "bob" in path.read_text()
    assert run("erase", target.url, "--user", "bob", "--yes").exit_code == 0
    assert "bob" not in path.read_text()
    assert json.loads(path.read_text())["witnesses"] == []
    assert run(*undoing).exit_code == 0
