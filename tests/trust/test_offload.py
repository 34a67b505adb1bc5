"""Offloads and rehydrations that are killed: every reference has its blob, and nothing is lost."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.model import MemoryKey, StoredMessage
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.slim import restored
from memctl.testing import Place
from tests.support.backends import new_place
from tests.support.cli import Run, contents, fill, report
from tests.support.processes import start
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

KILLS = 6
MOST_KILLS = 60
"""More kills only follow as long as none came in the middle of a change of the store."""
MEMORIES = 15
WORDS = ("--larger", "5kB", "--keep", "100", "--yes")
BUSY = 75
Texts = dict[MemoryKey, list[bytes]]


def message(id: str, role: str, block: dict[str, Any]) -> StoredMessage:
    value = {"id": id, "name": "x", "role": role, "content": [block], "metadata": {}}
    value["timestamp"] = "2026-01-01 10:00:00.000"
    return StoredMessage(id, json.dumps(value).encode())


def image(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def result(output: str) -> dict[str, Any]:
    return {"type": "tool_result", "id": "c1", "name": "read", "output": output}


def conversation(draw: random.Random, shared: bytes) -> list[StoredMessage]:
    """Return messages with large contents, of which all memories share one.

    The memories together are more than a store takes in one transaction.
    """
    return [
        message("m0", "user", {"type": "text", "text": "Look."}),
        message("m1", "user", image(draw.randbytes(700_000))),
        message("m2", "system", result(draw.randbytes(100_000).hex() + "é\0")),
        message("m3", "user", image(shared)),
        message("m4", "assistant", {"type": "text", "text": "Thanks." * 2000}),
    ]


def filled(name: str, servers: Servers, folder: Path, seed: str) -> Place:
    """Return a new place with memories."""
    folder.mkdir()
    place = new_place(name, folder, servers)
    draw = random.Random(seed)
    shared = draw.randbytes(50_000)
    keys = [MemoryKey(f"user{number % 5}", f"s{number}") for number in range(MEMORIES)]
    asyncio.run(fill(place.text, {key: conversation(draw, shared) for key in keys}))
    return place


def texts(place: Place) -> Texts:
    return {key: [one.message for one in some] for key, some in contents(place.text).items()}


def whole(found: Texts, blobs: Path) -> Texts:
    """Return messages with the contents of their blobs; fails if a blob is missing or damaged."""
    place = Blobs(str(blobs))
    return {
        key: [
            restored(AGENTSCOPE1, one, lambda name, user=key.user: place.get(name, user))
            for one in some
        ]
        for key, some in found.items()
    }


def changed(found: Texts, before: Texts) -> int:
    """Return the number of messages that refer to a blob."""
    pairs = [pair for key in before for pair in zip(found[key], before[key], strict=True)]
    return sum(one != other for one, other in pairs)


def killed(after: float, *words: object) -> None:
    """Start memctl, and kill it after a time in seconds, unless it has ended by then."""
    process = start(*words)
    time.sleep(after)
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (0, -9, BUSY), errors


def finished(run: Run, *words: object) -> dict[str, Any]:
    """Run memctl to the end; a server may still hold the lock of a killed run."""
    for _ in range(50):
        done = run(*words, "--json")
        if done.exit_code != BUSY:
            break
        time.sleep(0.2)
    return report(done)


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_offload_killed(run: Run, servers: Servers, tmp_path: Path, name: str) -> None:
    seed = os.environ.get("SEED") or str(random.randrange(10**6))
    draw = random.Random(seed)
    place = filled(name, servers, tmp_path / "store", seed)
    before, blobs = texts(place), tmp_path / "blobs"
    offload = ("offload", place.text, "--to", blobs, *WORDS)
    rehydrate = ("rehydrate", place.text, "--from", blobs)

    seconds = []
    for words in (offload, rehydrate):
        begun = time.monotonic()
        process = start(*words)
        assert process.wait() == 0
        seconds.append(time.monotonic() - begun)
    assert texts(place) == before
    large = 3 * MEMORIES
    partly = kills = 0
    while kills < KILLS or not partly:
        kills += 1
        assert kills < MOST_KILLS, f"SEED={seed}: no kill was in the middle"
        for path in blobs.iterdir():  # sometimes they are there from the last time
            if draw.random() < 0.7:
                path.unlink()
        killed(draw.uniform(0.2, 1.0) * seconds[0], *offload)
        found = texts(place)
        assert whole(found, blobs) == before, f"SEED={seed}"
        partly += 0 < changed(found, before) < large
        if draw.random() < 0.7:
            finished(run, *offload)
            found = texts(place)
            assert changed(found, before) == large
            assert whole(found, blobs) == before
            killed(draw.uniform(0.2, 1.0) * seconds[1], *rehydrate)
            found = texts(place)
            assert whole(found, blobs) == before, f"SEED={seed}"
            partly += 0 < changed(found, before) < large
        finished(run, *rehydrate)
        assert texts(place) == before, f"SEED={seed}"

    for path in blobs.iterdir():
        path.unlink()
    killed(0.7 * seconds[0], *offload)
    finished(run, *offload)
    assert changed(texts(place), before) == large
    for row in report(run("history", "--json"))["runs"]:
        if changed(texts(place), before):
            finished(run, "undo", row["run"], "--store", place.text, "--yes")
    assert texts(place) == before


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_offload_twice_at_once(servers: Servers, tmp_path: Path, name: str) -> None:
    """Of two runs on a store, one waits for nothing and says so; two stores share a folder."""
    one = filled(name, servers, tmp_path / "one", "1")
    other = filled(name, servers, tmp_path / "other", "1")
    blobs, befores = tmp_path / "blobs", [texts(one), texts(other)]
    words = ("--to", blobs, *WORDS)
    processes = [start("offload", place.text, *words) for place in (one, one, other, other)]
    codes = [(process.communicate(), process.returncode)[1] for process in processes]
    for pair in (codes[:2], codes[2:]):
        assert 0 in pair
        assert set(pair) <= {0, BUSY}
    for place, before in zip((one, other), befores, strict=True):
        found = texts(place)
        assert changed(found, before) == 3 * MEMORIES
        assert whole(found, blobs) == before
    assert sum(path.suffix != ".user" for path in blobs.iterdir()) == 2 * MEMORIES + 1
    backs = [start("rehydrate", one.text, "--from", blobs) for _ in range(2)]
    assert {back.wait() for back in backs} <= {0, BUSY}
    assert texts(one) == befores[0]
