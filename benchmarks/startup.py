"""Start-up time of memctl, next to Python itself and the libraries that it imports.

    python -m benchmarks.startup [--count]

Commands on a store read a SQLite database of 2,500 messages (``dataset.py``).  ``--count`` counts
instructions by ``valgrind``, once for each command: the counts do not depend on the load.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Command, interleaved, machine, median, peak
from benchmarks.places import need

ROUNDS = 15
MESSAGES = 2_500
TYPER = "import typer"
PROGRAMS = (
    "pass",
    TYPER,
    # Typer imports Pydantic for its parameters.
    "import typer, asyncio, sqlalchemy, aiosqlite; from pydantic import TypeAdapter",
)
COMMANDS = (
    "--version",
    "--help",
    "inspect STORE",
    "inspect STORE --json",
    "export STORE -o -",
    "delete STORE --mark hint --dry-run",
    "search STORE kalo",
)
_COUNTER = ("--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_NO_CACHE = "PYTHONDONTWRITEBYTECODE"
"""With this variable, Python would compile memctl at each start."""
_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def commands(store: Path) -> dict[str, list[str]]:
    """Return the arguments of each command by its name."""
    found = {f'python -c "{program}"': [sys.executable, "-c", program] for program in PROGRAMS}
    for words in COMMANDS:
        arguments = words.replace("STORE", str(store)).split()
        found[f"memctl {words}"] = [sys.executable, "-m", "memctl", *arguments]
    return found


def instructions(arguments: list[str]) -> int:
    """Return the number of instructions of a command, counted after a run that does not count."""
    cached = {name: value for name, value in os.environ.items() if name != _NO_CACHE}
    subprocess.run(arguments, check=True, capture_output=True, env=cached)
    counted = [need("valgrind"), *_COUNTER, *arguments]
    done = subprocess.run(counted, check=True, capture_output=True, text=True)
    found = _COUNTED.search(done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", action="store_true", help="count instructions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "agents.db")
        dataset.make(store, MESSAGES)
        hour_ago = time.time() - 3600
        os.utime(store, (hour_ago, hour_ago))  # a file that has just changed is indexed again
        if options.count:
            _print_counts(commands(store))
        else:
            _print_times(commands(store))


def _print_counts(found: dict[str, list[str]]) -> None:
    counts = {name: instructions(arguments) for name, arguments in found.items()}
    base = counts[f'python -c "{TYPER}"']
    print(f"{machine()}\n")
    print("| command | million instructions | times `import typer` |\n|---|--:|--:|")
    for name, count in counts.items():
        print(f"| `{name}` | {count / 1e6:,.0f} | {count / base:.1f} |")


def _print_times(found: dict[str, list[str]]) -> None:
    runs = interleaved({name: Command(arguments) for name, arguments in found.items()}, ROUNDS)
    base = median(runs[f'python -c "{TYPER}"'])
    print(f"{machine()}; median of {ROUNDS}\n")
    print("| command | ms | times `import typer` | peak MiB |\n|---|--:|--:|--:|")
    for name, some in runs.items():
        print(
            f"| `{name}` | {median(some) * 1000:.0f} | {median(some) / base:.1f} "
            f"| {peak(some):.0f} |"
        )


if __name__ == "__main__":
    main()
