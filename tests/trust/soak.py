"""``make soak``: stops migrations between every pair of stores for as long as it is told.

``python -m tests.trust.soak --minutes 60 --seed 7`` prints how far it is now and then, and ends at
the first promise that is broken.  ``--pair redis:archive`` keeps to one pair, or to some where it
is there more than once; ``--pair agentscope2`` are those with a store of AgentScope 2.x.
``--signals INT,TERM,HUP`` asks the runs to stop where they are killed otherwise.  ``--workers 6``
takes six rounds at a time, in processes that share the servers: a trial mostly waits.

``--faults all`` instead fails each call of each command (see ``tests.trust.faults``) until all are
done or the time is over; ``--faults delete:sqlite`` keeps to one command on one store, and
``--faults delete:sqlite:17:FAIL`` to one trial.
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
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.support.faults import library
from tests.support.servers.pool import Servers
from tests.trust import kills
from tests.trust.faults import CASES, COMMANDS, STORES, Yard
from tests.trust.kills import PHASES, Broken, WriteResult
from tests.trust.places import KINDS, PAIRS

REPORT_SECONDS = 30
TRIALS = 6
"""For each pair of a round; the next round has another world."""
DIVIDED = 2
"""How many of them divide each run into ``PARTS``."""
PARTS = 4
FAULTS = 12
"""The number of trials of a command on a store before the next command."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--round", type=int, default=0, help="where to begin")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pair", metavar="SRC:DST", action="append", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--signals", default="KILL", help="names, such as INT,TERM,HUP")
    parser.add_argument("--faults", metavar="COMMAND:STORE", help="or all; see above")
    options = parser.parse_args()
    soak: Soak
    if options.faults:
        soak = FaultSoak(options.seed, options.faults.removeprefix("all"))
    else:
        soak = _kills(options)
    broken = soak.run(options.round, options.workers, options.minutes)
    print(soak.report(), *(broken or [soak.table(), "nothing was broken"]), sep="\n")
    return 1 if broken else 0


def _kills(options: argparse.Namespace) -> KillSoak:
    asked = options.pair or [":"]
    pairs = [pair for pair in PAIRS if any(one in ":".join(pair) for one in asked)]
    signals = [signal.Signals[f"SIG{name}"] for name in options.signals.split(",")]
    return KillSoak(options.seed, pairs, signals)


