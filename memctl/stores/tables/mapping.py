"""Mappings of message tables of other programs: the meaning of each column.

A ``Mapping`` comes from ``[stores.NAME]`` in the configuration, or from a preset of a framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from collections.abc import Mapping as Map
from datetime import tzinfo
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import (
    MetaData,
)

from memctl.dialects.agentscope import ID, NAME, ROLE
from memctl.dialects.rows import (
    CALL_ID,
    CALL_NAME,
    CALLS,
    METADATA,
    TIME,
    RowDialect,
)
from memctl.errors import Failure
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.storekit.simple import not_owned

OPTIONAL_FIELDS = {
    **{"role": ROLE, "name": NAME, "time": TIME, "id": ID, "metadata": METADATA},
    **{"calls": CALLS, "call_id": CALL_ID, "call_name": CALL_NAME},
}
CALL_COLUMNS = {
    "calls": ("tool_calls", "toolcalls", "function_calls", "function_call", "calls"),
    "call_id": ("tool_call_id", "toolcallid", "tool_use_id", "call_id"),
    "call_name": ("tool_name", "toolname", "function_name"),
}
"""The usual names of the columns for tool calls, the likeliest first."""


NOW = object()
"""A placeholder for the time of writing as the value of a column."""


class SessionTable(Struct, frozen=True):
    """A table with a row for each session, user or application.

    ``names`` maps ``session``, ``user`` and ``app`` to the columns that name a row.  ``values``
    gives the values of further columns in a new row.
    """

    table: str
    names: Map[str, str]
    values: Map[str, Any] = field(default_factory=dict)
    state: str = ""
    """The column with a JSON state, which ``Memory.extra`` holds; empty without such a column."""


class Mapping(Struct, frozen=True):
    """The meaning of the columns of a table with a row for each message.

    ::

        Mapping("messages", {"session": "session_id", "content": "content"}, ("id",),
            RoleContent())
    """

    table: str
    columns: Map[str, str]
    """The column of each role, a name of ``COLUMN_ROLES`` except ``order``."""
    order: tuple[str, ...]
    """The columns that order the rows of a session; empty for the primary key."""
    dialect: RowDialect
    user: str = ""
    """The user of all rows, if no column names the user."""
    more: Map[str, str] = field(default_factory=dict)
    """Further columns by role, which only some tables of the framework have."""
    sessions: tuple[SessionTable, ...] = ()
    """The tables with a row for each session, user or application; session tables come first."""
    app: str = ""
    """The column that names the application; empty without such a column."""
    app_name: str = ""
    unique_ids: bool = False
    """True if the primary key includes the message id, so that no id repeats in a session."""
    stamp: tuple[str, tuple[str, ...]] | None = None
    """A row for a new database: the name of the table, and the values of the row."""
    rising: str = ""
    """The time column that orders messages, if no two messages may have the same time."""
    given: Callable[[Any], dict[str, Any]] = lambda content: {}  # noqa: ARG005
    """Returns the columns that the framework sets besides the content.

    The values are constant or derived from the content.  A time is a ``datetime`` in UTC without a
    zone, whatever the type of the column.
    """
    encode: Callable[[Any], str] = json.dumps
    """Returns the JSON text of a content, as the framework writes it."""
    encoding: str = ""
    """The encoding of texts, ``text`` or ``json``; empty if the column type or the rows decide."""
    unit: int = 0
    """The units of a time per second, if the framework defines the unit."""
    filled_times: bool = False
    """True if the database fills the times, whatever the default value of the column says."""
    zone: tzinfo | None = None
    """The zone of times without one, as the user says; None to find out."""
    make: Callable[[Mapping, MetaData], None] | None = None
    """Declares the tables as the framework creates them; None if users create the tables."""
    other_table: str = ""
    """A warning for a new table that ``?table=`` names in PostgreSQL, empty for most frameworks.

    A further class of the framework, with a table of its own form, may be meant.
    """
    name: str = "table"
    """The ``?layout=`` of the mapping."""

    @property
    def keeps_state(self) -> bool:
        """True if sessions have a state, so that a session without messages is a memory, too."""
        return any(one.state for one in self.sessions)

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        """Return why no row can belong to a memory with this name; None if rows can."""
        if key.part:
            text = f"the table holds one memory a session, not a part like {key.part!r}"
        elif "user" in self.columns or key.user == self.user:
            return None
        else:
            text = not_owned(f"the rows of {visible(self.table)!r}", self.user, key.user)
        return Failure("bad-name", text)

    def of(self, columns: Container[str]) -> Mapping:
        """Return the mapping for a table with these columns.

        The columns of ``more`` that the table has become mapped columns.
        """
        more = {role: name for role, name in self.more.items() if name in columns}
        fields = self.dialect.fields | {OPTIONAL_FIELDS[role] for role in more}
        dialect = self.dialect
        if more:
            dialect = type(dialect)(fields, orders_by_time=dialect.orders_by_time)
        return replace(self, columns={**self.columns, **more}, more={}, dialect=dialect)
