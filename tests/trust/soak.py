"""``make soak``: stops migrations between every pair of stores for as long as it is told.

``python -m tests.trust.soak --minutes 60 --seed 7`` prints how far it is now and then, and ends at
the first promise that is broken.  ``--pair redis:archive`` keeps to one pair, or to some where it
is there more than once; ``--pair agentscope2`` are those with a store of AgentScope 2.x.
``--signals INT,TERM,HUP`` asks the runs to stop where they are killed otherwise.  ``--workers 6``
takes six rounds at a time, in processes that share the servers: a trial mostly waits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.support.servers.pool import Servers
from tests.trust.kills import PHASES, Broken, Trial, WriteResult, Yard
from tests.trust.places import KINDS, PAIRS

REPORT_SECONDS = 30
TRIALS = 6
"""For each pair of a round; the next round has another world."""
DIVIDED = 2
"""How many of them divide each run into ``PARTS``."""
PARTS = 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--round", type=int, default=0, help="where to begin")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pair", metavar="SRC:DST", action="append", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--signals", default="KILL", help="names, such as INT,TERM,HUP")
    options = parser.parse_args()
    asked = options.pair or [":"]
    pairs = [pair for pair in PAIRS if any(one in ":".join(pair) for one in asked)]
    signals = [signal.Signals[f"SIG{name}"] for name in options.signals.split(",")]
    soak = Soak(options.seed, pairs, signals)
    broken = soak.run(options.round, options.workers, options.minutes)
    print(soak.report(), *(broken or [soak.table(), "nothing was broken"]), sep="\n")
    return 1 if broken else 0


class Soak:
    """Rounds over the pairs in worker processes, until the time is over."""

    def __init__(
        self, seed: int, pairs: list[tuple[str, str]], signals: list[signal.Signals]
    ) -> None:
        self._seed = seed
        self._pairs = pairs
        self._signals = signals
        self._tally = WriteResult()
        self._begin = time.monotonic()

    def run(self, first: int, workers: int, minutes: float) -> list[str]:
        """Return what was broken first, and how to repeat it; empty if nothing was."""
        end = self._begin + minutes * 60
        context = multiprocessing.get_context("fork")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memctl-soak-")))
            results: list[Connection] = []
            for number in range(workers):
                ours, theirs = context.Pipe(duplex=False)
                rounds = Rounds(self._seed, self._pairs, self._signals, theirs)
                process = context.Process(
                    target=rounds.run, args=(folder, first + number, workers, end)
                )
                process.start()
                theirs.close()
                stack.callback(_end, process)
                results.append(ours)
            return self._collect(results)

    def _collect(self, results: list[Connection]) -> list[str]:
        """Add up what the workers send until all have ended, or one says what is broken."""
        reported = self._begin
        while results:
            for ready in wait(results):
                assert isinstance(ready, Connection)
                try:
                    found: WriteResult | list[str] = ready.recv()
                except EOFError:
                    results.remove(ready)
                    continue
                if isinstance(found, list):
                    return found
                self._tally.add(found)
            if time.monotonic() > reported + REPORT_SECONDS:
                reported = time.monotonic()
                print(self.report(), flush=True)
        return []

    def report(self) -> str:
        """A line on how far it is."""
        result = self._tally
        phases = ", ".join(f"{result.phases[name]} {name}" for name in PHASES)
        names = ", ".join(f"{count} by {name}" for name, count in sorted(result.signals.items()))
        least, kills = min(((pair, result.kills[pair]) for pair in self._pairs), key=lambda p: p[1])
        return (
            f"seed {self._seed}, {(time.monotonic() - self._begin) / 60:.1f} min: "
            f"{result.kills.total()} stopped: {names} ({phases}), busy {result.busy} times, "
            f"least {':'.join(least)} with {kills}"
        )

    def table(self) -> str:
        """The kills of each pair: a row a source, a column a target."""
        width = max(map(len, KINDS)) + 2
        names = [kind for kind in KINDS if any(kind == pair[1] for pair in self._pairs)]
        rows = [" " * width + "".join(f"{name:>{width}}" for name in names)]
        for first in KINDS:
            counts = [self._tally.kills[first, second] for second in names]
            rows.append(f"{first:{width}}" + "".join(f"{count:{width}}" for count in counts))
        return "\n".join(rows)


class Rounds:
    """The rounds of one worker: every n-th of them."""

    def __init__(
        self,
        seed: int,
        pairs: list[tuple[str, str]],
        signals: list[signal.Signals],
        results: Connection,
    ) -> None:
        self._seed = seed
        self._pairs = pairs
        self._signals = signals
        self._results = results

    def run(self, folder: Path, first: int, step: int, end: float) -> None:
        """Send the results of each trial, and at last what is broken, if something is."""
        own = folder / f"worker-{first}"
        servers = Servers(folder)
        tally = WriteResult()
        number = first
        while time.monotonic() < end:
            own.mkdir()
            yard = Yard(own, servers, f"{self._seed}/{number}", tally)
            for pair in random.Random(yard.seed).sample(self._pairs, len(self._pairs)):
                try:
                    self._try(yard, pair, end)
                except BaseException as error:
                    kind = "BROKEN" if isinstance(error, Broken) else type(error).__name__
                    self._results.send([f"{kind}: {error}", self._again(number, pair)])
                    raise
            yard.close()
            shutil.rmtree(own)
            number += step

    def _try(self, yard: Yard, pair: tuple[str, str], end: float) -> None:
        for trial in range(TRIALS):
            if time.monotonic() > end:
                return
            parts = PARTS if trial < DIVIDED else 0
            Trial(yard, pair, trial, self._signals, parts).run()
            self._results.send(yard.tally.take())

    def _again(self, number: int, pair: tuple[str, str]) -> str:
        """Return the command that reproduces the failure."""
        return (
            "again: python -m tests.trust.soak "
            f"--seed {self._seed} --round {number} --pair {':'.join(pair)} "
            f"--signals {','.join(one.name.removeprefix('SIG') for one in self._signals)}"
        )


def _end(process: Any) -> None:
    process.kill()
    process.join()


if __name__ == "__main__":
    sys.exit(main())
