"""A hand-made index of AgentScope's table, as a user would write it with ``sqlite3``.

    python -m benchmarks.yardsticks.fts5 build STORE INDEX
    python -m benchmarks.yardsticks.fts5 query INDEX WORDS

It indexes the JSON as it is, and finds no Chinese, Japanese or Korean words.
"""

from __future__ import annotations

import sqlite3
import sys


def build(store: str, index: str) -> None:
    """Put all messages into a full-text table."""
    with sqlite3.connect(index) as database:
        database.execute("ATTACH ? AS store", (store,))
        database.execute("CREATE VIRTUAL TABLE words USING fts5 (id UNINDEXED, msg)")
        database.execute("INSERT INTO words SELECT id, msg FROM store.message")


def query(index: str, words: str) -> None:
    """Print the ten best messages."""
    with sqlite3.connect(index) as database:
        found = database.execute(
            "SELECT id, snippet(words, 1, '[', ']', '…', 12) FROM words WHERE words MATCH ?"
            " ORDER BY rank LIMIT 10",
            (" OR ".join(f'"{word}"' for word in words.split()),),
        )
        for id, text in found:
            print(id, text)


if __name__ == "__main__":
    {"build": build, "query": query}[sys.argv[1]](*sys.argv[2:])
