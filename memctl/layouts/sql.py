"""Recognition of layouts by the names and columns of tables.

Each layout also declares its own tables; a test compares both declarations.  So a database is
recognized without loading every layout.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memctl.engines.sql.database import NAMED_TABLES, shown_name
from memctl.engines.sql.inspector import Inspector, engine_of, has_class, inspect
from memctl.errors import BadData, Failure, Uninitialised
from memctl.location import visible, without_secrets
from memctl.model import MemoryKey

if TYPE_CHECKING:
    from memctl.layouts.foreign import ForeignFormat


class PresetTable(NamedTuple):
    """The message table that a framework creates: its default name, and its columns."""

    name: str
    columns: frozenset[str]
    more: frozenset[str] = frozenset()
    """Further columns that some versions of the framework add."""


JAVA_SESSIONS = "agentscope_sessions"
JAVA_COLUMNS = {"session_id", "state_key", "item_index", "state_data"}
"""The table of the sessions of AgentScope Java, and the columns that each version has."""
JAVA_FILES = "agentscope_store"
"""The table of the files in the workspaces of AgentScope Java."""
AGENTSCOPE_TABLES = {
    "memory": {
        "message": {"id", "msg", "session_id", "index"},
        "session": {"id", "user_id"},
    },
    "agentscope2": {
        "messages": {"created_at", "msg_id", "payload", "session_id"},
        "sessions": {
            *("agent_id", "created_at", "id", "payload", "source", "source_schedule_id"),
            *("team_id", "updated_at", "user_id"),
        },
    },
    "java": {JAVA_SESSIONS: JAVA_COLUMNS},
}
"""The tables that identify the layouts of AgentScope, with required columns."""
ALL_TABLES = {
    "memory": frozenset({"users", "session", "message", "message_mark"}),
    "agentscope2": frozenset(
        {
            *("credentials", "agents", "sessions", "sops", "sop_runs", "schedules", "teams"),
            *("knowledge_bases", "knowledge_documents", "mcps", "skills", "channels", "messages"),
        }
    ),
    "java": frozenset({JAVA_SESSIONS, JAVA_FILES}),
}
"""All tables of each layout of AgentScope."""
PRESET_TABLES = {
    "langchain": PresetTable(
        "message_store", frozenset({"id", "session_id", "message"}), frozenset({"created_at"})
    ),
    "openai-agents": PresetTable(
        "agent_messages", frozenset({"id", "session_id", "message_data", "created_at"})
    ),
    "llamaindex": PresetTable(
        "llama_index_memory", frozenset({"id", "key", "timestamp", "role", "status", "data"})
    ),
    "adk": PresetTable(
        "events",
        frozenset(
            {
                *("id", "app_name", "user_id", "session_id", "invocation_id", "timestamp"),
                "event_data",
            }
        ),
    ),
}
"""The message tables of other frameworks, by layout."""
AGNO_SESSIONS, AGNO_RUNS = "agno_sessions", "agno_runs"
BRANCHES = "openai-branches"
STRUCTURE, USAGE = "message_structure", "turn_usage"
BRANCH_COLUMNS = (
    *("id", "session_id", "message_id", "branch_id", "message_type", "sequence_number"),
    *("user_turn_number", "branch_turn_number", "tool_name", "created_at"),
)
"""The columns of ``message_structure`` of ``AdvancedSQLiteSession``."""
BRANCH_TABLES = frozenset({STRUCTURE, USAGE, "branch_reservations", "session_clear_generations"})
"""The tables of ``AdvancedSQLiteSession`` with fixed names."""
_CHECKPOINT = frozenset(
    {
        *("thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id"),
        *("type", "checkpoint", "metadata"),
    }
)
"""The columns of LangGraph's checkpoints."""
_CHANNEL = frozenset({"thread_id", "checkpoint_ns", "channel", "version", "type", "blob"})
"""The columns of LangGraph's table for channel values, which only PostgreSQL has."""


class BranchTables(NamedTuple):
    """The tables of sessions and messages that the table ``message_structure`` refers to."""

    sessions: str
    messages: str


