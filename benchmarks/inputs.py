"""The rows and keys of a data set, in the forms that public tools take."""

from __future__ import annotations

import marshal
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

TABLES = ("users", "session", "message", "message_mark")
_ORDERED = 'SELECT id, msg, session_id FROM message ORDER BY session_id, "index"'
_ROWS = 5000


@dataclass(frozen=True)
class Inputs:
    """Files: a script of psql, commands of Redis, rows as Python marshals them."""

    copy: Path
    keys: Path
    rows: Path


def make(source: Path, folder: Path) -> Inputs:
    """Write the files; ``source`` is a database that ``dataset`` made."""
    folder.mkdir(exist_ok=True)
    found = Inputs(folder / "copy.sql", folder / "keys.resp", folder / "rows.marshal")
    with sqlite3.connect(source) as database:
        _write_copy(database, found.copy)
        _write_keys(database, found.keys)
        _write_rows(database, found.rows)
    return found


def _write_copy(database: sqlite3.Connection, path: Path) -> None:
    lines = ["BEGIN;"]
    for table in TABLES:
        rows = path.with_name(f"{table}.tsv")
        with rows.open("w") as file:
            for row in database.execute(f"SELECT * FROM {table}"):
                file.write("\t".join(map(_escaped, row)) + "\n")
        lines.append(f"\\copy {table} FROM '{rows}'")
    path.write_text("\n".join([*lines, "COMMIT;"]))


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _write_keys(database: sqlite3.Connection, path: Path) -> None:
    """Yield the commands that write what AgentScope keeps, as few as possible."""
    owners = dict(database.execute("SELECT id, user_id FROM session"))
    marks = defaultdict(list)
    for row_id, mark in database.execute("SELECT msg_id, mark FROM message_mark"):
        marks[row_id].append(mark)
    with path.open("wb") as file:
        for session, rows in groupby(database.execute(_ORDERED), key=lambda row: row[2]):
            for command in _commands(owners[session], session, rows, marks):
                file.write(_packed(*command))


def _commands(
    user: str, session: str, rows: Iterator[tuple[str, str, str]], marks: dict[str, list[str]]
) -> Iterator[tuple[str, ...]]:
    base = f"user_id:{user}:session:{session}"
    ids = []
    marked = defaultdict(list)
    for row_id, message, _ in rows:
        ids.append(row_id.removeprefix(f"{user}-{session}-"))
        yield "SET", f"{base}:msg:{ids[-1]}", message
        for mark in marks.get(row_id, ()):
            marked[mark].append(ids[-1])
    yield "RPUSH", f"{base}:messages", *ids
    for mark, some in marked.items():
        yield "RPUSH", f"{base}:mark:{mark}", *some
    if marked:
        yield "SADD", f"{base}:marks_index", *marked


def _packed(*words: str) -> bytes:
    pieces = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word.encode()
        pieces.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(pieces)


def _write_rows(database: sqlite3.Connection, path: Path) -> None:
    with path.open("wb") as file:
        for table in TABLES:
            found = database.execute(f"SELECT * FROM {table}")
            while rows := found.fetchmany(_ROWS):
                marshal.dump((table, rows), file)
        marshal.dump(None, file)
