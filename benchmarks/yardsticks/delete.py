"""Deletes what has a mark, by hand: ``python delete.py sqlite|redis PLACE MARK``.

What an operator would write: two statements in one transaction, or pipelines over the mark lists.
"""

from __future__ import annotations

import sqlite3
import sys

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
    {"sqlite": delete_sqlite, "redis": delete_redis}[kind](place, name)
