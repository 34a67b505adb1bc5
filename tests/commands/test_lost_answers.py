"""Commands whose commit is lost on the way: its answer, the request itself, or the connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import samples
from tests.support import histories
from tests.support.cli import Run, contents, fill, names, report
from tests.support.servers.pool import Servers
from tests.support.servers.proxy import Fault, Proxy

pytestmark = pytest.mark.slow

KYOTO, OSAKA = MemoryKey("ada", "kyoto"), MemoryKey("bob", "osaka")
LIMIT = 2
"""The seconds of --timeout."""
GRACE = 12
"""The seconds that a command may take besides, beside other tests; alone, it takes less than 5."""
SECOND_ATTEMPT = 4
"""The seconds that a copy, which tries again, may take for that."""
SQL = b"INSERT INTO", b"DELETE FROM", b"UPDATE "
SERVERS = {
    "postgresql": (SQL, b"COMMIT"),
    "mysql": (SQL, b"COMMIT"),
    "redis": ((b"RPUSH", b"LREM", b"SADD", b"UNLINK", b"LSET", b"HSET"), b"EXEC"),
}
"""For each server, words of changes, and the word that commits them."""


class Command(NamedTuple):
    """A command that changes memories."""

    words: Callable[[str], tuple[object, ...]]
    """Returns its words for the URL of the store."""
    changes: int
    """The number of memories that it changes."""
    prepare: Callable[[Run, str], tuple[str, ...]] | None = None
    """Changes the store before; returns more words."""
    counts: Callable[[dict[str, Any]], tuple[int, int]] = lambda found: (
        found["memories"]["written"],
        found["memories"]["written"],
    )
    """Returns the smallest and the largest number of changed memories that a report allows."""


def _deleted(run: Run, url: str) -> tuple[str, ...]:
    return (str(report(run("delete", url, "--all", "--yes", "--json"))["run"]),)


def _copied(found: dict[str, Any]) -> tuple[int, int]:
    """Allow memories that a second attempt found as the first had written them."""
    counts = found["memories"]
    return counts["written"], counts["written"] + counts["unchanged"]


def _erased(found: dict[str, Any]) -> tuple[int, int]:
    """Allow a memory that agents no longer see, of which some data are left."""
    [store] = found["stores"]
    return len(store["memories"]), 1 if store["state"] == "partial" else len(store["memories"])


def _repaired(found: dict[str, Any]) -> tuple[int, int]:
    repaired = {(one["user"], one["session"]) for one in found["repaired"]}
    return len(repaired), len(repaired)


SOURCE = "source.ndjson"
REPLACE = "--on-conflict", "replace", "--yes"
COMMANDS = {
    "delete": Command(lambda url: ("delete", url, "--all", "--yes"), 2),
    "mark": Command(lambda url: ("mark", "add", "--all", url, "new"), 2),
    "import": Command(
        lambda url: ("import", SOURCE, url, "--on-conflict", "skip"), 1, counts=_copied
    ),
    "migrate": Command(lambda url: ("migrate", SOURCE, url, *REPLACE), 2, counts=_copied),
    "compress": Command(
        lambda url: ("compress", url, "--mode", "replace", "--keep-recent", "2", "--yes"), 1
    ),
    "erase": Command(lambda url: ("erase", url, "--user", "ada", "--yes"), 1, counts=_erased),
    "undo": Command(lambda url: ("undo", "--store", url), 2, _deleted),
    "doctor": Command(lambda url: ("doctor", url, "--repair", "--yes"), 2, counts=_repaired),
}


def cases() -> list[ParameterSet]:
    """Return all commands, servers and faults."""
    return [
        pytest.param(command, server, fault, id=f"{command}-{server}-{fault.name.lower()}")
        for command, server, fault in product(COMMANDS, SERVERS, Fault)
    ]


@pytest.fixture
def place(server: str, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with two memories; the folder has a source with one more."""
    monkeypatch.chdir(tmp_path)
    broken = [found for found, _ in histories.BROKEN["tool-call-without-result"]]
    memories = {KYOTO: histories.entries(broken[0]), OSAKA: histories.entries(broken[2])}
    source = {KYOTO: samples.entries(9), MemoryKey("eve", "nara"): samples.entries(4)}
    asyncio.run(fill(SOURCE, source))
    make = {
        "postgresql": servers.postgresql.fresh,
        "mysql": servers.mariadb.fresh,
        "redis": servers.redis.fresh,
    }
    url = make[server]()
    asyncio.run(fill(url, memories))
    return url


