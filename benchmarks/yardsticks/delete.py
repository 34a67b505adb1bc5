"""Deletes what has a mark, by hand: ``python delete.py sqlite|mariadb|redis PLACE MARK``.

What an operator would write: two statements in one transaction, or pipelines over the mark lists.
"""

from __future__ import annotations

import sqlite3
import sys
from urllib.parse import parse_qs, unquote, urlsplit

import redis


def delete_sqlite(path: str, mark: str) -> None:
    """The messages of the mark, then their marks."""
    database = sqlite3.connect(path)
    with database:
        database.execute(
            "CREATE TEMP TABLE gone AS SELECT msg_id FROM message_mark WHERE mark = ?", (mark,)
        )
        database.execute("DELETE FROM message_mark WHERE msg_id IN (SELECT msg_id FROM gone)")
        database.execute("DELETE FROM message WHERE id IN (SELECT msg_id FROM gone)")
    database.close()


def delete_mariadb(url: str, mark: str) -> None:
    """The same; of ``IN (SELECT ...)`` this server would look at every message."""
    import pymysql

    parts = urlsplit(url)
    database = pymysql.connect(
        unix_socket=parse_qs(parts.query)["unix_socket"][0],
        user=parts.username,
        password=unquote(parts.password or ""),
        database=parts.path[1:],
    )
    with database, database.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE gone (PRIMARY KEY (msg_id)) "
            "AS SELECT msg_id FROM message_mark WHERE mark = %s",
            [mark],
        )
        for table, name in ("message_mark", "msg_id"), ("message", "id"):
            cursor.execute(f"DELETE t FROM gone g STRAIGHT_JOIN {table} t ON t.{name} = g.msg_id")
        database.commit()


def delete_redis(url: str, mark: str) -> None:
    """Session by session, as AgentScope's ``delete_by_mark`` does, but in pipelines."""
    client = redis.Redis.from_url(url)
    for key in list(client.scan_iter(match=f"*:mark:{mark}", count=1000)):
        base = key.removesuffix(f":mark:{mark}".encode())
        ids = client.lrange(key, 0, -1)
        others = client.smembers(base + b":marks_index") - {mark.encode()}
        pipeline = client.pipeline()
        for id in ids:
            pipeline.unlink(base + b":msg:" + id)
            pipeline.lrem(base + b":messages", 0, id)
            for other in others:
                pipeline.lrem(base + b":mark:" + other, 0, id)
        pipeline.delete(key)
        pipeline.srem(base + b":marks_index", mark)
        pipeline.execute()


if __name__ == "__main__":
    kind, place, name = sys.argv[1:]
    by_kind = {"sqlite": delete_sqlite, "mariadb": delete_mariadb, "redis": delete_redis}
    by_kind[kind](place, name)
