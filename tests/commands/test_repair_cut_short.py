"""``doctor --repair``, and its undo, cut short between edits and repairs by the store itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from memctl.errors import Lost
from memctl.model import MemoryKey
from memctl.ops.doctor.repair import StoreRepairs
from memctl.ops.undo.reversal import CopyUndoRun
from memctl.ops.undo.undo import UndoRun
from memctl.testing import samples
from tests.support import histories
from tests.support.backends import shared
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.histories import ASK, REPLY, entries
from tests.support.processes import wait_until
from tests.support.servers.pool import Servers

BUSY = 75
KEY = MemoryKey("ada", "kyoto")
HISTORY = [
    histories.said("h1", "do", "user", ("hint",)),
    ASK,
    REPLY,
    histories.said("h2", "do", "user", ("hint", "kept")),
]
KILLED = """
import os, signal
from memctl.__main__ import main
from memctl.ops.doctor.repair import StoreRepairs
async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
StoreRepairs.carry_out = die
main()
"""


def shared_positions(url: str, servers: Servers) -> None:
    """Give the messages of a session one position."""
    engine = url.partition(":")[0]
    quoted = "`index`" if engine == "mysql" else '"index"'
    shared(engine, "agentscope1", servers).execute(url, f"UPDATE message SET {quoted} = 1")


def early_end(url: str, servers: Servers) -> None:
    """Let a message expire before its memory."""
    base = f"user_id:{KEY.user}:session:{KEY.session}"
    with servers.redis.client(url) as client:
        for key in client.scan_iter(f"{base}:*"):
            client.expire(key, 10_000)
        client.expire(f"{base}:msg:q", 5000)


DAMAGES: dict[str, Callable[[str, Servers], None]] = {
    "sqlite": shared_positions,
    "postgresql": shared_positions,
    "mysql": shared_positions,
    "redis": early_end,
}


@pytest.fixture(params=[pytest.param(one, marks=pytest.mark.slow) for one in DAMAGES])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A place with a memory that needs edits, and repairs by the store."""
    url = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/m.db",
        "postgresql": servers.postgresql.fresh,
        "mysql": servers.mariadb.fresh,
        "redis": servers.redis.fresh,
    }[request.param]()
    asyncio.run(fill(url, {KEY: entries(HISTORY)}))
    DAMAGES[request.param](url, servers)
    return url


def codes(run: Run, url: str) -> dict[str, int]:
    """Return the number of findings by code."""
    found = run("doctor", url, "--json")
    return {one["code"]: one["count"] for one in report(found, found.exit_code)["findings"]}


def states(run: Run) -> list[str]:
    """Return the outcomes of the kept runs, newest first."""
    return [one["outcome"] for one in report(run("history", "--json"))["runs"]]


def free(run: Run, *words: object) -> Result:
    """Run a command when the server has freed the lock of a killed run."""
    found = [run(*words)]

    def ended() -> bool:
        if found[-1].exit_code == BUSY:
            found.append(run(*words))
        return found[-1].exit_code != BUSY

    wait_until(ended)
    return found[-1]


def ids(url: str) -> set[str]:
    return {one.id for one in contents(url)[KEY]}


def test_repair_killed_between_its_stages(run: Run, place: str) -> None:
    words = "doctor", place, "--repair", "--yes"
    sick, before = codes(run, place), ids(place)
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert states(run) == ["cut-short"]
    assert ids(place) < before
    assert sick.keys() - codes(run, place).keys() == {"leftover-hint"}
    undo = "undo", "--store", place, "--yes"
    assert free(run, *undo).exit_code == 0
    assert (codes(run, place), ids(place)) == (sick, before)
    assert subprocess.run([sys.executable, "-c", KILLED, *words]).returncode == -9
    assert free(run, *words).exit_code == 0
    assert codes(run, place) == {}
    for _ in range(2):
        assert run(*undo).exit_code == 0
    assert (codes(run, place), ids(place)) == (sick, before)
    assert run(*undo).exit_code == 4, "nothing is left to undo"


def test_repair_that_fails_between_its_stages(
    run: Run, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, before = codes(run, place), ids(place)

    async def fail(*_: Any) -> None:
        raise Lost("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(StoreRepairs, "carry_out", fail)
        done = run("doctor", place, "--repair", "--yes")
    fails(done, 7, "done: 1 memory, not done: repairs of the store")
    assert states(run) == ["partial"]
    assert run("doctor", place, "--repair", "--yes").exit_code == 0
    assert states(run) == ["done", "partial"]

    with monkeypatch.context() as patch:
        patch.setattr(UndoRun, "_revert", fail)
        fails(run("undo", "--store", place, "--yes"), 3, "the server is gone")
    for _ in range(2):
        assert run("undo", "--store", place, "--yes").exit_code == 0
    assert (codes(run, place), ids(place)) == (sick, before)


def test_undo_of_a_copy_that_fails_between_its_stages(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The undo restores the replaced memory, then removes the added one."""
    place, source = str(tmp_path / "m.db"), str(tmp_path / "source.ndjson")
    keys = KEY, MemoryKey("bob", "osaka")
    asyncio.run(fill(place, {keys[0]: samples.entries(3)}))
    asyncio.run(fill(source, dict.fromkeys(keys, samples.entries(4, start=10))))
    before = contents(place)
    words = "migrate", source, place, "--on-conflict", "replace", "--yes"
    assert run(*words).exit_code == 0

    async def fail(*_: Any) -> None:
        raise Lost("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(UndoRun, "carry_out", fail)
        done = run("undo", "--store", place, "--yes", "--json")
    found = report(done, 7)
    assert "done: 1 memory, not done: 1" in found["error"]["message"]
    assert contents(place)[KEY] == before[KEY]
    with monkeypatch.context() as patch:
        patch.setattr(CopyUndoRun, "_tidy", fail)
        assert run("undo", "--store", place, "--yes").exit_code == 0, "it is restored already"
    assert contents(place) == before
