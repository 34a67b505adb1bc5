"""Rows into SQLite by the standard library, in one transaction.

python executemany.py ROWS.marshal FILE.db
"""

import marshal
import sqlite3
import sys


def main(source: str, target: str) -> None:
    """Insert the rows; ``source`` holds a table's name, its rows, and so on."""
    connection = sqlite3.connect(target)
    with connection, open(source, "rb") as file:
        while some := marshal.load(file):
            table, rows = some
            places = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
