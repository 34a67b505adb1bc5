"""All messages of a store in order, by the plain driver, and thrown away.

python ordered_read.py sqlite FILE | postgresql URL | redis URL
"""

import asyncio
import sqlite3
import sys

SQL = 'SELECT id, msg, session_id, "index" FROM message ORDER BY session_id, "index"'
SOME = 1000


def sqlite(path: str) -> int:
    """Read SQLite."""
    return sum(1 for _ in sqlite3.connect(path).execute(SQL))


def postgresql(url: str) -> int:
    """Read PostgreSQL by a cursor of asyncpg."""
    import asyncpg

    async def read() -> int:
        connection = await asyncpg.connect(url)
        count = 0
        async with connection.transaction(readonly=True):
            cursor = await connection.cursor(SQL)
            while rows := await cursor.fetch(SOME):
                count += len(rows)
        await connection.close()
        return count

    return asyncio.run(read())


def redis(url: str) -> int:
    """Read Redis: the ids of each memory, then their messages some at a time."""
    import redis as driver

    client = driver.Redis.from_url(url)
    count = 0
    for key in client.scan_iter("*:messages", count=SOME):
        base = key.removesuffix(b"messages")
        ids = client.lrange(key, 0, -1)
        for start in range(0, len(ids), SOME):
            found = client.mget([base + b"msg:" + id for id in ids[start : start + SOME]])
            count += len(found)
    return count


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    read = {"sqlite": sqlite, "postgresql": postgresql, "redis": redis}[kind]
    print(read(place))
