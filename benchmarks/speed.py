"""Speed of memctl, next to the public tools that do the same with the same rows and keys.

    python -m benchmarks.speed [--rounds 5] [--large] [--only TEXT] [--write]

Starts PostgreSQL and Redis itself, as the tests do, but as durable as they come.  Both sides of a
line run in turn, each after what it writes to was emptied; a figure is the median, start-up
included.  ``--large`` adds a data set ten times as large for some of the lines, with one run each.
``--write`` puts the tables into ``benchmarks/results.md``, from where docs/speed.md takes them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks import dataset
from benchmarks.lines import AGENTSCOPE, Line, api_line, lines
from benchmarks.measure import interleaved, machine, median, peak
from benchmarks.places import Places

RESULTS = Path(__file__).with_name("results.md")
TIMES_LARGER = 10
PACKAGES = ("sqlalchemy", "asyncpg", "aiosqlite", "redis", "hiredis", "orjson")
LARGER = (
    "SQLite to PostgreSQL",
    "Redis to SQLite",
    "SQLite to PostgreSQL, nothing new",
    "`inspect` of SQLite",
)
HEAD = """\
| {title} | memctl, s | baseline | s | ratio | at most | peak, MiB |
|---|--:|---|--:|--:|--:|--:|"""


class Table:
    """Lines as they are measured, printed at once."""

    def __init__(self, title: str, rounds: int, *, warm: bool) -> None:
        self.seconds: dict[str, float] = {}
        self.text = ""
        self._rounds = rounds
        self._warm = warm
        self._add(HEAD.format(title=title))

    def _add(self, text: str) -> None:
        print(text, flush=True)
        self.text += text + "\n"

    def measure(self, some: Iterable[Line]) -> None:
        """Run both sides of each line, and add it."""
        for line in some:
            sides = {"theirs": line.theirs, "ours": line.ours}
            found = interleaved(sides, self._rounds, warm=self._warm)
            ours, theirs = median(found["ours"]), median(found["theirs"])
            self.seconds[line.what] = ours
            self._add(
                f"| {line.what} | {ours:.2f} | {line.beside} | {theirs:.2f} | {ours / theirs:.2f} "
                f"| {line.limit:g} | {peak(found['ours']):.0f} |"
            )

    def compare(self, smaller: Table) -> None:
        """The factor to the smaller data set."""
        ratios = [
            f"{what}: {seconds / smaller.seconds[what]:.1f}"
            for what, seconds in self.seconds.items()
            if what in smaller.seconds
        ]
        self._add(f"\nTimes as long as with a tenth of the messages: {'; '.join(ratios)}.")


def measure(options: argparse.Namespace) -> str:
    """Everything that was asked for, as Markdown."""
    texts = [f"{machine(*PACKAGES)}; median of {options.rounds} runs."]
    print(texts[0] + "\n")
    sizes = [options.messages]
    if options.large:
        sizes.append(options.messages * TIMES_LARGER)
    tables: list[Table] = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder:
            places = Places(Path(folder), size)
            rounds = 1 if tables else options.rounds
            table = Table(f"{size:,} messages", rounds, warm=not tables)
            table.measure(
                line
                for line in lines(places)
                if options.only in line.what and (not tables or line.what in LARGER)
            )
            if not tables and AGENTSCOPE.exists() and options.only in "its API":
                table.measure([api_line(places)])
        if tables:
            table.compare(tables[0])
        tables.append(table)
        texts.append(table.text)
        print()
    return "\n\n".join(text.strip() for text in texts) + "\n"


def main() -> None:
    """Measure, prints and, if asked to, keeps the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=dataset.MESSAGES)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="", help="lines that have this in their name")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    text = measure(options)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
