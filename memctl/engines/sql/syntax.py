"""The SQL that each database spells its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

from sqlalchemy import TextClause, bindparam, text

from memctl.selection import Selection

T = TypeVar("T")

MAX_PUSHED_VALUES = 1000
"""The longest list of names in a statement: databases limit its parameters.

Longer lists are compared by memctl.
"""

PIECE_VALUES = 500
"""The number of values in a statement that is repeated for further values."""

SMALL_BYTES = 64 * 1024
"""Larger messages are fetched one by one: drivers fetch rows by number, whatever their size."""

HUGE_BYTES = 8 * 1024 * 1024
"""Messages above this size are huge."""

CHUNK_BYTES = 4 * 1024 * 1024
"""Huge messages travel in pieces of this size where the driver would copy them whole."""


ALWAYS, NEVER = "1 = 1", "1 = 0"


def pieces(values: Sequence[T]) -> Iterator[list[T]]:
    """Yield the values in lists for the statements that take them."""
    for start in range(0, len(values), PIECE_VALUES):
        yield list(values[start : start + PIECE_VALUES])


class Condition(NamedTuple):
    """A condition in SQL, and its values."""

    sql: str
    values: dict[str, list[str]]


def pushed_down(conditions: Mapping[tuple[str, str], Collection[str]]) -> Condition:
    """Return conditions by the names of their values, without those of no values or too many."""
    used = {
        key: values for key, values in conditions.items() if 0 < len(values) <= MAX_PUSHED_VALUES
    }
    clause = " AND ".join(sql for _, sql in used) or ALWAYS
    return Condition(clause, {name: sorted(values) for (name, _), values in used.items()})


def session_condition(where: Selection) -> Condition:
    """Return the condition that the column ``m.session_id`` is a selected session."""
    sessions = where.sessions
    if where.keys is not None:
        sessions = sessions or frozenset(key.session for key in where.keys)
    return pushed_down({("sessions", "m.session_id IN :sessions"): sessions})


class Syntax(ABC):
    """The spellings of one database: quotes, casts, JSON, times, locks and hints."""

    quote: ClassVar[str] = '"'
    row_lock: ClassVar[str] = ""
    """The end of a SELECT that locks its rows until the transaction ends."""
    no_wait: ClassVar[str] = ""
    """The end of ``row_lock`` with which the database refuses rows that others hold."""
    locks_scanned_rows: ClassVar[bool] = False
    """True where rows that are read to find the selected ones are locked, or waited for."""
    temporary_end: ClassVar[str] = ""
    """The end of the name of a temporary table that goes with the transaction, where one can."""
    subquery_barrier: ClassVar[str] = ""
    """The end of an inner SELECT that keeps the database from merging it with the outer one."""
    materialize_hint: ClassVar[str] = ""
    """The end of an inner SELECT whose columns are computed before they are sorted."""
    big_integer: ClassVar[str] = "BIGINT"
    """The type of an integer of 64 bits in a CAST."""
    typed: ClassVar[bool] = True
    """True where a column holds values of its type alone."""
    text_type: ClassVar[str] = "TEXT"
    """The type of a text in a CAST."""
    json_place: ClassVar[str] = ":json"
    """SQL for the value ``json`` of a statement, which goes into a column of JSON."""
    time_step: ClassVar[timedelta] = timedelta(microseconds=1)
    """The least difference of two times in a column."""
    reads_briefly: ClassVar[bool] = False
    """True where a transaction that reads keeps others from writing."""
    nulls_first: ClassVar[bool] = True
    """True if ORDER BY puts NULL before all values."""

    def place(self, number: int) -> str:  # noqa: ARG002 - most do not count them
        """Return the place of a value, counted from 1, in a statement for the driver itself."""
        return "?"

    def identifier(self, name: str) -> str:
        """Return a name in quotes, for statements that the driver takes."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def quoted(self, name: str) -> str:
        """Return a name in quotes, for statements that ``sqlalchemy.text`` takes."""
        return self.identifier(name).replace(":", "\\:")

    def exact(self, text: str) -> str:
        """Return SQL for a text that equals only itself, whatever the collation."""
        return text

    def sortable(self, text: str) -> str:
        """Return SQL for a text that is to be ordered by its bytes, a column of an inner SELECT."""
        return text

    def json_text(self, column: str) -> str:
        """Return SQL for a column of JSON as text or bytes."""
        return column

    @abstractmethod
    def json_size(self, column: str) -> str:
        """Return SQL for the bytes of a column of JSON."""

    def stored_json(self, value: bytes) -> Any:
        """Return JSON as the driver takes it at ``json_place``."""
        return value

    def stored_time(self, time: datetime) -> Any:
        """Return a time without a zone as the driver takes it for a column of times."""
        return time

    def earlier(self, column: str, seconds: int) -> str:
        """Return SQL for a time some seconds before that of a column."""
        return f"{column} - INTERVAL '{seconds}' SECOND"

    def insert_free(self, insert: str, column: str) -> str:  # noqa: ARG002 - for MySQL
        """Return an INSERT that leaves a row alone whose key is taken."""
        return f"{insert} ON CONFLICT DO NOTHING"

    def temporary(self, table: str) -> str:
        """Return the name of a temporary table that no other table can have."""
        return table

    def drop_temporary(self, table: str) -> str:
        """Return a statement that drops a temporary table, if it exists."""
        return f"DROP TABLE IF EXISTS {self.temporary(table)}"

    def bind(self, sql: str, values: Mapping[str, Any]) -> tuple[TextClause, dict[str, Any]]:
        """Return a statement with all its values; lists become the values of an IN."""
        lists = (name for name, value in values.items() if isinstance(value, list))
        statement = text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))
        return statement, dict(values)
