"""The driver of a run in parts: which parts run, which are repeated, and how the whole ends."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import InitVar, dataclass
from typing import Protocol

from msgspec.structs import replace

from memctl.errors import (
    BadData,
    Busy,
    Conflict,
    Different,
    Interrupted,
    Loss,
    MemctlError,
    NotFound,
    Partial,
    Unavailable,
    Unhealthy,
    UsageError,
)
from memctl.ops.stop import Stop
from memctl.parts.part import SIGNALLED, Engine, Part, PartResult
from memctl.shard import Shard

WAITS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""The seconds before each repeat of a part that could not connect or found a lock."""
MOST_LOST = 3
"""How often a part is repeated whose process was killed."""
_REPEATED = frozenset({Unavailable.exit_code, Busy.exit_code})
_UNTOUCHED = frozenset({BadData.exit_code, Loss.exit_code})
"""The exit codes of errors that say that nothing was changed, which is true of one part alone."""
_KINDS = {
    kind.exit_code: kind
    for kind in (
        *(MemctlError, UsageError, Unavailable, NotFound, Conflict, Different, Partial),
        *(BadData, Loss, Busy),
    )
}


class Plan(Protocol):
    """The work of a run.  The driver asks for a part at each start, repeats included."""

    def begin(self, shard: Shard) -> Part:
        """Return a part that starts now, with its share of what limits the whole run."""

    def end(self, result: PartResult) -> None:
        """Note how a part has ended; it may be repeated."""


class Observer(Protocol):
    """Hears how parts end."""

    def ended(self, result: PartResult) -> None:
        """A part has ended and is not repeated."""

    def repeated(self, result: PartResult, wait: float) -> None:
        """A part has ended and is repeated after ``wait`` seconds."""


@dataclass(eq=False)
class Driver:
    """Runs the parts of a run on an engine, at most ``engine.workers`` at a time.

    ``of`` is the number of parts, and ``results`` has how each has ended; a part that never started
    is not there.
    """

    engine: Engine
    shards: InitVar[Iterable[Shard]]
    plan: Plan
    observer: Observer
    stop: Stop
    """With a stop asked, no part starts, and those that run end at the end of a memory."""

    def __post_init__(self, shards: Iterable[Shard]) -> None:
        self.results: dict[Shard, PartResult] = {}
        self._begun = time.monotonic()
        self._waiting = deque(shards)
        self.of = len(self._waiting)
        self._first = min(self.engine.workers, self.of)
        self._unreachable = 0
        self._reached = False
        self._given_up = False
        self._cut: set[Shard] = set()
        """The parts that a stop has ended, or that would be repeated without it."""

    async def run(self) -> None:
        """Run all parts to their end.

        Raises:
            Interrupted: the stop was asked for before all parts had ended.
            Unavailable: the engine is gone.
            MemctlError: as ``error_of``.
        """
        if not self._waiting:
            return
        with self.stop.cooperative_while():
            stopping = asyncio.create_task(self._hand_on_stop())
            working = [asyncio.create_task(self._work()) for _ in range(self._first)]
            try:
                await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                # Done, or the engine is gone, or a second signal came.
                if not all(task.done() for task in working):
                    self._waiting.clear()
                    self.stop.ask()
                    self.engine.stop(force=True)
                    await asyncio.wait(working)
                stopping.cancel()
        for task in working:
            task.result()
        if stopping.done():
            stopping.result()  # raises the error of an engine that could not stop the parts
        if self.stop.asked and not self._given_up and not self._complete:
            raise Interrupted("stopped")
        if error := self._error():
            raise error

    @property
    def seconds(self) -> float:
        """The wall time since the run began."""
        return time.monotonic() - self._begun

    @property
    def refused(self) -> bool:
        """True if the parts that ended by themselves failed for one reason, and did nothing."""
        ended = [one for one in self.results.values() if one.exit < SIGNALLED]
        reasons = {one.reason for one in ended if one.exit and not one.began}
        return len(reasons) == 1 and not any(one.began for one in self.results.values())

    @property
    def _complete(self) -> bool:
        return len(self.results) == self.of and not self._cut

    def _error(self) -> MemctlError | None:
        """Return the error of the whole run; None if all parts have done everything.

        A part that was stopped because of others counts only if it has written something.
        """
        counted = []
        for shard, result in sorted(self.results.items()):
            if shard not in self._cut or result.exit < SIGNALLED:
                counted.append(result)
            elif result.written:
                counted.append(replace(result, exit=Partial.exit_code))
        return error_of(counted, self.of)

    async def _hand_on_stop(self) -> None:
        await self.stop.wait()
        self.engine.stop(force=False)

    async def _work(self) -> None:
        """Run waiting parts one after another, to the last."""
        while self._waiting and not self.stop.asked:
            result = await self._run_part(self._waiting.popleft())
            self.results[result.shard] = result
            self.observer.ended(result)
            if result.exit == UsageError.exit_code:
                self._give_up()

    async def _run_part(self, shard: Shard) -> PartResult:
        """Run a part, and repeat it while that may help; return how it ended at last."""
        waits = [*WAITS]
        lost = MOST_LOST
        attempts = 0
        while True:
            attempts += 1
            found = await self.engine.run(self.plan.begin(shard))
            result = replace(found, attempts=attempts)
            self.plan.end(result)
            self._look(result)
            if result.exit > SIGNALLED and (lost or self.stop.asked):
                lost -= 1
                wait = 0.0
            elif result.exit in _REPEATED and waits:
                wait = waits.pop(0)
            else:
                return result
            if not self.stop.asked:
                self.observer.repeated(result, wait)
                await self.stop.pause(wait)
            if self.stop.asked:
                self._cut.add(shard)
                return result

    def _look(self, result: PartResult) -> None:
        """Give up if no part of those that were started first could reach the stores.

        A wrong password, or a server that is down, would stop the other parts, too.
        """
        if result.exit != Unavailable.exit_code:
            self._reached = True
        elif result.attempts == 1:
            self._unreachable += 1
        if not self._reached and self._unreachable == self._first:
            self._give_up()

    def _give_up(self) -> None:
        """Start no more parts, and stop those that run."""
        if not self.stop.asked:
            self._given_up = True
            self.stop.ask()


def error_of(results: Sequence[PartResult], of: int) -> MemctlError | None:
    """Return the error of a run of ``of`` parts; None if all have done everything.

    If all parts tell the same, this is the error of the whole.
    """
    failed = [one for one in results if one.exit]
    if not failed:
        return None
    kind = _KINDS[exit_code([one.exit for one in results])]
    if all(one.code == Unhealthy.code for one in failed):
        kind = Unhealthy
    told = [one.reason for one in failed]
    message, hint = told[0]
    if failed[0].exit in _UNTOUCHED and any(one.written for one in results):
        hint = "see the report for each part; what parts have done is complete"
    if len(failed) == len(results) and len(set(told)) == 1:
        return kind(message, hint)
    return kind(
        f"{len(failed)} of {of} parts failed; the first, {failed[0].shard}: {message}", hint
    )


def exit_code(codes: Collection[int]) -> int:
    """Return the exit code of a run whose parts have ended with ``codes``.

    A process that a signal has ended counts as a store that cannot be reached.
    """
    found = {Unavailable.exit_code if code > SIGNALLED else code for code in codes}
    if len(found) == 1:
        return found.pop()
    if MemctlError.exit_code in found:
        return MemctlError.exit_code
    if found - {0, Conflict.exit_code, Different.exit_code}:
        return Partial.exit_code
    return Conflict.exit_code if Conflict.exit_code in found else Different.exit_code
