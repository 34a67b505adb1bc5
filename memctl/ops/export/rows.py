"""Messages and facts as rows of a table, for analysis; and the table as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from enum import Enum, auto
from typing import Any, NamedTuple, TextIO

from memctl.dialects.fact import without_vector
from memctl.dialects.view import (
    Dialect,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.json import jsonio
from memctl.model import MemoryKey, Page, StoredMessage
from memctl.ops.export.blocks import kind_of
from memctl.ops.export.writer import PageWriter, storable
from memctl.text.numbers import count
from memctl.text.spreadsheet import disarmed


class Kind(Enum):
    """The type of the values of a column; any value may be None."""

    WORD = auto()
    """A short text that often repeats."""
    TEXT = auto()
    NUMBER = auto()
    MOMENT = auto()
    """A datetime in UTC."""
    LIST = auto()
    """A list of texts, never None."""
    STORED = auto()
    """Stored JSON text."""


class Column(NamedTuple):
    """A column of the exported table."""

    name: str
    kind: Kind


MESSAGE_COLUMNS = (
    Column("user", Kind.WORD),
    Column("session", Kind.WORD),
    Column("path", Kind.WORD),
    Column("position", Kind.NUMBER),
    Column("id", Kind.TEXT),
    Column("role", Kind.WORD),
    Column("name", Kind.WORD),
    Column("time", Kind.TEXT),
    Column("timestamp", Kind.MOMENT),
    Column("marks", Kind.LIST),
    Column("kinds", Kind.LIST),
    Column("text", Kind.TEXT),
    Column("tools", Kind.LIST),
    Column("tool_call_ids", Kind.LIST),
    Column("characters", Kind.NUMBER),
    Column("message", Kind.STORED),
)
FACT_COLUMNS = (
    Column("id", Kind.TEXT),
    Column("user", Kind.WORD),
    Column("agent", Kind.WORD),
    Column("run", Kind.WORD),
    Column("text", Kind.TEXT),
    Column("created_at", Kind.TEXT),
    Column("updated_at", Kind.TEXT),
    Column("created", Kind.MOMENT),
    Column("updated", Kind.MOMENT),
    Column("metadata", Kind.STORED),
    Column("characters", Kind.NUMBER),
    Column("fact", Kind.STORED),
)


def columns(dialect: Dialect) -> tuple[Column, ...]:
    """Return the columns of the table for messages of a dialect, or for facts."""
    return FACT_COLUMNS if dialect.facts else MESSAGE_COLUMNS


def rows(page: Page, dialect: Dialect) -> Iterator[list[Any]]:
    """Yield a row for each message or fact of a page, with a value for each of ``columns``."""
    key = page.memory.key
    for entry, place in zip(page.messages, page.places, strict=True):
        yield _fact(key, entry, dialect) if dialect.facts else _message(key, entry, place, dialect)


def _message(key: MemoryKey, entry: StoredMessage, place: int, dialect: Dialect) -> list[Any]:
    view = dialect.parse(entry.message)
    text = storable("\n".join(view.texts()))
    blocks = view.blocks
    tools = [one for one in blocks if isinstance(one, ToolCallBlock | ToolResultBlock)]
    return [
        *(_word(key.user), _word(key.session), _word(key.part), place + 1, _word(entry.id)),
        *(_word(view.role), _word(view.name), _word(view.time), moment(view.time, view.zone)),
        _distinct(entry.marks),
        _distinct(map(kind_of, blocks)),
        text,
        _distinct(one.name for one in tools),
        _distinct(one.id for one in tools),
        len(text),
        entry.message.decode(),
    ]


def _fact(key: MemoryKey, entry: StoredMessage, dialect: Dialect) -> list[Any]:
    view = dialect.parse(entry.message)
    text = storable("\n".join(view.texts()))
    created, updated = (_text(view.value.get(name)) for name in ("created_at", "updated_at"))
    metadata = view.value.get("metadata")
    return [
        *(_word(entry.id), _word(key.user), _word(key.part), _word(key.session), text),
        *(_word(created), _word(updated), moment(created), moment(updated)),
        None if metadata is None else jsonio.dumps(metadata).decode(),
        len(text),
        without_vector(entry.message).decode(),
    ]


def moment(time: str | None, zone: tzinfo | None = None) -> datetime | None:
    """Return a stored time in UTC; None if ``time`` is None or unreadable.

    ``zone`` is the zone of a time that includes no zone; None for the local zone.
    """
    try:
        found = datetime.fromisoformat(time or "")
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):  # years out of range
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _word(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(storable, texts)))


class CsvFile(PageWriter):
    """A table of messages or facts as a CSV file (RFC 4180).

    A text that a spreadsheet would read as a formula gets an apostrophe in front.
    """

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        super().__init__(file, dialect)
        self._columns = columns(dialect)
        self._disarmed = 0
        self._writer = csv.writer(file, lineterminator="\r\n")
        self._writer.writerow([column.name for column in self._columns])

    def add(self, page: Page) -> None:
        for row in rows(page, self._dialect):
            self._writer.writerow(map(self._cell, self._columns, row))

    def _cell(self, column: Column, value: Any) -> str | int:
        match column.kind:
            case _ if value is None:
                return ""
            case Kind.NUMBER:
                return int(value)
            case Kind.MOMENT:
                return str(value.isoformat(timespec="microseconds"))
            case Kind.STORED:
                return str(value)
            case Kind.LIST:
                return self._disarm(",".join(value))
            case _:
                return self._disarm(value)

    def _disarm(self, text: str) -> str:
        text = text.replace("\0", "\ufffd")  # many readers end the text here
        cell = disarmed(text)
        self._disarmed += cell != text
        return cell

    def remarks(self) -> list[str]:
        if not self._disarmed:
            return []
        began = count(self._disarmed, "cell")
        return [f"{began} would be read as a formula: an apostrophe stands in front"]
