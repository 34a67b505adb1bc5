"""A migration in parts: wall time, CPU time of memctl and of the servers, peak memory of a part.

    python -m benchmarks.scale [--messages N] [--on local|ray]

PostgreSQL to PostgreSQL, on two servers with ``fsync``, so that the CPU time of each is known.  The
first table compares an undivided run with runs in parts.  The second has the CPU time of a message
for two kinds of migration, and what a billion messages would take on many machines: the estimate of
docs/scale.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Run, machine, run
from benchmarks.places import DURABLE
from tests.support.servers.postgresql import Postgresql

MESSAGES = 500_000
PARTS = (2, 4)
BILLION = 1_000_000_000
WORKERS = 64
SOURCES, CORES = 16, 4
"""The source databases of the estimate, and the cores of each."""
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(server: Postgresql) -> float:
    """Return the CPU seconds of a server since its start, ended connections included."""
    postmaster = int((Path(server.sockets) / "data" / "postmaster.pid").read_text().split()[0])
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(stat.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


@dataclass(frozen=True)
class Line:
    """A run, and the CPU seconds of the servers meanwhile."""

    done: Run
    source: float
    target: float


class Bench:
    """A full source and an empty target, each in a server of its own."""

    def __init__(self, folder: Path, messages: int) -> None:
        self.messages = messages
        self._from = Postgresql(folder, "postgresql-scale-source", *DURABLE)
        self._to = Postgresql(folder, "postgresql-scale-target", *DURABLE)
        self.source = self._from.socket_url(self._from.fresh())
        file = folder / "source.db"
        dataset.make(file, messages)
        memctl("migrate", "--no-verify", str(file), self.source)
        self._from.execute(self.source, "VACUUM ANALYZE")
        self._targets: list[str] = []

    def empty(self) -> str:
        """Return the URL of an empty target."""
        while self._targets:
            self._to.drop(self._targets.pop())
        url = self._to.create()
        self._targets.append(url)
        self._to.execute(self._to.admin_url(url), "CHECKPOINT")
        return self._to.socket_url(url)

    def migrate(self, target: str, *options: str) -> Line:
        """Migrate the source to a target."""
        before = cpu_of(self._from), cpu_of(self._to)
        words = ["-q", "migrate", self.source, target, *options]
        done = run([sys.executable, "-m", "memctl", *words])
        return Line(done, cpu_of(self._from) - before[0], cpu_of(self._to) - before[1])


def memctl(*words: str) -> None:
    """Run memctl.

    Raises:
        SystemExit: it failed.
    """
    if subprocess.run([sys.executable, "-m", "memctl", "-q", *words]).returncode:
        sys.exit(f"memctl {words[0]} failed")


def parts(bench: Bench, on: str) -> None:
    """Print a table of a migration undivided and in parts."""
    print("| parts | seconds | CPU of memctl, s | CPU of the servers, s | peak of a process, MiB |")
    print("|--:|--:|--:|--:|--:|")
    for number in (1, *PARTS):
        divided = ["--shards", str(number), "--on", on, "--workers", str(number)]
        line = bench.migrate(bench.empty(), "--no-verify", *(divided if number > 1 else ()))
        servers = line.source + line.target
        done = line.done
        shown = f"{done.seconds:.1f} | {done.cpu:.1f} | {servers:.1f} | {done.peak:.0f}"
        print(f"| {number} | {shown} |", flush=True)


def estimate(bench: Bench) -> None:
    """Print the CPU time of a message, and the time of a billion messages that follows."""
    print(
        "| verified migration | memctl, µs a message | source, µs | target, µs "
        f"| memctl on {WORKERS} cores, min | {SOURCES} sources of {CORES} cores, min |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for what, options in (("same format", ""), ("1.x to 2.x", "layout=agentscope2")):
        url = bench.empty()
        if options:
            url += ("&" if "?" in url else "?") + options
        line = bench.migrate(url)
        each = [1e6 * cpu / bench.messages for cpu in (line.done.cpu, line.source, line.target)]
        minutes = (
            each[0] * BILLION / 1e6 / WORKERS / 60,
            each[1] * BILLION / 1e6 / (SOURCES * CORES) / 60,
        )
        shown = " | ".join([*(f"{one:.0f}" for one in each), *(f"{one:.0f}" for one in minutes)])
        print(f"| {what} | {shown} |", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--on", choices=("local", "ray"), default="local")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder:
        bench = Bench(Path(folder), options.messages)
        print(f"{options.messages:,} messages; {machine('sqlalchemy', 'asyncpg', 'orjson')}.\n")
        parts(bench, options.on)
        print()
        estimate(bench)


if __name__ == "__main__":
    main()
