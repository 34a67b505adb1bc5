"""The lines of the benchmark with their yardsticks, and the targets that memctl sets itself."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Command
from benchmarks.places import Places

YARDSTICKS = Path(__file__).with_name("yardsticks")
AGENTSCOPE = Path(__file__).parents[1] / ".interop" / "bin" / "python"
"""The Python that has AgentScope: ``scripts/interop python3 interop``."""
API_SCRIPT = YARDSTICKS / "api.py"
API_MESSAGES = 10_000


@dataclass(frozen=True)
class Line:
    """memctl beside something else: ``limit`` is how many times as long it may take."""

    what: str
    ours: Command
    beside: str
    theirs: Command
    limit: float


COPIES = {
    ("SQLite", "PostgreSQL"): 1.3,
    ("SQLite", "Redis"): 4.0,
    ("PostgreSQL", "Redis"): 4.5,
    ("Redis", "SQLite"): 2.5,
    ("PostgreSQL", "SQLite"): 2.5,
    ("Redis", "PostgreSQL"): 1.4,
    ("SQLite", "archive"): 2.5,
    ("PostgreSQL", "archive"): 2.5,
    ("Redis", "archive"): 2.5,
    ("archive", "PostgreSQL"): 1.4,
}
VERIFIED = [("SQLite", "PostgreSQL"), ("SQLite", "Redis"), ("PostgreSQL", "SQLite")]
AGAIN = [("PostgreSQL", "Redis"), ("Redis", "SQLite")]


def lines(places: Places) -> Iterator[Line]:
    """Everything that is measured with one data set."""
    for (source, target), limit in COPIES.items():
        beside, theirs = _yardstick(places, source, target)
        ours = _copy(places, source, target, "--no-verify")
        yield Line(f"{source} to {target}", ours, beside, theirs, limit)
    for source, target in VERIFIED:
        plain = _copy(places, source, target, "--no-verify")
        verified = _copy(places, source, target)
        yield Line(f"{source} to {target}, verified", verified, "`--no-verify`", plain, 1.7)
    again = Command(_copy(places, "SQLite", "PostgreSQL").arguments, places.fill_postgresql)
    outlines = Command(places.outlines(), places.fill_postgresql)
    what = "SQLite to PostgreSQL, nothing new"
    yield Line(what, again, "the ordered outlines of both", outlines, 1.3)
    for source, target in AGAIN:
        first = _copy(places, source, target)
        again = Command(first.arguments)
        yield Line(f"{source} to {target}, nothing new", again, "the first run", first, 0.15)
    for kind in ("SQLite", "PostgreSQL"):
        url = places.sources[kind]
        ours = Command([*_memctl("inspect"), url, "--json"])
        theirs = Command([sys.executable, str(YARDSTICKS / "count.py"), kind.lower(), url])
        yield Line(f"`inspect` of {kind}", ours, "the same in SQL", theirs, 1.5)


def api_line(places: Places) -> Line:
    """AgentScope's own classes, which read a memory at a time."""
    source = places.folder / f"source-{API_MESSAGES}.db"
    dataset.make(source, API_MESSAGES)
    target = places.targets["PostgreSQL"]
    urls = (f"sqlite+aiosqlite:///{source}", places.sqlalchemy_url(target.name))
    theirs = Command([str(AGENTSCOPE), str(API_SCRIPT), *urls, *memories(source)], target.empty)
    ours = Command([*_memctl("migrate"), str(source), target.name, "--no-verify"], target.empty)
    return Line(f"SQLite to PostgreSQL, {API_MESSAGES:,} messages", ours, "its API", theirs, 0.1)


def memories(source: Path) -> list[str]:
    """The user and the session of every memory, in turn."""
    with sqlite3.connect(source) as database:
        pairs = database.execute("SELECT user_id, id FROM session").fetchall()
    return [name for pair in pairs for name in pair]


def _memctl(command: str) -> list[str]:
    return [sys.executable, "-m", "memctl", command]


def _copy(places: Places, source: str, target: str, *options: str) -> Command:
    place = places.targets[target]
    arguments = [*_memctl("migrate"), places.sources[source], place.name, *options]
    return Command(arguments, place.empty)


def _yardstick(places: Places, source: str, target: str) -> tuple[str, Command]:
    place = places.targets[target]
    match target:
        case "PostgreSQL":
            return "`psql \\copy`", Command(places.copy_in(place.name), place.empty)
        case "Redis":
            return "`redis-cli --pipe`", Command(places.pipe_in(place.name), place.empty)
        case "SQLite":
            return "`sqlite3` executemany", Command(places.insert(place.name), place.empty)
        case _:
            return "one ordered read", Command(places.read(source))
