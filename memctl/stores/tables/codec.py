"""Conversion between rows of a mapped table and messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from math import inf, isfinite
from typing import Any, NamedTuple

from sqlalchemy import String, Text, Uuid

from memctl.dialects.agentscope import CONTENT, ID, NAME, ROLE
from memctl.dialects.rows import CALL_ID, CALL_NAME, CALLS, EXTRA, METADATA, TIME, blocks_of
from memctl.dialects.view import NOTES
from memctl.engines.sql.columns import UNKNOWN_TIME, Column, TimeFormat, shown
from memctl.engines.sql.database import Database, decoded, is_text
from memctl.engines.sql.syntax import MAX_PUSHED_VALUES
from memctl.json import jsonio
from memctl.layouts.sql import of_shape
from memctl.location import visible
from memctl.model import (
    MemoryKey,
    StoredMessage,
)
from memctl.selection import Selection
from memctl.storekit.edits import (
    is_same_text,
)
from memctl.stores.tables.mapping import CALL_COLUMNS, Mapping

SMALL_BYTES = 32 * 1024
"""The largest content in bytes that is fetched with its row; larger contents follow singly."""
_OPTIONAL = {
    **{"id": ID, "role": ROLE, "name": NAME, "metadata": METADATA},
    **{"calls": CALLS, "call_id": CALL_ID, "call_name": CALL_NAME},
}
_JSON_FIELDS = (METADATA, CALLS)
ROWID = "rowid"
FILLED = "filled"
"""The key in notes and shapes for the names of filled columns.

