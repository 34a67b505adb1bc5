"""Sessions with branches: the OpenAI Agents SDK's ``AdvancedSQLiteSession``.

All branches of a session share the table of messages.  A row of ``message_structure`` gives a
message a position in a branch.  Several branches may share a message.  The first branch of each
session, ``main``, is the memory of the session.  Further branches are parts of the session.  A
session without rows of ``message_structure`` is a session of ``SQLiteSession``.

Source: ``extensions/memory/advanced_sqlite_session.py`` of openai-agents 0.24.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from memctl.dialects.agentscope import CONTENT, string
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.rows import EXTRA, METADATA, TIME
from memctl.engines.sql.columns import TimeFormat
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import decoded, is_text
from memctl.engines.sql.inspector import inspect
from memctl.engines.sql.rows.store import Listed, RowStore
from memctl.engines.sql.rows.tables import FILLED, Key, Rows, RowTable
from memctl.engines.sql.rows.tables import Row as TableRow
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
from memctl.model import Edit, Finding, Memory, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Features, Maintenance, OpenMode
from memctl.storekit.batching import Small
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import MADE, Rejected, not_owned

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
_USAGE = (
    *("id", "user_turn_number", "requests", "input_tokens", "output_tokens"),
    *("total_tokens", "input_tokens_details", "output_tokens_details", "created_at"),
)
"""The columns of ``turn_usage``, without those that name the session and the branch."""
_IDS = "ids of "
"""The beginning of a name for the ids of a table that new rows may not get.

