"""Start-up time of memctl, next to Python itself and the library of its command line.

python -m benchmarks.startup
"""

from __future__ import annotations

import sys

from benchmarks.measure import Command, interleaved, machine, median

ROUNDS = 15
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    'python -c "import typer"': [sys.executable, "-c", "import typer"],
    "memctl --version": [sys.executable, "-m", "memctl", "--version"],
    "memctl --help": [sys.executable, "-m", "memctl", "--help"],
}


def main() -> None:
    """Print the table."""
    found = interleaved({name: Command(what) for name, what in COMMANDS.items()}, ROUNDS)
    base = median(found['python -c "import typer"'])
    print(f"{machine()}; median of {ROUNDS}\n")
    print("| command | ms | times `import typer` |\n|---|--:|--:|")
    for name, runs in found.items():
        print(f"| `{name}` | {median(runs) * 1000:.0f} | {median(runs) / base:.2f} |")


if __name__ == "__main__":
    main()