States = dict[MemoryKey, list[tuple[str, tuple[str, ...]]]]


def state(url: str, known: set[str]) -> States:
    """Return the ids and marks of all messages; the ids of summaries differ in each run."""

    def shown(entry: StoredMessage) -> tuple[str, tuple[str, ...]]:
        return entry.id if entry.id in known else "", tuple(sorted(entry.marks))

    return {key: list(map(shown, found)) for key, found in contents(url).items() if found}


@pytest.mark.parametrize(("command", "server", "fault"), cases())
def test_lost_commit(run: Run, command: str, server: str, fault: Fault, place: str) -> None:
    about = COMMANDS[command]
    known = {
        entry.id for url in (place, SOURCE) for found in contents(url).values() for entry in found
    }
    more = about.prepare(run, place) if about.prepare else ()
    before, named = state(place, known), names(place)
    began = time.monotonic()
    with Proxy(place, *SERVERS[server], fault) as proxy:
        words = (*about.words(proxy.url), *more, "--json")
        done = run(*words, "--timeout", LIMIT)
        assert proxy.lost == 1
    more_time = SECOND_ATTEMPT if about.counts is _copied else 0
    assert time.monotonic() - began < LIMIT + GRACE + more_time
    held = state(place, known)
    told = done.stdout + done.stderr
    assert "Traceback" not in told
    assert done.exit_code in (0, 3, 7), told
    changed = different(before, held)
    if done.exit_code:
        assert run(*about.words(place), *more).exit_code == 0
        after = state(place, known)
        assert all(held.get(key) == after.get(key) for key in changed), "a half change"
    assert len(different(before, state(place, known))) == about.changes
    found = json.loads(done.stdout)
    assert "not known" not in told  # the server can be asked again
    least, most = about.counts(found)
    assert least <= len(changed) <= most, told
    if done.exit_code == 0:
        assert len(changed) == about.changes
    if not done.exit_code and "run" in found and command != "undo":
        undone = run("undo", found["run"], "--store", place, "--yes")
        assert undone.exit_code == 0, told + undone.stderr
        assert (state(place, known), names(place)) == (before, named)


def different(before: States, after: States) -> set[MemoryKey]:
    """Return the memories that are not the same."""
    return {key for key in before | after if before.get(key) != after.get(key)}


@pytest.mark.parametrize("command", ["import", "migrate"])
@pytest.mark.parametrize("server", ["postgresql", "mysql", "redis"])
def test_copy_that_is_cut_off_names_its_run(
    run: Run, command: str, server: str, place: str
) -> None:
    """The last of the memories is too large for the transaction of the others."""
    before = contents(place)
    big = [samples.entry(f"b{number}", number, content="x" * 2**20) for number in range(12)]
    keys = MemoryKey("eve", "nara"), MemoryKey("zoe", "last")
    asyncio.run(fill("big.ndjson", {keys[0]: samples.entries(4), keys[1]: big}))
    with Proxy(place, (b"zoe",), SERVERS[server][1], Fault.CUT) as proxy:
        done = run(command, "big.ndjson", proxy.url, "--retries", "0", "--json")
        assert proxy.lost == 1
    found = report(done, 3)
    assert found["memories"]["written"] == 1
    assert contents(place).keys() == {*before, keys[0]}
    [listed, *_] = report(run("history", "--json"))["runs"]
    assert (listed["run"], listed["outcome"]) == (found["run"], "partial")
    assert listed["memories"] == 1
    undone = run("undo", found["run"], "--store", place, "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert contents(place) == before
