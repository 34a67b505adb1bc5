"""Runs a command as a whole process and asks the kernel what it took."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

# A process inherits the peak of the one that starts it, so a small one stands between.
_LAUNCHER = """
import os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
cpu = usage.ru_utime + usage.ru_stime
print(time.perf_counter() - started, usage.ru_maxrss, cpu)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Run:
    """Wall time in seconds, the largest resident set in MiB, and CPU time in seconds."""

    seconds: float
    peak: float
    cpu: float


@dataclass(frozen=True)
class Command:
    """A command to run, and what to do before each run, which does not count."""

    arguments: Sequence[str]
    prepare: Callable[[], object] | None = None


def run(command: Sequence[str]) -> Run:
    """One run, whose output is thrown away.

    Raises:
        SystemExit: the command failed; it said why.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, *command], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}")
    seconds, peak, cpu = done.stdout.split()
    return Run(float(seconds), int(peak) / 1024, float(cpu))


def interleaved(
    commands: Mapping[str, Command], rounds: int, *, warm: bool = True
) -> dict[str, list[Run]]:
    """Run of each command in turn; ``warm`` has one before them that does not count."""
    found: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(-warm, rounds):
        for name, command in commands.items():
            if command.prepare is not None:
                command.prepare()
            done = run(command.arguments)
            if number >= 0:
                found[name].append(done)
    return found


def median(runs: Sequence[Run]) -> float:
    """The median of the wall times in seconds."""
    return statistics.median(run.seconds for run in runs)


def peak(runs: Sequence[Run]) -> float:
    """The largest resident set in MiB."""
    return max(run.peak for run in runs)


def machine(*packages: str) -> str:
    """Return a line about the machine that the figures were measured on."""
    names = packages or ("typer", "sqlalchemy", "redis")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}"
    )
