"""An upgrade from AgentScope 1.x in SQLite to 2.x in PostgreSQL, beside ``psql \\copy``.

    python -m benchmarks.upgrade [--messages 100000] [--rounds 5]

``psql`` copies the rows that memctl has written before, out of files, into the same empty tables:
it converts nothing.  A conversion keeps one core busy; ``--shards 2`` divides it between two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Command, interleaved, machine, median, peak
from benchmarks.places import DURABLE
from tests.support.servers.postgresql import Postgresql

TABLES = ("agents", "sessions", "messages")
WAYS = {"": 3, "--shards 2": 2}
"""The options of each run, and how many times as long as ``psql`` it may take."""


class Upgrade:
    """A database of 1.x, and one of 2.x to write to."""

    def __init__(self, folder: Path, messages: int) -> None:
        self._folder = folder
        self._server = Postgresql(folder, "postgresql-bench", *DURABLE)
        self._url = self._server.socket_url(self._server.fresh())
        source = folder / "source.db"
        dataset.make(source, messages)
        target = f"{self._url}{'&' if '?' in self._url else '?'}layout=agentscope2"
        # Some messages are marked as compressed, and the data set has no summaries.
        options = ["--no-verify", "--lossy"]
        self.ours = [sys.executable, "-m", "memctl", "migrate", str(source), target, *options]
        subprocess.run(self.ours, check=True, capture_output=True)
        self.theirs = self._psql(*(f"\\copy {name} FROM '{self._file(name)}'" for name in TABLES))
        out = (f"\\copy {name} TO '{self._file(name)}'" for name in TABLES)
        subprocess.run(self._psql(*out), check=True, capture_output=True)

    def _file(self, table: str) -> Path:
        return self._folder / f"{table}.copy"

    def _psql(self, *commands: str) -> list[str]:
        words = [str(self._server.program("psql")), self._url, "-Xq1", "-v", "ON_ERROR_STOP=1"]
        return [*words, *(word for command in commands for word in ("-c", command))]

    def empty(self) -> None:
        """Empty the tables."""
        self._server.execute(self._url, f"TRUNCATE {', '.join(TABLES)}")
        self._server.execute(self._server.admin_url("any/postgres"), "CHECKPOINT")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder:
        upgrade = Upgrade(Path(folder), options.messages)
        sides = {way: Command([*upgrade.ours, *way.split()], upgrade.empty) for way in WAYS}
        found = interleaved(
            {**sides, "psql": Command(upgrade.theirs, upgrade.empty)}, options.rounds
        )
    theirs = median(found["psql"])
    print(f"{machine('sqlalchemy', 'asyncpg', 'orjson')}; median of {options.rounds} runs.\n")
    print("| what | memctl, s | `psql \\copy`, s | ratio | at most | peak, MiB |")
    print("|---|--:|--:|--:|--:|--:|")
    for way, limit in WAYS.items():
        ours = median(found[way])
        with_ = f" (`{way}`)" if way else ""
        print(
            f"| {options.messages:,} messages, 1.x in SQLite to 2.x in PostgreSQL{with_} "
            f"| {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} | {limit} "
            f"| {peak(found[way]):.0f} |"
        )


if __name__ == "__main__":
    main()
