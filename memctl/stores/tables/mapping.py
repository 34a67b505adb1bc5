"""Tables of messages that are not AgentScope's: which column is what.

A ``Mapping`` is what a user says in ``[stores.NAME]``, or a preset of a framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from collections.abc import Mapping as Map
from dataclasses import dataclass, field, replace
from typing import Any

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

OPTIONAL_FIELDS = {
    **{"role": ROLE, "name": NAME, "time": TIME, "id": ID, "metadata": METADATA},
    **{"calls": CALLS, "call_id": CALL_ID, "call_name": CALL_NAME},
}
CALL_COLUMNS = {
    "calls": ("tool_calls", "toolcalls", "function_calls", "function_call", "calls"),
    "call_id": ("tool_call_id", "toolcallid", "tool_use_id", "call_id"),
    "call_name": ("tool_name", "toolname", "function_name"),
}
"""The usual names of the columns of calls, the likeliest first."""


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
        fields = self.dialect.fields | {OPTIONAL_FIELDS[role] for role in more}
        dialect = type(self.dialect)(fields) if more else self.dialect
        return replace(self, columns={**self.columns, **more}, more={}, dialect=dialect)
