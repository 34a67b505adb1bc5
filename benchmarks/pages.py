"""Conversations as pages: how long they take to write, and to open in Chromium.

    python -m benchmarks.pages

The targets: 50,000 messages are written within 5 s and 120 MiB, and 2,500 open within 1 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import machine, median, peak, run
from tests.support.chromium import Chromium, started

MESSAGES = (2500, 50_000)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{machine()}; median of {rounds}\n")
    print("| messages | page, MB | written, s | peak, MiB | opened, s |\n|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder, started() as chromium:
        for messages in MESSAGES:
            store, page = Path(folder, f"{messages}.db"), Path(folder, f"{messages}.html")
            dataset.make(store, messages)
            export = [sys.executable, "-m", "memctl", "-q", "export", store, "-o", page, "--force"]
            runs = [run([str(word) for word in export]) for _ in range(rounds)]
            opened = statistics.median(_open(chromium, page) for _ in range(rounds))
            size = page.stat().st_size / 1_000_000
            written = f"{median(runs):.1f} | {peak(runs):.0f}"
            print(f"| {messages:,} | {size:.1f} | {written} | {opened:.1f} |", flush=True)


def _open(chromium: Chromium, page: Path) -> float:
    """Return the seconds until the page is there."""
    chromium.open(page)
    return chromium.opening()


if __name__ == "__main__":
    main()