def find_layouts(connection: Any) -> set[str]:
    """Return the layouts of AgentScope in the database, as named by ``?layout=``."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    return {
        layout
        for layout, tables in AGENTSCOPE_TABLES.items()
        if all(
            name in there and columns <= _columns(inspector, name)
            for name, columns in tables.items()
        )
    }


def has_agentscope_table(connection: Any) -> bool:
    """Return whether the database has a table of AgentScope 1.x, other than ``users``."""
    names = ALL_TABLES["memory"] - {"users"}
    return not names.isdisjoint(inspect(connection).get_table_names())


def preset_of(inspector: Inspector, table: str) -> str | None:
    """Return the framework whose message table has exactly the columns of ``table``.

    Returns None if there is none.  The name of the table does not count.
    """
    return preset_with(_columns(inspector, table))


def preset_with(columns: set[str]) -> str | None:
    """Return the framework whose message table has exactly ``columns``; None if there is none."""
    for layout, preset in PRESET_TABLES.items():
        if columns in (preset.columns, preset.columns | preset.more):
            return layout
    return None


def own_layouts(connection: Any) -> set[str]:
    """Return the layouts in the database that memctl reads without a mapping."""
    found = find_layouts(connection)
    found |= {"agno"} if AGNO_SESSIONS in inspect(connection).get_table_names() else set()
    return found | ({"langgraph"} if has_checkpoints(connection) else set())


def has_checkpoints(connection: Any) -> bool:
    """Return whether the database has the tables of a LangGraph checkpointer."""
    tables = {
        "sqlite": {"checkpoints": _CHECKPOINT},
        "postgresql": {"checkpoints": _CHECKPOINT, "checkpoint_blobs": _CHANNEL},
    }
    wanted = tables.get(engine_of(connection), {})
    inspector = inspect(connection)
    return bool(wanted) and all(
        inspector.has_table(name)
        and columns <= {column["name"] for column in inspector.get_columns(name)}
        for name, columns in wanted.items()
    )


def preset_layouts(connection: Any) -> set[str]:
    """Return the layouts of other frameworks in the database, as named by ``?layout=``."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    found = {
        layout
        for layout, preset in PRESET_TABLES.items()
        if preset.name in there and preset_of(inspector, preset.name) == layout
    }
    found |= {"agno"} if AGNO_SESSIONS in there else set()
    if (tables := branch_tables(connection)) is not None:
        found |= {BRANCHES}
        plain = PRESET_TABLES["openai-agents"].name
        found -= {"openai-agents"} if tables.messages == plain else set()
    return found | ({"langgraph"} if has_checkpoints(connection) else set())


def branch_tables(connection: Any) -> BranchTables | None:
    """Return the tables of the OpenAI Agents SDK's ``AdvancedSQLiteSession``.

    Returns None if the database lacks them.
    """
    if engine_of(connection) != "sqlite":
        return None
    inspector = inspect(connection)
    if not inspector.has_table(STRUCTURE) or not inspector.has_table(USAGE):
        return None
    if not {column["name"] for column in inspector.get_columns(STRUCTURE)} >= set(BRANCH_COLUMNS):
        return None
    found = {
        tuple(one["constrained_columns"]): one["referred_table"]
        for one in inspector.get_foreign_keys(STRUCTURE)
    }
    sessions, messages = found.get(("session_id",)), found.get(("message_id",))
    if sessions is None or messages is None:
        return None
    there = all(inspector.has_table(name) for name in (sessions, messages))
    return BranchTables(sessions, messages) if there else None


def foreign_tables(connection: Any) -> dict[str, ForeignFormat]:
    """Return the formats that memctl recognizes but does not read, by the names of their tables."""
    from memctl.layouts import foreign  # only for errors

    inspector = inspect(connection)
    names = [name for name in inspector.get_table_names() if isinstance(name, str)]
    return foreign.of_tables(
        {name: [*map(_with_array, inspector.get_columns(name))] for name in names}
    )


def _with_array(column: Any) -> str:
    """Return the name of a column, with ``[]`` if the values are arrays of JSON."""
    kind = column["type"]
    is_array = has_class(kind, "ARRAY") and has_class(kind.item_type, "JSON")
    return f"{column['name']}[]" if is_array else column["name"]


def refuse_empty(label: str, connection: Any) -> None:
    """Refuse a database without tables; ``label`` names it.

    Raises:
        Uninitialised: the database has no tables.
    """
    if not inspect(connection).get_table_names():
        hint = "check the name of the database"
        if engine_of(connection) == "postgresql":
            hint += ", and its schema: ?options=-csearch_path%3DNAME"
        raise Uninitialised(f"{label} has no tables", hint)


def named_tables(tables: Sequence[str]) -> str:
    """Return the names of the first tables, and how many more there are."""
    more = f" and {len(tables) - NAMED_TABLES} more" if len(tables) > NAMED_TABLES else ""
    return ", ".join(map(visible, tables[:NAMED_TABLES])) + more


def unknown_database(label: str, connection: Any) -> BadData:
    """Return the error for a database without a known layout.

    The error names the database by ``label``, and some of its tables.
    """
    for found in foreign_tables(connection).values():
        return found.refusal(label, Uninitialised)
    refuse_empty(label, connection)
    tables = sorted(map(shown_name, inspect(connection).get_table_names()))
    return Uninitialised(
        f"{label} holds no memory that memctl knows: it has the "
        f"{'table' if len(tables) == 1 else 'tables'} {named_tables(tables)}",
        f"look for messages in them: memctl stores detect {shlex.quote(without_secrets(label))}",
    )


def of_shape(shape: str) -> dict[str, Any]:
    """Parse ``StoredMessage.shape``; empty if it is not a JSON object, as from other layouts."""
    if not shape:
        return {}
    try:
        found = json.loads(shape)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def name_failure(key: MemoryKey) -> Failure | None:
    """Return the failure for a key with a part, which no memory of a SQL store has; else None."""
    if not key.part:
        return None
    return Failure(
        "bad-name", f"SQL memory holds one memory a session, not a part like {key.part!r}"
    )


def _columns(inspector: Inspector, table: str) -> set[str]:
    return {column["name"] for column in inspector.get_columns(table)}
