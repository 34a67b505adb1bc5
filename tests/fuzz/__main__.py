"""``make fuzz``: tries commands on mutated stores and settings for as long as it is told.

An *input* is one mutated store, configuration, command line or journal; a *run* is one command of
memctl on it.  An input is known by its number: ``--seed 7 --only 123`` repeats one, and shows its
commands.  Each worker is a process of its own; one that crashes or hangs is replaced.

Ends with exit code 1 where an invariant did not hold.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz.bench import Bench
from tests.fuzz.command import parser
from tests.fuzz.mutators import known, prepare
from tests.fuzz.report import Failure, Result, Tally
from tests.fuzz.scenarios import SCENES
from tests.fuzz.worker import STACKS, Inputs, new_bench, work

REPORT_SECONDS = 30
HANG_SECONDS = 20
STUCK_SECONDS = 600
"""Seconds for an input, in which the fuzzer itself hangs if no command does."""
GRACE_SECONDS = 0.5
"""Seconds in which a worker that hangs can write its stacks."""
ENOUGH = 1 << 60


def main() -> int:
    parser_ = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser_.add_argument("--minutes", type=float, default=10)
    parser_.add_argument("--inputs", type=int, default=ENOUGH, help="end after so many, too")
    parser_.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser_.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser_.add_argument("--only", type=int, help="the number of one input, to repeat it")
    parser_.add_argument("--workers", type=int, default=1)
    parser_.add_argument("--servers", type=Path, help="a folder in which servers are shared")
    parser_.add_argument("--mutators", help=f"of {','.join(known())}; all, if left out")
    parser_.add_argument("--scenes", help=f"of {','.join(SCENES)}; all, if left out")
    options = parser_.parse_args()
    names = options.mutators.split(",") if options.mutators else list(known())
    # In memory, where there is such a place: syncing a file then costs nothing.
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="memctl-fuzz-", dir=base))
    try:
        if options.only is not None:
            return repeat(options.seed, options.only, folder, options.servers or folder)
        last = min(ENOUGH, options.first + options.inputs)
        fuzzer = Fuzzer(options.seed, names, folder, options.servers or folder, options.workers)
        if options.scenes:
            fuzzer.scenes = options.scenes.split(",")
        tally = fuzzer.run(range(options.first, last), options.minutes * 60)
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    print(tally.text())
    return 1 if tally.failures else 0


def repeat(seed: int, number: int, folder: Path, servers: Path) -> int:
    """Try one input, and show what is done with it."""
    kept = Path(tempfile.gettempdir(), f"memctl-fuzz-{seed}-{number}")
    draw = Inputs(seed, (), known())
    mutators, targets = prepare([draw.name(number)], servers)
    parser()
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    bench = new_bench(folder / "one", multiprocessing.Value("d"), print)
    bench.targets, bench.scenes = targets, SCENES
    result = Inputs(seed, mutators, known()).play(number, bench)
    if result is None or result.failure is None:
        print("no invariant was broken")
        return 0
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(bench.folder, kept, symlinks=True, ignore=_special)
    print(f"{result.failure.rule}\n{result.failure.detail}\nwhat is left is in {kept}")
    return 1


def _special(folder: str, names: list[str]) -> list[str]:
    paths = [Path(folder, name) for name in names]
    return [one.name for one in paths if not (one.is_file() or one.is_dir() or one.is_symlink())]


@dataclass(slots=True)
class Worker:
    """A process, what it is to do, and where it is."""

    numbers: range
    process: Any
    results: Connection
    current: Any
    """The number of its input."""
    begun: Any
    """When its command began; 0 between two."""
    stacks: Path
    seen: tuple[int, float] = (-1, 0.0)
    """The number of its input when last looked at, and since when it is that."""

    def hangs(self) -> bool:
        """Return whether its command takes too long, or its input does."""
        begun, now, number = self.begun.value, time.monotonic(), self.current.value
        if self.seen[0] != number:
            self.seen = number, now
        return (bool(begun) and now > begun + HANG_SECONDS) or now > self.seen[1] + STUCK_SECONDS


class Fuzzer:
    """Workers over the inputs of a seed, each with every n-th of them."""

    def __init__(
        self, seed: int, names: list[str], folder: Path, servers: Path, workers: int
    ) -> None:
        self.scenes: Collection[str] = SCENES
        """The scenes that are played; an input that would need another is skipped."""
        self._tally = Tally(seed)
        self._folder = folder
        self._workers = workers
        self._started = 0
        self._context = multiprocessing.get_context("fork")
        parser()  # and with it every module, once for all workers
        mutators, self._targets = prepare(names, servers)
        self._inputs = Inputs(seed, mutators, known())

    def run(self, numbers: range, seconds: float) -> Tally:
        """Try the inputs until they or the time is over."""
        end = time.monotonic() + seconds
        reported = time.monotonic()
        parts = [numbers[at :: self._workers] for at in range(self._workers)]
        workers = [self._start(part) for part in parts if part]
        try:
            while workers and time.monotonic() < end:
                wait([worker.results for worker in workers], 1)
                workers = [left for worker in workers if (left := self._look_at(worker))]
                if time.monotonic() > reported + REPORT_SECONDS:
                    reported = time.monotonic()
                    print(self._tally.progress(), flush=True)
        except KeyboardInterrupt:
            print("stopped")
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()
        return self._tally

    def _start(self, numbers: range) -> Worker:
        self._started += 1
        own = self._folder / f"worker-{self._started}"
        stacks = self._folder / f"stacks-{self._started}"
        here, there = self._context.Pipe(duplex=False)
        current, begun = self._context.Value("q", numbers[0]), self._context.Value("d")
        make: Callable[[], Bench] = partial(self._bench, own, begun)
        process = self._context.Process(
            target=work, args=(self._inputs, make, stacks, numbers, current, there)
        )
        process.start()
        there.close()
        return Worker(numbers, process, here, current, begun, stacks)

    def _bench(self, folder: Path, begun: Any) -> Bench:
        bench = new_bench(folder, begun)
        bench.targets, bench.scenes = self._targets, self.scenes
        return bench

    def _look_at(self, worker: Worker) -> Worker | None:
        """Take the results of a worker; return it, or who follows it, or None at the end."""
        try:
            while worker.results.poll():
                result: Result = worker.results.recv()
                self._tally.add(result)
        except EOFError:
            worker.process.join()
            return self._replace(worker)
        if worker.hangs():
            os.kill(worker.process.pid, STACKS)
            time.sleep(GRACE_SECONDS)
            worker.process.kill()
            worker.process.join()
            return self._replace(worker)
        return worker

    def _replace(self, worker: Worker) -> Worker | None:
        number = worker.current.value
        if worker.process.exitcode != 0:
            self._tally.add(self._death(worker, number))
        rest = worker.numbers[worker.numbers.index(number) + 1 :]
        if not rest:
            return None
        self._tally.restarts += 1
        return self._start(rest)

    def _death(self, worker: Worker, number: int) -> Result:
        stack = worker.stacks.read_text(errors="replace")
        if stack:
            rule = f"hang in {_where(stack)}"
        else:
            code = worker.process.exitcode
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            rule = f"the worker ended with {name} in {_where(stack)}"
        name = self._inputs.name(number)
        failure = Failure(number, name, rule, stack, [])
        return Result(number, name, Tally(0).codes, failure, 0)


def _where(stack: str) -> str:
    """The innermost function of memctl on the stacks of a hang, but the one that waits for it."""
    for line in stack.splitlines():
        if "/memctl/" in line and "_run.py" not in line:
            place = line.partition("/memctl/")[2]
            return f"memctl/{place.replace(chr(34), '')}"
    return "nowhere in memctl"


if __name__ == "__main__":
    sys.exit(main())
