"""Copies of a mapped SQLite table to PostgreSQL, beside AgentScope 1.x's own tables.

    python -m benchmarks.tables [--messages N] [--rounds N]

Starts PostgreSQL itself, as the tests do.  Each figure is the median of the rounds, of a whole
process, without the verification afterwards.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks.measure import machine, run
from tests.support.servers.postgresql import Postgresql

SESSIONS = 1000
COLUMNS = "session:session_id,role:role,content:content,time:timestamp,order:id"
TABLE = (
    "CREATE TABLE messages (id {key}, session_id TEXT NOT NULL, role TEXT NOT NULL, "
    "content TEXT NOT NULL, timestamp DOUBLE PRECISION NOT NULL)"
)


def fill(path: Path, messages: int) -> None:
    """Make a table as many write it, with texts of some hundred characters."""
    chance = random.Random(1)
    words = ["memory", "agent", "kyoto", "weather", "please", "the", "and", "tomorrow", "train"]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(TABLE.format(key="INTEGER PRIMARY KEY AUTOINCREMENT"))
        database.execute("CREATE INDEX ix ON messages (session_id, id)")
        database.executemany(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
            (
                (
                    f"session-{number % SESSIONS}",
                    ("user", "assistant")[number // SESSIONS % 2],
                    " ".join(chance.choices(words, k=40)),
                    1.7e9 + number,
                )
                for number in range(messages)
            ),
        )


def migrate(source: str, target: str) -> float:
    """Return the seconds of a whole migration."""
    command = [sys.executable, "-m", "memctl", "migrate", source, target, "--no-verify", "--quiet"]
    return run(command).seconds


def main() -> None:
    """Print the table of benchmarks/README.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    mapped = f"layout=table&table=messages&columns={COLUMNS}"
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        server = Postgresql(Path(folder))
        path = Path(folder) / "messages.db"
        fill(path, options.messages)
        table, own = f"sqlite:///{path}?{mapped}", f"{folder}/agents.db"
        migrate(table, own)
        seconds: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            there = server.fresh()
            seconds.setdefault("AgentScope's tables to the same", []).append(migrate(own, there))
            there = server.fresh()
            server.execute(there, TABLE.format(key="SERIAL PRIMARY KEY"))
            server.execute(there, "CREATE INDEX ix ON messages (session_id, id)")
            took = migrate(table, f"{there}{'&' if '?' in there else '?'}{mapped}")
            seconds.setdefault("a mapped table to the same", []).append(took)
            took = migrate(table, server.fresh())
            seconds.setdefault("a mapped table to AgentScope's", []).append(took)
    base = median(next(iter(seconds.values())))
    print(f"| {options.messages:,} messages, SQLite to PostgreSQL | seconds | ratio |")
    print("|---|--:|--:|")
    for what, found in seconds.items():
        print(f"| {what} | {median(found):.1f} | {median(found) / base:.2f} |")


if __name__ == "__main__":
    main()
