"""Limits of a whole run: whatever its parts do, their sum does not exceed them."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from memctl.errors import MemctlError
from memctl.ops.stop import Stop
from memctl.parts import divide
from memctl.parts.divide import Driver
from memctl.parts.limits import CostLimit, DeletionLimit, Limits
from memctl.parts.part import Part, PartResult
from memctl.shard import Shard
from tests.commands.test_compress import PRICED
from tests.parts.conftest import MEMORIES, memories
from tests.parts.test_divide import Lines
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.compressing import configure, talk

KILLED, BUSY = 137, 75


class Spender:
    """An engine whose parts spend any of their share; some are killed, or find a lock."""

    name = "spender"

    def __init__(self, workers: int, chance: random.Random) -> None:
        self.workers = workers
        self.spent = 0.0
        self.shares: list[float] = []
        self._chance = chance

    async def run(self, part: Part) -> PartResult:
        share = float(part.arguments[0].removeprefix("--max-cost="))
        self.shares.append(share)
        spent = share * self._chance.choice([0, 0.3, 1])
        self.spent += spent
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        code = self._chance.choice([0, 0, 7, BUSY, KILLED])
        return PartResult(part.shard, code, None if code == KILLED else {"model": {"cost": spent}})

    def stop(self, *, force: bool) -> None:
        pass

    async def close(self) -> None:
        pass


class Limited(Lines):
    """A plan with a limit."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def begin(self, shard: Shard) -> Part:
        return Part(tuple(self._limits.begin(shard)), shard, "1")

    def end(self, result: PartResult) -> None:
        self._limits.end(result)


@pytest.mark.parametrize("seed", range(20))
def test_parts_never_spend_more_than_the_whole(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(divide, "WAITS", (0.0, 0.0))
    chance = random.Random(seed)
    of = chance.randrange(1, 20)
    shards = [Shard(number, of) for number in range(of)]
    engine = Spender(chance.randrange(1, 6), chance)
    plan = Limited(Limits(cost=CostLimit(5.0, shards)))
    with suppress(MemctlError):
        asyncio.run(Driver(engine, shards, plan, plan, Stop()).run())
    assert len(engine.shares) >= of
    assert 0 < engine.spent <= 5.0


def test_what_a_part_does_not_spend_goes_to_the_others() -> None:
    shards = [Shard(number, 4) for number in range(4)]
    limit = CostLimit(8.0, shards)
    assert limit.begin(shards[0]) == 2.0
    assert limit.begin(shards[1]) == 2.0
    limit.end(PartResult(shards[0], 0, {"model": {"cost": 0.5}}))
    limit.end(PartResult(shards[1], KILLED))  # it may have spent all
    assert limit.begin(shards[2]) == pytest.approx(5.5 / 3)
    limit.end(PartResult(shards[2], 7, {"error": {}}))  # it was refused before the first call
    assert limit.begin(shards[3]) == pytest.approx(5.5 / 2)


def test_parts_may_delete_what_they_planned_and_a_share_of_the_rest() -> None:
    planned = {Shard(0, 3): 10, Shard(1, 3): 0, Shard(2, 3): 5}
    limit = DeletionLimit(22, planned)
    assert [limit.begin(shard) for shard in planned] == [12, 2, 7]


@pytest.mark.slow
def test_max_delete_holds_for_all_parts(run: Run, source: str) -> None:
    words = ("delete", source, "--user", "user 1", "--shards", "2", "--yes", "--json")
    before = contents(source)
    fails(run(*words, "--max-delete", "31"), 9, "32 messages would be deleted, more than")
    assert contents(source) == before
    found = report(run(*words, "--max-delete", "32"))
    assert found["messages"]["deleted"] == 32


def test_max_delete_holds_for_a_dry_run(
    run: Run, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plan(_: object, part: Part) -> PartResult:
        assert not any(word.startswith("--max-delete") for word in part.arguments)
        memories_of = {"selected": 4, "written": 4, "failed": 0}
        messages = {"selected": 16, "deleted": 16, "marked": 0, "restored": 0, "failed": 0}
        data = {"dry_run": True, "target": "x", "memories": memories_of, "messages": messages}
        return PartResult(part.shard, 0, data | {"failures": [], "plan": []})

    monkeypatch.setattr("memctl.parts.local.LocalEngine.run", plan)
    words = ("delete", source, "--all", "--shards", "2", "--dry-run")
    fails(run(*words, "--max-delete", "31"), 9, "32 messages would be deleted")
    assert run(*words, "--max-delete", "32").exit_code == 0


@pytest.mark.slow
def test_max_cost_holds_for_all_parts(run: Run, postgresql_url: str, tmp_path: Path) -> None:
    found = {key: talk(range(20), key.session) for key in memories()}
    asyncio.run(fill(postgresql_url, found))
    config = ("--config", str(configure(tmp_path, PRICED)))
    words = ("compress", postgresql_url, "--all", "--summarizer", "codes", "--mode", "replace")
    foreseen = report(run(*config, *words, "--dry-run", "--json"))["model"]["cost"]
    limit = foreseen / 2
    found_all = report(
        run(*config, *words, "--max-cost", str(limit), "--shards", "3", "--yes", "--json")
    )
    assert 0 < found_all["model"]["cost"] <= limit
    assert 4 <= found_all["memories"]["written"] < MEMORIES
    assert found_all["memories"]["left"] == MEMORIES - found_all["memories"]["written"]


def test_limits_that_are_divided(
    run: Run, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines: list[tuple[str, ...]] = []

    async def note(_: object, part: Part) -> PartResult:
        lines.append(part.arguments)
        return PartResult(part.shard, 0, {})

    monkeypatch.setattr("memctl.parts.local.LocalEngine.run", note)
    run("migrate", source, "redis://h", "--rate-limit", "2MB", "--shards=4", "--workers=4")
    assert all("--rate-limit=500000.000000B" in line for line in lines)
    lines.clear()
    config = ("--config", str(configure(tmp_path, PRICED)))  # its concurrency is 8
    run(*config, "compress", source, "--all", "--summarizer=codes", "--shards=4", "--workers=3")
    assert all("--jobs=2" in line for line in lines)
    lines.clear()
    run("compress", source, "--all", "--jobs=2", "--shards=4", "--workers=3")
    assert all("--jobs=1" in line for line in lines)
    fails(run("compress", source, "--all", "--max-memories=3", "--shards=4"), 2, "--max-memories")
