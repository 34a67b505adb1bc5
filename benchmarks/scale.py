"""A migration in parts: wall time, CPU time of memctl and of the servers, peak memory of a part.

    python -m benchmarks.scale [--messages N]
    RAY_ADDRESS=HOST:PORT python -m benchmarks.scale --on ray --python .interop-ray/bin/python

PostgreSQL to PostgreSQL, on two servers with ``fsync``, so that the CPU time of each is known.  The
first table compares an undivided run with runs in parts.  The second has the CPU time of a message
for two kinds of migration, and what a billion messages would take on many machines: the estimate of
docs/scale.md.  The third has the peak memory of a migration that compares many memories and finds
all of them in the target, between two SQLite files.

The CPU time and the memory of tasks of Ray are not known here.
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
MEMORIES = (50_000, 200_000)
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
    log: int
    """The bytes that the target added to its write-ahead log."""


class Bench:
    """A full source and an empty target, each in a server of its own."""

    def __init__(self, folder: Path, messages: int, python: str) -> None:
        """Make the source; ``python`` is the interpreter with the memctl to measure."""
        self.messages = messages
        self._python = python
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
        source, there, log = cpu_of(self._from), cpu_of(self._to), self._log_bytes()
        words = ["-q", "migrate", self.source, target, *options]
        done = run([self._python, "-m", "memctl", *words])
        more = self._log_bytes() - log
        return Line(done, cpu_of(self._from) - source, cpu_of(self._to) - there, more)

    def _log_bytes(self) -> int:
        admin = self._to.admin_url("any/postgres")
        return int(self._to.execute(admin, "SELECT pg_current_wal_insert_lsn() - '0/0'"))


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
        known = on == "local" or number == 1
        cpu, peak = (f"{done.cpu:.1f}", f"{done.peak:.0f}") if known else ("?", "?")
        print(f"| {number} | {done.seconds:.1f} | {cpu} | {servers:.1f} | {peak} |", flush=True)


def estimate(bench: Bench) -> None:
    """Print the CPU time of a message, and the time of a billion messages that follows."""
    print(
        "| verified migration | memctl, µs a message | source, µs | target, µs | log, bytes "
        f"| memctl on {WORKERS} cores, min | {SOURCES} sources of {CORES} cores, min |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for what, options in (("same format", ""), ("1.x to 2.x", "layout=agentscope2")):
        url = bench.empty()
        if options:
            url += ("&" if "?" in url else "?") + options
        line = bench.migrate(url)
        each = [1e6 * cpu / bench.messages for cpu in (line.done.cpu, line.source, line.target)]
        cores = WORKERS, SOURCES * CORES
        minutes = [cpu * BILLION / 1e6 / of / 60 for cpu, of in zip(each, cores, strict=False)]
        shown = " | ".join(f"{one:,.0f}" for one in [*each, line.log / bench.messages, *minutes])
        print(f"| {what} | {shown} |", flush=True)


def compared(folder: Path) -> None:
    """Print the peak memory of a migration by the number of memories that it compares."""
    print("| memories compared | peak, MiB |\n|--:|--:|")
    for memories in MEMORIES:
        source, target = (str(folder / f"{name}-{memories}.db") for name in ("source", "target"))
        dataset.make(Path(source), memories, per_memory=1)
        memctl("migrate", "--no-verify", "--no-backup", source, target)
        done = run([sys.executable, "-m", "memctl", "-q", "migrate", "--no-verify", source, target])
        print(f"| {memories:,} | {done.peak:.0f} |", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--on", choices=("local", "ray"), default="local")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder:
        bench = Bench(Path(folder), options.messages, options.python)
        print(f"{options.messages:,} messages; {machine('sqlalchemy', 'asyncpg', 'orjson')}.\n")
        parts(bench, options.on)
        print()
        estimate(bench)
        print()
        compared(Path(folder))


if __name__ == "__main__":
    main()
