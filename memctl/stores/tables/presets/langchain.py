"""LangChain: the table of ``SQLChatMessageHistory``.

Source: ``chat_message_histories/sql.py`` of langchain-community 0.4.2.  The table in
``chat_message_histories.py`` of langchain-postgres 0.0.19 also has a time.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    Text,
)

from memctl.dialects.langchain import LANGCHAIN
from memctl.stores.tables.mapping import Mapping


def _langchain(mapping: Mapping, metadata: MetaData) -> None:
    Table(
        mapping.table,
        metadata,
        Column("id", Integer, primary_key=True),
        Column("session_id", Text),
        Column("message", Text),
    )


PRESET = Mapping(
    "message_store",
    {"session": "session_id", "content": "message"},
    ("id",),
    LANGCHAIN,
    more={"time": "created_at"},
    make=_langchain,
    other_table=(
        "a new table is that of SQLChatMessageHistory; for PostgresChatMessageHistory, create it "
        "with create_tables of the class, and copy then"
    ),
    name="langchain",
)
