"""The tables of AgentScope 2.x's SQL storage, as its own classes declare them.

Source: ``app/storage/_sql/_tables.py`` and ``app/storage/_sql/_alembic/versions`` of agentscope
2.0.11.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    DateTime,
    ForeignKey,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects.mysql import DATETIME

from memctl.engines.sql import schema

METADATA = MetaData()
REVISION = "0004_sops"
"""The newest revision of AgentScope's own migrations, which make the tables below."""

_ID = 255
_EXACT_TIME = DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def _record(
    name: str,
    *more: Column[Any],
    indexes: dict[str, tuple[str, str]] | None = None,
    unique: dict[str, tuple[str, ...]] | None = None,
    time: DateTime | None = None,
) -> None:
    """Declare a table of AgentScope's records.

    ``more`` are columns for fields of the record.  The column ``payload`` has the other fields as
    JSON.
    """
    Table(
        name,
        METADATA,
        _id("user_id"),
        *more,
        Column("id", String(_ID), primary_key=True),
        Column("created_at", time or DateTime(), index=True, nullable=False),
        Column("updated_at", time or DateTime(), index=True, nullable=False),
        Column("payload", JSON, nullable=False),
        *(Index(index, *names) for index, names in (indexes or {}).items()),
        *(UniqueConstraint(*names, name=key) for key, names in (unique or {}).items()),
    )


def _id(name: str, *, null: bool = False, index: bool = True) -> Column[str]:
    return Column(name, String(_ID), nullable=null, index=index)


def _short(name: str) -> Column[str]:
    return Column(name, String(16), nullable=False, index=True)


_record("credentials")
_record("agents", _short("source"), indexes={"ix_agents_user_source": ("user_id", "source")})
_record(
    "sessions",
    _id("agent_id"),
    _short("source"),
    _id("source_schedule_id", null=True),
    _id("team_id", null=True),
    indexes={"ix_sessions_user_agent": ("user_id", "agent_id")},
)
_record("sops")
_record(
    "sop_runs",
    _id("sop_id"),
    _short("phase"),
    indexes={
        "ix_sop_runs_user_sop": ("user_id", "sop_id"),
        "ix_sop_runs_user_phase": ("user_id", "phase"),
    },
)
_record("schedules", _id("agent_id"))
_record("teams", _id("session_id", index=False))
_record("knowledge_bases")
_record(
    "knowledge_documents",
    Column(
        "knowledge_base_id",
        String(_ID),
        ForeignKey("knowledge_bases.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("processing_node", String(128), nullable=True),
    _short("status"),
    Column("lease_expires_at", DateTime(), nullable=True),
    indexes={
        "ix_kd_status_lease": ("status", "lease_expires_at"),
        "ix_kd_user_kb": ("user_id", "knowledge_base_id"),
    },
)
_record("mcps", _id("name", index=False), unique={"uq_mcps_user_name": ("user_id", "name")})
_record("skills", _id("name", index=False), unique={"uq_skills_user_name": ("user_id", "name")})
_record(
    "channels",
    _id("platform_bot_id", index=False),
    unique={"uq_channels_bot": ("platform_bot_id",)},
    time=_EXACT_TIME,
)
Table(
    "messages",
    METADATA,
    Column("session_id", String(_ID), primary_key=True),
    Column("msg_id", String(_ID), primary_key=True),
    Column("created_at", DateTime(), nullable=False),
    Column("payload", JSON, nullable=False),
    Index("ix_messages_session_created", "session_id", "created_at"),
)
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def create_tables(connection: Connection) -> None:
    """Create AgentScope's missing tables, and stamp an empty database for AgentScope's migrations.

    The stamp is a row of the table ``alembic_version`` with the revision of the tables.  The table
    is created first, and the row is inserted last.  If memctl is killed in between, the next call
    finds the table without a row, and inserts the row.
    """
    there = set(inspect(connection).get_table_names())
    if there.isdisjoint(METADATA.tables) and _VERSION.name not in there:
        _VERSION.create(connection, checkfirst=False)
    schema.create_missing(connection, METADATA)
    if inspect(connection).has_table(_VERSION.name):
        is_stamped = connection.execute(select(_VERSION)).first()
        if is_stamped is None:
            connection.execute(insert(_VERSION).values(version_num=REVISION))