A filled column has a value that is no part of the message: a default of the database, or a value
that memctl writes because the column is NOT NULL.
"""
NOT_JSON = object()


class Refusal(Exception):
    """The table cannot hold a message; the text gives the reason."""


class DamagedRow(Exception):
    """A row cannot be read as a message; the text gives the reason."""


class _JsonStyle(NamedTuple):
    """The style of a JSON text: spaces, and escapes of non-ASCII characters."""

    compact: bool
    """True if no space follows a colon."""
    unicode: bool | None
    """False if the JSON escapes non-ASCII characters; None if the JSON has no such characters."""

    @classmethod
    def of(cls, text: str) -> _JsonStyle:
        """Return the style of a JSON text, judged by the first key and the characters."""
        at = text.find('":')
        escaped = None if "\\u" not in text else False
        return cls(at >= 0 and text[at + 2 : at + 3] != " ", escaped if text.isascii() else True)

    def writes(self, other: _JsonStyle) -> bool:
        """Return whether each text in the style ``other`` would be the same in this style."""
        return self.compact == other.compact and self.unicode in (None, other.unicode)

    def encode(self, value: Any) -> str:
        """Return a value as JSON text in this style."""
        separators = (",", ":") if self.compact else None
        return json.dumps(value, separators=separators, ensure_ascii=not self.unicode)


class TableColumns(NamedTuple):
    """The columns of a mapped table, as found in the database.

    ``key`` has the names of the columns of the primary key, ``order`` those of the columns that
    order the rows.
    """

    all: dict[str, Column]
    key: tuple[str, ...]
    order: tuple[str, ...]
    has_index: bool
    """True if an index finds the rows of a session."""
    is_serial: bool
    """True if the database generates the key."""


class Ordering(Enum):
    """The ways to order new messages after the existing messages of a memory."""

    SERIAL = "serial"
    """By the primary key, which the database generates or the message contains."""
    NUMBER = "number"
    """By a number column that memctl fills."""
    TIME = "time"
    """By a time column; several messages may have the same time."""
    INSTANT = "instant"
    """By a time column; no two messages may have the same time."""


class RowCodec:
    """A converter between the rows of a mapped table and messages, in both directions."""

    def __init__(self, mapping: Mapping, columns: TableColumns, database: Database) -> None:
        self.mapping = mapping
        self.columns = columns
        self.times = TimeFormat()
        self._sql = database.syntax
        self.quoted = self._sql.quoted
        self.table = self.quoted(mapping.table)
        self.session = self._name("session")
        named = mapping.columns
        self.user = f"COALESCE({self._name('user')}, '')" if "user" in named else ""
        key_and_order = dict.fromkeys((*columns.key, *columns.order))
        own = {*named.values(), *key_and_order, mapping.app}
        others = [name for name, one in columns.all.items() if name not in own and not one.computed]
        self.session_column = columns.all[named["session"]]
        self.extra_columns = frozenset(others)
        flag = mapping.dialect.flag
        self._flag = {} if flag is None or flag.value is None else {flag.column: flag.value}
        """The value of the column that says that the program reads a row.

        A message without the column is one of another store: its new row is to be read.
        """
        filled = [name for name in others if columns.all[name].default]
        self.filled_columns = frozenset(filled) | self._flag.keys()
        unread = () if mapping.dialect.documents else ("calls", "call_id")
        likely = {name for role in unread if role not in named for name in CALL_COLUMNS[role]}
        self.call_columns = frozenset(name for name in others if name.lower() in likely)
        self._once_null = [name for name in self.filled_columns if columns.all[name].nullable]
        owner = named.get("user")
        self._owner = owner if owner and not columns.all[owner].filled else None
        """The column of the user, if it may be NULL, which then stands for the empty user."""
        self._named = [(named[name], field) for name, field in _OPTIONAL.items() if name in named]
        self._time = named.get("time")
        self._content = named["content"]
        selected = dict.fromkeys(
            [*key_and_order, self._content, *(column for column, _ in self._named)]
            + ([self._time] if self._time else [])
            + ([self._owner] if self._owner else [])
            + others
        )
        self._start = 2 if self.user else 1
        self._loose = not database.syntax.typed
        """True if text columns may hold values of other types."""
        self._at = {name: self._start + number for number, name in enumerate(selected)}
        self._read = [
            (self._at[name], columns.all[name].read)
            for name in selected
            if name in columns.all and columns.all[name].is_converted
        ]
        self._selected = selected
        self._others = others
        self._key = columns.key
        self._placed = tuple(key_and_order)
        """The columns that undo needs to restore the position of a row."""
        only = columns.all.get(columns.order[0]) if len(columns.order) == 1 else None
        numbered = columns.order == (ROWID,) or (only is not None and only.is_integer)
        self._position = self._at[columns.order[0]] if numbered else None
        self.ordering = self._ordering()
        self.is_json = columns.all[self._content].is_json or mapping.encoding == "json"
        self._says_role = "role" in named or mapping.encoding == "text"
        """True if a content is plain text even if it looks like a message in JSON."""
        self._mixed = not (self.is_json or mapping.dialect.documents)
        """True if a content may be a plain text or JSON."""
        fields = {field for _, field in self._named}
        self._known = frozenset(
            {CONTENT, EXTRA, METADATA, *fields}
            | ({TIME} if self._time or mapping.dialect.notes_time else set())
        )
        self._converted = frozenset(
            name for name, column in columns.all.items() if not column.is_text
        )
        packed = frozenset({NOTES} if mapping.dialect.note_key else ())
        self._style = _JsonStyle.of(mapping.encode({"a": "é"}))
        self._last_names: tuple[Any, Any] | None = None
        self._last_key = MemoryKey("", "")
        self._packed = None if METADATA in fields else packed
        """The metadata that the content can hold; None if a column holds the metadata."""
        self.holds_notes = METADATA in fields or bool(mapping.dialect.note_key)

    @property
    def _needs_time(self) -> bool:
        """True if no row may lack a time: the time column is NOT NULL, or orders the rows."""
        if self._time is None:
            return False
        return not self.columns.all[self._time].nullable or self.ordering is Ordering.TIME

    @property
    def _fills_time(self) -> bool:
        """True if the time of a message may be left to the default of the database.

        This requires a place for notes, because a note records that the database filled the column.
        """
        default = self._time is not None and self.columns.all[self._time].default
        return default and self.holds_notes and self.ordering is not Ordering.TIME

    def _filled(self, value: dict[str, Any], extra: dict[str, Any]) -> list[str]:
        """Return the names of the columns that the notes of a new message record as filled.

        A filled column gets its value from the database or from memctl, not from the message.
        ``value`` is the message, ``extra`` its unmapped columns.
        """
        if not self.holds_notes:
            return []
        filled = sorted(self.filled_columns - extra.keys() - self._flag.keys())
        if self._time is not None and self._needs_time and value.get(TIME) is None:
            filled.append(self._time)
        return filled

    def _ordering(self) -> Ordering:
        first = self.columns.order[0]
        if self.mapping.rising:
            return Ordering.INSTANT
        if first == self._time:
            return Ordering.TIME
        if self._position is not None and first not in self.columns.key:
            return Ordering.NUMBER
        return Ordering.SERIAL

    def value(self, name: str, aggregate: str = "") -> str:
        """Return a SQL expression for a column, as text if the column is a JSON column.

        ``aggregate`` is a function, such as MAX, to apply to its values; empty for none.
        """
        column = self.columns.all.get(name)
        expression = f"{aggregate}({self.quoted(name)})" if aggregate else self.quoted(name)
        if column is None:
            return expression
        if column.is_json:
            return f"CAST({expression} AS {self._sql.text_type})"
        return column.selected(expression)

    def read(self, name: str, value: Any) -> Any:
        """Convert a value, read by the SQL of ``value``, to the value that the column holds."""
        column = self.columns.all.get(name)
        return value if column is None else column.read(value)

    def converted(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Apply ``read`` to the values of rows that the statement of ``select`` has read."""
        if not self._read:
            return rows
        found = []
        for row in rows:
            values = list(row)
            for at, read in self._read:
                if values[at] is not None:
                    values[at] = read(values[at])
            found.append(values)
        return found

    def _name(self, role: str) -> str:
        column = self.columns.all[self.mapping.columns[role]]
        name = self.quoted(column.name)
        if not isinstance(column.type, String | Text):
            return f"CAST({name} AS {self._sql.text_type})"
        return self._sql.exact(name)

    def has_user(self, key: MemoryKey) -> bool:
        """Return whether rows of the memory's user can be in the table.

        False if the table has no column for users and belongs to another user.
        """
        return bool(self.user) or key.user == self.mapping.user

    def select(self, condition: str, *, lock: bool = False) -> str:
        """Return a SELECT statement for rows, ordered by memory and position.

        ``condition`` selects the rows.  A content over ``SMALL_BYTES`` is not selected.  With
        ``lock``, the statement locks the rows.
        """
        order = [*self.names, *self._placed_by]
        more = f" {self._sql.row_lock}" if lock else ""
        return f"{self._select(condition)} ORDER BY {', '.join(order)}{more}"

    def select_window(self, condition: str, backward: bool) -> str:
        """Return a SELECT statement for ``:count`` rows of a memory, after ``:skipped``.

        ``condition`` selects the memory.  Rows come in order, or with ``backward`` from the end.
        A content over ``SMALL_BYTES`` is not selected.
        """
        way = "DESC" if backward else "ASC"
        order = ", ".join(f"{name} {way}" for name in self._placed_by)
        return f"{self._select(condition)} ORDER BY {order} LIMIT :count OFFSET :skipped"

    @property
    def names(self) -> list[str]:
        """The SQL for the session of a row, and for its user, if there is a column for users."""
        return [self.session, *([self.user] if self.user else [])]

    @property
    def _placed_by(self) -> list[str]:
        # A bare name is the selected text in PostgreSQL.
        return [f"{self.table}.{self.quoted(name)}" for name in self.columns.order]

    def _select(self, condition: str) -> str:
        columns = [*self.names, *map(self.value, self._selected)]
        # Fetch a large content alone: drivers fetch a fixed number of rows of any size.
        content = self.quoted(self._content)
        size = self._sql.json_size(content)
        columns[self._at[self._content]] = (
            f"CASE WHEN {size} <= {SMALL_BYTES} THEN {self.value(self._content)} END"
        )
        columns.append(f"CASE WHEN {size} > {SMALL_BYTES} THEN 1 END")
        return f"SELECT {', '.join(columns)} FROM {self.table} WHERE {condition}"

    def condition(self, where: Selection) -> tuple[str, dict[str, Any]]:
        """Return a SQL condition that all selected rows meet, and its parameters.

        Rows that are not selected may meet the condition, too.
        """
        parts = [self._sql.in_shard(where.shard, self.session)]
        values = dict[str, Any]()
        sessions, users = where.sessions, where.users
        if not sessions and where.keys is not None:
            sessions = frozenset(key.session for key in where.keys)
        for name, column, some in (("s", self.session, sessions), ("u", self.user, users)):
            if column and 0 < len(some) <= MAX_PUSHED_VALUES:
                parts.append(f"{column} IN :{name}_names")
                values[f"{name}_names"] = sorted(some)
        return self._in_app(" AND ".join(parts), values)

    def _in_app(self, condition: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self.mapping.app:
            return condition, values
        app = self._sql.exact(self.quoted(self.mapping.app))
        return f"{condition} AND {app} = :app", values | {"app": self.mapping.app_name}

    def of(self, key: MemoryKey) -> tuple[str, dict[str, Any]]:
        """Return the SQL condition for the rows of a memory, and its parameters."""
        condition, values = f"{self.session} = :session", {"session": key.session}
        if isinstance(self.session_column.type, Uuid) and not self.session_column.refusal(
            key.session
        ):  # for the index
            condition = f"{self.quoted(self.session_column.name)} = CAST(:session AS UUID)"
        if self.user:
            condition, values = f"{condition} AND {self.user} = :user", values | {"user": key.user}
        return self._in_app(condition, values)

    def key_of(self, row: Sequence[Any]) -> MemoryKey:
        """Return the memory that a row belongs to."""
        names = (row[0], row[1] if self.user else "")
        if names == self._last_names:
            return self._last_key
        key = self._key_of(row)
        if type(names[0]) is str and type(names[1]) is str:  # do not cache numbers: 1 equals 1.0
            self._last_names, self._last_key = names, key
        return key

    def _key_of(self, row: Sequence[Any]) -> MemoryKey:
        session = "NULL" if row[0] is None else decoded(row[0])
        if not self.user:
            return MemoryKey(self.mapping.user, session)
        return MemoryKey(decoded(row[1]), session)

    def by_key(self, row: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """Return a SQL condition for the primary key of a row, and its parameters.

        Without a primary key, the condition compares the columns that order the rows.
        """
        key = self._key or tuple(self.columns.order)
        tests = [
            f"{self.quoted(name)} = {self.placed(name, f':k{at}')}" for at, name in enumerate(key)
        ]
        values = {f"k{at}": self.bound(name, row[self._at[name]]) for at, name in enumerate(key)}
        return " AND ".join(tests), values

    @property
    def is_comparable(self) -> bool:
        """True if values of the order columns compare as in the database."""
        columns = self.columns.all
        return all(columns[name].is_comparable for name in self.columns.order if name in columns)

    def placed(self, name: str, place: str) -> str:
        """Return SQL for a value of the column ``name``; ``place`` is its placeholder.

        The parameter must be a result of ``bound``.
        """
        column = self.columns.all.get(name)
        return place if column is None else column.placed(place)

    def bound(self, name: str, value: Any) -> Any:
        """Convert a value of a column to the parameter for the SQL of ``placed``."""
        column = self.columns.all.get(name)
        return value if column is None else column.bound(value)

    def with_content(self, row: Sequence[Any], content: Any) -> list[Any]:
        """Return a copy of a row in which ``content``, a result of ``read``, is the content."""
        at = self._at[self._content]
        return [*row[:at], content, *row[at + 1 :]]

    def row_key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of the primary key of a row."""
        return tuple(row[self._at[name]] for name in self._key)

    # From a row

    def entry(self, row: Sequence[Any]) -> StoredMessage:
        """Return the message that a row holds.

        A row with a large content, a result of ``with_content``, loses the content.

        Raises:
            DamagedRow: the row is not a message.
        """
        at = self._at
        if row[0] is None:
            raise DamagedRow(f"{self._which(row)} names no session")
        if self._loose and not all(isinstance(name, str) for name in row[: self._start]):
            raise DamagedRow(
                f"{self._which(row)} names its session or user with a value that is not a text"
            )
        if not all(is_text(one) for one in row if isinstance(one, str)):
            raise DamagedRow(f"{self._which(row)} is not UTF-8")
        dialect = self.mapping.dialect
        value: dict[str, Any] = {}
        shape = {name: shown(row[at[name]]) for name in self._placed}
        for column, field in self._named:
            if (found := row[at[column]]) is not None:
                value[field] = self._field(row, field, found)
                if field in _JSON_FIELDS and not self._writes(column, value[field], found):
                    shape[column] = shown(found)
                if type(found) is bytes:  # in SQLite a BLOB differs from equal text
                    shape[column] = shown(found)
        if self._time is not None:
            raw = row[at[self._time]]
            time = self.times.read(raw)
            if time is not None:
                value[TIME] = time
                if self._time not in shape and not self._keeps_time(time, raw):
                    shape[self._time] = shown(raw)
        stored = at[self._content]
        style = self._style_of(row[stored])
        odd = _is_odd(row[stored])
        if type(row[stored]) is bytes:
            shape[self._content] = shown(row[stored])
        value[CONTENT] = self._content_of(row)
        if self.is_json and value[CONTENT] is None:  # NULL, or null
            shape[self._content] = shown(row[stored])
        if self._owner and row[at[self._owner]] == "":
            shape[self._owner] = ""
        value |= dialect.unpack(value[CONTENT])
        content = value[CONTENT]
        filled = _take_filled(value)
        if self._time in filled and value.pop(TIME, None) is not None:
            shape[self._time] = shown(row[at[self._time]])
        shape |= {name: shown(row[at[name]]) for name in self._others if name in filled}
        given = self.mapping.given(content)
        if any(name in given and row[at[name]] != given[name] for name in self._key):
            raise DamagedRow(f"the content of {self._which(row)} has another id")
        if self._others:
            values = {name: shown(row[at[name]]) for name in self._others if name not in filled}
            extra = {
                name: found
                for name, found in values.items()
                if name in self._flag or (found is not None and found != given.get(name))
            }
            if extra:
                value[EXTRA] = extra
        id = dialect.message_id(value)
        position = None if self._position is None else row[self._position]
        about: dict[str, Any] = {"row": shape}
        if filled:
            about[FILLED] = filled
        if style is not None:
            about["style"] = style
        if self._mixed and self.is_json:
            about["quoted"] = True
        text = jsonio.compact(about, odd=any(map(_is_odd, shape.values()))).decode()
        beside = not value.keys().isdisjoint((METADATA, EXTRA, CALLS))
        odd = odd or (beside and any(map(_is_odd, row)))
        return StoredMessage(id, jsonio.compact(value, odd=odd), (), position, text)

    def _style_of(self, found: Any) -> _JsonStyle | None:
        """Return the style of a JSON content; None for a plain text or the mapping's own style.

        A database with a parsed JSON type, such as PostgreSQL, returns texts in a style of its own.
        """
        if not (self.mapping.dialect.documents or self.is_json) or not isinstance(found, str):
            return None
        style = _JsonStyle.of(found)
        return None if style.writes(self._style) else style

    @property
    def no_time(self) -> Any:
        """The value of the time column for a message without a time."""
        return self.times.write(UNKNOWN_TIME)

    def _keeps_time(self, time: str, raw: Any) -> bool:
        """Return whether memctl would write the message time ``time`` as the column value ``raw``.

        False if the format of times depends on the time zone or on the other rows.
        """
        if not (self.times.is_fixed or self.mapping.unit):
            return False
        try:
            return bool(self.times.write(time) == raw)
        except ValueError:
            return False

    def _writes(self, column: str, value: Any, found: Any) -> bool:
        """Return whether memctl would write a value as ``found``."""
        return self.columns.all[column].is_json or self._encoded(column, value) == found

    def _encoded(self, column: str, value: Any) -> Any:
        plain = isinstance(value, str) and not self.columns.all[column].is_json
        return value if plain else json.dumps(value)

    def _field(self, row: Sequence[Any], field: str, found: Any) -> Any:
        if field == CALLS:
            calls = parse_json(found)
            return calls if isinstance(calls, list | dict) else decoded(found)
        if field != METADATA:
            return decoded(found)
        value = parse_json(found) if isinstance(found, str | bytes) else found
        if not isinstance(value, dict):
            raise DamagedRow(f"the metadata of {self._which(row)} is not a JSON object")
        return value

    def _content_of(self, row: Sequence[Any]) -> Any:
        """Return the value of a content; remove a large content from the row, to free memory.

        Raises:
            DamagedRow: as ``entry``.
        """
        at = self._at[self._content]
        found = row[at]
        if isinstance(row, list) and row[-1] is not None:  # from ``with_content``
            row[at] = None
        documents = self.mapping.dialect.documents
        if isinstance(found, bytes | bytearray | memoryview):
            try:
                found = bytes(found).decode()
            except UnicodeDecodeError:
                raise DamagedRow(f"the content of {self._which(row)} is not UTF-8") from None
        if documents or (self.is_json and found is not None):
            if found is None:
                raise DamagedRow(f"{self._which(row)} has no content")
            text = found if not isinstance(found, str) else jsonio.encoded(found)
            del found
            value = parse_json(text)
            if value is NOT_JSON or (documents and not isinstance(value, dict)):
                what = "JSON" if value is NOT_JSON else "a JSON object"
                raise DamagedRow(f"the content of {self._which(row)} is not {what}")
            if why := self.mapping.dialect.foreign(value):
                raise DamagedRow(f"the content of {self._which(row)} {why}")
            if not documents:
                self._refuse_message(row, value)
            return value
        if found is None:
            return None
        if not isinstance(found, str):
            raise DamagedRow(f"the content of {self._which(row)} is not a text")
        if not is_text(found):
            raise DamagedRow(f"the content of {self._which(row)} is not UTF-8")
        blocks = blocks_of(found)
        if blocks is None and found.startswith(("[{", "{")) and not self._says_role:
            self._refuse_message(row, parse_json(found))
        return found if blocks is None else blocks

    def _refuse_message(self, row: Sequence[Any], content: Any) -> None:
        """Refuse a content that is not the content of one message.

        Raises:
            DamagedRow: the content is a message, or a list of messages, of an unknown format.
        """
        if is_message(content):
            what = "a list of messages" if isinstance(content, list) else "a message in JSON"
            raise DamagedRow(f"{self._which(row)} holds {what}, in a format that is not known")

    def _which(self, row: Sequence[Any]) -> str:
        key = ", ".join(visible(str(one)) for one in self.row_key(row))
        return f"the row {key} of {visible(self.mapping.table)!r}"

    def has_text(self, entries: list[StoredMessage], at: int, text: bytes) -> bool:
        """Return whether the message ``entries[at]`` has the JSON value of ``text``.

        Differences in columns that the database filled do not count.
        """
        found = entries[at].message
        if is_same_text(found, text):
            return True
        value, wanted = jsonio.loads(found), jsonio.loads(text)
        extra = value.get(EXTRA)
        if not extra or not isinstance(wanted, dict):
            return False
        added = self.filled_columns - (wanted.get(EXTRA) or {}).keys()
        value[EXTRA] = {name: one for name, one in extra.items() if name not in added}
        if not value[EXTRA]:
            del value[EXTRA]
        return bool(added) and is_same_text(jsonio.dumps(value), text)

    # To a row

    def row_order(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values by which a row is ordered."""
        return tuple(row[self._at[name]] for name in self.columns.order)

    def order_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Return the values by which a new row will be ordered; ``row`` has its values by column.

        A rowid that orders the rows and is not known yet counts as infinity.
        """
        return tuple(row.get(name, inf if name == ROWID else None) for name in self.columns.order)

    @property
    def orders_by_rowid(self) -> bool:
        """True if the SQLite rowid orders the rows and is not the primary key."""
        return ROWID in self.columns.order and ROWID not in self.columns.key

    def shape_rowid(self, entry: StoredMessage) -> int | None:
        """Return the rowid in the shape of a restored message: the rowid before its deletion.

        Returns None if the rowid does not order the rows, or if the shape has no rowid.
        """
        row = of_shape(entry.shape).get("row") if self.orders_by_rowid and entry.shape else None
        found = row.get(ROWID) if isinstance(row, dict) else None
        return found if isinstance(found, int) else None

    def shape_key(self, entry: StoredMessage) -> tuple[Any, ...] | None:
        """Return the primary key in the shape of a restored message: the key before its deletion.

        Returns None if the shape has no key.
        """
        row = of_shape(entry.shape).get("row")
        if not isinstance(row, dict) or not all(name in row for name in self._key):
            return None
        columns = self.columns.all
        return tuple(
            columns[name].stored(row[name]) if name in columns else row[name] for name in self._key
        )

    def _lost(self, value: dict[str, Any], extra: dict[str, Any]) -> list[str]:
        """Return the fields and unmapped columns that the table cannot hold."""
        lost = [name for name in value if name not in self._known]
        if self._packed is not None:
            lost += [name for name in value.get(METADATA) or () if name not in self._packed]
        return [*lost, *(name for name in extra if name not in self.extra_columns)]

    def row(self, key: MemoryKey, entry: StoredMessage) -> dict[str, Any]:
        """Return the row of a message, as values by column.

        Raises:
            Refusal: the table cannot hold a part of the message.
        """
        value = jsonio.loads(entry.message)
        if not isinstance(value, dict):
            raise Refusal(f"the message {entry.id!r} is not a JSON object")
        mapping = self.mapping
        named = mapping.columns
        extra = self._flag | (value.get(EXTRA) or {})
        if lost := self._lost(value, extra):
            raise Refusal(
                f"the table {visible(mapping.table)!r} has no column for {visible(lost[0])!r}, "
                f"which the message {entry.id!r} has"
            )
        shape = of_shape(entry.shape) if entry.shape else {}
        filled = shape.get(FILLED, ()) if shape else self._filled(value, extra)
        value = _with_filled(value, filled)
        content = mapping.dialect.pack(value)
        found: dict[str, Any] = {}
        for name, given in mapping.given(content).items():
            if (typed := self.columns.all.get(name)) is not None:
                found[name] = typed.moment(given) if isinstance(given, datetime) else given
        found[named["session"]] = key.session
        if self.user:
            owner = named["user"]
            found[owner] = key.user or ("" if self.columns.all[owner].filled else None)
        if mapping.app:
            found[mapping.app] = mapping.app_name
        for column, field in self._named:
            if field in value:
                stored = value[field]
                found[column] = self._encoded(column, stored) if field in _JSON_FIELDS else stored
        # A restored message keeps its encoding, even if the other rows have another.
        is_json = "quoted" in shape if self._mixed and shape else self.is_json
        if content == [] and not is_json:  # an empty list would be read back as a text
            raise Refusal(f"the message {entry.id!r} has an empty list as its content")
        text = mapping.dialect.documents or is_json or not isinstance(content, str | None)
        text = text and not (content is None and self.columns.all[self._content].nullable)
        encode = _JsonStyle(*shape["style"]).encode if "style" in shape else mapping.encode
        found[named["content"]] = encode(content) if text else content
        if shape:  # write NULL, or else the database would fill the columns now
            found |= dict.fromkeys(self._once_null)
        found |= extra
        row = shape.get("row")
        raw = row if isinstance(row, dict) else {}
        if self.orders_by_rowid:  # another row may have the rowid now
            raw = {name: one for name, one in raw.items() if name != ROWID}
        for name, one in found.items():  # a restored blob in ``raw`` need not be a text
            if isinstance(one, str) and name not in raw and not is_text(one):
                raise Refusal(f"the message {entry.id!r} holds a text that is not valid Unicode")
        try:
            stored_row = found | raw
            for name, one in stored_row.items():
                if type(one) is not str or name in self._converted:
                    typed = self.columns.all.get(name)
                    stored_row[name] = one if typed is None else typed.stored(one)
            if self._time is not None and self._time not in raw:
                time = value.get(TIME)
                if time is None and self._needs_time and not self._fills_time:
                    time = UNKNOWN_TIME
                if time is not None or not self._needs_time:
                    stored_row[self._time] = self.times.write(time)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise Refusal(f"the message {entry.id!r} does not fit the table: {error}") from error
        return stored_row


def _take_filled(value: dict[str, Any]) -> list[str]:
    metadata: dict[str, Any] = value.get(METADATA) or {}
    notes = metadata.get(NOTES)
    filled = notes.get(FILLED) if isinstance(notes, dict) else None
    if not isinstance(filled, list) or not all(isinstance(one, str) for one in filled):
        return []
    notes = {name: one for name, one in metadata[NOTES].items() if name != FILLED}
    metadata = {name: one for name, one in metadata.items() if name != NOTES}
    value[METADATA] = metadata | ({NOTES: notes} if notes else {})
    if not value[METADATA]:
        del value[METADATA]
    return filled


def _with_filled(value: dict[str, Any], filled: Sequence[str]) -> dict[str, Any]:
    if not filled:
        return value
    metadata = value.get(METADATA) or {}
    notes = metadata.get(NOTES)
    notes = (notes if isinstance(notes, dict) else {}) | {FILLED: list(filled)}
    return value | {METADATA: metadata | {NOTES: notes}}


def parse_json(text: Any) -> Any:
    """Return the value of a JSON text; ``NOT_JSON`` if the text is not JSON.

    A value of any other type than a text is returned unchanged.
    """
    if not isinstance(text, str | bytes):
        return text
    try:
        return jsonio.loads(jsonio.encoded(text))
    except (ValueError, RecursionError):
        return NOT_JSON


def is_message(value: Any) -> bool:
    """Return whether a JSON value is a message or a list of messages, not the content of one."""
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(one, dict) and "role" in one for one in items)


def _is_odd(value: Any) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    return isinstance(value, str | bytes) and jsonio.may_have_nan(value)
