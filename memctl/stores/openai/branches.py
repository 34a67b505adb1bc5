"""Sessions with branches: the OpenAI Agents SDK's ``AdvancedSQLiteSession``.

All branches of a session share the table of messages.  A row of ``message_structure`` gives a
message a position in a branch.  Several branches may share a message.  The first branch of each
session, ``main``, is the memory of the session.  Further branches are parts of the session.  A
session without rows of ``message_structure`` is a session of ``SQLiteSession``.

Source: ``extensions/memory/advanced_sqlite_session.py`` of openai-agents 0.24.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, inspect, text

from memctl.dialects.agentscope import CONTENT, string
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.rows import EXTRA, METADATA, TIME
from memctl.engines.sql.columns import TimeFormat
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import decoded, is_text
from memctl.engines.sql.simple import SqlSimpleStore
from memctl.engines.sql.syntax import EVERY, Condition, pieces, session_condition
from memctl.errors import BadData, Failure, Uninitialised
from memctl.json import jsonio
from memctl.layouts.sql import (
    BRANCH_COLUMNS,
    BRANCH_TABLES,
    STRUCTURE,
    USAGE,
    BranchTables,
    branch_tables,
    of_shape,
)
from memctl.location import Location
from memctl.model import Finding, Memory, MemoryKey, Page, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.store import Deletion, Features, Maintenance, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected, VersionChanged, not_owned

MESSAGES, SESSIONS = "agent_messages", "agent_sessions"
"""The default names of the tables of messages and sessions."""
MAIN = "main"
_SHAPE = "branch"
_TIMES = TimeFormat(local=UTC)
_TYPED_NAMES = frozenset(
    {
        *("computer_call", "file_search_call", "web_search_call", "code_interpreter_call"),
        *("shell_call", "apply_patch_call"),
    }
)
"""The types of items without a name.  The type is also the name of the tool."""
_SESSION = ("session_id", "created_at", "updated_at")
_MESSAGE = ("id", "session_id", "message_data", "created_at")
"""The columns of a message."""
_USAGE = (
    *("id", "user_turn_number", "requests", "input_tokens", "output_tokens"),
    *("total_tokens", "input_tokens_details", "output_tokens_details", "created_at"),
)
"""The columns of ``turn_usage``, without the name of the branch."""
_CREATE = """
CREATE TABLE IF NOT EXISTS {sessions} (
    session_id TEXT PRIMARY KEY,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE IF NOT EXISTS {messages} (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES {sessions} (session_id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS {index} ON {messages} (session_id, id);
CREATE TABLE IF NOT EXISTS message_structure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_id INTEGER NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    message_type TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    user_turn_number INTEGER,
    branch_turn_number INTEGER,
    tool_name TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES {sessions}(session_id) ON DELETE CASCADE,
    FOREIGN KEY (message_id) REFERENCES {messages}(id) ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS turn_usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    user_turn_number INTEGER NOT NULL,
    requests INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    total_tokens INTEGER DEFAULT 0,
    input_tokens_details JSON,
    output_tokens_details JSON,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES {sessions}(session_id) ON DELETE CASCADE,
    UNIQUE(session_id, branch_id, user_turn_number)
);
CREATE TABLE IF NOT EXISTS branch_reservations (
    session_id TEXT NOT NULL,
    branch_id TEXT NOT NULL,
    PRIMARY KEY (session_id, branch_id)
);
CREATE TABLE IF NOT EXISTS session_clear_generations (
    session_id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS idx_structure_session_seq
    ON message_structure(session_id, sequence_number);
CREATE INDEX IF NOT EXISTS idx_structure_branch ON message_structure(session_id, branch_id);
CREATE INDEX IF NOT EXISTS idx_structure_turn
    ON message_structure(session_id, branch_id, user_turn_number);
CREATE INDEX IF NOT EXISTS idx_structure_branch_seq
    ON message_structure(session_id, branch_id, sequence_number);
CREATE INDEX IF NOT EXISTS idx_turn_usage_session_turn
    ON turn_usage(session_id, branch_id, user_turn_number)
"""


@dataclass(slots=True)
class Row:
    """A message in a branch: a row of ``message_structure``, joined with a row of messages."""

    item: Any
    data: str
    """The stored text of the item."""
    created: Any
    """The ``created_at`` of the message."""
    message: int | None = None
    """The id of the message; None for a new message."""
    id: int | None = None
    """The id of the row in ``message_structure``; None without a row."""
    sequence: int = 0
    turn: int | None = None
    branch_turn: int | None = None
    placed: Any = None
    """The ``created_at`` of the row in ``message_structure``."""
    type: str = ""
    """The ``message_type``."""
    tool: str | None = None
    """The ``tool_name``."""

    def classify(self) -> None:
        """Set ``type`` and ``tool`` from the item, as the OpenAI Agents SDK does for a new item."""
        self.type, self.tool = self._type(), self._tool()

    def _type(self) -> str:
        """Return the ``message_type`` of the item, like ``_classify_message_type`` of the SDK.

        This is the role ``user`` or ``assistant``, or else the ``type`` of the item, or else
        ``other``.
        """
        role = self.item.get("role")
        if role in ("user", "assistant"):
            return str(role)
        return str(self.item["type"]) if self.item.get("type") else "other"

    def _tool(self) -> str | None:
        """Return the ``tool_name`` of the item; None if the item names no tool.

        The rules are those of ``_extract_tool_name`` of the SDK.
        """
        kind, name = string(self.item.get("type")), self.item.get("name")
        if kind in ("mcp_call", "mcp_approval_request") and "server_label" in self.item:
            parts = [str(one) for one in (self.item["server_label"], name) if one]
            return ".".join(parts) or None
        if kind in ("tool_search_call", "tool_search_output"):
            return "tool_search"
        if kind in _TYPED_NAMES:
            return kind
        if name is None:
            return None
        space = self.item.get("namespace")
        return f"{space}.{name}" if space and space != name and name else str(name)

    def shape(self) -> str:
        """Return the columns of the message and of its row in ``message_structure``, as JSON.

        An undo restores the two rows from this text.
        """
        about = [self.message, self.created, self.id, self.sequence]
        more = [self.turn, self.branch_turn, self.placed, self.type, self.tool]
        return jsonio.compact({_SHAPE: about + more}).decode()


@dataclass(frozen=True, slots=True)
class Held(Snapshot):
    """A stored branch with its messages, and its rows of the table ``turn_usage``."""

    rows: list[Row] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    """The rows of ``turn_usage``, by column."""
    is_plain: bool = False
    """True for a session of ``SQLiteSession``, without branches."""
    has_session: bool = True
    """False if the row of the session is missing."""


@dataclass(frozen=True, slots=True)
class Restored(Snapshot):
    """A branch to which an undo returns deleted messages and rows of ``turn_usage``."""

    usage: list[dict[str, Any]] = field(default_factory=list)
    """The deleted rows of ``turn_usage``, by column."""
    had_session: bool = True
    """False if the session had no row before the change that is undone."""


@dataclass(slots=True)
class _Ids:
    """The ids that the new rows of a table get."""

    taken: set[int]
    next: int
    """An id greater than all ids that the table has or had."""

    def take(self, wanted: int | None) -> int:
        """Return the id ``wanted`` if it is free, else (or if None) the next free id."""
        id = self.next if wanted is None or wanted in self.taken else wanted
        self.taken.add(id)
        self.next = max(self.next, id + 1)
        return id


class BranchStore(SqlSimpleStore):
    """The branches of sessions of the OpenAI Agents SDK.

    ``?table=`` names the table of messages.  ``?owner=`` names the user of all sessions.
    """

    features = Features(marks=frozenset(), duplicate_ids=True, session_owners=True, parts=True)
    dialect = OPENAI_AGENTS

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._quoted = self.database.syntax.quoted
        self._owner = location.options.get("owner", "")
        self._path = location.options.get("path", MAIN)
        """The branch that is the memory of a session."""
        self._tables = BranchTables(SESSIONS, location.options.get("table", MESSAGES))

    async def identity(self) -> str:
        return f"{await self.database.identity()}#{self._tables.messages}"

    async def prepare(self) -> None:
        found = await self.database.run(branch_tables)
        if found is None:
            if not self.mode.creates:
                raise Uninitialised(
                    f"{self.label} has no table {STRUCTURE!r}",
                    "AdvancedSQLiteSession makes it with create_tables=True; sessions of "
                    "SQLiteSession are ?layout=openai-agents",
                )
            await self.database.create(partial(_create, self._tables, self._quoted))
            found = await self.database.run(branch_tables)
        wanted = self.location.options.get("table", "")
        if found is None or (wanted and found.messages.lower() != wanted.lower()):
            text = f"the branches of {self.label} are not those of {self._tables.messages!r}"
            raise BadData(text, "a file has branches of one table, which ?table= need not name")
        self._tables = found

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:  # noqa: ARG002
        tables = dict.fromkeys((self._tables.messages, STRUCTURE, USAGE), EVERY)
        if deletion is not Deletion.MESSAGES:
            tables[self._tables.sessions] = EVERY
        return await self.database.side_effects(tables, BRANCH_TABLES)

    async def unrestorable(self, where: Selection) -> str:
        condition = session_condition(where)
        for table, columns in (
            (self._tables.messages, _MESSAGE),
            (STRUCTURE, BRANCH_COLUMNS),
            (USAGE, ("session_id", "branch_id", *_USAGE)),
        ):
            if found := await self.database.find_other_values(table, columns, condition):
                return found
        return ""

    # Reading

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        messages = self._quoted(self._tables.messages)
        placed = (
            f"SELECT DISTINCT s.session_id, s.branch_id FROM {STRUCTURE} s JOIN {messages} m "
            "ON m.id = s.message_id AND m.session_id = s.session_id"
        )
        everything = f"SELECT DISTINCT session_id FROM {messages}"
        async with self.database.snapshot() as connection:
            branches = await self.database.fetch_all(connection, placed, {})
            sessions = await self.database.fetch_all(connection, everything, {})
        structured = {session for session, _ in branches}
        plain = [session for (session,) in sessions if session not in structured]
        found = {self._key(*branch) for branch in branches} | set(map(self._key, plain))
        if "path" in self.location.options:
            found = {key for key in found if not key.part}
        for key in sorted(found):
            yield key

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(super()._pages(where)) as pages:
            async for page in pages:
                if not where.parts or self._branch(page.memory.key) in where.parts:
                    yield page

    def _key(self, session: Any, branch: Any = None) -> MemoryKey:
        part = "" if branch in (None, self._path) else decoded(branch)
        return MemoryKey(self._owner, decoded(session), part)

    def _branch(self, key: MemoryKey) -> str:
        return key.part or self._path

    async def load(self, key: MemoryKey) -> Held | None:
        async with self.reading() as connection:
            return await self._load(connection, key)

    async def _load(self, connection: AsyncConnection, key: MemoryKey) -> Held | None:
        """Return the branch that ``key`` names; None if neither the branch nor its session exists.

        If only the session exists, the result is a branch without messages.

        Raises:
            BadData: a name is not valid UTF-8, or a row of a message is damaged.
        """
        if key.user != self._owner:
            return None
        if not is_text(key.session) or not is_text(key.part):
            raise BadData("its name is not valid UTF-8")
        values = {"session": key.session, "branch": self._branch(key)}
        messages, sessions = map(self._quoted, self._tables[::-1])
        sql = (
            "SELECT m.message_data, m.created_at, m.id, s.id, s.sequence_number, "
            "s.user_turn_number, s.branch_turn_number, s.created_at, s.message_type, s.tool_name "
            f"FROM {messages} m JOIN {STRUCTURE} s ON m.id = s.message_id "
            "WHERE m.session_id = :session AND s.session_id = m.session_id "
            "AND s.branch_id = :branch "
            "ORDER BY s.sequence_number, s.id"
        )
        found = await self.database.fetch_all(connection, sql, values)
        is_plain = False
        plain = self._branch(key) == MAIN
        if not found and plain and not await self._has(connection, STRUCTURE, key):
            sql = (
                f"SELECT message_data, created_at, id FROM {messages} "
                "WHERE session_id = :session ORDER BY id"
            )
            found = await self.database.fetch_all(connection, sql, {"session": key.session})
            is_plain = bool(found)
        has_session = await self._has(connection, sessions, key)
        if not found and not has_session:
            return None
        rows = [_parsed(*row) for row in found]
        usage = await self._usage(connection, values)
        version = blake2b(repr([is_plain, *map(tuple, found), usage]).encode(), digest_size=16)
        memory = Memory(key, version=version.hexdigest())
        messages_of = [_entry(row) for row in rows]
        return Held(memory, messages_of, True, rows, usage, is_plain, has_session)

    async def _usage(
        self, connection: AsyncConnection, values: dict[str, Any]
    ) -> list[dict[str, Any]]:
        sql = (
            f"SELECT {', '.join(_USAGE)} FROM {USAGE} "
            "WHERE session_id = :session AND branch_id = :branch ORDER BY user_turn_number"
        )
        rows = await self.database.fetch_all(connection, sql, values)
        return [dict(zip(_USAGE, row, strict=True)) for row in rows]

    async def _has(self, connection: AsyncConnection, table: str, key: MemoryKey) -> bool:
        sql = f"SELECT 1 FROM {table} WHERE session_id = :session LIMIT 1"
        return bool(await self.database.fetch_all(connection, sql, {"session": key.session}))

    # Writing

    def drop_extras(self, there: Snapshot, left: Snapshot) -> tuple[Snapshot, str]:
        if not isinstance(there, Held):
            return left, ""
        stay = {row.id for row in map(_shaped, left.messages) if row is not None}
        turns = {row.turn for row in there.rows if row.id in stay}
        gone = [one for one in there.usage if one["user_turn_number"] not in turns]
        about: dict[str, Any] = {"usage": gone} if gone else {}
        about |= {} if there.has_session else {"bare": True}
        return left, jsonio.compact(about).decode() if about else ""

    def restore_extras(self, left: Snapshot, before: str) -> Snapshot:
        if not before.startswith("{"):
            return left
        about = jsonio.loads(before.encode())
        usage, bare = about.get("usage", []), about.get("bare", False)
        return Restored(left.memory, left.messages, left.exists, usage, not bare)

    def creates(self, there: Snapshot) -> bool:
        return super().creates(there) or (isinstance(there, Held) and not there.has_session)

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        if key.user != self._owner:
            text = not_owned("the sessions", self._owner, key.user)
        elif key.part and (key.part == MAIN or "path" in self.location.options):
            text = f"the branch {self._path!r} is the memory without a part"
        elif not self._branch(key).strip():
            text = "the name of a branch is not blank"
        elif not (is_text(key.session) and is_text(key.part)):
            text = "the name is not valid Unicode"
        else:
            return None
        return Failure("bad-name", text)

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        if failure := self.name_refusal(key):
            raise Rejected(failure.code, failure.message)
        async with self.changing() as connection:
            there = await self._expected(connection, key, expect)
            await self._save(connection, key, snapshot, there)

    async def _expected(
        self, connection: AsyncConnection, key: MemoryKey, expect: str | None
    ) -> Held | None:
        there = await self._load(connection, key)
        if (there.memory.version if there else None) != expect:
            raise VersionChanged
        return there

    async def _save(
        self, connection: AsyncConnection, key: MemoryKey, snapshot: Snapshot, there: Held | None
    ) -> None:
        old = there or Held(Memory(key))
        messages = self._quoted(self._tables.messages)
        if (
            self._branch(key) != MAIN
            and await self._has(connection, messages, key)
            and not await self._has(connection, STRUCTURE, key)
        ):
            raise Rejected("refused", "its session is one of SQLiteSession, without branches")
        known = {row.message if old.is_plain else row.id: row for row in old.rows}
        texts = {id(row): entry.message for row, entry in zip(old.rows, old.messages, strict=True)}
        rows: list[Row] = []
        for entry in snapshot.messages:
            shaped = _shaped(entry)
            name = None
            if shaped is not None:
                name = shaped.message if old.is_plain else shaped.id
            kept = known.get(name)
            if kept is None or texts[id(kept)] != entry.message:
                rows.append(_row(entry, shaped))
            else:
                rows.append(known.pop(name))
        if there is None and (not isinstance(snapshot, Restored) or snapshot.had_session):
            names = ["session_id"]
            await self.database.insert_rows(
                connection, self._tables.sessions, names, [(key.session,)]
            )
        kept_ids = {id(row) for row in old.rows} - {id(row) for row in known.values()}
        if old.is_plain:
            await self._delete(connection, self._tables.messages, known)
            await self._place_plain(connection, key, rows, kept_ids)
            return
        await self._delete(connection, STRUCTURE, known)
        await self._place(connection, key, rows, kept_ids)
        await self._drop_orphans(connection, key, {row.message for row in known.values()})
        turns = {row.turn for row in rows if id(row) in kept_ids or row.id is not None}
        await self._save_usage(connection, key, snapshot, old, turns)

    async def _place_plain(
        self, connection: AsyncConnection, key: MemoryKey, rows: Sequence[Row], kept: set[int]
    ) -> None:
        wanted = (row.message for row in rows if id(row) not in kept)
        ids = await self._ids(connection, self._tables.messages, wanted)
        last = 0
        new: list[Row] = []
        moved: list[int | None] = []
        for row in rows:
            stays = row.message is not None and row.message > last
            if id(row) not in kept or not stays:
                moved += [row.message] if id(row) in kept else []
                row.message = ids.take(row.message if stays else None)
                new.append(row)
            assert row.message is not None
            last = row.message
        await self._delete(connection, self._tables.messages, moved)
        await self._insert_messages(connection, key, new)

    async def _place(
        self, connection: AsyncConnection, key: MemoryKey, rows: Sequence[Row], kept: set[int]
    ) -> None:
        """Number the messages of a branch in the order of ``rows``, and insert missing messages.

        ``kept`` has ``id(row)`` of each message that the branch has already.  A restored message
        gets the number that it had before.  A new message gets a number above all numbers of the
        session, and the messages after it get still higher numbers.  The SDK numbers new messages
        in the same way (``_insert_structure_metadata``).
        """
        sql = f"SELECT COALESCE(MAX(sequence_number), 0) FROM {STRUCTURE} WHERE session_id = :s"
        [[top]] = await self.database.fetch_all(connection, sql, {"s": key.session})
        last, turn, branch_turn = 0, 0, 0
        moved: list[tuple[int, int | None]] = []
        new: list[Row] = []
        for row in rows:
            is_new = row.id is None
            stays = not is_new and row.sequence > last
            place = row.sequence if stays else max(top, last) + 1
            top, last = max(top, place), place
            if is_new:
                asks = row.item.get("role") == "user"
                row.turn, row.branch_turn = turn + asks, branch_turn + asks
            turn, branch_turn = max(turn, row.turn or 0), max(branch_turn, row.branch_turn or 0)
            if id(row) not in kept:
                new.append(row)
            elif place != row.sequence:
                moved.append((place, row.id))
            row.sequence = place
        if moved:
            sql = f"UPDATE {STRUCTURE} SET sequence_number = ? WHERE id = ?"
            updated = await self.database.change_many(connection, sql, moved)
            self.database.check_updated(STRUCTURE, len(moved), updated)
        await self._insert(connection, key, new)

    async def _insert(
        self, connection: AsyncConnection, key: MemoryKey, rows: Sequence[Row]
    ) -> None:
        stored = await self._stored(connection, key, rows)
        ids = await self._ids(connection, self._tables.messages, (row.message for row in rows))
        missing = [row for row in rows if stored.get(row.message) != row.data]
        for row in missing:
            row.message = ids.take(row.message)
        await self._insert_messages(connection, key, missing)
        numbers = await self._ids(connection, STRUCTURE, (row.id for row in rows))
        # A default of the table is no value, so rows with a time go apart from those without one.
        for is_placed, some in groupby(rows, lambda row: row.placed is not None):
            values = [
                (
                    *(numbers.take(row.id), key.session, row.message, self._branch(key)),
                    *(row.type, row.sequence, row.turn, row.branch_turn, row.tool),
                    *([row.placed] if is_placed else []),
                )
                for row in some
            ]
            names = BRANCH_COLUMNS if is_placed else BRANCH_COLUMNS[:-1]
            await self.database.insert_rows(connection, STRUCTURE, names, values)

    async def _insert_messages(
        self, connection: AsyncConnection, key: MemoryKey, rows: Sequence[Row]
    ) -> None:
        values = [(row.message, key.session, row.data, row.created) for row in rows]
        if values:
            await self.database.insert_rows(connection, self._tables.messages, _MESSAGE, values)

    async def _stored(
        self, connection: AsyncConnection, key: MemoryKey, rows: Sequence[Row]
    ) -> dict[int | None, Any]:
        found: dict[int | None, Any] = {}
        sql = (
            f"SELECT id, message_data FROM {self._quoted(self._tables.messages)} "
            "WHERE session_id = :session AND id IN :some"
        )
        for some in pieces([row.message for row in rows if row.message is not None]):
            values = {"session": key.session, "some": some}
            found |= dict(await self.database.fetch_all(connection, sql, values))
        return found

    async def _ids(
        self, connection: AsyncConnection, table: str, wanted: Iterable[int | None]
    ) -> _Ids:
        """Return the ids that new rows of a table may get; ``wanted`` are ids of restored rows."""
        sql = f"SELECT COALESCE(MAX(id), 0) FROM {self._quoted(table)}"
        [[most]] = await self.database.fetch_all(connection, sql, {})
        sql = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = :table"
        [[given]] = await self.database.fetch_all(connection, sql, {"table": table})
        taken: set[int] = set()
        sql = f"SELECT id FROM {self._quoted(table)} WHERE id IN :some"
        for some in pieces([id for id in wanted if id is not None]):
            taken |= {
                id for (id,) in await self.database.fetch_all(connection, sql, {"some": some})
            }
        return _Ids(taken, max(most, given) + 1)

    async def _delete(
        self, connection: AsyncConnection, table: str, ids: Iterable[int | None]
    ) -> None:
        if found := [(id,) for id in ids]:
            sql = f"DELETE FROM {self.database.syntax.identifier(table)} WHERE id = ?"
            deleted = await self.database.change_many(connection, sql, found)
            self.database.check_deleted(table, len(found), deleted)

    async def _drop_orphans(
        self, connection: AsyncConnection, key: MemoryKey, ids: Iterable[int | None]
    ) -> None:
        sql = (
            f"SELECT m.id FROM {self._quoted(self._tables.messages)} m WHERE m.id IN :some "
            "AND m.session_id = :session "
            f"AND NOT EXISTS (SELECT 1 FROM {STRUCTURE} s WHERE s.message_id = m.id)"
        )
        for some in pieces(list(ids)):
            values = {"session": key.session, "some": some}
            found = await self.database.fetch_all(connection, sql, values)
            await self._delete(connection, self._tables.messages, [id for (id,) in found])

    async def _save_usage(
        self,
        connection: AsyncConnection,
        key: MemoryKey,
        snapshot: Snapshot,
        old: Held,
        turns: set[int | None],
    ) -> None:
        """Adapt ``turn_usage``, the table of used tokens, to the turns of a branch.

        Deletes the rows of turns that are not in ``turns``, as ``pop_item`` of the SDK does.  If
        ``snapshot`` is from an undo, inserts the deleted rows of ``turns`` again.  ``old`` is the
        branch before the change.
        """
        gone = [one["id"] for one in old.usage if one["user_turn_number"] not in turns]
        await self._delete(connection, USAGE, gone)
        left = {one["user_turn_number"] for one in old.usage} & turns
        restored = snapshot.usage if isinstance(snapshot, Restored) else []
        ids = await self._ids(connection, USAGE, (one["id"] for one in restored))
        for one in restored:
            if one["user_turn_number"] in turns - left:
                row = {"session_id": key.session, "branch_id": self._branch(key)} | one
                row["id"] = ids.take(one["id"])
                await self.database.insert_rows(connection, USAGE, list(row), [tuple(row.values())])

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        async with self.changing() as connection:
            there = await self._expected(connection, key, expect)
            await self._save(connection, key, Snapshot(Memory(key), []), there)
            messages, sessions = map(self._quoted, self._tables[::-1])
            where = Condition("m.session_id IN :sessions", {"sessions": [key.session]})
            used = await self._has(connection, messages, key) or (
                await self.database.has_added_value(
                    connection, self._tables.sessions, _SESSION, where
                )
            )
            if not used:
                rows = int(await self._has(connection, sessions, key))
                sql = f"DELETE FROM {sessions} WHERE session_id = :session"
                deleted = await self.database.change(connection, sql, {"session": key.session})
                self.database.check_deleted(self._tables.sessions, rows, deleted)

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        tables = await self._all_tables()
        found: set[MemoryKey] = set()
        async with self.database.snapshot() as connection:
            for table in tables:
                sql = f"SELECT DISTINCT session_id FROM {table}"
                rows = await self.database.fetch_all(connection, sql, {})
                found |= {self._key(session) for (session,) in rows}
        for key in sorted(found):
            if where.has_key(key):
                yield key

    async def _all_tables(self) -> list[str]:
        there = await self.database.run(lambda connection: inspect(connection).get_table_names())
        return [*sorted(BRANCH_TABLES.intersection(there)), *map(self._quoted, self._tables[::-1])]

    async def _erase(self, key: MemoryKey) -> WriteResult:
        tables = await self._all_tables()
        gone = 0
        async with self.database.connect() as connection, self.database.erasing(connection):
            for table in tables:
                sql = f"DELETE FROM {table} WHERE session_id = :session"
                statement = self.database.syntax.bind(sql, {"session": key.session})
                deleted = (await connection.execute(*statement)).rowcount
                gone += deleted if table == self._quoted(self._tables.messages) else 0
        return WriteResult(key, deleted=gone)

    # Checking

    def maintenance(self) -> Maintenance:
        return BranchMaintenance(self)

    async def outside(self) -> dict[MemoryKey, int]:
        """Return the number of messages that no branch contains, by session.

        The result lacks sessions without such messages.
        """
        messages = self._quoted(self._tables.messages)
        sql = (
            f"SELECT m.session_id, COUNT(*) FROM {messages} m WHERE NOT EXISTS "
            f"(SELECT 1 FROM {STRUCTURE} s WHERE s.message_id = m.id) GROUP BY m.session_id"
        )
        async with self.database.snapshot() as connection:
            rows = await self.database.fetch_all(connection, sql, {})
        return {self._key(session): count for session, count in rows}


class BranchMaintenance(Maintenance):
    """The checks of branches: finds messages that no branch contains."""

    store: BranchStore

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        for finding in dict.fromkeys(self.store.damage):
            if where.leads if finding.key is None else where.has_key(finding.key):
                yield finding
        for key, count in (await self.store.outside()).items():
            if where.has_key(key):
                yield Finding("outside-branches", key, count)


def _create(tables: BranchTables, quoted: Callable[[str], str], connection: Connection) -> None:
    names = {"sessions": quoted(tables.sessions), "messages": quoted(tables.messages)}
    names["index"] = quoted(f"idx_{tables.messages}_session_id")
    for statement in _CREATE.format(**names).split(";\n"):
        connection.execute(text(statement))


def _parsed(data: Any, created: Any, message: int, *place: Any) -> Row:
    """Make a ``Row`` from the columns of a stored message.

    ``data`` is the stored text of the item, ``created`` its time, ``message`` its id.  ``place``
    are the columns of its row in ``message_structure``; without such a row, ``place`` is empty.

    Raises:
        BadData: ``data`` is not a JSON object, or a column has a value of a wrong type.
    """
    if not isinstance(data, str) or not is_text(data):
        raise BadData(f"the item {message} is not a text")
    try:
        item = jsonio.loads(data.encode())
    except ValueError as error:
        raise BadData(f"the item {message} is not JSON: {error}") from error
    if not isinstance(item, dict):
        raise BadData(f"the item {message} is not a JSON object")
    if why := OPENAI_AGENTS.foreign(item):
        raise BadData(f"the item {message} {why}")
    id, sequence, turn, branch_turn, placed, *kind = place or (None, 0, None, None, None, "", None)
    numbers = (turn, branch_turn)
    if not (isinstance(sequence, int) and all(isinstance(one, int | None) for one in numbers)):
        raise BadData(f"the item {message} has no number as its place or turn")
    texts = (created, placed, *kind)
    if not all(isinstance(one, str | None) and is_text(one or "") for one in texts):
        raise BadData(f"the item {message} has no text as its time, its type or its tool")
    return Row(item, data, created, message, id, sequence, turn, branch_turn, placed, *kind)


def _entry(row: Row) -> StoredMessage:
    value: dict[str, Any] = {}
    time = _TIMES.read(row.created)
    if time is not None:
        value[TIME] = time
    value[CONTENT] = row.item
    return StoredMessage(OPENAI_AGENTS.message_id(value), jsonio.dumps(value), shape=row.shape())


def _shaped(entry: StoredMessage) -> Row | None:
    match of_shape(entry.shape).get(_SHAPE) if entry.shape else None:
        case [int(message), created, id, int(sequence), turn, branch_turn, placed, kind, tool]:
            about = (turn, branch_turn, placed, kind, tool)
            return Row({}, "", created, message, id, sequence, *about)
    return None


def _row(entry: StoredMessage, shaped: Row | None) -> Row:
    """Return the row to insert for a message.

    The columns are those of ``shaped``, the row in the shape of the message.  If ``shaped`` is
    None, they are made from the message.

    Raises:
        Rejected: the message is not an item of the SDK, or has marks or fields without a column.
    """
    value = jsonio.loads(entry.message)
    item = value.get(CONTENT) if isinstance(value, dict) else None
    if not isinstance(item, dict):
        raise Rejected("refused", f"the message {entry.id!r} is not an item of the SDK")
    lost = [name for name in value if name not in (CONTENT, TIME, METADATA, EXTRA)]
    lost += [*(value.get(METADATA) or ()), *(value.get(EXTRA) or ())]
    if entry.marks or lost:
        what = "marks" if entry.marks else repr(lost[0])
        text = f"the tables have no place for {what}, which the message {entry.id!r} has"
        raise Rejected("refused", text)
    data = json.dumps(item)
    if shaped is not None:
        return replace(shaped, item=item, data=data)
    created = _TIMES.write(value.get(TIME))
    row = Row(item, data, created, placed=created)
    row.classify()
    return row