class Soak(ABC):
    """Rounds in worker processes, until the time is over."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._begin = time.monotonic()

    @abstractmethod
    def rounds(self, results: Connection) -> KillRounds | FaultRounds:
        """Return the rounds of a worker, which sends its results."""

    @abstractmethod
    def add(self, found: Any) -> None:
        """Count a result of a worker."""

    @abstractmethod
    def report(self) -> str:
        """Return a line on how far it is."""

    @abstractmethod
    def table(self) -> str:
        """Return the numbers of trials."""

    @property
    def _since(self) -> str:
        return f"seed {self._seed}, {(time.monotonic() - self._begin) / 60:.1f} min"

    def run(self, first: int, workers: int, minutes: float) -> list[str]:
        """Return what was broken first, and how to repeat it; empty if nothing was."""
        end = self._begin + minutes * 60
        context = multiprocessing.get_context("fork")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memctl-soak-")))
            results: list[Connection] = []
            for number in range(workers):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=self.rounds(theirs).run, args=(folder, first + number, workers, end)
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
                    found = ready.recv()
                except EOFError:
                    results.remove(ready)
                    continue
                if isinstance(found, list):
                    return found
                self.add(found)
            if time.monotonic() > reported + REPORT_SECONDS:
                reported = time.monotonic()
                print(self.report(), flush=True)
        return []


class KillSoak(Soak):
    """Migrations between pairs of stores that are stopped."""

    def __init__(
        self, seed: int, pairs: list[tuple[str, str]], signals: list[signal.Signals]
    ) -> None:
        super().__init__(seed)
        self._pairs = pairs
        self._signals = signals
        self._tally = WriteResult()

    def rounds(self, results: Connection) -> KillRounds:
        return KillRounds(self._seed, self._pairs, self._signals, results)

    def add(self, found: WriteResult) -> None:
        self._tally.add(found)

    def report(self) -> str:
        result = self._tally
        phases = ", ".join(f"{result.phases[name]} {name}" for name in PHASES)
        names = ", ".join(f"{count} by {name}" for name, count in sorted(result.signals.items()))
        least, kills = min(((pair, result.kills[pair]) for pair in self._pairs), key=lambda p: p[1])
        return (
            f"{self._since}: "
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


class FaultSoak(Soak):
    """Commands with a failing call or request."""

    def __init__(self, seed: int, only: str) -> None:
        super().__init__(seed)
        self._only = only
        self._done: Counter[tuple[str, str]] = Counter()
        self._faults: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()

    def rounds(self, results: Connection) -> FaultRounds:
        return FaultRounds(self._seed, self._only, results)

    def add(self, found: tuple[str, str]) -> None:
        trial, end = found
        name, store, _, fault = trial.split(":")
        self._done[name, store] += 1
        self._faults[fault] += 1
        self._ends[end] += 1

    def report(self) -> str:
        faults, ends = (
            ", ".join(f"{count} {name}" for name, count in sorted(some.items()))
            for some in (self._faults, self._ends)
        )
        return f"{self._since}: {self._done.total()} faults: {faults}; {ends}"

    def table(self) -> str:
        rows = ["".join(f"{name:>12}" for name in ("", *STORES))]
        for name in COMMANDS:
            counts = [self._done[name, store] for store in STORES]
            rows.append(f"{name:12}" + "".join(f"{count:12}" for count in counts))
        return "\n".join(rows)


class FaultRounds:
    """The rounds of one worker: every n-th of them, each some trials of a command on a store."""

    def __init__(self, seed: int, only: str, results: Connection) -> None:
        self._seed = seed
        self._only = only
        self._results = results

    def run(self, folder: Path, first: int, step: int, end: float) -> None:
        """Send each trial with its end, and at last what is broken, if something is."""
        own = folder / f"worker-{first}"
        own.mkdir()
        self._servers = Servers(folder)
        self._library = library(own)
        cases = [case for case in CASES if ":".join(case) in self._only or not self._only]
        cases = cases or [case for case in CASES if self._only in ":".join(case)]
        random.Random(self._seed).shuffle(cases)
        left = set(cases)
        number = first
        while left and time.monotonic() < end:
            turn, at = divmod(number, len(cases))
            number += step
            if cases[at] in left and not self._some(own / str(number), cases[at], turn, end):
                left.remove(cases[at])

    def _some(self, folder: Path, case: tuple[str, str], turn: int, end: float) -> bool:
        """Carry out some trials of a command on a store; return False if none is left."""
        folder.mkdir()
        name, store = case
        with Yard(folder, self._servers, store, self._library) as yard:
            found = (*yard.trials(name), *yard.losses(name))
            trials = [one for one in found if self._only in str(one)]
            random.Random(f"{self._seed}{case}").shuffle(trials)
            some = trials[turn * FAULTS : (turn + 1) * FAULTS]
            for trial in some:
                if time.monotonic() > end:
                    return False
                try:
                    self._results.send((str(trial), trial.run()))
                except BaseException as error:
                    again = f"again: python -m tests.trust.soak --faults {trial}"
                    self._results.send([f"{type(error).__name__}: {error}", again])
                    raise
        shutil.rmtree(folder)
        return bool(some)


class KillRounds:
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
            yard = kills.Yard(own, servers, f"{self._seed}/{number}", tally)
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

    def _try(self, yard: kills.Yard, pair: tuple[str, str], end: float) -> None:
        for trial in range(TRIALS):
            if time.monotonic() > end:
                return
            parts = PARTS if trial < DIVIDED else 0
            kills.Trial(yard, pair, trial, self._signals, parts).run()
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
