"""A process that makes inputs and tries them, until it is told to end, or ends of one."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from random import Random

from tests.fuzz.bench import Bench
from tests.fuzz.command import Memctl, innermost, resident
from tests.fuzz.files import Mutator
from tests.fuzz.invariants import Broken
from tests.fuzz.report import Failure, Result

ADDRESS_SPACE = 4 << 30
"""More than memory: threads, maps of files.  Beyond it, allocations fail."""
TIRED_KILOBYTES = 180 << 10
"""By how much a worker may grow before it is replaced."""
SCHEMA_EVERY = 10
STACKS = signal.SIGUSR1
"""The signal on which a worker writes where it is."""


class Inputs:
    """The inputs of a seed: a number stands for a mutator and all that it draws."""

    def __init__(self, seed: int, mutators: Iterable[Mutator], known: dict[str, int]) -> None:
        """``known`` are all mutators by weight, those among them that are left out included."""
        self._seed = seed
        self._mutators = {mutator.name: mutator for mutator in mutators}
        self._names, self._weights = list(known), list(known.values())

    def name(self, number: int) -> str:
        """Return the name of the mutator of an input."""
        draw = Random(f"{self._seed}/{number}/mutator")
        [name] = draw.choices(self._names, self._weights)
        return name

    def play(self, number: int, bench: Bench) -> Result | None:
        """Make an input and try it; None where its mutator is left out."""
        mutator = self._mutators.get(self.name(number))
        if mutator is None:
            return None
        bench.begin(number)
        bench.schema = number % SCHEMA_EVERY == 0
        failure = None
        try:
            mutator.play(Random(f"{self._seed}/{number}"), bench)
        except Broken as broken:
            failure = Failure(number, mutator.name, broken.rule, broken.detail, bench.last)
        except Exception as error:  # noqa: BLE001 - what the fuzzer does wrong is reported, too
            rule = f"the fuzzer: {type(error).__name__} in {innermost(error)}"
            failure = Failure(number, mutator.name, rule, _trace(error), bench.last)
        return Result(number, mutator.name, bench.codes.copy(), failure, bench.kilobytes)


def _trace(error: BaseException) -> str:
    import traceback  # only where the fuzzer itself fails

    return "".join(traceback.format_exception(error))


def new_bench(
    folder: Path, begun: Synchronized[float], show: Callable[[str], None] | None = None
) -> Bench:
    """Return a bench in a new folder; ``begun`` is set to the time when a command begins."""
    work = folder / "work"
    work.mkdir(parents=True)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    return Bench(Memctl(folder, begun), work, show)


def work(
    inputs: Inputs,
    make: Callable[[], Bench],
    stacks: Path,
    numbers: range,
    current: Synchronized[int],
    results: Connection,
) -> None:
    """Try the inputs of these numbers, and send what became of each.

    Writes the stacks of its threads to a file when it gets STACKS.  Ends early where the process
    has grown.
    """
    os.setsid()  # a Ctrl-C is for the parent
    with stacks.open("w") as file:
        faulthandler.register(STACKS, file)
        _work(inputs, make(), numbers, current, results)
    results.close()
    gc.disable()
    sys.stdout.flush()
    os._exit(0)


def _work(
    inputs: Inputs,
    bench: Bench,
    numbers: range,
    current: Synchronized[int],
    results: Connection,
) -> None:
    tired = resident() + TIRED_KILOBYTES
    for number in numbers:
        current.value = number
        result = inputs.play(number, bench)
        if result is None:
            continue
        results.send(result)
        if resident() > tired:
            break
