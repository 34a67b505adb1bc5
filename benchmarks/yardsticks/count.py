"""The counts of ``memctl inspect``, by SQL as one would write it: by user and session the messages,
their bytes, the first and last timestamp and the roles, then the marks.

    python count.py sqlite FILE | postgresql URL

It takes the owner of a session for the user of its messages, and every message for sound JSON.
"""

import asyncio
import sqlite3
import sys

MESSAGES = """
    SELECT s.user_id, m.session_id, m.msg ->> 'role', count(*), sum({size}),
           min(m.msg ->> 'timestamp'), max(m.msg ->> 'timestamp')
    FROM message m JOIN session s ON s.id = m.session_id
    GROUP BY 1, 2, 3
"""
MARKS = """
    SELECT s.user_id, m.session_id, k.mark, count(*)
    FROM message_mark k JOIN message m ON m.id = k.msg_id JOIN session s ON s.id = m.session_id
    GROUP BY 1, 2, 3
"""


def sqlite(path: str) -> int:
    """Count in SQLite; the number of rows that come back."""
    connection = sqlite3.connect(path)
    messages = MESSAGES.format(size="length(CAST(m.msg AS BLOB))")
    return sum(len(connection.execute(sql).fetchall()) for sql in (messages, MARKS))


def postgresql(url: str) -> int:
    """Count in PostgreSQL; the number of rows that come back."""
    import asyncpg

    async def count() -> int:
        connection = await asyncpg.connect(url)
        messages = MESSAGES.format(size="octet_length(m.msg::text)")
        found = [len(await connection.fetch(sql)) for sql in (messages, MARKS)]
        await connection.close()
        return sum(found)

    return asyncio.run(count())


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    print({"sqlite": sqlite, "postgresql": postgresql}[kind](place))
