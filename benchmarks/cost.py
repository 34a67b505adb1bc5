"""Cost of a copy as the work grows: seconds, CPU time and peak memory by the number of messages.

    python -m benchmarks.cost [--most 10000000]

Messages of 200 characters in memories of 100 go from SQLite to PostgreSQL, and from there to an
archive, in whole processes.  An exponent of 1 is a cost that grows like the number of messages; it
is that from the line before.  Ten million messages take 15 GB of the disk and of shared memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from math import log10
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Run, machine, run
from benchmarks.places import DURABLE
from tests.support.servers.postgresql import Postgresql

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
TEXT = "x" * 200
PACKAGES = ("sqlalchemy", "asyncpg", "aiosqlite", "orjson")


def copies(folder: Path, messages: int, server: Postgresql) -> dict[str, Run]:
    """Make a store of so many messages, and copy it on; return the runs by name."""
    source, archive = folder / "source.db", folder / "archive.ndjson.zst"
    dataset.fill(source, dataset.even_rows(messages, TEXT))
    database = server.create()
    found = {}
    for name, one, other in (
        ("SQLite to PostgreSQL", str(source), database),
        ("PostgreSQL to archive", database, str(archive)),
    ):
        found[name] = run([sys.executable, "-m", "memctl", "-q", "migrate", one, other])
    server.drop(database)
    source.unlink()
    archive.unlink()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=SIZES[-1])
    options = parser.parse_args()
    print(f"{machine(*PACKAGES)}; one run of each, verified.\n")
    print("| messages | copy | seconds | exponent | CPU of memctl, s | exponent | peak, MiB |")
    print("|--:|---|--:|--:|--:|--:|--:|", flush=True)
    before: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        server = Postgresql(Path(text), "postgresql-bench", *DURABLE)
        for messages in SIZES:
            if messages > options.most:
                break
            for name, done in copies(Path(text), messages, server).items():
                last = before.get(name)
                seconds, cpu = (
                    f"{log10(new / old):.2f}" if old else ""
                    for new, old in (
                        (done.seconds, last and last.seconds),
                        (done.cpu, last and last.cpu),
                    )
                )
                print(
                    f"| {messages:,} | {name} | {done.seconds:.1f} | {seconds} "
                    f"| {done.cpu:.1f} | {cpu} | {done.peak:.0f} |",
                    flush=True,
                )
                before[name] = done


if __name__ == "__main__":
    main()
