"""The parts of SQL that differ between databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

from memctl.selection import Selection
from memctl.shard import Shard

T = TypeVar("T")

MAX_PUSHED_VALUES = 1000
"""The maximum length of a list of names in a query: databases limit the number of parameters.

With a longer list, the query reads all names, and memctl selects.
"""

PIECE_VALUES = 500
"""The maximum number of values in a statement; more values take several statements."""

SMALL_BYTES = 64 * 1024
"""The size above which messages are fetched singly: drivers limit rows by number, not by size."""

HUGE_BYTES = 8 * 1024 * 1024
"""Messages above this size are called huge, and are read or written in pieces if necessary."""

CHUNK_BYTES = 4 * 1024 * 1024
"""The size of the pieces in which a huge message is read or written."""


ALWAYS, NEVER = "1 = 1", "1 = 0"


def pieces(values: Sequence[T]) -> Iterator[list[T]]:
    """Yield the values in lists of at most ``PIECE_VALUES``, one list for each statement."""
    for start in range(0, len(values), PIECE_VALUES):
        yield list(values[start : start + PIECE_VALUES])


class Condition(NamedTuple):
    """A condition in SQL, and the values of its parameters."""

    sql: str
    values: dict[str, list[str]]


EVERY = Condition(ALWAYS, {})
"""The condition of all rows."""


def pushed_down(conditions: Mapping[tuple[str, str], Collection[str]]) -> Condition:
    """Return the conditions that a query can contain, joined by AND.

    Each key of ``conditions`` is a parameter's name and a condition in SQL with that parameter; its
    value is the list for the parameter.  A condition is left out if the list is empty or longer
    than ``MAX_PUSHED_VALUES``.  If no condition remains, the result is always true.
    """
    used = {
        key: values for key, values in conditions.items() if 0 < len(values) <= MAX_PUSHED_VALUES
    }
    clause = " AND ".join(sql for _, sql in used) or ALWAYS
    return Condition(clause, {name: sorted(values) for (name, _), values in used.items()})


def session_condition(where: Selection, column: str = "session_id") -> Condition:
    """Return the condition that ``column`` of the table ``m`` names a selected session."""
    sessions = where.sessions
    if where.keys is not None:
        sessions = sessions or frozenset(key.session for key in where.keys)
    return pushed_down({("sessions", f"m.{column} IN :sessions"): sessions})


class Syntax(ABC):
    """The SQL of one engine where engines differ: quotes, casts, JSON, times, locks, hints."""

    quote: ClassVar[str] = '"'
    row_lock: ClassVar[str] = ""
    """The end of a SELECT that locks its rows until the transaction ends."""
    no_wait: ClassVar[str] = ""
    """The addition to ``row_lock`` that raises an error for locked rows instead of waiting."""
    locks_scanned_rows: ClassVar[bool] = False
    """True if a locking SELECT also locks, or waits for, rows that its WHERE excludes."""
    temporary_end: ClassVar[str] = ""
    """The end of a CREATE TABLE for a temporary table that the end of the transaction drops."""
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
    """SQL for the parameter ``json`` of a statement, whose value goes to a JSON column."""
    time_step: ClassVar[timedelta] = timedelta(microseconds=1)
    """The least difference between two times of a column."""
    reads_briefly: ClassVar[bool] = False
    """True if a reading transaction blocks writers."""
    nulls_first: ClassVar[bool] = True
    """True if ORDER BY puts NULL before all values."""

    names_utf8: ClassVar[str] = ALWAYS
    """SQL that is true if the database stores names in UTF-8."""
    selects_shards: bool = False
    """True if the SQL of ``shard_hash`` was found to be right; set by ``Database``."""

    def place(self, number: int) -> str:  # noqa: ARG002 - most do not number placeholders
        """Return the driver's placeholder for the value with this number, counted from 1."""
        return "?"

    def identifier(self, name: str) -> str:
        """Return a quoted table or column name for a statement passed directly to the driver."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def quoted(self, name: str) -> str:
        """Return a quoted table or column name for a statement passed to ``sqlalchemy.text``."""
        return self.identifier(name).replace(":", "\\:")

    def exact(self, text: str) -> str:
        """Return the SQL expression ``text``, changed to compare exactly whatever its collation."""
        return text

    def exact_text(self, value: str) -> str:
        """Return SQL that turns the SQL ``value`` into text: different values, different texts."""
        return f'CAST({value} AS TEXT) COLLATE "C"'

    def joined(self, one: str, other: str) -> str:
        """Return SQL for two texts, one after the other."""
        return f"{one} || {other}"

    def text(self, parameter: str) -> str:
        """Return SQL for a parameter that is a text, where nothing else tells its type."""
        return f"CAST(:{parameter} AS {self.text_type})"

    def among(self, column: str, names: str) -> str:
        """Return SQL that is true if ``column`` has one of a list of names, compared exactly.

        ``names`` is the parameter with the list.
        """
        return f"{column} IN :{names}"

    @abstractmethod
    def shard_hash(self, name: str) -> str:
        """Return SQL for ``memctl.shard.shard_hash`` of the name of a session, compared by bytes.

        ``name`` is SQL.  The hash is NULL if the name is no text in UTF-8.
        """

    def in_shard(self, shard: Shard | None, session: str) -> str:
        """Return a condition that all sessions of a shard meet; others may meet it, too.

        ``session`` is SQL for the name of the session.  A session without a name meets every such
        condition, because its user decides.
        """
        if shard is None or not self.selects_shards:
            return ALWAYS
        # PostgreSQL expects that half of the rows meet a CASE, and that few meet a comparison.
        return f"CASE WHEN {self.outside_shard(shard, session)} THEN {NEVER} ELSE {ALWAYS} END"

    def outside_shard(self, shard: Shard, session: str) -> str:
        """Return a condition that only sessions with a name meet that are not in the shard."""
        bounds = f"'{shard.low}' AND '{shard.high}'"
        return f"{session} <> '' AND {self.shard_hash(session)} NOT BETWEEN {bounds}"

    def sortable(self, text: str) -> str:
        """Return the SQL expression ``text``, changed to sort by its bytes.

        The result is used as a column of an inner SELECT.
        """
        return text

    def json_text(self, column: str) -> str:
        """Return SQL that reads a JSON column as text or bytes, unparsed."""
        return column

    @abstractmethod
    def json_size(self, column: str) -> str:
        """Return SQL for the size of a JSON column in bytes."""

    def stored_json(self, value: bytes) -> Any:
        """Return a JSON text in the type that the driver expects for ``json_place``."""
        return value

    def stored_time(self, time: datetime) -> Any:
        """Return a time without a zone in the type that the driver expects for a time column."""
        return time

    def readable_time(self, column: str) -> str:
        """Return SQL for the time in a column; NULL for a time that the driver cannot return."""
        return column

    def insert_free(self, insert: str, column: str) -> str:  # noqa: ARG002 - for MySQL
        """Return an INSERT statement, changed to skip rows whose key exists.

        ``column`` is any column of the table.
        """
        return f"{insert} ON CONFLICT DO NOTHING"

    def temporary(self, table: str) -> str:
        """Return a temporary table's name, qualified so that no other table is meant."""
        return table

    def drop_temporary(self, table: str) -> str:
        """Return a statement to drop a temporary table if present."""
        return f"DROP TABLE IF EXISTS {self.temporary(table)}"

    def bound(self, sql: str, values: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the parameters of a statement, with those that a layout adds."""
        return values
