"""A store as agents would leave it, made by a seeded generator: the same messages on every machine.

    python -m benchmarks.dataset FILE.db [MESSAGES]

Of the messages 60 % are texts of 50 to 800 characters, some with CJK and emoji, 25 % are texts with
a tool call, 15 % results of tools of 1 to 4 KB; 5 % are marked ``hint``, 20 % ``compressed``.  A
memory has 100 messages on average, their number being log-normal; a user has ten memories.  The
sessions are interleaved in time, as the rows are.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Dialect, Table, create_engine
from sqlalchemy.schema import CreateIndex, CreateTable

from memctl.stores.agentscope1.sql.declared import create_tables

MESSAGES = 100_000
PER_MEMORY = 100
MEMORIES_OF_A_USER = 10

_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # shortuuid's
_SYLLABLES = ("ka", "lo", "mi", "ren", "ta", "vo", "shi", "ple", "ger", "dan", "tor", "ni", "sal")
_FOREIGN = (
    "京都市",
    "会议记录",
    "記憶",
    "안녕하세요",
    "😀",
    "🍁",
    "总结",
    "データ",
    "naïve",
    "Größe",
)
_FOREIGN_SHARE = 0.32
_TOOLS = ("search_web", "read_file", "run_python", "weather", "calendar")
_ROWS = 5000

Row = tuple[str, str, str, int]
"""A row of ``message``: id, msg, session_id and index."""


class Writer:
    """Writes the messages of agents, at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        words = (
            "".join(self._random.choices(_SYLLABLES, k=self._random.randint(1, 4)))
            for _ in range(4000)
        )
        self._words = list(words)

    def id(self) -> str:
        """An id of 22 characters, as AgentScope makes them."""
        return "".join(self._random.choices(_ALPHABET, k=22))

    def text(self, shortest: int, longest: int) -> str:
        """Words, of about so many characters."""
        length = self._random.randint(shortest, longest)
        words = self._random.choices(self._words, k=length // 4)
        if self._random.random() < _FOREIGN_SHARE:
            words[::2] = self._random.choices(_FOREIGN, k=len(words[::2]))
        return " ".join(words)[:length]

    def message(self, number: int, at: datetime) -> dict[str, Any]:
        """A message as ``Msg.to_dict`` gives it."""
        kind = self._random.random()
        role = "user" if number % 2 else "assistant"
        content: str | list[dict[str, Any]]
        if kind < 0.60:
            content = self.text(50, 800)
            if role == "assistant":
                content = [{"type": "text", "text": content}]
        elif kind < 0.85:
            role = "assistant"
            content = [{"type": "text", "text": self.text(50, 800)}, self._call()]
        else:
            role = "system"
            content = [self._result()]
        return {
            "id": self.id(),
            "name": {"user": "ada", "assistant": "Friday", "system": "system"}[role],
            "role": role,
            "content": content,
            "metadata": {},
            "timestamp": at.isoformat(" ", "milliseconds"),
        }

    def _call(self) -> dict[str, Any]:
        arguments = {"query": self.text(20, 200), "limit": self._random.randint(1, 50)}
        tool = self._random.choice(_TOOLS)
        return {"type": "tool_use", "id": f"call_{self.id()}", "name": tool, "input": arguments}

    def _result(self) -> dict[str, Any]:
        output = [{"type": "text", "text": self.text(1000, 4000)}]
        tool = self._random.choice(_TOOLS)
        return {"type": "tool_result", "id": f"call_{self.id()}", "name": tool, "output": output}

    def marks(self) -> list[str]:
        """The marks of a message."""
        marks = []
        if self._random.random() < 0.05:
            marks.append("hint")
        if self._random.random() < 0.20:
            marks.append("compressed")
        return marks

    def sessions(self, messages: int, per_memory: int) -> list[int]:
        """The memory of each message, in the order of time."""
        memories = max(1, messages // per_memory)
        weights = [self._random.lognormvariate(0, 1) for _ in range(memories)]
        # Every memory has a message; who has more of them is left to chance.
        order = [*range(memories), *self._random.choices(range(memories), weights, k=messages)]
        order = order[:messages]
        self._random.shuffle(order)
        return order


def rows(
    messages: int,
    seed: int = 1,
    per_memory: int = PER_MEMORY,
    memories_of_a_user: int = MEMORIES_OF_A_USER,
) -> Iterator[tuple[str, Row, list[str]]]:
    """The user, the row and the marks of every message, as time goes by."""
    writer = Writer(seed)
    counts: dict[int, int] = {}
    at = datetime(2026, 1, 1)
    for number, memory in enumerate(writer.sessions(messages, per_memory)):
        user = f"user_{memory // memories_of_a_user:05}"
        session = f"session_{memory:07}"
        message = writer.message(number, at + timedelta(seconds=number))
        index = counts[memory] = counts.get(memory, -1) + 1
        row_id = f"{user}-{session}-{message['id']}"
        yield user, (row_id, json.dumps(message), session, index), writer.marks()


def plain_message(number: int, text: str) -> dict[str, Any]:
    """Return a message as ``Msg.to_dict`` gives it, with this text."""
    return {
        "id": f"m{number:021}",
        "name": "Friday",
        "role": ("user", "assistant")[number % 2],
        "content": text,
        "metadata": {},
        "timestamp": f"2026-01-{number % 28 + 1:02} 12:00:00.000",
    }


def even_rows(messages: int, text: str) -> Iterator[tuple[str, Row, list[str]]]:
    """As ``rows``: messages with the same text, without marks, in memories of ``PER_MEMORY``."""
    memories = max(1, messages // PER_MEMORY)
    for number in range(messages):
        index, memory = divmod(number, memories)
        user, session = f"user_{memory // MEMORIES_OF_A_USER:05}", f"session_{memory:07}"
        message = plain_message(number, text)
        row_id = f"{user}-{session}-{message['id']}"
        yield user, (row_id, json.dumps(message), session, index), []


def make(path: Path, messages: int = MESSAGES, **sizes: int) -> None:
    """Write the store, in SQLite; ``sizes`` are those of ``rows``."""
    fill(path, rows(messages, **sizes))


def fill(path: Path, found: Iterable[tuple[str, Row, list[str]]]) -> None:
    """Write rows such as those of ``rows`` to a new store in SQLite."""
    path.unlink(missing_ok=True)
    with create_engine(f"sqlite:///{path}").begin() as connection:
        create_tables(connection)
    with sqlite3.connect(path) as database:
        owners: dict[str, str] = {}
        some: list[Row] = []
        marked: list[tuple[str, str]] = []
        for user, row, marks in found:
            owners[row[2]] = user
            some.append(row)
            marked += ((row[0], mark) for mark in marks)
            if len(some) == _ROWS:
                _insert(database, some)
        _insert(database, some)
        database.executemany("INSERT INTO message_mark VALUES (?, ?)", marked)
        database.executemany("INSERT INTO users VALUES (?)", [(u,) for u in set(owners.values())])
        database.executemany("INSERT INTO session VALUES (?, ?)", owners.items())


def creation(table: Table, dialect: Dialect) -> Iterator[str]:
    """Yield the statements that create a table and its indexes."""
    yield str(CreateTable(table).compile(dialect=dialect))
    for index in table.indexes:
        yield str(CreateIndex(index).compile(dialect=dialect))


def _insert(database: sqlite3.Connection, rows: list[Row]) -> None:
    database.executemany("INSERT INTO message VALUES (?, ?, ?, ?)", rows)
    rows.clear()


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else MESSAGES)
