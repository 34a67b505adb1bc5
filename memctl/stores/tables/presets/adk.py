"""Google ADK: the tables of ``DatabaseSessionService``.

Source: ``sessions/schemas/v1.py`` of google-adk 2.13.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.mysql import DATETIME, LONGTEXT
from sqlalchemy.dialects.postgresql import JSONB

from memctl.dialects.adk import ADK, event_time
from memctl.engines.sql.columns import UNKNOWN_TIME
from memctl.stores.tables.mapping import NOW, Mapping, SessionTable


def _adk(mapping: Mapping, metadata: MetaData) -> None:
    name = String(128)
    time = DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")
    state = Text().with_variant(JSONB(), "postgresql").with_variant(LONGTEXT(), "mysql", "mariadb")
    Table(
        "adk_internal_metadata",
        metadata,
        Column("key", name, primary_key=True),
        Column("value", String(256), nullable=False),
    )
    Table(
        "sessions",
        metadata,
        Column("app_name", name, primary_key=True),
        Column("user_id", name, primary_key=True),
        Column("id", name, primary_key=True),
        Column("state", state, nullable=False),
        Column("create_time", time, nullable=False),
        Column("update_time", time, nullable=False),
    )
    Table(
        "app_states",
        metadata,
        Column("app_name", name, primary_key=True),
        Column("state", state, nullable=False),
        Column("update_time", time, nullable=False),
    )
    Table(
        "user_states",
        metadata,
        Column("app_name", name, primary_key=True),
        Column("user_id", name, primary_key=True),
        Column("state", state, nullable=False),
        Column("update_time", time, nullable=False),
    )
    events = Table(
        mapping.table,
        metadata,
        Column("id", name, primary_key=True),
        Column("app_name", name, primary_key=True),
        Column("user_id", name, primary_key=True),
        Column("session_id", name, primary_key=True),
        Column("invocation_id", String(256), nullable=False),
        Column("timestamp", time, nullable=False),
        Column("event_data", state, nullable=True),
        ForeignKeyConstraint(
            ["app_name", "user_id", "session_id"],
            ["sessions.app_name", "sessions.user_id", "sessions.id"],
            ondelete="CASCADE",
        ),
    )
    columns = events.columns
    Index(
        "idx_events_app_user_session_ts_id",
        *(columns.app_name, columns.user_id, columns.session_id),
        *(columns.timestamp.desc(), columns.id.desc()),
    )


def _adk_columns(content: Any) -> dict[str, Any]:
    event = content if isinstance(content, dict) else {}
    invocation = event.get("invocation_id")
    time = datetime.fromisoformat(event_time(event) or UNKNOWN_TIME)
    return {
        "id": event.get("id"),
        "invocation_id": invocation if isinstance(invocation, str) else "",
        "timestamp": time.replace(tzinfo=None),
    }


PRESET = Mapping(
    "events",
    {"session": "session_id", "user": "user_id", "content": "event_data"},
    ("timestamp", "id"),
    ADK,
    sessions=(
        SessionTable(
            "sessions",
            {"app": "app_name", "user": "user_id", "session": "id"},
            {"create_time": NOW, "update_time": NOW},
            "state",
        ),
        SessionTable(
            "user_states",
            {"app": "app_name", "user": "user_id"},
            {"update_time": NOW},
            "state",
        ),
        SessionTable("app_states", {"app": "app_name"}, {"update_time": NOW}, "state"),
    ),
    app="app_name",
    unique_ids=True,
    stamp=("adk_internal_metadata", ("schema_version", "1")),
    rising="timestamp",
    given=_adk_columns,
    make=_adk,
    name="adk",
)
