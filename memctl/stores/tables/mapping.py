"""Tables of messages that are not AgentScope's: which column is what.

A ``Mapping`` is what a user says in ``[stores.NAME]``, or a preset of a framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from collections.abc import Mapping as Map
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from sqlalchemy import (
    JSON,
    TIMESTAMP,
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.mysql import DATETIME, LONGTEXT
from sqlalchemy.dialects.postgresql import JSONB

from memctl.dialects.adk import ADK, event_time
from memctl.dialects.agentscope import ID, NAME, ROLE
from memctl.dialects.langchain import LANGCHAIN, LangChainJs
from memctl.dialects.llamaindex import LLAMAINDEX
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.rows import (
    CALL_ID,
    CALL_NAME,
    CALLS,
    COLUMN_ROLES,
    METADATA,
    TIME,
    RoleContent,
    RowDialect,
)
from memctl.engines.sql.columns import UNKNOWN_TIME
from memctl.errors import UsageError
from memctl.location import visible

_BESIDE = {
    **{"role": ROLE, "name": NAME, "time": TIME, "id": ID, "metadata": METADATA},
    **{"calls": CALLS, "call_id": CALL_ID, "call_name": CALL_NAME},
}
CALL_COLUMNS = {
    "calls": ("tool_calls", "toolcalls", "function_calls", "function_call", "calls"),
    "call_id": ("tool_call_id", "toolcallid", "tool_use_id", "call_id"),
    "call_name": ("tool_name", "toolname", "function_name"),
}
"""The usual names of the columns of calls, the likeliest first."""
ENCODINGS = ("text", "json")


NOW = object()
"""The value of a column that gets the moment of writing."""


@dataclass(frozen=True, slots=True)
class SessionTable:
    """A table with a row for each session, or for each user or application.

    ``names`` are its columns by what they name: ``session``, ``user``, ``app``.  ``values`` are
    those of the other columns of a new row.
    """

    table: str
    names: Map[str, str]
    values: Map[str, Any] = field(default_factory=dict)
    state: str = ""
    """The column whose JSON travels with a memory, as a part of ``Memory.extra``."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A table of messages, a row a message.

    ::

        Mapping("messages", {"session": "session_id", "content": "content"}, ("id",), RoleContent())
    """

    table: str
    columns: Map[str, str]
    """The column of each of COLUMN_ROLES that there is, but for ``order``."""
    order: tuple[str, ...]
    """The columns that put the rows of a session in order; empty for the primary key."""
    dialect: RowDialect
    user: str = ""
    """The user of all rows, where no column says whose they are."""
    more: Map[str, str] = field(default_factory=dict)
    """Columns as in ``columns`` that only some tables of the framework have."""
    sessions: tuple[SessionTable, ...] = ()
    """The tables with a row for each session, user or application; those of users come later."""
    app: str = ""
    """The column of the application, whose name is ``?app=``; empty without one."""
    app_name: str = ""
    unique_ids: bool = False
    """True if the ids of messages are a part of the key, so that none occurs twice in a session."""
    stamp: tuple[str, tuple[str, ...]] | None = None
    """A row that new tables begin with: the table, and its values."""
    rising: str = ""
    """The column of times that puts messages in order, where no two may have the same."""
    given: Callable[[Any], dict[str, Any]] = lambda content: {}  # noqa: ARG005
    """The columns that the framework fills from a content, or always alike.

    A moment is a ``datetime`` in UTC without a zone, for whatever type the column has.
    """
    encode: Callable[[Any], str] = json.dumps
    """Makes the JSON text of a content as the framework does."""
    encoding: str = ""
    """One of ENCODINGS: whether a text is stored as it is, or as JSON; empty where the type of the
    column or the rows say so."""
    unit: int = 0
    """The number of units of a time in a second, where the framework says so."""
    utc: bool = False
    """True if times without a zone are in UTC, not local."""
    make: Callable[[Mapping, MetaData], None] | None = None
    """Declares the tables as the framework creates them; None where a user has to."""
    name: str = "table"
    """The ``?layout=`` of it."""

    @property
    def keeps_state(self) -> bool:
        """True if sessions have a state, so that one without messages is something."""
        return any(one.state for one in self.sessions)

    def of(self, columns: Container[str]) -> Mapping:
        """Return the mapping of a table with these columns: those of ``more`` that it has count."""
        more = {role: name for role, name in self.more.items() if name in columns}
        fields = self.dialect.fields | {_BESIDE[role] for role in more}
        dialect = type(self.dialect)(fields) if more else self.dialect
        return replace(self, columns={**self.columns, **more}, more={}, dialect=dialect)


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _langchain(mapping: Mapping, metadata: MetaData) -> None:
    Table(
        mapping.table,
        metadata,
        Column("id", Integer, primary_key=True),
        Column("session_id", Text),
        Column("message", Text),
    )


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


PRESETS: dict[str, Mapping] = {
    # langchain-community 0.4.2, chat_message_histories/sql.py; also langchain-postgres 0.0.19,
    # chat_message_histories.py, whose table has a time
    "langchain": Mapping(
        "message_store",
        {"session": "session_id", "content": "message"},
        ("id",),
        LANGCHAIN,
        more={"time": "created_at"},
        make=_langchain,
        name="langchain",
    ),
    # openai-agents 0.24, memory/sqlite_session.py and extensions/memory/sqlalchemy_session.py
    "openai-agents": Mapping(
        "agent_messages",
        {"session": "session_id", "content": "message_data", "time": "created_at"},
        ("created_at", "id"),
        OPENAI_AGENTS,
        sessions=(SessionTable("agent_sessions", {"session": "session_id"}),),
        encode=compact,
        utc=True,
        make=_agents,
        name="openai-agents",
    ),
    # llama-index-core 0.14.25, storage/chat_store/sql.py
    "llamaindex": Mapping(
        "llama_index_memory",
        {"session": "key", "content": "data", "time": "timestamp"},
        ("timestamp", "id"),
        LLAMAINDEX,
        given=_llamaindex_columns,
        unit=10**9,
        make=_llamaindex,
        name="llamaindex",
    ),
    # google-adk 2.13, sessions/schemas/v1.py
    "adk": Mapping(
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
        utc=True,
        make=_adk,
        name="adk",
    ),
}
"""The tables of frameworks, by ``?layout=``."""


def mapping_of(options: Map[str, str]) -> Mapping:
    """Return the mapping that the options of a URL say.

    Raises:
        UsageError: they do not say enough, or something that is not known.
    """
    layout = options.get("layout", "table")
    user = options.get("owner", "")
    if layout in PRESETS:
        preset = replace(PRESETS[layout], user=user, app_name=options.get("app", ""))
        if "app" in options and not preset.app:
            raise UsageError(f"?layout={layout} knows no applications", "leave out app=")
        for name in ("columns", "content_encoding"):
            if name in options:
                raise UsageError(f"?layout={layout} knows its columns", f"leave out {name}=")
        return replace(preset, table=options["table"]) if "table" in options else preset
    table = options.get("table", "")
    if not table:
        raise UsageError(
            "?layout=table names no table", "add &table=NAME, or see: memctl stores detect"
        )
    columns = _columns(options.get("columns", ""))
    for needed in "session", "content":
        if needed not in columns:
            raise UsageError(
                f"the mapping of the table {visible(table)!r} names no column for {needed}",
                f'add {needed} = "COLUMN" to columns, or see: memctl stores detect',
            )
    if user and "user" in columns:
        raise UsageError("the mapping has a column for user, and an owner", "leave out one of them")
    dialect = options.get("dialect", RoleContent.name)
    fields = frozenset(name for role, name in _BESIDE.items() if role in columns)
    if dialect not in MAPPED:
        raise UsageError(
            f"dialect={visible(dialect)} is unknown", f"known: {', '.join(sorted(MAPPED))}"
        )
    encoding = options.get("content_encoding", "")
    if encoding and dialect != RoleContent.name:
        raise UsageError(f"dialect={dialect} knows its contents", "leave out content_encoding=")
    if encoding and encoding not in ENCODINGS:
        raise UsageError(
            f"content_encoding={visible(encoding)} is unknown", f"known: {', '.join(ENCODINGS)}"
        )
    if dialect != RoleContent.name and (known := sorted(CALL_COLUMNS.keys() & columns.keys())):
        raise UsageError(f"dialect={dialect} has calls in its contents", f"leave out {known[0]}")
    order = tuple(name for name in columns.pop("order", "").split(";") if name)
    return Mapping(table, columns, order, MAPPED[dialect](fields), user, encoding=encoding)


MAPPED: dict[str, Callable[[frozenset[str]], RowDialect]] = {
    RoleContent.name: RoleContent,
    **{type(one.dialect).name: type(one.dialect) for one in PRESETS.values()},
    LangChainJs.name: LangChainJs,
}
"""The dialects that the content of a mapped table can have."""


def _columns(text: str) -> dict[str, str]:
    """Return the columns by what they are, from ``session:session_id,content:text``.

    In a name, ``,`` ``;`` and ``%`` are quoted as in a URL; ``;`` separates columns of the order.

    Raises:
        UsageError: it is not written so, or something is none of COLUMN_ROLES.
    """
    found: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, colon, column = pair.partition(":")
        if role not in COLUMN_ROLES:
            raise UsageError(
                f"columns: {visible(role)!r} is nothing that a column can be",
                f"known: {', '.join(COLUMN_ROLES)}",
            )
        if not colon or not column:
            raise UsageError(
                f"columns: {visible(role)} names no column",
                "write columns=session:session_id,content:content",
            )
        found[role] = unquote(column)
    return found
