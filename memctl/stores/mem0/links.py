"""The links from mem0's entities to facts, in a temporary file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memctl.model import MemoryKey
from memctl.storekit.facts import decoded, encoded
from memctl.stores.mem0.vectors import Record

LINKED = "linked_memory_ids"
_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE link (fact BLOB, entity BLOB, PRIMARY KEY (fact, entity)) WITHOUT ROWID;
CREATE INDEX facts ON link (entity);
CREATE TABLE entity (id BLOB PRIMARY KEY, user BLOB, session BLOB, part BLOB);
"""
_SOME = 500


class Links:
    """An index of mem0's entities: the memory of each entity, and the facts that it links to."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the index and remove its temporary file."""
        self._database.close()

    def clear(self) -> None:
        """Remove all entities and links from the index."""
        self._database.executescript("DELETE FROM link; DELETE FROM entity;")

    def take(self, entities: Iterable[Record]) -> None:
        """Add entities with their links.  A known entity is replaced, with its links."""
        for entity in entities:
            self.forget([entity.id])
            names = map(encoded, (entity.id, *scope_of(entity.payload)))
            self._database.execute("INSERT INTO entity VALUES (?, ?, ?, ?)", tuple(names))
            self._database.executemany(
                "INSERT OR IGNORE INTO link VALUES (?, ?)",
                [(encoded(fact), encoded(entity.id)) for fact in linked(entity.payload)],
            )

    def forget(self, entities: Sequence[str]) -> None:
        """Remove the entities with these ids, and their links."""
        for table, column in (("link", "entity"), ("entity", "id")):
            self._database.executemany(
                f"DELETE FROM {table} WHERE {column} = ?", [(encoded(id),) for id in entities]
            )

    def of(self, facts: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the entities that link to each fact, sorted, by id of the fact.

        The result lacks facts without links.
        """
        found: dict[str, list[str]] = {}
        sql = f"SELECT fact, entity FROM link WHERE fact IN ({','.join('?' * len(facts))})"
        rows = self._database.execute(f"{sql} ORDER BY entity", tuple(map(encoded, facts)))
        for fact, entity in rows:
            found.setdefault(decoded(fact), []).append(decoded(entity))
        return found

    def scopes(self) -> list[MemoryKey]:
        """Return the memories that have entities."""
        rows = self._database.execute("SELECT DISTINCT user, session, part FROM entity").fetchall()
        return [MemoryKey(*map(decoded, row)) for row in rows]

    def in_scope(self, key: MemoryKey) -> list[str]:
        """Return the ids of the entities of a memory."""
        sql = "SELECT id FROM entity WHERE user = ? AND session = ? AND part = ?"
        rows = self._database.execute(sql, tuple(map(encoded, key))).fetchall()
        return [decoded(id) for (id,) in rows]

    def pieces(self) -> Iterator[list[str]]:
        """Yield the ids of all facts that entities link to, in lists of at most 500."""
        rows = self._database.execute("SELECT DISTINCT fact FROM link ORDER BY fact").fetchall()
        for start in range(0, len(rows), _SOME):
            yield [decoded(fact) for (fact,) in rows[start : start + _SOME]]


def linked(payload: dict[str, Any]) -> list[str]:
    """Return the ids of the facts that an entity links to; empty if its list is malformed."""
    found = payload.get(LINKED)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def scope_of(payload: dict[str, Any]) -> MemoryKey:
    """Return the memory of a fact or an entity, from its payload.

    The user, run and agent name the memory.
    """
    names = (_name(payload.get(field)) for field in ("user_id", "run_id", "agent_id"))
    return MemoryKey(*names)


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value
    # Older versions of mem0 stored numbers unchanged.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
