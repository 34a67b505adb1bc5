"""Finding, asking and committing at the same time: what begins when, and what an end leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from memctl.errors import BadData, Interrupted
from memctl.inference.errors import Unreachable
from memctl.inference.settings import Usage
from memctl.model import Memory, MemoryKey
from memctl.ops.compress.plan import (
    CompressionPlan,
    CompressMode,
    CompressOptions,
    MessageStatus,
    PlannedMessage,
)
from memctl.ops.compress.run import AHEAD, CompressionPipeline, CompressReport, SummarizedMemory
from memctl.ops.compress.spool import Spool
from memctl.ops.stop import Stop
from memctl.summarizer import Answer, Excerpt, Summarizer, Turn

JOBS = 2
PATIENCE = 10
"""Seconds."""


class Model(Summarizer):
    """A summarizer that answers at once, until it is gone."""

    kind = "openai"
    name = "model"
    window = 32_000
    overhead = 500
    prices = None

    def __init__(self) -> None:
        self.asked = 0
        self.gone = False

    async def summarize(self, excerpt: Excerpt) -> Answer:
        if self.gone:
            raise Unreachable("nobody answers")
        self.asked += 1
        return Answer(f"{len(excerpt.turns)} turns", Usage(1, 1))


class Bench:
    """A piece of work, of which the test does the finding."""

    def __init__(self, spool: Spool) -> None:
        self.model = Model()
        self.report = CompressReport()
        self.stop = Stop()
        self.committed: list[str] | None = None
        self._spool = spool
        options = CompressOptions(CompressMode.MESSAGE, jobs=JOBS)
        self.work = CompressionPipeline(spool, options, self.model, self.report, self.stop)

    def find(self, *names: str) -> None:
        for name in names:
            self._spool.add(
                PlannedMessage(MessageStatus.SELECTED, "m", (), 0, 0, Turn("user", "u", "Hello."))
            )
            self._spool.keep(CompressionPlan(Memory(MemoryKey("u", name)), "", 1, 1, 3, 4))
            self.work.found()

    async def commit(self, ready: asyncio.Queue[SummarizedMemory | None]) -> None:
        self.committed = []
        while (done := await ready.get()) is not None:
            self.committed.append(done.case.memory.key.session)
            self.report.changes.left -= 1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Spool(tmp_path) as spool:
        yield Bench(spool)


async def until_idle() -> None:
    """Yield to the jobs until they are idle."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("memories", [1, JOBS, 3 * AHEAD * JOBS])
async def test_compress_some_are_asked_for_before_all_are_found(
    bench: Bench, memories: int
) -> None:
    names = [f"s{n}" for n in range(memories)]

    async def find() -> None:
        bench.find(*names)
        await until_idle()
        assert bench.model.asked == min(memories, AHEAD * JOBS)
        assert bench.committed is None

    async with asyncio.timeout(PATIENCE):
        await bench.work.run(find, bench.commit)
    assert sorted(bench.committed or []) == sorted(names)
    assert bench.report.changes.left == 0
    assert bench.report.calls == memories


async def test_compress_each_is_begun_when_it_is_found(bench: Bench) -> None:
    async def find() -> None:
        for number in range(1, 5):
            bench.find(f"s{number}")
            await until_idle()
            assert bench.model.asked == number

    async with asyncio.timeout(PATIENCE):
        await bench.work.run(find, bench.commit)


async def test_compress_there_is_nothing(bench: Bench) -> None:
    async with asyncio.timeout(PATIENCE):
        await bench.work.run(until_idle, bench.commit)
    assert bench.committed is None


async def test_compress_model_that_is_not_there_ends_the_search(bench: Bench) -> None:
    bench.model.gone = True
    ended = False

    async def find() -> None:
        nonlocal ended
        bench.find("s")
        try:
            await asyncio.sleep(3600)
        finally:
            ended = True

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unreachable):
            await bench.work.run(find, bench.commit)
    assert ended
    assert not bench.committed
    assert bench.report.changes.left == 1


async def test_compress_store_that_cannot_be_read_stays_as_it_is(bench: Bench) -> None:
    async def find() -> None:
        bench.find("s0", "s1", "s2")
        await until_idle()
        raise BadData("it is not JSON")

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(BadData):
            await bench.work.run(find, bench.commit)
    assert bench.model.asked == 3
    assert bench.committed is None


async def test_compress_stop_while_searching_keeps_what_is_paid_for(bench: Bench) -> None:
    async def find() -> None:
        bench.find("s0", "s1", "s2")
        await until_idle()
        assert bench.stop.cooperative
        bench.stop.ask()
        await asyncio.sleep(3600)

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Interrupted):
            await bench.work.run(find, bench.commit)
    assert sorted(bench.committed or []) == ["s0", "s1", "s2"]
