"""Reports of stores in SQLite: CPU time, peak memory, size of the page, time to open it.

    python -m benchmarks.report [MESSAGES ...]

The stores are those of ``dataset.py``, and one of as many users as memories, with three messages on
average.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import machine, run
from tests.support.chromium import Chromium, started

SIZES = (50_000, 1_000_000)
USERS = 100_000
PER_USER = 3


def measure(what: str, store: Path, chromium: Chromium) -> None:
    """Report a store with and without findings, and print a line of each."""
    page = store.with_suffix(".html")
    for more, options in (("", []), (", no findings", ["--no-findings"])):
        words = ["report", str(store), "-o", str(page), "--force", *options]
        done = run([sys.executable, "-m", "memctl", "-q", *words])
        size = page.stat().st_size / 1000
        chromium.open(page)
        shown = f"{done.cpu:.1f} | {done.peak:.0f} | {size:.0f} | {chromium.opening():.1f}"
        print(f"| {what}{more} | {shown} |", flush=True)


def main() -> None:
    """Measure and print a table."""
    print(f"{machine('sqlalchemy', 'orjson')}; one run of each.\n")
    print("| what | CPU, s | peak, MiB | page, kB | opened, s |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder, started() as chromium:
        store = Path(folder) / "agents.db"
        for messages in map(int, sys.argv[1:] or SIZES):
            dataset.make(store, messages)
            measure(f"{messages:,} messages", store, chromium)
        dataset.make(store, USERS * PER_USER, per_memory=PER_USER, memories_of_a_user=1)
        measure(f"{USERS:,} users and memories", store, chromium)


if __name__ == "__main__":
    main()