By the key ``()``, there is an id greater than all that the table has or had.
"""
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


class Row(Struct):
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


class Held(Snapshot, frozen=True):
    """A stored branch with its rows."""

    rows: list[Row] = field(default_factory=list)


class BranchStore(RowStore):
    """The branches of sessions of the OpenAI Agents SDK.

    ``?table=`` names the table of messages.  ``?owner=`` names the user of all sessions.
    """

    features = Features(
        marks=frozenset(),
        duplicate_ids=True,
        session_owners=True,
        parts=True,
        renames=frozenset({"session"}),
        selects_texts=True,
    )
    dialect = OPENAI_AGENTS
    damage_code = "damaged-state"
    misnamed = "its name is not valid UTF-8"
    own_tables = BRANCH_TABLES

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._quoted = self.database.syntax.quoted
        self._owner = location.options.get("owner", "")
        self._path = location.options.get("path", MAIN)
        """The branch that is the memory of a session."""
        self._tables = BranchTables(SESSIONS, location.options.get("table", MESSAGES))
        self._single = "path" in location.options

    async def identity(self) -> str:
        return f"{await self.database.identity()}#{self._tables.messages}"

    async def prepare(self) -> None:
        found = await self.database.look(branch_tables)
        if found is None:
            if not self.mode.creates:
                raise Uninitialised(
                    f"{self.label} has no table {STRUCTURE!r}",
                    "AdvancedSQLiteSession makes it with create_tables=True; sessions of "
                    "SQLiteSession are ?layout=openai-agents",
                )
            await self.database.create(partial(_create, self._tables, self._quoted))
            found = await self.database.look(branch_tables)
        wanted = self.location.options.get("table", "")
        if found is None or (wanted and found.messages.lower() != wanted.lower()):
            text = f"the branches of {self.label} are not those of {self._tables.messages!r}"
            raise BadData(text, "a file has branches of one table, which ?table= need not name")
        self._tables = found
        self.head, self.log, self._structure, self._usage = self.tables = (
            _row_table(found.sessions, ("session_id", "created_at", "updated_at"), ()),
            _row_table(found.messages, ("id", "session_id", "message_data", "created_at"), ("id",)),
            _row_table(STRUCTURE, BRANCH_COLUMNS, ("sequence_number", "id")),
            _row_table(
                USAGE, ("id", "session_id", "branch_id", *_USAGE[1:]), ("user_turn_number",)
            ),
        )
        there = await self.database.look(lambda connection: inspect(connection).get_table_names())
        more = sorted(BRANCH_TABLES.intersection(there) - {STRUCTURE, USAGE})
        self.erased = tuple(_row_table(name, ("session_id",), ()) for name in more)

    # Reading

    async def stored(self, shard: Shard | None = None) -> list[Listed]:
        names = (self._quoted(table.name) for table in (*self.tables, *self.erased))
        sql = " UNION ".join(f"SELECT session_id, 0 FROM {name}" for name in names)
        async with self.database.snapshot(shard) as connection:
            return await self._sessions(connection, sql)

    async def listed(
        self,
        connection: AsyncConnection,
        where: Selection,  # noqa: ARG002 - the caller selects
    ) -> AsyncGenerator[Listed]:
        messages = self._quoted(self.log.name)
        sql = f"SELECT session_id, COUNT(*) FROM {messages} GROUP BY session_id"
        for one in await self._sessions(connection, sql):
            yield one

    async def _sessions(self, connection: AsyncConnection, sql: str) -> list[Listed]:
        rows = await self.database.fetch_all(connection, sql, {})
        found = (Listed(session, self._owner, 0, count) for session, count in rows)
        return sorted(found, key=lambda one: one.key)

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        messages = self._quoted(self.log.name)
        sql = (
            f"SELECT s.session_id, s.branch_id FROM {STRUCTURE} s JOIN {messages} m "
            "ON m.id = s.message_id AND m.session_id = s.session_id "
            f"UNION SELECT m.session_id, :main FROM {messages} m WHERE NOT EXISTS "
            f"(SELECT 1 FROM {STRUCTURE} s WHERE s.session_id = m.session_id)"
        )
        async with self.database.snapshot(where.shard) as connection:
            rows = await self.database.fetch_all(connection, sql, {"main": MAIN})
        for key in sorted(self._key(*row) for row in rows):
            if where.has_key(key) and not (key.part and self._single):
                yield key

    def keys_in(self, session: str, rows: Rows) -> list[MemoryKey]:
        messages, structure = rows[self.log.name], rows[STRUCTURE].values()
        branches = {row[3] for row in structure if (row[2],) in messages}
        if messages and not structure:
            branches = {MAIN}
        found = sorted(self._key(session, branch) for branch in branches)
        return [key for key in found if not (key.part and self._single)]

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

    def read_rows(self, key: MemoryKey, rows: Rows, bad: list[str]) -> Snapshot | None:
        try:
            if not is_text(key.part):
                raise BadData(self.misnamed)
            placed = self._placed(key, rows)
        except BadData as error:
            bad.append(error.message)
            return None
        return Held(Memory(key), list(map(_entry, placed)), rows=placed)

    def _is_plain(self, key: MemoryKey, rows: Rows) -> bool:
        """Return whether a memory is a session of ``SQLiteSession``, without branches."""
        return self._branch(key) == MAIN and bool(rows[self.log.name]) and not rows[STRUCTURE]

    def _placed(self, key: MemoryKey, rows: Rows) -> list[Row]:
        """Return the messages of a branch in order.

        Raises:
            BadData: a row is damaged.
        """
        messages = rows[self.log.name]
        if self._is_plain(key, rows):
            return [_parsed(data, created, id) for id, _, data, created in messages.values()]
        found = []
        for id, _, message, branch, kind, *numbers, tool, placed in rows[STRUCTURE].values():
            there = messages.get((message,))
            if there is not None and branch == self._branch(key):
                found.append(_parsed(there[2], there[3], message, id, *numbers, placed, kind, tool))
        return found

    # Changing

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

    async def around(self, connection: AsyncConnection, tasks: Sequence[Small | Edit]) -> Rows:
        shapes: list[str] = []
        usage: set[Any] = set()
        for task in tasks:
            if isinstance(task, Small):
                shapes += [entry.shape for entry in task.entries]
            else:
                shapes += [change.shape for change in task.changes if change.old is None]
                usage |= {one["id"] for one in of_shape(task.before).get("usage", ())}
        places = [row for row in map(_shaped, shapes) if row is not None]
        found: Rows = {}
        for table, wanted in (
            (self.log, {row.message for row in places}),
            (self._structure, {row.id for row in places}),
            (self._usage, usage),
        ):
            taken = await self.rows.find(connection, table, wanted - {None})
            sql = f"SELECT COALESCE(MAX(id), 0) FROM {self._quoted(table.name)}"
            [[most]] = await self.database.fetch_all(connection, sql, {})
            sql = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = :table"
            [[given]] = await self.database.fetch_all(connection, sql, {"table": table.name})
            found[_IDS + table.name] = {**taken, (): (max(most, given) + 1,)}
        return found

    def changed_rows(
        self, key: MemoryKey, rows: Rows, there: Snapshot, new: Snapshot, undone: str | None
    ) -> tuple[Rows, str]:
        sessions, messages = rows[self.head.name], rows[self.log.name]
        plain, about = self._is_plain(key, rows), of_shape(undone or "")
        if self._branch(key) != MAIN and messages and not rows[STRUCTURE]:
            raise Rejected("refused", "its session is one of SQLiteSession, without branches")
        old = there.rows if isinstance(there, Held) else []
        known = {row.message if plain else row.id: row for row in old}
        texts = {id(row): entry.message for row, entry in zip(old, there.messages, strict=True)}
        wanted: list[Row] = []
        for entry in new.messages:
            shaped = _shaped(entry.shape)
            name = None if shaped is None else shaped.message if plain else shaped.id
            kept = known.get(name)
            if kept is None or texts[id(kept)] != entry.message:
                wanted.append(_row(entry, shaped))
            else:
                wanted.append(known.pop(name))
        stay = {id(row) for row in old} - {id(row) for row in known.values()}
        makes = not sessions and not old
        found: Rows = {}
        if makes and not about.get("bare"):
            found[self.head.name] = {(key.session,): (key.session, FILLED, FILLED)}
        lost: dict[str, Any] = {} if sessions else {"bare": True}
        if plain:
            found[self.log.name] = self._plain(key, rows, wanted, stay)
        else:
            found |= self._place(key, rows, wanted, stay)
            used = {row[2] for row in found[STRUCTURE].values()}
            for row in known.values():
                if row.message not in used:
                    found[self.log.name].pop((row.message,), None)
            turns = {row.turn for row in wanted if id(row) in stay or row.id is not None}
            found[USAGE], gone = self._kept_usage(key, rows, turns, about)
            lost |= {"usage": gone} if gone else {}
        if makes or (undone is None and not sessions):
            return found, MADE
        return found, jsonio.compact(lost).decode() if lost and known and undone is not None else ""

    def made_rows(self, key: MemoryKey, rows: Rows, undone: str) -> list[tuple[RowTable, Key]]:
        if undone != MADE or rows[self.log.name]:
            return []
        return [(self.head, (key.session,))]

    def _plain(
        self, key: MemoryKey, rows: Rows, wanted: Sequence[Row], stay: set[int]
    ) -> dict[Key, TableRow]:
        """Return the messages of a session without branches; ``stay`` has ``id(row)`` of some."""
        found: dict[Key, TableRow] = {}
        last = 0
        for row in wanted:
            stays = row.message is not None and row.message > last
            if stays and id(row) in stay:
                found[(row.message,)] = rows[self.log.name][(row.message,)]
            else:
                row.message = _take(rows[_IDS + self.log.name], row.message if stays else None)
                found[(row.message,)] = (row.message, key.session, row.data, row.created)
            last = row.message or last
        return found

    def _place(self, key: MemoryKey, rows: Rows, wanted: Sequence[Row], stay: set[int]) -> Rows:
        """Number the messages of a branch in the order of ``wanted``, and add missing messages.

        ``stay`` has ``id(row)`` of each message that the branch has already.  A restored message
        gets the number that it had before.  A new message gets a number above all numbers of the
        session, and the messages after it get still higher numbers.  The SDK numbers new messages
        in the same way (``_insert_structure_metadata``).
        """
        branch, messages, there = self._branch(key), dict(rows[self.log.name]), rows[STRUCTURE]
        structure = {
            id: row
            for id, row in there.items()
            if row[3] != branch or (row[2],) not in rows[self.log.name]
        }
        top = max((row[5] for row in there.values() if isinstance(row[5], int)), default=0)
        last, turn, branch_turn = 0, 0, 0
        for row in wanted:
            is_new = row.id is None
            place = row.sequence if not is_new and row.sequence > last else max(top, last) + 1
            top, last = max(top, place), place
            if is_new:
                asks = row.item.get("role") == "user"
                row.turn, row.branch_turn = turn + asks, branch_turn + asks
            turn, branch_turn = max(turn, row.turn or 0), max(branch_turn, row.branch_turn or 0)
            if id(row) in stay:
                was = there[(row.id,)]
                structure[(row.id,)] = was if was[5] == place else (*was[:5], place, *was[6:])
                continue
            stored = messages.get((row.message,))
            if stored is None or stored[2] != row.data:
                row.message = _take(rows[_IDS + self.log.name], row.message)
                messages[(row.message,)] = (row.message, key.session, row.data, row.created)
            number = _take(rows[_IDS + STRUCTURE], row.id)
            placed = FILLED if row.placed is None else row.placed
            more = (row.type, place, row.turn, row.branch_turn, row.tool, placed)
            structure[(number,)] = (number, key.session, row.message, branch, *more)
        return {self.log.name: messages, STRUCTURE: structure}

    def _kept_usage(
        self, key: MemoryKey, rows: Rows, turns: set[int | None], undone: dict[str, Any]
    ) -> tuple[dict[Key, TableRow], list[dict[str, Any]]]:
        """Return ``turn_usage``, the used tokens, for the turns of a branch, and what is dropped.

        The rows of other turns are dropped, as ``pop_item`` of the SDK does.  The rows of ``turns``
        that the undone change dropped are back.
        """
        branch, there = self._branch(key), rows[USAGE]
        gone = {id: row for id, row in there.items() if row[2] == branch and row[3] not in turns}
        found = {id: row for id, row in there.items() if id not in gone}
        left = {row[3] for row in found.values() if row[2] == branch}
        for one in undone.get("usage", ()):
            if one["user_turn_number"] in turns - left:
                number = _take(rows[_IDS + USAGE], one["id"])
                more = (one[name] for name in _USAGE[1:])
                found[(number,)] = (number, key.session, branch, *more)
        return found, [dict(zip(_USAGE, (row[0], *row[3:]), strict=True)) for row in gone.values()]

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
        async with self.database.snapshot(long=True) as connection:
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


def _row_table(name: str, columns: tuple[str, ...], order: tuple[str, ...]) -> RowTable:
    return RowTable(name, key=columns[:1], columns=columns, session="session_id", order=order)


def _take(ids: dict[Key, TableRow], wanted: int | None) -> int:
    """Return the id ``wanted`` if it is free, else (or if None) the next free id; see ``_IDS``."""
    [following] = ids[()]
    id: int = following if wanted is None or (wanted,) in ids else wanted
    ids |= {(id,): (), (): (max(following, id + 1),)}
    return id


def _create(tables: BranchTables, quoted: Callable[[str], str], connection: Connection) -> None:
    names = {"sessions": quoted(tables.sessions), "messages": quoted(tables.messages)}
    names["index"] = quoted(f"idx_{tables.messages}_session_id")
    from sqlalchemy import text  # only to create tables

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


def _shaped(shape: str) -> Row | None:
    match of_shape(shape).get(_SHAPE) if shape else None:
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
