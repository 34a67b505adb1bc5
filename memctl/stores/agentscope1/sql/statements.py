"""The SQL for AgentScope's tables, composed from what each database spells its own way.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import TextClause

from memctl.engines.sql.syntax import (
    ALWAYS,
    HUGE_BYTES,
    NEVER,
    SMALL_BYTES,
    Condition,
    Syntax,
    pushed_down,
    session_condition,
)
from memctl.selection import Selection
from memctl.stores.agentscope1.sql.huge_messages import HugeMessages

COLUMNS = {
    "message_mark": ("msg_id", "mark"),
    "message": ("id", "msg", "session_id", "index"),
    "session": ("id", "user_id"),
    "users": ("id",),
}
"""The columns of AgentScope's tables, the tables in the order in which rows can go."""

UNPROVEN = b"\0"
"""The first byte of a message that is not JSON as the database knows it; see ``proven_payload``."""
BLOB = UNPROVEN + b"\1"
"""The first bytes of one that SQLite holds as a blob: AgentScope writes none, and reads them."""


def unproven(payload: bytes) -> bytes:
    """Return a message without what ``Statements.proven_payload`` puts in front."""
    return payload.removeprefix(BLOB if payload.startswith(BLOB) else UNPROVEN)


_COLUMNS = "session_id, owner, id, position, payload, marks, session_owner"


