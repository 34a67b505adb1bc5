"""Searches that are killed: the index is whole or not there, and the next search finds all."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from tests.search.finding import ADA, index_files, talk
from tests.support.cli import Run, add, fill, report
from tests.support.processes import start

pytestmark = pytest.mark.slow

MESSAGES = 12_000
KILLS = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose first index takes a while."""
    path = tmp_path_factory.mktemp("killed") / "a.db"
    texts = [f"umbrella {number} " + "wet " * 200 for number in range(MESSAGES)]
    halves = {ADA: talk(texts[::2]), MemoryKey("bob", "b-1"): talk(texts[1::2])}
    asyncio.run(fill(str(path), halves))
    return path


def kill(store: Path, after: float, number: signal.Signals) -> bool:
    """Kill a search after so many seconds; return whether it was still at work."""
    running = start("search", store, "umbrella", stdout=subprocess.DEVNULL)
    time.sleep(after)
    alive = running.poll() is None
    running.send_signal(number)
    running.wait()
    return alive


def touch(store: Path, number: int) -> None:
    """Have the next search look into the store, and tidy up behind one that was killed at its end.

    A search that finds an index of the file as it is takes no lock, and leaves a file of one alone.
    """
    os.utime(store, (1000 + number, 1000 + number))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_first_search_that_is_killed_leaves_no_half_index(
    run: Run, store: Path, number: signal.Signals
) -> None:
    began = time.monotonic()
    assert report(run("search", store, "umbrella", "--no-index", "--json"))["hits"]
    whole = time.monotonic() - began
    chance = random.Random(number)
    hit = 0
    for _ in range(KILLS):
        for path in index_files():
            path.unlink()
        hit += kill(store, chance.uniform(0.1, whole * 1.5), number)
    assert hit
    touch(store, number)
    found = report(run("search", store, '"umbrella 11999"', "--json"))
    assert [one["user"] for one in found["hits"]] == ["bob"]
    assert found["index"]["messages"] == MESSAGES
    [index] = index_files()
    assert [one.name for one in index.parent.iterdir()] == [index.name]


@pytest.mark.parametrize("many", [2, 3])
def test_first_searches_at_once_of_which_one_is_killed(run: Run, store: Path, many: int) -> None:
    """Whoever makes the index, the others find all, and one index is left."""
    chance = random.Random(many)
    indexed = 0
    for turn in range(KILLS // 2):
        for path in index_files():
            path.unlink()
        running = [
            start("search", store, '"umbrella 11999"', "--json", stdout=subprocess.PIPE)
            for _ in range(many)
        ]
        time.sleep(chance.uniform(0.3, 2.5))
        victim = running.pop(turn % many)
        victim.kill()
        victim.communicate()
        for other in running:
            stdout, stderr = other.communicate(timeout=300)
            assert other.returncode == 0, stderr
            found = json.loads(stdout)
            assert [one["user"] for one in found["hits"]] == ["bob"]
            assert not found["warnings"]
            indexed += found["index"]["new"] == MESSAGES
        touch(store, turn)
        assert run("search", store, "umbrella", "--top", "1").exit_code == 0
        [index] = index_files()
        assert [one.name for one in index.parent.iterdir()] == [index.name]
    assert indexed


def test_later_search_that_is_killed_leaves_the_index_whole(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asyncio.run(fill(str(path), {ADA: talk(f"umbrella {number}" for number in range(3000))}))
    run("search", path, "umbrella")
    chance = random.Random(7)
    for turn in range(KILLS):
        add(path, ADA, talk([f"quince {turn}"] * 1, 3000 + turn), 3000 + turn)
        kill(path, chance.uniform(0.1, 0.8), signal.SIGKILL)
    found = report(run("search", path, "quince", "--top", "50", "--json"))
    assert len({one["position"] for one in found["hits"] if one["position"] > 3000}) == KILLS
    assert found["index"]["messages"] == 3000 + KILLS
    assert not found["warnings"]
