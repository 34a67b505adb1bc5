"""The SQL that reads AgentScope's tables, put together of what each database says its own way.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import TextClause, bindparam, text

from memctl.location import Location
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.sql.huge_messages import HUGE_BYTES, HugeMessages

MAX_PUSHED_VALUES = 1000
"""Longer lists of names are compared here: databases bound the parameters of a statement."""

SMALL_BYTES = 64 * 1024
"""Larger messages are fetched one by one: drivers fetch rows by number, whatever their size."""


ALWAYS, NEVER = "1 = 1", "1 = 0"


_COLUMNS = "session_id, owner, id, position, payload, marks"


class Condition(NamedTuple):
    """A condition in SQL, and its values."""

    sql: str
    values: dict[str, list[str]]


class SqlDialect(Store):
    """How a database is asked about messages.

    The user of a message is what is left of the row id ``{user}-{session}-{message id}`` without
    ``-{session}-{message id}``; where the row id disagrees with the message, the owner of the
    session row.

    To find the message id the message is parsed, so that is the last resort: where ``-{session}-``
    stands in a row id once, behind the owner of the session, there is but one way to take it
    apart, and whether it agrees with the message or not, the user is the owner.
    """

    quote: ClassVar[str] = '"'
    mark_list: ClassVar[str]
    """An aggregate that gives the marks of a message as a JSON array."""
    payload: ClassVar[str] = "m.msg"
    """The message as text or bytes."""
    row_columns: ClassVar[str] = "id"
    """What identifies a row of ``message``."""
    row_lock: ClassVar[str] = ""
    """SQL at the end of a SELECT that locks its rows until the transaction ends."""
    no_wait: ClassVar[str] = ""
    """SQL behind these by which the database refuses rows that others hold."""
    locks_what_it_reads: ClassVar[bool] = False
    """Whether rows are locked, or waited for, that are read to find those that are meant."""
    seeks_huge: ClassVar[bool] = True
    """Whether to go through the table for huge messages before a pass that looks into few."""
    batch_changes: ClassVar[int] = 10_000
    """How many changes of small memories share a transaction."""
    moves_key: ClassVar[str] = ""
    """The key of the temporary table of moves, where it must be made with the table."""
    apart: ClassVar[str] = ""
    """SQL at the end of an inner SELECT that keeps the database from mixing it with the outer."""
    beforehand: ClassVar[str] = ""
    """SQL at the end of an inner SELECT whose columns are worked out before they are sorted."""
    stub_cast: ClassVar[str] = "{}"
    """SQL that makes a value of the type of ``message.msg`` of a text."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.huge = HugeMessages({})

    @abstractmethod
    def field(self, name: str) -> str:
        """SQL that gives a top-level text field of ``m.msg``, NULL where it is missing."""

    def opened(self) -> str:
        """SQL to join to ``source`` where ``short`` is asked for."""
        return ""

    def short(self, name: str) -> str:
        """SQL that gives the role or the timestamp of every message, as ``field`` does."""
        return self.field(name)

    def take_care(self) -> bool:
        """Expects messages from now on that the database cannot look into as they are.

        To make them readable costs more than to read them.  Gives whether that is something new.
        """
        return False

    def keyed(self, table: str, column: str) -> str:
        """SQL behind FROM for the rows ``t`` that ``for_rows`` names, by their key's first column.

        It locks no others.
        """
        return f"{table} t WHERE t.{column} IN :rows"

    def delete(self, table: str, column: str) -> str:
        """A statement that deletes the same rows."""
        return f"DELETE FROM {table} WHERE {column} IN :rows"

    @abstractmethod
    def size(self) -> str:
        """SQL that gives the bytes of ``m.msg``."""

    @abstractmethod
    def splits(self) -> str:
        """SQL that tells whether there is one way to take the row id apart: at its owner's name.

        It looks at ``m.id``, ``m.session_id`` and ``s.user_id`` alone, byte by byte.
        """

    @abstractmethod
    def rest(self) -> str:
        """SQL that gives the message id of a row that ``splits``."""

    @abstractmethod
    def suffix(self) -> str:
        """SQL that gives the user of a row ``m``, or NULL where the row id does not fit."""

    def exact(self, text: str) -> str:
        """SQL for a text that equals only itself, whatever the collation."""
        return text

    def sortable(self, text: str) -> str:
        """SQL for a text that is to be ordered by its bytes, as a column of an inner SELECT."""
        return text

    @property
    def user(self) -> str:
        """SQL that gives the user of the row ``m`` joined with its session ``s``."""
        return f"CASE WHEN {self.splits()} THEN s.user_id ELSE {self.parsed_user} END"

    @property
    def parsed_user(self) -> str:
        """SQL that gives the same, whatever the row id, by looking into the message."""
        return f"COALESCE({self.suffix()}, s.user_id, '')"

    @property
    def index(self) -> str:
        """The name of the index column, a reserved word."""
        return f"m.{self.quote}index{self.quote}"

    def source(self) -> str:
        """The tables behind every question about messages, stubs in the place of huge ones."""
        message = "message"
        if self.huge:
            index = f"{self.quote}index{self.quote}"
            stubbed = self.huge.stubbed("msg", self.stub_cast)
            columns = f"{self.row_columns}, session_id, {index}, {stubbed} AS msg"
            message = f"(SELECT {columns} FROM message)"
        return f"{message} m LEFT JOIN session s ON s.id = m.session_id"

    def conditions(self, where: Selection) -> Condition:
        """A WHERE clause that lets through at least what is selected."""
        return _both(self.of_memories(where), self.of_messages(where))

    def of_memories(self, where: Selection) -> Condition:
        """The part of ``conditions`` that all messages of a memory share."""
        users = _pushed({("users", f"{self.user} IN :users"): where.users})
        return _both(users, self.of_sessions(where))

    def of_sessions(self, where: Selection) -> Condition:
        """The part of ``of_memories`` that looks at ``m`` alone."""
        sessions = where.sessions
        if where.keys is not None:
            sessions = sessions or frozenset(key.session for key in where.keys)
        return _pushed({("sessions", "m.session_id IN :sessions"): sessions})

    def of_messages(self, where: Selection) -> Condition:
        """The part of ``conditions`` that is about the messages themselves."""
        return _pushed({("ids", self.of_ids): where.ids, ("marks", self.of_marks): where.marks})

    @property
    def of_ids(self) -> str:
        """SQL that tells whether the row ``m`` may have one of the message ids ``:ids``."""
        return f"CASE WHEN {self.splits()} THEN {self.rest()} IN :ids ELSE 1 = 1 END"

    of_marks: ClassVar[str] = (
        "EXISTS (SELECT 1 FROM message_mark k WHERE k.msg_id = m.id AND k.mark IN :marks)"
    )
    """SQL that tells whether the row ``m`` has one of ``:marks``."""

    def told(self, messages: Condition) -> tuple[str, str]:
        """SQL that tells whether ``of_messages`` holds for a row; what ``marks`` adds for that."""
        return messages.sql, ""

    def ordered(self, condition: str, *, outline: bool = False) -> str:
        """The statement that reads messages, memory after memory, in order.

        Its columns are the session, the user, the row id, the index, the message and its marks as a
        JSON array.  An ``outline`` has NULL for every message.
        """
        marks, joined = self.marks()
        payload = "NULL" if outline else self.small_payload()
        return (
            f"SELECT {_COLUMNS} FROM ("
            f"SELECT {self._keys()}, {payload} AS payload, {marks} AS marks "
            f"FROM {self.source()} {joined} WHERE {condition}) AS found "
            f"ORDER BY {self._memory()}, position, {self.exact('id')}"
        )

    def ordered_among(self, condition: str, messages: Condition) -> str:
        """What ``ordered`` reads, ``messages`` alone.

        One more column is the row id of the message before, whether that is one of them or not.
        """
        wanted, more = self.told(messages)
        marks, joined = self.marks(more)
        payload = f"CASE WHEN {wanted} THEN {self.small_payload()} END"
        order = f"position, {self.exact('id')}"
        return (
            f"SELECT {_COLUMNS}, behind FROM (SELECT {_COLUMNS}, wanted, "
            f"LAG(id) OVER (PARTITION BY {self._memory()} ORDER BY {order}) AS behind FROM ("
            f"SELECT {self._keys()}, {payload} AS payload, {marks} AS marks, {wanted} AS wanted "
            f"FROM {self.source()} {joined} WHERE {condition} {self.beforehand}) AS found"
            f") AS placed WHERE wanted ORDER BY {self._memory()}, {order}"
        )

    def _keys(self) -> str:
        return (
            f"{self.sortable('m.session_id')} AS session_id, {self.sortable(self.user)} AS owner, "
            f"{self.sortable('m.id')} AS id, {self.index} AS position"
        )

    def _memory(self) -> str:
        return ", ".join(self.exact(name) for name in ("session_id", "owner"))

    def loose(self, condition: str, more: str = "NULL") -> str:
        """The statement that reads messages in any order, by a condition on ``m`` alone.

        Its columns are the row id, the message and what ``more`` says.
        """
        return f"SELECT m.id, {self.small_payload()}, {more} FROM message m WHERE {condition}"

    def marks(self, more: str = "") -> tuple[str, str]:
        """The marks of a message as a JSON array, and what is joined for that.

        ``more`` is another column of what is joined.
        """
        columns = ", ".join(filter(None, ("k.msg_id", f"{self.mark_list} AS marks", more)))
        marks = f"SELECT {columns} FROM message_mark k GROUP BY k.msg_id"
        return "k.marks", f"LEFT JOIN ({marks}) k ON k.msg_id = m.id"

    def small_payload(self) -> str:
        """The message, or NULL for a large one, which is fetched by itself."""
        small = f"CASE WHEN {self.size()} <= {SMALL_BYTES} THEN {self.payload} END"
        return self.huge.hidden(small)

    def is_huge(self) -> str:
        """SQL that tells whether ``m.msg`` is a huge message."""
        return f"{self.size()} > {HUGE_BYTES}"

    def bind(self, sql: str, values: Mapping[str, Any]) -> tuple[TextClause, dict[str, Any]]:
        """A statement and all its values; lists become the values of an IN."""
        known = self.huge.values() if ":huge_" in sql else {}
        used = {name: value for name, value in known.items() if f":{name}" in sql}
        lists = (name for name, value in values.items() if isinstance(value, list))
        statement = text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))
        return statement, {**values, **used}


def _both(*conditions: Condition) -> Condition:
    values = {name: some for found in conditions for name, some in found.values.items()}
    return Condition(
        " AND ".join(found.sql for found in conditions if found.values) or ALWAYS, values
    )


def _pushed(conditions: Mapping[tuple[str, str], Collection[str]]) -> Condition:
    """Conditions by the names of their values, without those that have none or too many."""
    used = {
        key: values for key, values in conditions.items() if 0 < len(values) <= MAX_PUSHED_VALUES
    }
    clause = " AND ".join(sql for _, sql in used) or ALWAYS
    return Condition(clause, {name: sorted(values) for (name, _), values in used.items()})
