"""LlamaIndex: the table of ``SQLAlchemyChatStore``.

Source: ``storage/chat_store/sql.py`` of llama-index-core 0.14.25.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
)

from memctl.dialects.llamaindex import LLAMAINDEX
from memctl.stores.tables.mapping import Mapping


def _llamaindex(mapping: Mapping, metadata: MetaData) -> None:
    Table(
        mapping.table,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column("key", String(255), nullable=False, index=True),
        Column("timestamp", BigInteger, nullable=False, index=True),
        Column("role", String(255), nullable=False),
        Column("status", String(255), nullable=False, index=True),
        Column("data", JSON, nullable=False),
    )


def _llamaindex_columns(content: Any) -> dict[str, Any]:
    role = content.get("role") if isinstance(content, dict) else None
    return {"role": role if isinstance(role, str) else "user", "status": "active"}


PRESET = Mapping(
    "llama_index_memory",
    {"session": "key", "content": "data", "time": "timestamp"},
    ("timestamp", "id"),
    LLAMAINDEX,
    given=_llamaindex_columns,
    unit=10**9,
    make=_llamaindex,
    name="llamaindex",
)
