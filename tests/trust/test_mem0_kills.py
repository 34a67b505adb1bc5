"""Copies and deletions in mem0's folders that are killed: no half fact, and none is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random

import pytest

from memctl import testing
from memctl.dialects.fact import FACT
from memctl.errors import NotFound
from memctl.model import Embedding, Memory, MemoryKey, Page
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import Backend, samples
from memctl.testing.drive import read
from memctl.testing.samples import Sample, sample
from tests.support.backends import DIMENSIONS, FACT_BACKENDS
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

KILLS = 3
"""For each store and command."""
HERE = ["mem0-qdrant", "mem0-faiss", "mem0-chroma"]
Facts = dict[MemoryKey, dict[str, object]]


@pytest.fixture(params=HERE)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Backend:
    """Each vector store that is files of this machine."""
    return FACT_BACKENDS[request.param](servers)


@pytest.fixture(autouse=True)
def _style(backend: Backend) -> Iterator[None]:
    samples.use(backend.style)
    yield
    samples.use(samples.Style())


def world(backend: Backend) -> list[Sample]:
    """Return scopes of many facts and of few."""
    found, start = [], 0
    for number, count in enumerate((700, 3, 150)):
        found.append(sample(backend.keys(number), samples.entries(count, start)))
        start += count
    return found


def values(memories: dict[MemoryKey, Sample]) -> Facts:
    return {
        key: {entry.id: FACT.parse(entry.message).value for entry in one.entries}
        for key, one in memories.items()
    }


def contents(text: str) -> Facts:
    """Return what a place holds; nothing where there is none."""

    async def look() -> Facts:
        async with make_store(parse(text)) as store:
            return values(await read(store))

    with suppress(NotFound):
        return asyncio.run(look())
    return {}


def archive(path: Path, memories: list[Sample]) -> str:
    """Write the facts into an archive, as another store would have them."""

    async def pages() -> AsyncGenerator[Page]:
        for one in memories:
            yield Page(Memory(one.key), one.entries)

    async def work() -> None:
        store = make_store(parse(str(path)), OpenMode.CREATE)
        size = samples.style().dimensions
        store.adopt(FACT, Embedding("", DIMENSIONS) if size else None)
        async with store, aclosing(store.write(pages())) as results:
            assert [one.failure async for one in results] == [None] * len(memories)

    asyncio.run(work())
    return str(path)


class Runs:
    """Runs of memctl in processes of their own, with a state folder of their own."""

    def __init__(self, folder: Path, seed: str) -> None:
        self._environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
        self._random = Random(seed)
        self._longest = 1.0
        """Seconds that the last run to its end took."""

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "memctl", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def whole(self, *words: str) -> None:
        """Run to the end, which must be a good one."""
        begun = time.monotonic()
        process = self.start(*words)
        out, said = process.communicate(timeout=120)
        assert process.returncode == 0, (words, process.returncode, out, said)
        self._longest = time.monotonic() - begun

    def killed(self, *words: str) -> None:
        """Kill a run at a random moment, if it has not ended by then."""
        process = self.start(*words)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=self._longest * self._random.uniform(0.3, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()


def assert_part(found: Facts, whole: Facts) -> None:
    """Every fact is one of the source's, and as it is there."""
    for key, facts in found.items():
        assert key in whole
        for id, fact in facts.items():
            assert fact == whole[key].get(id), (key, id)


def test_copy_of_facts_killed_at_any_moment(backend: Backend, tmp_path: Path) -> None:
    memories = world(backend)
    whole = values({one.key: one for one in memories})
    source = archive(tmp_path / "a.ndjson", memories)
    runs = Runs(tmp_path, backend.name)
    runs.whole("migrate", source, testing.new_place(backend, _folder(tmp_path, "first")).text)
    place = testing.new_place(backend, _folder(tmp_path, "places"))
    for _ in range(KILLS):
        runs.killed("migrate", source, place.text)
        assert_part(contents(place.text), whole)
    runs.whole("migrate", source, place.text)
    assert contents(place.text) == whole


def test_deletion_of_facts_killed_at_any_moment(backend: Backend, tmp_path: Path) -> None:
    memories = world(backend)
    whole = values({one.key: one for one in memories})
    source = archive(tmp_path / "a.ndjson", memories)
    runs = Runs(tmp_path, backend.name)
    place = testing.new_place(backend, _folder(tmp_path, "places"))
    runs.whole("migrate", source, place.text, "--no-backup")
    words = ("delete", place.text, "--match", "message 1", "--yes")
    for _ in range(KILLS):
        runs.killed(*words)
        assert_part(contents(place.text), whole)
    # What the killed runs have deleted comes back, one after the other.
    for _ in range(KILLS + 1):
        process = runs.start("undo", "--store", place.text, "--yes")
        process.communicate(timeout=120)
        if process.returncode == 4:  # there is no run left to undo
            break
        assert process.returncode == 0
    assert contents(place.text) == whole


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