class Statements(Syntax):
    """The statements about AgentScope's tables, for one database.

    In every statement ``m`` is a row of ``message`` and ``s`` its row of ``session``.

    The user of a message is what is left of the row id ``{user}-{session}-{message id}`` without
    ``-{session}-{message id}``; where the row id disagrees with the message, the owner of the
    session row.

    To find the message id the message is parsed, so that is the last resort: where ``-{session}-``
    occurs in a row id once, after the owner of the session, there is but one way to take it
    apart, and whether it agrees with the message or not, the user is the owner.
    """

    mark_array: ClassVar[str]
    """An aggregate that gives the marks of a message as a JSON array."""
    payload: ClassVar[str] = "m.msg"
    """The message as text or bytes."""
    row_columns: ClassVar[str] = "id"
    """The columns that identify a row of ``message``."""
    session_table: str = "session"
    """The sessions that ``source`` joins, as a table or a subquery."""
    in_row_ids: ClassVar[str] = "IN :rows"
    """The end of a condition on a column: one of the row ids of ``MemoryTables.for_rows``."""
    scans_for_huge: ClassVar[bool] = True
    """True where huge messages are looked for even before a statement that parses few."""
    shifts_key: ClassVar[str] = ""
    """The key of the temporary table of shifts, where it must be created with the table."""
    stub_cast: ClassVar[str] = "{}"
    """SQL that converts a text to the type of ``message.msg``."""
    proves_json: ClassVar[bool] = True
    """False where the database takes for JSON what is none: each message is parsed, then."""
    is_sound: str = ALWAYS
    """SQL that tests, without ``m``, whether the columns of a message have the types that they
    were declared with, where the database does not see to it."""
    is_sound_mark: str = ALWAYS
    """SQL that tests the same of a row ``k`` of ``message_mark``."""
    unusable_indexes: ClassVar[str] = ""
    """A statement that lists indexes which exist and are not used, where there can be any."""

    def __init__(self) -> None:
        self.huge = HugeMessages({})
        self.has_unsound = False
        """True when some messages are not ``is_sound``: no statement sees these."""
        self.nullable: dict[str, Sequence[str]] = {}
        """The columns of each table that may be NULL."""

    def expect_nulls(self, nullable: Mapping[str, Sequence[str]]) -> None:
        """Take the columns of each table that may be NULL: none is where AgentScope made them."""
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
        """True where only the rows show that their columns hold what they should."""
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
        """Return SQL for a top-level text field of ``m.msg``, NULL where it is missing."""

    def fields_join(self) -> str:
        """Return SQL to join to ``source`` for ``short_field``."""
        return ""

    def short_field(self, name: str) -> str:
        """Return SQL for the role or the timestamp of a message, as ``field`` does."""
        return self.field(name)

    def enable_lenient_json(self) -> bool:
        """Accept messages from now on that the database cannot parse as they are.

        To make them readable costs more than to read them.  Returns whether this is new.
        """
        return False

    @abstractmethod
    def message_size(self) -> str:
        """Return SQL for the bytes of ``m.msg``."""

    @abstractmethod
    def is_plain_id(self) -> str:
        """Return SQL that tests whether the row id splits in one way only: after the owner's name.

        It looks at ``m.id``, ``m.session_id`` and ``s.user_id`` alone, byte by byte.
        """

    def is_foreign_id(self) -> str:
        """Return SQL that is 1 where the row id is not one that AgentScope makes, else 0."""
        parsed = f"WHEN {self.parsed_user()} IS NULL THEN 1"
        return f"CASE WHEN {self.is_plain_id()} THEN 0 {parsed} ELSE 0 END"

    @abstractmethod
    def message_id(self) -> str:
        """Return SQL for the message id in a plain row id."""

    @abstractmethod
    def parsed_user(self) -> str:
        """Return SQL for the user of a row ``m``, from the id in its message; NULL without one."""

    @property
    def user(self) -> str:
        """SQL for the user of the row ``m`` joined with its session ``s``."""
        parsed = f"COALESCE({self.parsed_user()}, s.user_id, '')"
        return f"CASE WHEN {self.is_plain_id()} THEN s.user_id ELSE {parsed} END"

    def marks(self, more: str = "") -> tuple[str, str]:
        """Return SQL for the marks of a message as a JSON array, and what is joined for it.

        ``more`` is another column of what is joined.
        """
        columns = ", ".join(filter(None, ("k.msg_id", f"{self.mark_array} AS marks", more)))
        marks = f"SELECT {columns} FROM message_mark k GROUP BY k.msg_id"
        return "k.marks", f"LEFT JOIN ({marks}) k ON k.msg_id = m.id"

    def proven_payload(self) -> str:
        """Return SQL for the message.

        It begins with a brace only if it is a JSON object, as far as the database ``proves_json``.
        Any other has ``UNPROVEN`` in front where the database takes what is not JSON.
        """
        return self.payload

    def small_payload(self) -> str:
        """Return SQL for the message, NULL for a large one, which is fetched by itself."""
        small = f"CASE WHEN {self.message_size()} <= {SMALL_BYTES} THEN {self.proven_payload()} END"
        return self.huge.hidden(small)

    def is_huge(self) -> str:
        """Return SQL that tests whether ``m.msg`` is a huge message."""
        return f"{self.message_size()} > {HUGE_BYTES}"

    def source(self, rows: str = "") -> str:
        """Return the tables of every statement about messages, with stubs for huge ones.

        ``rows`` is a condition on the messages, without ``m``; if not given, they are sound.
        """
        message = "message"
        if self.huge or self.has_unsound or rows:
            stubbed = self.huge.stubbed("msg", self.stub_cast)
            columns = f"{self.row_columns}, session_id, {self.index_column}, {stubbed} AS msg"
            message = f"(SELECT {columns} FROM message WHERE {rows or self.sound})"
        return f"{message} m LEFT JOIN {self.session_table} s ON s.id = m.session_id"

    def unsound_rows(self) -> Sequence[str]:
        """Return the statements that read what is not sound, where columns may be NULL.

        Their columns are the user and the session of a memory, and what is wrong.
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
        """Return the statement that reads the damaged rows of a table, empty where none can be.

        ``proved`` where the messages themselves are known to be sound.

        Its columns are the row, the user and the session, as bytes or NULL, the message if it is
        damaged only where it is no JSON object, and for each of ``COLUMNS`` its type and its value,
        a text as bytes.
        """
        unsound = f"NOT ({self.is_sound}) OR {self.no_object()}"
        key = f"{self.as_bytes(self.user)}, {self.as_bytes('m.session_id')}"
        whole = "m.msg"
        if self.huge:  # of which ``source`` has a stub
            whole = "(SELECT w.msg FROM message w WHERE w.id = m.id)"
        proof = f"CASE WHEN {self._filled('message', 'm.')} THEN {self.as_bytes(whole)} END"
        match table:
            case "message" if proved:
                return ""
            case "message_mark" if proved and table not in self.nullable:
                return ""
            case "message":
                cells = self._cells(table, "m", whole)
                return f"SELECT m.id, {key}, {proof}, {cells} FROM {self.source(unsound)}"
            case "message_mark":  # those of a message that goes, too
                cells = self._cells(table, "t")
                return (
                    f"SELECT t.msg_id, {key}, {proof}, {cells} FROM message_mark t "
                    f"LEFT JOIN ({self.source(unsound)}) ON m.id = t.msg_id "
                    f"WHERE m.id IS NOT NULL OR NOT ({self._filled(table, 't.')})"
                )
        if table not in self.nullable:
            return ""
        user, session = ("user_id", "id") if table == "session" else ("id", "NULL")
        return (
            f"SELECT id, {self.as_bytes(user)}, {self.as_bytes(session)}, NULL, "
            f"{self._cells(table, 't')} FROM {table} t WHERE NOT ({self._filled(table)})"
        )

    def _cells(self, table: str, row: str, message: str = "") -> str:
        cells = []
        for name in COLUMNS[table]:
            of = message if name == "msg" else f"{row}.{self.quote}{name}{self.quote}"
            kind, value = ("integer", of) if name == "index" else ("text", self.as_bytes(of))
            cells.append(f"CASE WHEN {of} IS NULL THEN 'null' ELSE '{kind}' END, {value}")
        return ", ".join(cells)

    def no_object(self) -> str:
        """Return SQL that tests, without ``m``, whether a message may not be a JSON object."""
        return NEVER

    def as_bytes(self, text: str) -> str:
        """Return SQL for a text in UTF-8."""
        return text

    @property
    def sound(self) -> str:
        """SQL, without ``m``, that only the messages pass that can be read."""
        return self.is_sound if self.has_unsound else ALWAYS

    # A selection as a condition

    def condition(self, where: Selection) -> Condition:
        """Return a condition that lets through at least what is selected."""
        return _both(self.memory_condition(where), self.message_condition(where))

    def memory_condition(self, where: Selection) -> Condition:
        """Return the part of ``condition`` that all messages of a memory share."""
        users = pushed_down({("users", f"{self.user} IN :users"): where.users})
        return _both(users, session_condition(where))

    def message_condition(self, where: Selection) -> Condition:
        """Return the part of ``condition`` that is about the messages themselves."""
        return pushed_down({("ids", self.has_id): where.ids, ("marks", self.has_mark): where.marks})

    @property
    def has_id(self) -> str:
        """SQL that tests whether the row ``m`` may have one of the message ids ``:ids``."""
        return f"CASE WHEN {self.is_plain_id()} THEN {self.message_id()} IN :ids ELSE 1 = 1 END"

    has_mark: ClassVar[str] = (
        "EXISTS (SELECT 1 FROM message_mark k WHERE k.msg_id = m.id AND k.mark IN :marks)"
    )
    """SQL that tests whether the row ``m`` has one of ``:marks``."""

    def match_sql(self, messages: Condition) -> tuple[str, str]:
        """Return SQL that tests ``message_condition``, and a column that ``marks`` needs for it."""
        return messages.sql, ""

    # Statements that read

    def select_ordered(self, condition: str, *, outline: bool = False) -> str:
        """Return the statement that reads messages, memory after memory, in order.

        Its columns are the session, the user, the row id, the index, the message, its marks as a
        JSON array, and the user whom the session belongs to.  An ``outline`` has NULL for every
        message.
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
        """Return the statement that reads ``messages`` of what ``select_ordered`` reads.

        One more column is the row id of the message before, selected or not.
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

    def select_unordered(self, condition: str, more: str = "NULL") -> str:
        """Return the statement that reads messages in any order, by a condition on ``m`` alone.

        Its columns are the row id, the message and ``more``.
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
        """Return the end of a SELECT from FROM on: the rows ``t`` that ``for_rows`` names.

        ``column`` is the first of their key.  No other rows are locked.
        """
        return f"{table} t WHERE t.{column} {self.in_row_ids}"

    def delete_keyed(self, table: str, column: str) -> str:
        """Return a statement that deletes the same rows."""
        return f"DELETE FROM {table} WHERE {column} {self.in_row_ids}"

    def update_index(self, table: str, old: str, new: str) -> str:
        """Return a statement that sets the index of messages from a table of ids ``id``.

        The index of a message becomes the column ``new``, where it is the column ``old``.
        """
        return (
            f"UPDATE message SET {self.index_column} = t.{new} FROM {table} t "
            f"WHERE message.id = t.id AND message.{self.index_column} = t.{old}"
        )

    def create_session_index(self, name: str) -> Sequence[str]:
        """Return the statements that create an index on ``message.session_id``."""
        return [f"CREATE INDEX {name} ON message (session_id)"]

    def drop_session_index(self, name: str) -> str:
        """Return the statement that drops it, while agents are at work."""
        return f"DROP INDEX {name}"

    def bind(self, sql: str, values: Mapping[str, Any]) -> tuple[TextClause, dict[str, Any]]:
        statement, bound = super().bind(sql, values)
        known = self.huge.values() if ":huge_" in sql else {}
        return statement, bound | {name: one for name, one in known.items() if f":{name}" in sql}


def _both(*conditions: Condition) -> Condition:
    values = {name: some for found in conditions for name, some in found.values.items()}
    return Condition(
        " AND ".join(found.sql for found in conditions if found.values) or ALWAYS, values
    )
