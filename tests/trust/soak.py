"""``make soak``: stops migrations between every pair of stores for as long as it is told.

``python -m tests.trust.soak --minutes 60 --seed 7`` prints how far it is now and then, and ends at
the first promise that is broken.  ``--pair redis:archive`` keeps to one pair, or to some where it
is there more than once; ``--pair agentscope2`` are those with a store of AgentScope 2.x.
``--signals INT,TERM,HUP`` asks the runs to stop where they are killed otherwise.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.support.servers.pool import Servers
from tests.trust.kills import PHASES, Broken, Trial, WriteResult, Yard
from tests.trust.places import KINDS, PAIRS

REPORT_SECONDS = 30
TRIALS = 4
"""For each pair of a round; the next round has another world."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--round", type=int, default=0, help="where to begin")
    parser.add_argument("--pair", metavar="SRC:DST", action="append", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--signals", default="KILL", help="names, such as INT,TERM,HUP")
    options = parser.parse_args()
    asked = options.pair or [":"]
    pairs = [pair for pair in PAIRS if any(one in ":".join(pair) for one in asked)]
    signals = [signal.Signals[f"SIG{name}"] for name in options.signals.split(",")]
    soak = Soak(options.seed, options.minutes, pairs, signals)
    try:
        soak.run(options.round)
    except Broken as broken:
        print(soak.report(), f"BROKEN: {broken}", soak.again(), sep="\n")
        return 1
    print(soak.report(), soak.table(), "nothing was broken", sep="\n")
    return 0


class Soak:
    """Rounds over the pairs, until the time is over."""

    def __init__(
        self,
        seed: int,
        minutes: float,
        pairs: list[tuple[str, str]],
        signals: list[signal.Signals],
    ) -> None:
        self._seed = seed
        self._pairs = pairs
        self._signals = signals
        self._pair = pairs[0]
        self._round = 0
        self._tally = WriteResult()
        self._begin = time.monotonic()
        self._end = self._begin + minutes * 60
        self._reported = self._begin

    def run(self, first: int) -> None:
        """Raise Broken at the first promise that is."""
        folder = Path(tempfile.mkdtemp(prefix="memctl-soak-"))
        servers = Servers(folder)
        self._round = first
        while time.monotonic() < self._end:
            (folder / "round").mkdir()
            yard = Yard(folder / "round", servers, f"{self._seed}/{self._round}", self._tally)
            self._one_round(yard)
            yard.close()
            shutil.rmtree(folder / "round")
            self._round += 1
        shutil.rmtree(folder)

    def _one_round(self, yard: Yard) -> None:
        for pair in random.Random(yard.seed).sample(self._pairs, len(self._pairs)):
            self._pair = pair
            for number in range(TRIALS):
                if time.monotonic() > self._end:
                    return
                Trial(yard, self._pair, number, self._signals).run()
                if time.monotonic() > self._reported + REPORT_SECONDS:
                    self._reported = time.monotonic()
                    print(self.report(), flush=True)

    def report(self) -> str:
        """A line on how far it is."""
        result = self._tally
        phases = ", ".join(f"{result.phases[name]} {name}" for name in PHASES)
        names = ", ".join(f"{count} by {name}" for name, count in sorted(result.signals.items()))
        least, kills = min(((pair, result.kills[pair]) for pair in self._pairs), key=lambda p: p[1])
        return (
            f"seed {self._seed}, {(time.monotonic() - self._begin) / 60:.1f} min, round "
            f"{self._round}: {result.kills.total()} stopped: {names} ({phases}), busy "
            f"{result.busy} times, "
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

    def again(self) -> str:
        """Return the command that reproduces the failure."""
        return (
            "again: python -m tests.trust.soak "
            f"--seed {self._seed} --round {self._round} --pair {':'.join(self._pair)} "
            f"--signals {','.join(number.name.removeprefix('SIG') for number in self._signals)}"
        )


if __name__ == "__main__":
    sys.exit(main())
