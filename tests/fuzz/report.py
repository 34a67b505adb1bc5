"""The report of a run of the fuzzer."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

SHOWN = 3
"""Inputs that are named of each kind of failure."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that broke an invariant."""

    number: int
    mutator: str
    rule: str
    """The signature that it shares with others of its kind."""
    detail: str
    words: list[str]
    """The command after which it showed."""


@dataclass(slots=True)
class Result:
    """The outcome of an input."""

    number: int
    mutator: str
    codes: Counter[str]
    """Its runs, by command and exit code."""
    failure: Failure | None
    kilobytes: int
    """The memory that one of its commands has taken, at most."""


@dataclass(slots=True)
class Tally:
    """The sum of all results."""

    seed: int
    begun: float = field(default_factory=time.monotonic)
    inputs: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    restarts: int = 0
    kilobytes: int = 0

    def add(self, result: Result) -> None:
        """Count an input; print its failure, whole if it is the first of its kind."""
        self.inputs[result.mutator] += 1
        self.runs[result.mutator] += result.codes.total()
        self.codes.update(result.codes)
        self.kilobytes = max(self.kilobytes, result.kilobytes)
        if result.failure is not None:
            failure = result.failure
            if all(known.rule != failure.rule for known in self.failures):
                print("\n".join(self._kind([failure])), flush=True)
            else:
                print(f"again {failure.rule}: {again(self.seed, failure.number)}", flush=True)
            self.failures.append(failure)

    def progress(self) -> str:
        """A line on how far it is."""
        seconds = time.monotonic() - self.begun
        return (
            f"seed {self.seed}, {seconds / 60:.1f} min: {self.inputs.total()} inputs, "
            f"{self.runs.total()} runs, {self.inputs.total() / seconds:.0f} inputs/s, "
            f"{len(self.failures)} failures"
        )

    def text(self) -> str:
        """Return the report at the end."""
        return "\n".join([*self._figures(), *self._kinds(), self.progress()])

    def _figures(self) -> Iterator[str]:
        yield f"{'mutator':20}{'inputs':>10}{'runs':>10}"
        for name, count in sorted(self.inputs.items()):
            yield f"{name:20}{count:>10}{self.runs[name]:>10}"
        yield ""
        by_command: dict[str, Counter[int]] = {}
        for name, count in self.codes.items():
            command, _, code = name.rpartition(" ")
            by_command.setdefault(command or "memctl", Counter())[int(code)] += count
        codes = sorted({code for found in by_command.values() for code in found})
        yield f"{'exit code':16}" + "".join(f"{code:>8}" for code in codes)
        for command, found in sorted(by_command.items()):
            yield f"{command:16}" + "".join(f"{found[code] or '':>8}" for code in codes)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        yield (
            f"\n{used.ru_utime + used.ru_stime:.0f} s of processor, {self.kilobytes // 1024} MB of "
            f"memory for a command at most, {self.restarts} restarts of workers; Python "
            f"{platform.python_version()} on {os.cpu_count()} cores, {platform.platform()}"
        )

    def _kinds(self) -> Iterator[str]:
        kinds: dict[str, list[Failure]] = {}
        for failure in self.failures:
            kinds.setdefault(failure.rule, []).append(failure)
        for found in sorted(kinds.values(), key=len, reverse=True):
            yield from self._kind(found)
        yield ""

    def _kind(self, found: list[Failure]) -> Iterator[str]:
        """Yield what is to be known of failures of one kind."""
        first = found[0]
        mutators = ", ".join(f"{n} {name}" for name, n in _by_mutator(found).most_common())
        yield f"\n{len(found)} x {first.rule} ({mutators})"
        yield f"    memctl {' '.join(map(ascii, first.words))}"
        for line in first.detail.strip().splitlines()[-4:]:
            yield f"    {line[:600]}"
        for failure in found[:SHOWN]:
            yield f"    again: {again(self.seed, failure.number)}"


def _by_mutator(failures: list[Failure]) -> Counter[str]:
    return Counter(failure.mutator for failure in failures)


def again(seed: int, number: int) -> str:
    """Return the command that repeats an input."""
    return f"python -m tests.fuzz --seed {seed} --only {number}"
