"""The driver of a run in parts, with an engine that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from memctl.errors import Interrupted, MemctlError, Unavailable
from memctl.ops.stop import Stop
from memctl.parts import divide
from memctl.parts.divide import Driver, error_of, exit_code
from memctl.parts.part import Part, PartResult
from memctl.shard import Shard

KILLED, STOPPED = 137, 143


class Script:
    """An engine whose part K ends with the codes that are listed for it, in turn, then with 0.

    A part whose code is None runs until it is stopped.
    """

    name = "script"

    def __init__(self, workers: int, codes: dict[int, Sequence[int | None]]) -> None:
        self.workers = workers
        self.started: list[int] = []
        self.stops: list[bool] = []
        self.running = self.most = 0
        self.written: set[int] = set()
        self._codes = {number: [*listed] for number, listed in codes.items()}
        self._stopped = asyncio.Event()

    async def run(self, part: Part) -> PartResult:
        self.started.append(part.shard.number)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        listed = self._codes.get(part.shard.number)
        code = listed.pop(0) if listed else 0
        if code is None:
            await self._stopped.wait()
            code = KILLED if self.stops[-1] else STOPPED
        self.running -= 1
        if code == -1:
            raise Unavailable("the cluster is gone")
        report = _report(code if code < 128 else 0, int(part.shard.number in self.written))
        return PartResult(part.shard, code, report)

    def stop(self, *, force: bool) -> None:
        self.stops.append(force)
        self._stopped.set()

    async def close(self) -> None:
        pass


class Lines:
    """A plan without limits; it notes what the driver tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, shard: Shard) -> Part:
        self.told.append(f"begin {shard.number}")
        return Part(("migrate",), shard, "1")

    def end(self, result: PartResult) -> None:
        self.told.append(f"end {result.shard.number}")

    def ended(self, result: PartResult) -> None:
        self.told.append(f"ended {result.shard.number}")

    def repeated(self, result: PartResult, wait: float) -> None:
        self.told.append(f"repeated {result.shard.number} after {wait:g}")


class Play:
    """A run of ``of`` parts on a script."""

    def __init__(self, of: int, engine: Script) -> None:
        self.engine = engine
        self.lines = Lines()
        self.stop = Stop()
        shards = [Shard(number, of) for number in range(of)]
        self.error: MemctlError | None = None
        self.driver = Driver(engine, shards, self.lines, self.lines, self.stop)

    async def run(self) -> None:
        """Run it to its end."""
        try:
            await self.driver.run()
        except MemctlError as error:
            self.error = error

    @property
    def code(self) -> int:
        return 0 if self.error is None else self.error.exit_code

    @property
    def said(self) -> str:
        return "" if self.error is None else self.error.message

    @property
    def codes(self) -> list[int]:
        return [result.exit for _, result in sorted(self.driver.results.items())]

    @property
    def attempts(self) -> list[int]:
        return [result.attempts for _, result in sorted(self.driver.results.items())]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divide, "WAITS", tuple(wait / 1e5 for wait in divide.WAITS))


async def play(of: int, workers: int, codes: dict[int, Sequence[int | None]]) -> Play:
    found = Play(of, Script(workers, codes))
    await found.run()
    return found


