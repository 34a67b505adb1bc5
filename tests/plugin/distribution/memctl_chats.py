"""An example of a plugin: a framework that keeps its chats in two SQL tables."""

from __future__ import annotations

import json

from sqlalchemy import Connection, inspect, text

import memctl
from memctl import Features, Layout, Memory, MemoryKey, RowTable, Snapshot, StoredMessage

CHATS = RowTable(
    "chats", key=("id",), columns=("id", "owner", "summary"), session="id", owner="owner"
)
LINES = RowTable(
    "chat_lines",
    key=("chat", "place"),
    columns=("chat", "place", "id", "marks", "message"),
    session="chat",
    order=("place",),
    text="message",
)
CREATE = (
    "CREATE TABLE IF NOT EXISTS chats (id VARCHAR(255) PRIMARY KEY, "
    "owner VARCHAR(255) NOT NULL, summary TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS chat_lines (chat VARCHAR(255), place INTEGER, "
    "id TEXT NOT NULL, marks TEXT NOT NULL, message JSON NOT NULL, PRIMARY KEY (chat, place))",
)
MADE = "made"


class ChatStore(memctl.RowStore):
    """Chats with their owners, and a row for each message."""

    features = Features(summaries=True, empty=True, mark_order=True, session_owners=True)
    tables = (CHATS, LINES)
    head, log = tables
    own_tables = frozenset({"chats", "chat_lines"})

    async def prepare(self) -> None:
        if not await self.database.run(_has_tables):
            if not self.mode.creates:
                raise memctl.NotFound(f"{self.label} has no chats", "check the database")
            await self.database.create(_create_tables)

    def read_rows(self, key: MemoryKey, rows: memctl.Rows, bad: list[str]) -> Snapshot | None:
        [(_, _, summary)] = rows["chats"].values()
        try:
            memory = Memory(key, json.loads(summary))
            messages = [
                StoredMessage(id, message, tuple(json.loads(marks)))
                for _, _, id, marks, message in rows["chat_lines"].values()
            ]
        except ValueError as error:
            bad.append(f"its summary or the marks of a message are not JSON: {error}")
            return None
        return Snapshot(memory, messages)

    def changed_rows(
        self,
        key: MemoryKey,
        rows: memctl.Rows,  # noqa: ARG002 - all rows of a chat are made anew
        there: Snapshot,
        new: Snapshot,
        undone: str | None,
    ) -> tuple[memctl.Rows, str]:
        if undone == MADE and not (new.messages or new.memory.summary):
            return {"chats": {}, "chat_lines": {}}, ""
        chat = (key.session, key.user, json.dumps(new.memory.summary or ""))
        lines = {
            (key.session, place): (key.session, place, one.id, json.dumps(one.marks), one.message)
            for place, one in enumerate(new.messages)
        }
        return {"chats": {chat[:1]: chat}, "chat_lines": lines}, "" if there.exists else MADE


def _has_tables(connection: Connection) -> bool:
    return inspect(connection).has_table("chats")


def _create_tables(connection: Connection) -> None:
    for statement in CREATE:
        connection.execute(text(statement))


LAYOUT = Layout(
    name="chats",
    summary="the chats of an example in {}",
    title="Chats",
    factory="memctl_chats:ChatStore",
    engines=("sqlite", "postgresql"),
)
