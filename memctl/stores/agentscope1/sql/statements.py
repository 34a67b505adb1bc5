"""The SQL statements for AgentScope's tables; a subclass adds the SQL of each database.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from memctl.engines.sql.syntax import (
    ALWAYS,
    EVERY,
    HUGE_BYTES,
    NEVER,
    SMALL_BYTES,
    Condition,
    Syntax,
    pushed_down,
    session_condition,
)
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.stores.agentscope1.sql.huge_messages import HugeMessages

COLUMNS = {
    "message_mark": ("msg_id", "mark"),
    "message": ("id", "msg", "session_id", "index"),
    "session": ("id", "user_id"),
    "users": ("id",),
}
"""The columns of AgentScope's tables, in a valid order for deletions."""

UNPROVEN = b"\0"
"""The prefix of a message not proved as JSON by the database; see ``proven_payload``."""
BLOB = UNPROVEN + b"\1"
"""The prefix of a message stored as a blob in SQLite.

AgentScope can read blobs but does not write blobs.
"""


def unproven(payload: bytes) -> bytes:
    """Return a message without the prefix ``UNPROVEN`` or ``BLOB``, if it has one."""
    return payload.removeprefix(BLOB if payload.startswith(BLOB) else UNPROVEN)


_COLUMNS = "session_id, owner, id, position, payload, marks, session_owner"


