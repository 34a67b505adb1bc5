"""Parts of a change that are killed: what they did is undone exactly."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.parts.conftest import MEMORIES, memories, running_parts
from tests.support.backends import place_at
from tests.support.cli import Run, contents, fill, report
from tests.support.processes import start, wait_until
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

MESSAGES = 60
CHANGES = {
    "delete": ("delete", "--all", "--yes"),
    "mark": ("mark add", "new", "--all"),
    "compress": ("compress", "--all", "--mode", "message"),
}


@pytest.fixture(params=["postgresql", "states"])
def store(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    """A store with memories."""
    folder = f"{tmp_path}/states/"
    text = folder if request.param == "states" else servers.postgresql.fresh()
    asyncio.run(fill(text, memories(MESSAGES)))
    return text


def words_of(change: str, store: str) -> list[str]:
    name, *rest = CHANGES[change]
    return [*name.split(), store, *rest]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(2))
def test_killed_parts_are_undone_exactly(run: Run, store: str, change: str, seed: int) -> None:
    chance = random.Random(seed)
    before = contents(store)
    words = words_of(change, store)
    parts: list[subprocess.Popen[str]] = [
        start(*words, "--shard", f"{number}/3", "--job", "nightly") for number in range(3)
    ]
    wait_until(lambda: contents(store) != before)
    for part in parts:
        time.sleep(chance.random() * 0.05)
        part.kill()
    for part in parts:
        part.communicate(timeout=60)
    undone = run("undo", "nightly", "--store", store)
    assert undone.exit_code == 0, undone.stderr
    assert contents(store) == before
    again = run("undo", "nightly", "--store", store)
    assert again.exit_code == 0
    assert "nothing to undo" in again.stdout


def test_killed_parts_are_repeated_and_undone_as_one(run: Run, servers: Servers) -> None:
    store = servers.postgresql.fresh()
    asyncio.run(fill(store, memories(300)))
    place = place_at("postgresql", store, Path(), servers)
    before = sorted(place.dump().splitlines())
    process = start("delete", store, "--all", "--shards", "3", "--job=j", "--yes", "--json")
    killed = 0
    while process.poll() is None and killed < 4:
        if running := running_parts():
            time.sleep(0.4)
            try:
                os.kill(running[0], signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                continue
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not any(contents(store).values())
    found = report(run("undo", "j", "--store", store, "--json"))
    assert found["messages"]["restored"] == MEMORIES * 300
    assert sorted(place.dump().splitlines()) == before
