"""Time of deleting, next to the same by hand; and that of doctor.

    python -m benchmarks.prune [--messages 1000000] [--rounds 1] [--write]

A fifth of the messages has the mark that goes.  Every run begins with a full store.  memctl's
figure includes writing down what goes, for the undo, which the yardsticks do without.  ``--write``
puts the table into ``benchmarks/prune.md``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lines import YARDSTICKS, Line
from benchmarks.mariadb import MariadbPlace
from benchmarks.measure import Command, machine
from benchmarks.places import Places
from benchmarks.speed import PACKAGES, Table

MARK = "compressed"
LIMIT = 3.0
RESULTS = Path(__file__).with_name("prune.md")


def lines(places: Places) -> Iterator[Line]:
    """A delete of every kind of store that has a language of its own."""
    script = str(YARDSTICKS / "delete.py")
    sqlite, redis = places.targets["SQLite"].name, places.targets["Redis"].name
    database = places.targets["PostgreSQL"].name

    def fill_sqlite() -> None:
        shutil.copyfile(places.file, sqlite)

    yield Line(
        "`delete --mark` of SQLite",
        Command(_delete(sqlite), fill_sqlite),
        "two DELETEs",
        Command([sys.executable, script, "sqlite", sqlite, MARK], fill_sqlite),
        LIMIT,
    )
    yield Line(
        "`delete --mark` of PostgreSQL",
        Command(_delete(database), places.fill_postgresql),
        "two DELETEs",
        Command(_statements(places, database), places.fill_postgresql),
        LIMIT,
    )
    mariadb = MariadbPlace(places.folder, places.file)
    yield Line(
        "`delete --mark` of MariaDB",
        Command(_delete(mariadb.url), mariadb.fill),
        "two DELETEs",
        Command([sys.executable, script, "mariadb", mariadb.url, MARK], mariadb.fill),
        LIMIT,
    )
    yield Line(
        "`delete --mark` of Redis",
        Command(_delete(redis), places.fill_redis),
        "pipelines",
        Command([sys.executable, script, "redis", redis, MARK], places.fill_redis),
        LIMIT,
    )
    for kind in ("SQLite", "PostgreSQL", "Redis"):
        url = places.sources[kind]
        doctor = Command(_lenient([*_memctl("doctor"), url, "--json"]))
        read = Command(places.read(kind))
        yield Line(f"`doctor` of {kind}", doctor, "one ordered read", read, LIMIT)


def _memctl(command: str) -> list[str]:
    return [sys.executable, "-m", "memctl", command]


def _delete(store: str) -> list[str]:
    return [*_memctl("delete"), store, "--mark", MARK, "--yes", "--json"]


def _lenient(command: list[str]) -> list[str]:
    """The command, whose findings (exit code 6) are no failure of the benchmark."""
    return ["sh", "-c", '"$@"; code=$?; test $code -eq 0 || test $code -eq 6', "sh", *command]


def _statements(places: Places, url: str) -> list[str]:
    gone = f"SELECT msg_id FROM message_mark WHERE mark = '{MARK}'"
    sql = (
        f"BEGIN; CREATE TEMP TABLE gone AS {gone}; "
        "DELETE FROM message_mark WHERE msg_id IN (SELECT msg_id FROM gone); "
        "DELETE FROM message WHERE id IN (SELECT msg_id FROM gone); COMMIT"
    )
    return [places.psql, url, "-Xq", "-v", "ON_ERROR_STOP=1", "-c", sql]


def main() -> None:
    """Measure, prints and, if asked to, keeps the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="lines that have this in their name")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    head = f"{machine(*PACKAGES)}; median of {options.rounds} runs."
    print(head + "\n")
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        places = Places(Path(folder), options.messages)
        table = Table(f"{options.messages:,} messages", options.rounds, warm=False)
        table.measure(line for line in lines(places) if options.only in line.what)
    if options.write:
        RESULTS.write_text(f"{head}\n\n{table.text}")


if __name__ == "__main__":
    main()
