"""The tables of AgentScope 1.x's SQL memory, as its own classes declare them.

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
    inspect,
)

from memctl.errors import BadData

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


def missing_tables(connection: Connection) -> list[str]:
    """Return the names of AgentScope's tables that the database lacks.

    Raises:
        BadData: a table of one of these names is somebody else's (a column is missing).
    """
    there = set(inspect(connection).get_table_names())
    missing = []
    for name, table in METADATA.tables.items():
        if name not in there:
            missing.append(name)
            continue
        types = {column["name"]: column["type"] for column in inspect(connection).get_columns(name)}
        lacking = [column.name for column in table.columns if column.name not in types]
        if "id" in types and not isinstance(types["id"], String):
            raise BadData(
                f"the table {name!r} is not AgentScope's: its column 'id' is not a text",
                "give AgentScope's memory a database (or a schema) of its own",
            )
        if lacking:
            raise BadData(
                f"the table {name!r} is not AgentScope's: it has no column {lacking[0]!r}",
                "give AgentScope's memory a database (or a schema) of its own",
            )
    return missing


def create_tables(connection: Connection) -> None:
    """Create what is missing, exactly as AgentScope does."""
    METADATA.create_all(connection)
