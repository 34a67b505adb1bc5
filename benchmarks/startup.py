"""Start-up time of memctl, next to Python itself and the library of its command line.

python -m benchmarks.startup

Commands on a store read a SQLite database of 2,500 messages (``dataset.py``).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Command, interleaved, machine, median, peak

ROUNDS = 15
MESSAGES = 2_500
COMMANDS = (
    "--version",
    "--help",
    "inspect STORE",
    "inspect STORE --json",
    "export STORE -o -",
    "delete STORE --mark hint --dry-run",
    "search STORE kalo",
)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "agents.db")
        dataset.make(store, MESSAGES)
        hour_ago = time.time() - 3600
        os.utime(store, (hour_ago, hour_ago))  # a file that has just changed is indexed again
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            'python -c "import typer"': [sys.executable, "-c", "import typer"],
        }
        for words in COMMANDS:
            arguments = words.replace("STORE", str(store)).split()
            commands[f"memctl {words}"] = [sys.executable, "-m", "memctl", *arguments]
        found = interleaved({name: Command(what) for name, what in commands.items()}, ROUNDS)
    base = median(found['python -c "import typer"'])
    print(f"{machine()}; median of {ROUNDS}\n")
    print("| command | ms | times `import typer` | peak MiB |\n|---|--:|--:|--:|")
    for name, runs in found.items():
        print(
            f"| `{name}` | {median(runs) * 1000:.0f} | {median(runs) / base:.1f} "
            f"| {peak(runs):.0f} |"
        )


if __name__ == "__main__":
    main()
