"""The tables of AgentScope 1.x's SQL memory, equal to the declarations of AgentScope.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.12 to 1.0.21.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    MetaData,
    String,
    Table,
)

from memctl.engines.sql.schema import create_missing

METADATA = MetaData()

Table("users", METADATA, Column("id", String(255), primary_key=True))
Table(
    "session",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("user_id", String(255), ForeignKey("users.id"), nullable=False),
)
Table(
    "message",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("msg", JSON, nullable=False),
    Column("session_id", String(255), ForeignKey("session.id"), nullable=False),
    Column("index", BigInteger, nullable=False, index=True),
)
Table(
    "message_mark",
    METADATA,
    Column("msg_id", String(255), ForeignKey("message.id", ondelete="CASCADE"), primary_key=True),
    Column("mark", String(255), primary_key=True),
)


def create_tables(connection: Connection) -> None:
    """Create the missing tables exactly as AgentScope does."""
    create_missing(connection, METADATA)
