"""Huge messages, replaced by stubs in statements to save memory.

To parse a message, a database loads the message once for each mention in a statement.  SQLite runs
inside the process of memctl.  Therefore memctl first searches for huge messages.  In statements, a
stub with the short fields replaces a huge message.  A separate statement fetches the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from memctl.dialects.agentscope import ID, NAME, ROLE
from memctl.dialects.agentscope1 import TIMESTAMP
from memctl.json import jsonio

MAX_HUGE = 500
"""The maximum number of stubs.  With more huge messages memctl uses no stubs.

Databases limit the parameters of a statement.
"""


_FIELDS = (ID, NAME, ROLE, TIMESTAMP)


class Huge(NamedTuple):
    """The size of a huge message in bytes, and its stub: JSON with only the short fields."""

    size: int
    stub: str


def describe(message: bytes) -> Huge:
    """Return the size and the stub of a huge message.

    If the message is not valid JSON, all fields of the stub are null.
    """
    try:
        outline = jsonio.outline(message)
    except ValueError:
        outline = None
    fields = outline if isinstance(outline, dict) else {}
    return Huge(len(message), json.dumps({name: fields.get(name) for name in _FIELDS}))


class HugeMessages:
    """The huge messages of a database, by row id; empty if there are more than ``MAX_HUGE``."""

    def __init__(self, found: dict[str, Huge]) -> None:
        self._found = found if len(found) <= MAX_HUGE else {}

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._found

    def __bool__(self) -> bool:
        return bool(self._found)

    def hidden(self, payload: str) -> str:
        """Return the SQL ``payload`` over a row ``m``, changed to give NULL for a huge message."""
        if not self._found:
            return payload
        ids = ", ".join(f":huge_id_{number}" for number in range(len(self._found)))
        return f"CASE WHEN m.id NOT IN ({ids}) THEN {payload} END"

    def stubbed(self, message: str, cast: str) -> str:
        """Return the SQL ``message``, changed to give a stub, short JSON, for a huge message.

        ``cast`` is a format of SQL that converts the text of a stub, such as ``CAST({} AS json)``.
        """
        stubs = (cast.format(f":huge_stub_{number}") for number in range(len(self._found)))
        return self._case("id", stubs, message)

    def sized(self, size: str) -> str:
        """Return SQL for the size of the message in a row ``m``.

        The known size of a huge message is a parameter.  The SQL ``size`` computes the other sizes.
        """
        return self._case("m.id", (f":huge_size_{n}" for n in range(len(self._found))), size)

    def _case(self, row_id: str, values: Iterable[str], default: str) -> str:
        if not self._found:
            return default
        cases = (f"WHEN :huge_id_{number} THEN {value}" for number, value in enumerate(values))
        return f"CASE {row_id} {' '.join(cases)} ELSE {default} END"

    def values(self) -> dict[str, Any]:
        """Return the parameters, by name, of the SQL from ``hidden``, ``stubbed`` and ``sized``."""
        found: dict[str, Any] = {}
        for number, (row_id, huge) in enumerate(self._found.items()):
            found[f"huge_id_{number}"] = row_id
            found[f"huge_stub_{number}"] = huge.stub
            found[f"huge_size_{number}"] = huge.size
        return found
