"""Growth of the time with the number of messages: memctl, pgloader and AgentScope's API.

    python -m benchmarks.growth [--most 100000] [--rounds 3]

SQLite to PostgreSQL, whole processes; the API stops where a run takes more than 20 seconds, for its
cost is memories times messages.  Draws ``docs/growth.svg``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import dataset
from benchmarks.chart import Series, draw
from benchmarks.lines import AGENTSCOPE, API_SCRIPT, memories
from benchmarks.measure import Command, interleaved, machine, median
from benchmarks.places import Places

CHART = Path(__file__).parents[1] / "docs" / "growth.svg"
PACKAGES = ("sqlalchemy", "asyncpg", "aiosqlite")
ENOUGH = 20.0
"""Seconds of a run after which the next, larger one is left out."""


def commands(places: Places, file: Path) -> dict[str, Command]:
    """Every way from the file to an empty PostgreSQL database."""
    target = places.targets["PostgreSQL"]
    memctl = [sys.executable, "-m", "memctl", "migrate", str(file), target.name, "--no-verify"]
    found = {"memctl": Command(memctl, target.empty)}
    if AGENTSCOPE.exists():
        urls = (f"sqlite+aiosqlite:///{file}", places.sqlalchemy_url(target.name))
        script = [str(AGENTSCOPE), str(API_SCRIPT), *urls, *memories(file)]
        found["AgentScope's API"] = Command(script, target.empty)
    if pgloader := shutil.which("pgloader"):
        load = [pgloader, "--with", "quote identifiers", f"sqlite://{file}"]
        found["pgloader"] = Command([*load, places.pgloader_url()], places.empty_loaded)
    return found


def main() -> None:
    """Print the table and draws the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    series: dict[str, Series] = {}
    slow: set[str] = set()
    print(f"{machine(*PACKAGES)}; median of {options.rounds} runs.\n")
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        folder = Path(text)
        places = Places(folder, 1000)
        for size in sizes(options.most):
            file = folder / f"grown-{size}.db"
            dataset.make(file, size)
            chosen = {
                name: command
                for name, command in commands(places, file).items()
                if name not in slow
            }
            for name, runs in interleaved(chosen, options.rounds, warm=False).items():
                seconds = median(runs)
                series.setdefault(name, Series(name, [])).points.append((size, seconds))
                print(f"{size:>9,} messages  {name:<17} {seconds:8.2f} s", flush=True)
                if seconds > ENOUGH:
                    slow.add(name)
    CHART.write_text(draw(list(series.values()), "messages", "seconds", machine(*PACKAGES)))


def sizes(most: int) -> list[int]:
    """1,000, 3,000, 10,000 and so on."""
    steps = [factor * 10**power for power in range(3, 9) for factor in (1, 3)]
    return [step for step in steps if step <= most]


if __name__ == "__main__":
    main()