class Statements(Syntax):
    """The statements for AgentScope's tables.

    In each statement, ``m`` is a row of ``message`` and ``s`` is the row of its session.

    A row id is ``{user}-{session}-{message id}``.  The user of a message is the row id without
    ``-{session}-{message id}``.  If the row id does not end so, the user is the owner of the
    session.

    To find the message id, the database must parse the message, which is slow.  A plain row id
    needs no parsing: ``-{session}-`` occurs once in it, directly after the owner of the session.
    The user of a plain row id is always the owner.
    """

    mark_array: ClassVar[str]
    """An SQL aggregate: a JSON array of the marks of a message."""
    payload: ClassVar[str] = "m.msg"
    """SQL for the message as text or bytes."""
    row_columns: ClassVar[str] = "id"
    """The columns that identify a row of ``message``."""
    session_table: str = "session"
    """The sessions for the join in ``source``: a table or a subquery."""
    in_row_ids: ClassVar[str] = "IN :rows"
    """SQL to put after a column: tests for the ids given to ``for_rows`` or ``select_rows``."""
    scans_for_huge: ClassVar[bool] = True
    """True to search for huge messages even before a statement that parses few messages."""
    shifts_key: ClassVar[str] = ""
    """The key of the temporary table of shifts, if created together with the table."""
    stub_cast: ClassVar[str] = "{}"
    """SQL to convert a text to the type of ``message.msg``."""
    proves_json: ClassVar[bool] = True
    """False if the database accepts invalid JSON, so that memctl must parse each message."""
    is_sound: str = ALWAYS
    """SQL to test the columns of ``message`` for the declared types; names columns without ``m.``.

    Most databases enforce the declared types.
    """
    is_sound_mark: str = ALWAYS
    """SQL to test the columns of a row ``k`` of ``message_mark`` for the declared types."""
    unusable_indexes: ClassVar[str] = ""
    """A statement to list unusable indexes; empty for a database without unusable indexes."""

    def __init__(self) -> None:
        self.huge = HugeMessages({})
        self.has_unsound = False
        """True if some messages fail ``is_sound``; statements then leave the messages out."""
        self.nullable: dict[str, Sequence[str]] = {}
        """The nullable columns of each table."""

    def expect_nulls(self, nullable: Mapping[str, Sequence[str]]) -> None:
        """Set which columns of each table are nullable; AgentScope declares none as nullable."""
        self.nullable = {table: names for table, names in nullable.items() if names}
        self.is_sound = self._filled("message")
        self.is_sound_mark = self._filled("message_mark", "k.")
        if "session" in self.nullable:
            filled = self._filled("session")
            self.session_table = f"(SELECT id, user_id FROM session WHERE {filled})"

    def _filled(self, table: str, row: str = "") -> str:
        names = self.nullable.get(table, ())
        quoted = (f"{row}{self.quote}{name}{self.quote}" for name in names)
        return " AND ".join(f"{name} IS NOT NULL" for name in quoted) or ALWAYS

    @property
    def may_be_unsound(self) -> bool:
        """True if columns can hold values of undeclared types or NULL."""
        return not self.typed or bool(self.nullable)

    # Expressions

    @property
    def index_column(self) -> str:
        """The name of the column ``index``, a reserved word."""
        return f"{self.quote}index{self.quote}"

    @property
    def index(self) -> str:
        """SQL for the position of the row ``m``."""
        return f"m.{self.index_column}"

    @abstractmethod
    def field(self, name: str) -> str:
        """Return SQL for a top-level text field of ``m.msg``; NULL if missing or not a text."""

    def fields_join(self) -> str:
        """Return the join that ``short_field`` needs after ``source``; empty for no join."""
        return ""

    def short_field(self, name: str) -> str:
        """Return SQL for the role or the timestamp of a message; NULL if missing or not a text."""
        return self.field(name)

    def enable_lenient_json(self) -> bool:
        """Make further statements accept messages with JSON that the database cannot parse.

        These statements are slower.  Returns True if this changed the statements.
        """
        return False

    @abstractmethod
    def message_size(self) -> str:
        """Return SQL for the size of ``m.msg`` in bytes."""

    @abstractmethod
    def is_plain_id(self) -> str:
        """Return SQL that tests for a plain row id ``m.id``, which identifies the user.

        In a plain row id, ``-{session}-`` occurs once, directly after the owner of the session.
        The SQL compares only the bytes of ``m.id``, ``m.session_id`` and ``s.user_id``.
        """

    def is_foreign_id(self) -> str:
        """Return SQL: 1 if the row id is not ``{user}-{session}-{message id}``, else 0."""
        parsed = f"WHEN {self.parsed_user()} IS NULL THEN 1"
        return f"CASE WHEN {self.is_plain_id()} THEN 0 {parsed} ELSE 0 END"

    @abstractmethod
    def message_id(self) -> str:
        """Return SQL for the message id in a plain row id."""

    @abstractmethod
    def parsed_user(self) -> str:
        """Return SQL for the user in the row id ``m.id``.

        The SQL gives NULL if the row id does not end with ``-{session}-{message id}``.
        """

    @property
    def user(self) -> str:
        """SQL for the user of the row ``m``, joined with the session ``s``."""
        parsed = f"COALESCE({self.parsed_user()}, s.user_id, '')"
        return f"CASE WHEN {self.is_plain_id()} THEN s.user_id ELSE {parsed} END"

    def marks(self, more: str = "") -> tuple[str, str]:
        """Return SQL for the marks of a message as a JSON array, and the join that this SQL needs.

        The join is empty if none is needed.  ``more`` is SQL for a further column of the join.
        """
        columns = ", ".join(filter(None, ("k.msg_id", f"{self.mark_array} AS marks", more)))
        marks = f"SELECT {columns} FROM message_mark k GROUP BY k.msg_id"
        return "k.marks", f"LEFT JOIN ({marks}) k ON k.msg_id = m.id"

    def proven_payload(self) -> str:
        """Return SQL for the message, with the prefix ``UNPROVEN`` if not proved to be JSON.

        If the database has ``proves_json``, only a JSON object begins with a brace.
        """
        return self.payload

    def small_payload(self) -> str:
        """Return SQL for the message; NULL for a large message, which is fetched separately."""
        small = f"CASE WHEN {self.message_size()} <= {SMALL_BYTES} THEN {self.proven_payload()} END"
        return self.huge.hidden(small)

    def is_huge(self) -> str:
        """Return SQL that tests whether ``m.msg`` is larger than ``HUGE_BYTES``."""
        return f"{self.message_size()} > {HUGE_BYTES}"

    def source(self, rows: str = "") -> str:
        """Return SQL after FROM: the messages ``m``, joined with the sessions ``s``.

        Huge messages are replaced by stubs, JSON with a few short fields.  ``rows`` is a condition
        on the columns of ``message``, without ``m.`` before their names.  If it is empty, rows with
        NULL or a wrong type in a column are left out.
        """
        message = "message"
        if self.huge or self.has_unsound or rows:
            stubbed = self.huge.stubbed("msg", self.stub_cast)
            columns = f"{self.row_columns}, session_id, {self.index_column}, {stubbed} AS msg"
            message = f"(SELECT {columns} FROM message WHERE {rows or self.sound})"
        return f"{message} m LEFT JOIN {self.session_table} s ON s.id = m.session_id"

    def unsound_rows(self) -> Sequence[str]:
        """Return the statements that find rows with NULL in a column that AgentScope requires.

        The columns of the results are the user and the session of the memory that a row belongs to,
        and the fault of the row.  There are no statements if the tables exclude NULL.
        """
        found = []
        session = "COALESCE(m.session_id, 'NULL')"
        if names := self.nullable.get("message"):
            quoted = {name: f"m.{self.quote}{name}{self.quote}" for name in names}
            cases = (f"WHEN {of} IS NULL THEN 'its {name} is null'" for name, of in quoted.items())
            found.append(
                f"SELECT {self.user}, {session}, CONCAT('a row of the table message: ', "
                f"CASE {' '.join(cases)} END) FROM {self.source(f'NOT ({self.is_sound})')}"
            )
        if "mark" in self.nullable.get("message_mark", ()):
            found.append(
                f"SELECT {self.user}, {session}, 'a mark of a message is not a text' "
                f"FROM {self.source()} JOIN message_mark k ON k.msg_id = m.id WHERE k.mark IS NULL"
            )
        if "session" in self.nullable:
            found.append(
                "SELECT COALESCE(user_id, 'NULL'), COALESCE(id, 'NULL'), "
                "'its row in session holds no text' "
                f"FROM session WHERE NOT ({self._filled('session')})"
            )
        return found

    def damaged_rows(self, table: str, *, proved: bool = False) -> str:
        """Return the statement that reads the damaged rows of a table; empty if none can exist.

        ``proved`` is True if the rows of the table ``message`` are known to be undamaged.

        The columns of the result are the row id, the user and the session (as bytes or NULL), and
        the message.  The message is NULL if the row is certainly damaged.  If not, the row is
        damaged unless the message is a JSON object, which the caller must check.
        """
        key = f"{self.as_bytes(self.user)}, {self.as_bytes('m.session_id')}"
        if table == "message":
            if proved:
                return ""
            whole = "m.msg"
            if self.huge:  # ``source`` has stubs instead of huge messages
                whole = "(SELECT w.msg FROM message w WHERE w.id = m.id)"
            proof = f"CASE WHEN {self._filled(table, 'm.')} THEN {self.as_bytes(whole)} END"
            unsound = f"NOT ({self.is_sound}) OR {self.no_object()}"
            return f"SELECT m.id, {key}, {proof} FROM {self.source(unsound)}"
        if table not in self.nullable:
            return ""
        id, source = "t.id", f"{table} t"
        if table == "message_mark":  # also the marks of deleted messages
            id, source = "t.msg_id", f"{source} LEFT JOIN ({self.source()}) ON m.id = t.msg_id"
        elif table == "session":
            key = f"{self.as_bytes('t.user_id')}, {self.as_bytes('t.id')}"
        else:
            key = f"{self.as_bytes('t.id')}, NULL"
        return f"SELECT {id}, {key}, NULL FROM {source} WHERE NOT ({self._filled(table, 't.')})"

    def no_object(self) -> str:
        """Return SQL that finds messages that may not be JSON objects.

        The SQL names the columns of ``message`` without ``m.``.
        """
        return NEVER

    def as_bytes(self, text: str) -> str:
        """Return SQL that converts the SQL ``text`` to bytes in UTF-8."""
        return text

    @property
    def sound(self) -> str:
        """SQL that selects rows of ``message`` without NULL or a wrong type in a column.

        The SQL names the columns without ``m.``.
        """
        return self.is_sound if self.has_unsound else ALWAYS

    # Conditions of a selection

    def condition(self, where: Selection) -> Condition:
        """Return a condition that all selected messages meet; other messages may meet it, too."""
        return _both(self.memory_condition(where), self.message_condition(where))

    def memory_condition(self, where: Selection) -> Condition:
        """Return the part of ``condition`` about whole memories."""
        users = pushed_down({("users", f"{self.user} IN :users"): where.users})
        return _both(users, self.session_condition(where))

    def session_condition(self, where: Selection) -> Condition:
        """Return the part of ``condition`` about sessions."""
        return _both(session_condition(where), Condition(self.message_in_shard(where.shard), {}))

    def message_in_shard(self, shard: Shard | None) -> str:
        """Return a condition that all messages ``m`` of a shard meet; others may meet it, too."""
        return self.in_shard(shard, "m.session_id")

    def memory(self, key: MemoryKey) -> Condition:
        """Return the condition that exactly the messages of one memory meet."""
        sql = f"{self.among('m.session_id', 'sessions')} AND {self.exact(self.user)} IN :users"
        return Condition(sql, {"sessions": [key.session], "users": [key.user]})

    def message_condition(self, where: Selection) -> Condition:
        """Return the part of ``condition`` about single messages."""
        return pushed_down({("ids", self.has_id): where.ids, ("marks", self.has_mark): where.marks})

    @property
    def has_id(self) -> str:
        """SQL that finds rows ``m`` whose message id may be one of ``:ids``."""
        return f"CASE WHEN {self.is_plain_id()} THEN {self.message_id()} IN :ids ELSE 1 = 1 END"

    has_mark: ClassVar[str] = (
        "EXISTS (SELECT 1 FROM message_mark k WHERE k.msg_id = m.id AND k.mark IN :marks)"
    )
    """SQL to find rows ``m`` with a mark of ``:marks``."""

    def match_sql(self, messages: Condition) -> tuple[str, str]:
        """Return SQL that tests ``messages``, and the column ``more`` of ``marks`` for this test.

        ``messages`` is a ``message_condition``.  The column is empty if the test needs none.
        """
        return messages.sql, ""

    # Statements that read

    def select_ordered(self, condition: str, *, outline: bool = False) -> str:
        """Return the statement that reads messages, ordered by memory and position.

        The columns are the session, the user, the row id, the index, the message, the marks as a
        JSON array, and the owner of the session.  The message is NULL if it is large, or with
        ``outline``.
        """
        marks, joined = self.marks()
        payload = "NULL" if outline else self.small_payload()
        return (
            f"SELECT {_COLUMNS} FROM ("
            f"SELECT {self._keys()}, {payload} AS payload, {marks} AS marks "
            f"FROM {self.source()} {joined} WHERE {condition}) AS found "
            f"ORDER BY {self._memory()}, position, {self.exact('id')}"
        )

    def select_matching(self, condition: str, messages: Condition) -> str:
        """Return the statement that reads the messages that meet ``condition`` and ``messages``.

        ``condition`` is about whole memories, ``messages`` about single messages.  Order and
        columns are as in ``select_ordered``.  A further column is the row id of the preceding
        message of the memory, even if this message does not meet ``messages``.
        """
        matches, more = self.match_sql(messages)
        marks, joined = self.marks(more)
        payload = f"CASE WHEN {matches} THEN {self.small_payload()} END"
        order = f"position, {self.exact('id')}"
        return (
            f"SELECT {_COLUMNS}, before_ FROM (SELECT {_COLUMNS}, matches, "
            f"LAG(id) OVER (PARTITION BY {self._memory()} ORDER BY {order}) AS before_ FROM ("
            f"SELECT {self._keys()}, {payload} AS payload, {marks} AS marks, {matches} AS matches "
            f"FROM {self.source()} {joined} WHERE {condition} {self.materialize_hint}) AS found"
            f") AS placed WHERE matches ORDER BY {self._memory()}, {order}"
        )

    def select_window(self, condition: str, backward: bool, position: str = "") -> str:
        """Return the statement that reads ``:count`` messages of a memory, after ``:skipped``.

        ``condition`` selects the memory.  Messages come in order, or with ``backward`` from the
        end.  The columns are the row id and the index.  ``position`` is other SQL for the index.
        """
        row_id, way = self.exact(self.sortable("m.id")), "DESC" if backward else "ASC"
        return (
            f"SELECT m.id, {self.index} FROM {self.source()} WHERE {condition} "
            f"ORDER BY {position or self.index} {way}, {row_id} {way} LIMIT :count OFFSET :skipped"
        )

    def select_named(self) -> str:
        """Return the statement that reads the messages with the ids given to ``select_rows``.

        The columns are the row id, the message (NULL if large) and the marks as a JSON array.
        """
        marks = f"SELECT {self.mark_array} FROM message_mark k WHERE k.msg_id = m.id"
        return (
            f"SELECT m.id, {self.small_payload()}, ({marks}) FROM message m "
            f"WHERE m.id {self.in_row_ids}"
        )

    def select_owned_by_others(self, condition: str) -> str:
        """Return the statement that lists the memories of users who do not own the session.

        The columns are the user and the session.  Further memories may be listed.
        """
        return (
            f"SELECT user_id, session_id FROM (SELECT {self.user} AS user_id, "
            f"m.session_id AS session_id FROM {self.source()} WHERE {condition} "
            f"AND CASE WHEN {self.is_plain_id()} THEN 0 ELSE 1 END = 1 "
            f"{self.subquery_barrier}) AS found "
            f"GROUP BY {self.exact('user_id')}, {self.exact('session_id')}"
        )

    def select_unordered(self, condition: str, more: str = "NULL") -> str:
        """Return the statement that reads messages in any order; ``condition`` uses only ``m``.

        The columns are the row id, the message (NULL if large) and the SQL ``more``.
        """
        return (
            f"SELECT m.id, {self.small_payload()}, {more} FROM message m "
            f"WHERE {condition} AND {self.sound}"
        )

    def _keys(self) -> str:
        return (
            f"{self.sortable('m.session_id')} AS session_id, {self.sortable(self.user)} AS owner, "
            f"{self.sortable('m.id')} AS id, {self.index} AS position, s.user_id AS session_owner"
        )

    def _memory(self) -> str:
        return ", ".join(self.exact(name) for name in ("session_id", "owner"))

    # Statements that change

    def keyed_rows(self, table: str, column: str) -> str:
        """Return SQL after FROM for the rows ``t`` of a table with the ids given to ``for_rows``.

        ``column`` has the ids, and is the first column of the primary key.  A lock in the SELECT
        locks only the rows ``t``.
        """
        return f"{table} AS t WHERE t.{column} {self.in_row_ids}"

    def delete_keyed(self, table: str, column: str) -> str:
        """Return the statement to delete the rows ``t`` of a table with the ids of ``for_rows``.

        ``column`` has the ids, and is the first column of the primary key.  The caller may append
        AND and a further condition.
        """
        return f"DELETE FROM {self.keyed_rows(table, column)}"

    def is_unused(self, child: str, column: str) -> str:
        """Return SQL: true if no row of the table ``child`` has the id of row ``t`` in ``column``.

        The SQL is a condition for ``delete_keyed``.
        """
        return f"NOT EXISTS (SELECT 1 FROM {child} c WHERE c.{column} = t.id)"

    def update_index(self, table: str, old: str, new: str) -> str:
        """Return the statement that changes the indexes of messages from ``old`` to ``new``.

        ``table`` has the row ids in the column ``id``; ``old`` and ``new`` are names of its
        columns.
        """
        return (
            f"UPDATE message SET {self.index_column} = t.{new} FROM {table} t "
            f"WHERE message.id = t.id AND message.{self.index_column} = t.{old}"
        )

    def create_session_index(self, name: str) -> Sequence[str]:
        """Return the statements that create an index on ``message.session_id``."""
        return [f"CREATE INDEX {name} ON message (session_id)"]

    def drop_session_index(self, name: str) -> str:
        """Return the statement that drops an index on ``message``."""
        return f"DROP INDEX {name}"

    def bound(self, sql: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        if ":huge_" not in sql:
            return values
        known = self.huge.values().items()
        return {**values, **{name: one for name, one in known if f":{name}" in sql}}


def _both(*conditions: Condition) -> Condition:
    values = {name: some for found in conditions for name, some in found.values.items()}
    return Condition(
        " AND ".join(found.sql for found in conditions if found != EVERY) or ALWAYS, values
    )
