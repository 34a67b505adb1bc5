"""A memory of an application's own, such as many wrote before AgentScope had one in SQL.

Its table is ``messages``, with a row a message: no ids, no marks, content as text or as JSON.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from typing import Any

from agentscope.memory import MemoryBase
from agentscope.message import Msg

TABLE = (
    "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY AUTOINCREMENT, "
    "session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL, "
    "timestamp REAL NOT NULL)"
)


class OwnMemory(MemoryBase):
    """The messages of a session in a SQLite file."""

    def __init__(self, path: str, session: str, *, encoded: bool) -> None:
        """With ``encoded``, every content is JSON, as in AgentScope's guide."""
        super().__init__()
        self._path, self._session, self._encoded = path, session, encoded
        self._run(TABLE)

    def _run(self, sql: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database, database:
            return database.execute(sql, values).fetchall()

    async def add(self, memories: Any, marks: Any = None, **_: Any) -> None:  # noqa: ARG002
        for message in memories if isinstance(memories, list) else [memories]:
            content = message.content
            plain = isinstance(content, str) and not self._encoded
            text = content if plain else json.dumps(content)
            self._run(
                "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
                *(self._session, message.role, text, time.time()),
            )

    async def delete(self, msg_ids: list[str], **_: Any) -> int:
        return len([self._run("DELETE FROM messages WHERE id = ?", id) for id in msg_ids])

    async def delete_by_mark(self, mark: Any, **_: Any) -> int:  # noqa: ARG002 - there are none
        return 0

    async def size(self) -> int:
        return len(await self.get_memory())

    async def clear(self) -> None:
        self._run("DELETE FROM messages WHERE session_id = ?", self._session)

    async def get_memory(self, **_: Any) -> list[Msg]:
        rows = self._run(
            "SELECT role, content FROM messages WHERE session_id = ? ORDER BY id", self._session
        )
        return [self._message(*row) for row in rows]

    def _message(self, role: str, text: str) -> Msg:
        if self._encoded:
            return Msg(role, json.loads(text), role)
        try:
            content = json.loads(text)
        except ValueError:
            content = text
        return Msg(role, content if isinstance(content, list) else text, role)
