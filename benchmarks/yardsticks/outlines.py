"""The ids and marks of all messages in order, from SQLite and then from PostgreSQL, thrown away.

python outlines.py FILE URL
"""

import asyncio
import sqlite3
import sys

import asyncpg

SQL = (
    'SELECT m.id, m.session_id, m."index", s.user_id, k.marks FROM message m '
    "JOIN session s ON s.id = m.session_id LEFT JOIN (SELECT msg_id, {array}(mark) AS marks "
    "FROM message_mark GROUP BY msg_id) k ON k.msg_id = m.id "
    'ORDER BY m.session_id, s.user_id, m."index", m.id'
)
SOME = 1000


def sqlite(path: str) -> int:
    """Read SQLite."""
    return sum(1 for _ in sqlite3.connect(path).execute(SQL.format(array="json_group_array")))


async def postgresql(url: str) -> int:
    """Read PostgreSQL by a cursor of asyncpg."""
    connection = await asyncpg.connect(url)
    count = 0
    async with connection.transaction(readonly=True):
        cursor = await connection.cursor(SQL.format(array="json_agg"))
        while rows := await cursor.fetch(SOME):
            count += len(rows)
    await connection.close()
    return count


if __name__ == "__main__":
    print(sqlite(sys.argv[1]), asyncio.run(postgresql(sys.argv[2])))
