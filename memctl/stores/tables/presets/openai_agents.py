"""OpenAI Agents SDK: the tables of ``SQLiteSession`` and ``SQLAlchemySession``.

Source: ``memory/sqlite_session.py`` and ``extensions/memory/sqlalchemy_session.py`` of
openai-agents 0.24.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from memctl.dialects.openai_agents import OPENAI_AGENTS, OpenAIAgents
from memctl.stores.tables.mapping import Mapping, SessionTable


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _agents(mapping: Mapping, metadata: MetaData) -> None:
    now = text("CURRENT_TIMESTAMP")
    time = TIMESTAMP(timezone=False)
    name = String(255)
    [sessions] = mapping.sessions
    Table(
        sessions.table,
        metadata,
        Column("session_id", name, primary_key=True),
        Column("created_at", time, server_default=now, nullable=False),
        Column("updated_at", time, server_default=now, nullable=False),
    )
    Table(
        mapping.table,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column(
            "session_id",
            name,
            ForeignKey(f"{sessions.table}.session_id", ondelete="CASCADE"),
            nullable=False,
        ),
        Column("message_data", Text, nullable=False),
        Column("created_at", time, server_default=now, nullable=False),
        Index(f"idx_{mapping.table}_session_time", "session_id", "created_at"),
        sqlite_autoincrement=True,
    )


PRESET = Mapping(
    "agent_messages",
    {"session": "session_id", "content": "message_data", "time": "created_at"},
    ("created_at", "id"),
    OpenAIAgents(OPENAI_AGENTS.fields, orders_by_time=True),
    sessions=(SessionTable("agent_sessions", {"session": "session_id"}),),
    encode=compact,
    filled_times=True,
    make=_agents,
    name="openai-agents",
)
