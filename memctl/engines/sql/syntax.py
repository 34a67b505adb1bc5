"""The parts of SQL that differ between databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

from sqlalchemy import TextClause, bindparam, text

from memctl.selection import Selection

T = TypeVar("T")

MAX_PUSHED_VALUES = 1000
"""The longest list of names in a statement: databases limit the number of parameters.

memctl itself compares longer lists.
"""

PIECE_VALUES = 500
"""The number of values in a statement that is repeated for further values."""

SMALL_BYTES = 64 * 1024
"""The size above which messages are fetched singly: drivers fetch rows by number, not by size."""

HUGE_BYTES = 8 * 1024 * 1024
"""The size above which messages are huge."""

CHUNK_BYTES = 4 * 1024 * 1024
"""The size of the pieces of a huge message, if the driver would copy it whole."""


ALWAYS, NEVER = "1 = 1", "1 = 0"


def pieces(values: Sequence[T]) -> Iterator[list[T]]:
    """Yield the values in lists for the statements that take them."""
    for start in range(0, len(values), PIECE_VALUES):
        yield list(values[start : start + PIECE_VALUES])


class Condition(NamedTuple):
    """A condition in SQL, and its values."""

    sql: str
    values: dict[str, list[str]]


EVERY = Condition(ALWAYS, {})
"""The condition of all rows."""


def pushed_down(conditions: Mapping[tuple[str, str], Collection[str]]) -> Condition:
    """Return the conditions with at least one value and not too many, joined by AND."""
    used = {
        key: values for key, values in conditions.items() if 0 < len(values) <= MAX_PUSHED_VALUES
    }
    clause = " AND ".join(sql for _, sql in used) or ALWAYS
    return Condition(clause, {name: sorted(values) for (name, _), values in used.items()})


def session_condition(where: Selection, column: str = "session_id") -> Condition:
    """Return the condition that a column of ``m`` is a selected session."""
    sessions = where.sessions
    if where.keys is not None:
        sessions = sessions or frozenset(key.session for key in where.keys)
    return pushed_down({("sessions", f"m.{column} IN :sessions"): sessions})


class Syntax(ABC):
    """The syntax of one database: quotes, casts, JSON, times, locks and hints."""

    quote: ClassVar[str] = '"'
    row_lock: ClassVar[str] = ""
    """The end of a SELECT that locks its rows until the transaction ends."""
    no_wait: ClassVar[str] = ""
    """The addition to ``row_lock`` that raises an error for locked rows instead of waiting."""
    locks_scanned_rows: ClassVar[bool] = False
    """True if a search also locks, or waits for, rows that are read but not selected."""
    temporary_end: ClassVar[str] = ""
    """The end of a CREATE TABLE that drops a temporary table with the transaction, if possible."""
    subquery_barrier: ClassVar[str] = ""
    """The end of an inner SELECT that prevents its merge with the outer SELECT."""
    materialize_hint: ClassVar[str] = ""
    """The end of an inner SELECT whose columns must be computed before a sort."""
    big_integer: ClassVar[str] = "BIGINT"
    """The type of a 64-bit integer in a CAST."""
    typed: ClassVar[bool] = True
    """True if a column holds only values of its type."""
    text_type: ClassVar[str] = "TEXT"
    """The type of a text in a CAST."""
    json_place: ClassVar[str] = ":json"
    """SQL for the value ``json`` of a statement, to be stored in a JSON column."""
    time_step: ClassVar[timedelta] = timedelta(microseconds=1)
    """The least difference between two times of a column."""
    reads_briefly: ClassVar[bool] = False
    """True if a reading transaction blocks writers."""
    nulls_first: ClassVar[bool] = True
    """True if ORDER BY puts NULL before all values."""

    def place(self, number: int) -> str:  # noqa: ARG002 - most do not number placeholders
        """Return the placeholder of a value, numbered from 1, in a statement for the driver."""
        return "?"

    def identifier(self, name: str) -> str:
        """Return a name in quotes, for statements that the driver takes."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def quoted(self, name: str) -> str:
        """Return a name in quotes, for statements that ``sqlalchemy.text`` takes."""
        return self.identifier(name).replace(":", "\\:")

    def exact(self, text: str) -> str:
        """Return SQL for a text that is compared exactly, whatever the collation."""
        return text

    def sortable(self, text: str) -> str:
        """Return SQL for a text that sorts by its bytes, as a column of an inner SELECT."""
        return text

    def json_text(self, column: str) -> str:
        """Return SQL for a JSON column as text or bytes."""
        return column

    @abstractmethod
    def json_size(self, column: str) -> str:
        """Return SQL for the size of a JSON column in bytes."""

    def stored_json(self, value: bytes) -> Any:
        """Return JSON for the driver, at ``json_place``."""
        return value

    def stored_time(self, time: datetime) -> Any:
        """Return a time without a zone for the driver, for a column of times."""
        return time

    def earlier(self, column: str, seconds: int) -> str:
        """Return SQL for a time some seconds before the time of a column."""
        return f"{column} - INTERVAL '{seconds}' SECOND"

    def insert_free(self, insert: str, column: str) -> str:  # noqa: ARG002 - for MySQL
        """Return an INSERT that skips rows whose key exists."""
        return f"{insert} ON CONFLICT DO NOTHING"

    def temporary(self, table: str) -> str:
        """Return an unambiguous name for a temporary table."""
        return table

    def drop_temporary(self, table: str) -> str:
        """Return a statement to drop a temporary table if present."""
        return f"DROP TABLE IF EXISTS {self.temporary(table)}"

    def bind(self, sql: str, values: Mapping[str, Any]) -> tuple[TextClause, dict[str, Any]]:
        """Return a statement with its values bound; lists become the values of an IN."""
        lists = (name for name, value in values.items() if isinstance(value, list))
        statement = text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))
        return statement, dict(values)