async def _turns() -> None:
    """Let the other tasks go as far as they can without time."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_every_part_runs_once_and_no_more_at_a_time_than_the_engine_has_workers() -> None:
    found = await play(20, 3, {})
    assert sorted(found.engine.started) == list(range(20))
    assert found.engine.most == 3
    assert found.codes == [0] * 20
    assert await play(2, 8, {})


async def test_part_that_finds_a_lock_is_repeated_five_times() -> None:
    found = await play(3, 3, {1: [75] * 4, 2: [75] * 6})
    assert found.attempts == [1, 5, 6]
    assert found.codes == [0, 0, 75]
    assert found.code == 7
    repeated = [line for line in found.lines.told if line.startswith("repeated 2")]
    assert repeated == [f"repeated 2 after {wait / 1e5:g}" for wait in (5, 10, 20, 40, 60)]


async def test_part_whose_process_was_killed_is_repeated_at_once_three_times() -> None:
    found = await play(3, 3, {0: [KILLED, KILLED, KILLED], 1: [KILLED] * 5, 2: [KILLED, 75, 5]})
    assert found.attempts == [4, 4, 3]
    assert found.codes == [0, KILLED, 5]
    assert "repeated 0 after 0" in found.lines.told
    assert found.code == 7
    assert "SIGKILL" in found.said


@pytest.mark.parametrize("code", [1, 4, 5, 6, 7, 8, 9])
async def test_part_that_would_end_the_same_again_is_not_repeated(code: int) -> None:
    found = await play(4, 2, {0: [code]})
    assert found.attempts == [1] * 4
    assert found.code == {1: 1, 5: 5, 6: 6}.get(code, 7)


async def test_wrong_command_line_stops_all_parts() -> None:
    found = await play(8, 3, {0: [None], 1: [2], 2: [None]})
    assert found.engine.started == [0, 1, 2]
    assert found.codes == [STOPPED, 2, STOPPED]
    assert (found.code, found.said) == (2, "error 2")


async def test_parts_that_had_written_when_another_refused_make_it_partial() -> None:
    engine = Script(3, {0: [None], 1: [2]})
    engine.written = {0}
    found = Play(8, engine)
    await found.run()
    assert found.code == 7


async def test_run_ends_soon_if_no_part_can_reach_the_stores() -> None:
    found = await play(64, 4, {number: [3] * 9 for number in range(64)})
    assert sorted(found.engine.started) == [0, 1, 2, 3]
    assert (found.code, found.said) == (3, "error 3")


async def test_part_that_cannot_connect_is_repeated_if_others_can() -> None:
    found = await play(4, 4, {0: [3, 3], 1: [3], 2: [3], 3: [3, 0]})
    assert found.code == 3  # all of the first wave
    found = await play(4, 4, {0: [3, 3], 1: [3], 2: [3]})
    assert (found.code, found.attempts) == (0, [3, 2, 2, 1])


async def test_first_stop_starts_no_more_parts_and_lets_memories_end() -> None:
    found = Play(9, Script(2, {1: [None], 2: [None]}))
    running = asyncio.create_task(found.run())
    await _turns()
    assert found.engine.started == [0, 1, 2]
    assert found.stop.cooperative
    found.stop.ask()
    await running
    assert isinstance(found.error, Interrupted)
    assert found.engine.stops == [False]
    assert found.codes == [0, STOPPED, STOPPED]
    assert found.engine.started == [0, 1, 2]


async def test_error_of_an_engine_that_cannot_stop_its_parts_is_raised() -> None:
    class Deaf(Script):
        def stop(self, *, force: bool) -> None:
            super().stop(force=force)
            raise RuntimeError("no connection")

    found = Play(2, Deaf(2, {0: [None], 1: [None]}))
    running = asyncio.create_task(found.run())
    await _turns()
    found.stop.ask()
    with pytest.raises(RuntimeError, match="no connection"):
        await running


async def test_stop_does_not_wait_for_a_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divide, "WAITS", (600.0,))
    found = Play(2, Script(2, {0: [75]}))
    running = asyncio.create_task(found.run())
    await _turns()
    found.stop.ask()
    await running
    assert isinstance(found.error, Interrupted)


async def test_second_stop_kills_the_parts_and_waits_for_them() -> None:
    found = Play(9, Script(2, {0: [None], 1: [None]}))
    running = asyncio.create_task(found.driver.run())
    await _turns()
    assert found.engine.started == [0, 1]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert True in found.engine.stops
    assert not found.engine.running


async def test_engine_that_is_gone_ends_the_run() -> None:
    found = await play(9, 2, {0: [-1], 1: [None]})
    assert (found.code, found.said) == (3, "the cluster is gone")
    assert not found.engine.running


async def test_plan_hears_of_each_start_and_end() -> None:
    found = await play(1, 1, {0: [75]})
    assert found.lines.told == [
        *("begin 0", "end 0", "repeated 0 after 5e-05"),
        *("begin 0", "end 0", "ended 0"),
    ]


@pytest.mark.parametrize(
    ("codes", "whole"),
    [
        ([0, 0], 0),
        ([5, 5], 5),
        ([0, 5], 5),
        ([0, 6], 6),
        ([5, 6], 5),
        ([0, 5, 3], 7),
        ([0, 1, 3], 1),
        ([7, 0], 7),
        ([75, 75], 75),
        ([8, 9], 7),
        ([0, KILLED], 7),
        ([KILLED, KILLED], 3),
    ],
)
def test_exit_code_of_the_whole(codes: list[int], whole: int) -> None:
    assert exit_code(codes) == whole


def test_hint_of_a_refused_part_is_not_that_of_parts_that_have_written() -> None:
    def told(second: int, written: int) -> str | None:
        parts = [
            PartResult(Shard(number, 2), code, _report(code, memories))
            for number, code, memories in ((0, 9, 0), (1, second, written))
        ]
        error = error_of(parts, 2)
        assert error is not None
        return error.hint

    assert told(0, 3) == "see the report for each part; what parts have done is complete"
    assert told(9, 0) == "a hint"


def _report(code: int, written: int) -> dict[str, Any]:
    report: dict[str, Any] = {"memories": {"written": written}}
    if code:
        report["error"] = {"code": "x", "message": f"error {code}", "hint": "a hint"}
    return report
