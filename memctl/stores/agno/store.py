"""The sessions of Agno in any SQL database.

A session is a row of ``agno_sessions``.  A turn is a row of ``agno_runs``: the column ``run_data``
holds the messages.  ``memctl.stores.agno.runs`` explains how runs become messages of a memory.
``Memory.extra`` is a JSON object: ``session`` holds the other columns of the session, ``aside``
holds the runs that Agno leaves out of the history.

Sources: ``db/sqlite``, ``db/postgres`` and ``db/mysql`` (``schemas.py``, ``upsert_session``,
``upsert_run``) of agno 3.1.10.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    ForeignKey,
    Index,
    MetaData,
    String,
    Table,
    inspect,
)
from sqlalchemy import Column as TableColumn
from sqlalchemy.dialects.postgresql import JSONB

from memctl.dialects.agentscope import CONTENT
from memctl.dialects.agno import AGNO
from memctl.engines.sql.columns import Column, columns_of, find_unrestorable, shown, types_of
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, decoded, is_text
from memctl.engines.sql.schema import create_missing
from memctl.engines.sql.simple import SqlSimpleStore
from memctl.engines.sql.syntax import session_condition
from memctl.errors import BadData, Uninitialised
from memctl.json import jsonio
from memctl.layouts.sql import AGNO_RUNS, AGNO_SESSIONS
from memctl.location import Location, visible
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import Deletion, Features, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected, VersionChanged
from memctl.stores.agno.runs import (
    Regrouping,
    Run,
    begins_run,
    entries,
    is_one_run,
    made_id,
    parse_document,
    parse_run,
    run_of,
    with_copies,
    without_copies,
)

_BACKUP = "runs"
"""The column for the runs of a session in Agno 2.  The migration to Agno 3 keeps the column."""
_JSON_COLUMNS = frozenset(
    {
        *("run_data", "session_data", "agent_data", "team_data", "workflow_data"),
        *("metadata", "summary", _BACKUP),
    }
)
_NAMES = ("session_id", "user_id")
_SUMMARY = "summary"
_AGENT = "agent"
_MIGRATE = "MigrationManager(db).up()"


@dataclass(frozen=True, slots=True)
class Held(Snapshot):
    """A stored session of Agno."""

    session: dict[str, Any] = field(default_factory=dict)
    """The columns of the row of the session."""
    runs: list[Run] = field(default_factory=list)
    backup: Any = None
    """The value of the column ``runs``, decoded once; see ``_backed_up``."""


@dataclass(frozen=True, slots=True)
class Restored(Snapshot):
    """A session to which an undo returns deleted messages."""

    backup: Any = None
    """The former value of the column ``runs``."""
    revised: frozenset[str] = frozenset()
    """The ids of the runs that the undone edit changed in the column ``runs``."""


class AgnoStore(SqlSimpleStore):
    """The sessions of Agno in a SQL database; each session is a memory.

    ``?table=`` names the table of sessions.  ``?agent=`` names the agent of new sessions.
    """

    features = Features(
        marks=frozenset(), summaries=True, empty=True, duplicate_ids=True, session_owners=True
    )
    dialect = AGNO

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._sessions = location.options.get("table", AGNO_SESSIONS)
        custom = "table" in location.options
        self._runs = f"{self._sessions}_runs" if custom else AGNO_RUNS
        self._agent = location.options.get("agent")
        self._columns: dict[str, dict[str, Column]] = {}
        self._odd: set[MemoryKey] = set()
        """The sessions with names stored as bytes in SQLite.  No condition finds the rows."""
        self._quoted = self.database.syntax.quoted

    async def identity(self) -> str:
        return f"{await self.database.identity()}#{self._sessions}"

    async def prepare(self) -> None:
        names = (self._sessions, self._runs)
        look = partial(_examine, names, self.database)
        self._columns = await self.database.run(look)
        missing = [name for name in names if not self._columns[name]]
        if self._sessions in missing and not self.mode.creates:
            raise Uninitialised(
                f"{self.label} has no table {visible(self._sessions)!r}",
                "Agno makes it in the schema ai of PostgreSQL: add "
                "?options=-csearch_path%3Dai; a table of another name is ?table=NAME",
            )
        if self._runs in missing and _BACKUP in self._columns[self._sessions]:
            raise BadData(
                f"{self.label} holds sessions of Agno 2, which memctl does not read",
                f"migrate them with Agno 3: {_MIGRATE}",
            )
        if missing and self.mode.creates:
            await self.database.create(partial(_create, *names))
            self._columns = await self.database.run(look)
        declared = _tables(*names, MetaData())
        for table, columns in self._columns.items():
            own = declared[names.index(table)].columns.keys()
            lacking = [name for name in own if columns and name not in columns]
            if lacking:
                text = f"the table {visible(table)!r} of {self.label} has no column {lacking[0]!r}"
                raise BadData(text, "it is not a table of Agno 3")

    @property
    def changed_tables(self) -> Sequence[str]:
        return self._runs, self._sessions

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - rights of tables
        return await self.database.missing_right((self._runs,), locked=(self._sessions, self._runs))

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        tables = {self._runs: session_condition(where)}
        if deletion is not Deletion.MESSAGES:
            tables[self._sessions] = session_condition(where)
        return await self.database.side_effects(tables, {self._sessions})

    async def unrestorable(self, where: Selection) -> str:
        condition = session_condition(where)
        for table, columns in self._columns.items():
            found = await find_unrestorable(
                self.database, table, columns.values(), condition.sql, condition.values
            )
            if found:
                return found
        return ""

    # Reading

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        async with self.database.snapshot() as connection:
            found = await self._keys(connection)
        for key in found:
            yield key

    async def _keys(self, connection: AsyncConnection) -> list[MemoryKey]:
        quoted = self._quoted
        sql = f"SELECT {quoted('session_id')}, {quoted('user_id')} FROM {quoted(self._sessions)}"
        rows = await self.database.fetch_all(connection, sql, {})
        found = {MemoryKey(_name(user), _name(session)): (session, user) for session, user in rows}
        self._odd = {key for key, names in found.items() if bytes in map(type, names)}
        return sorted(found)

    async def load(self, key: MemoryKey) -> Held | None:
        if key in self._odd:
            raise BadData(
                f"a row of {visible(self._sessions)!r} names it with a value that is not a text"
            )
        async with self.reading() as connection:
            return await self._load(connection, key)

    async def _load(
        self, connection: AsyncConnection, key: MemoryKey, lock: str = ""
    ) -> Held | None:
        rows = await self._rows(connection, self._sessions, key.session, "", lock)
        if not rows or (rows[0]["user_id"] or "") != key.user or key.part:
            return None
        [session] = rows
        found: list[dict[str, Any]] = []
        if self._columns[self._runs]:
            order = ", ".join(map(self._quoted, ("run_index", "created_at", "run_id")))
            found = await self._rows(connection, self._runs, key.session, f"ORDER BY {order}", lock)
        version = blake2b(jsonio.dumps([session, found]), digest_size=16).hexdigest()
        backup = session.pop(_BACKUP, None)
        there = {row["run_id"] for row in found}
        if any(id not in there for id in _ids(_backed_up(backup))):
            raise BadData(
                f"some of its runs are in the column {_BACKUP!r} alone, where Agno 2 keeps them: "
                f"migrate them with Agno 3, {_MIGRATE}"
            )
        owner = {"session_id": key.session, "user_id": key.user}
        runs = [parse_run(row, owner) for row in found]
        messages: list[StoredMessage] = []
        last: Run | None = None
        for run in runs:
            if not run.is_aside:
                messages += entries(run, as_made=_as_made(key, session, run, last))
                last = run
        memory = Memory(key, _summary(session), extra=_extra(session, runs), version=version)
        return Held(memory, messages, session=session, runs=runs, backup=backup)

    async def _rows(
        self, connection: AsyncConnection, table: str, session: str, order: str, lock: str
    ) -> list[dict[str, Any]]:
        """Return the rows of ``table`` for a session, each as values by column."""
        quoted, syntax = self._quoted, self.database.syntax
        own = self._columns[table]
        columns = [
            f"CAST({quoted(name)} AS {syntax.text_type})"
            if name in _JSON_COLUMNS
            else column.selected(quoted(name))
            for name, column in own.items()
        ]
        condition = f"{syntax.exact(quoted('session_id'))} = :session"
        sql = f"SELECT {', '.join(columns)} FROM {quoted(table)} WHERE {condition} {order} {lock}"
        rows = await self.database.fetch_all(connection, sql, {"session": session})
        return [
            {
                name: _decoded(table, column, value)
                for (name, column), value in zip(own.items(), row, strict=True)
            }
            for row in rows
        ]

    # Writing

    def drop_extras(self, there: Snapshot, left: Snapshot) -> tuple[Snapshot, str]:
        stay = {entry.id for entry in left.messages}
        gone = [entry for entry in there.messages if entry.id not in stay]
        messages, kept = without_copies(left.messages, gone)
        about: dict[str, Any] = {"copies": kept} if kept else {}
        if isinstance(there, Held):
            touched = {run_of(entry) for entry in gone} | kept.keys()
            revised = {id for id in _ids(_backed_up(there.backup)) if id in touched}
            about |= {"backup": there.backup, "revised": sorted(revised)} if revised else {}
        text = jsonio.compact(about).decode() if about else ""
        return replace(left, messages=messages), text

    def restore_extras(self, left: Snapshot, before: str) -> Snapshot:
        if not before.startswith("{"):
            return left
        about = jsonio.loads(before.encode())
        messages = with_copies(left.messages, about.get("copies", {}))
        revised = frozenset(about.get("revised", ()))
        return Restored(left.memory, messages, left.exists, about.get("backup"), revised)

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        if key.part:
            raise Rejected("bad-name", f"a session is one memory, without a part like {key.part!r}")
        async with self.changing() as connection:
            there = await self._expected(connection, key, expect)
            await self._save(connection, key, snapshot, there)

    async def _expected(
        self, connection: AsyncConnection, key: MemoryKey, expect: str | None
    ) -> Held | None:
        """Lock a session before a change, and return it; None if it does not exist.

        Raises:
            VersionChanged: the stored version is not ``expect``; None stands for a missing session.
            Rejected: the session belongs to another user, or has runs but no row.
        """
        row_lock = self.database.syntax.row_lock
        there = await self._load(connection, key, row_lock)
        if (there.memory.version if there else None) != expect:
            raise VersionChanged
        if there is None:
            rows = await self._rows(connection, self._sessions, key.session, "", row_lock)
            if rows:
                text = f"the session {key.session!r} belongs to {rows[0]['user_id'] or ''!r}"
                raise Rejected("bad-name", text)
            if self._columns[self._runs] and await self._is_there(
                connection, "session_id", key.session
            ):
                text = (
                    f"{visible(self._runs)!r} has runs of {key.session!r}, which is not a session"
                )
                raise Rejected("refused", text)
        return there

    async def _save(
        self, connection: AsyncConnection, key: MemoryKey, snapshot: Snapshot, there: Held | None
    ) -> None:
        old = there.runs if there else []
        given, aside = _parse_extra(snapshot.memory.extra)
        runs = Regrouping(key.session, old).runs(snapshot.messages)
        session = await self._save_session(connection, key, snapshot, there, given)
        known = {run.id: run for run in old}
        wanted = {run.id for run in runs}
        for run in old:
            if not run.is_aside and run.id not in wanted:
                await self._delete(connection, self._runs, "run_id", run.id)
        await self._save_backup(connection, key, session, snapshot, there, runs)
        runs += [run for run in aside if run.id not in known and run.id not in wanted]
        last: tuple[Any, ...] = ()
        first = _first_index([(known.get(run.id) or run).columns for run in runs])
        for run in runs:
            before = known.get(run.id)
            columns = (before or run).columns
            index = columns.get("run_index")
            if not run.is_aside:
                behind = (columns.get("created_at", run.first_time), run.id)
                if (self._rank(index if columns else inf), *behind) <= last or not columns:
                    index = first if not last else last[0] + 1 if last[0] != inf else 0
                last = (self._rank(index), *behind)
            await self._save_run(connection, key, session, run, before, index)

    async def _save_backup(
        self,
        connection: AsyncConnection,
        key: MemoryKey,
        session: dict[str, Any],
        snapshot: Snapshot,
        there: Held | None,
        runs: Sequence[Run],
    ) -> None:
        """Update the column ``runs``, where Agno 2 kept the runs of a session, unless it is empty.

        Agno 3 reads both the column and the table of runs, and shows runs that only the column has.
        Therefore the column gets the same changes as the table; an undo restores the former value.

        ``there`` is the stored session, ``snapshot`` the session to write, and ``runs`` its runs.
        """
        if there is None or not there.backup:
            return
        backup = there.backup
        if isinstance(snapshot, Restored):
            if _without(snapshot.backup, snapshot.revised) == _without(backup, snapshot.revised):
                backup = snapshot.backup
        else:
            wanted = {run.id: run for run in runs}
            revised: dict[str, Any] = {}
            for run in there.runs:
                new = wanted.get(run.id)
                if new is None and not run.is_aside:
                    revised[run.id] = None
                elif new is not None and any(one not in new.messages for one in run.messages):
                    revised[run.id] = _run_data(key, session, replace(new, owned=run.owned))
            documents = [(run.id, _run_data(key, session, run)) for run in runs]
            backup = _in_order(_revised(backup, revised), documents)
        if backup != there.backup:
            changed = {_BACKUP: backup}
            await self._update(connection, self._sessions, "session_id", key.session, changed)

    def _rank(self, index: Any) -> Any:
        """Return a ``run_index`` as a number that sorts like the column.

        NULL becomes -1 or infinity, because the database sorts NULL first or last.
        """
        if index is None:
            return -1 if self.database.syntax.nulls_first else inf
        return index

    async def _save_session(
        self,
        connection: AsyncConnection,
        key: MemoryKey,
        snapshot: Snapshot,
        there: Held | None,
        given: dict[str, Any],
    ) -> dict[str, Any]:
        """Insert or update the row of a session; return the columns of the row.

        ``there`` is the stored session; None for a new session.  ``given`` are the columns in the
        ``Memory.extra`` of ``snapshot``.

        Raises:
            Rejected: the table lacks a given column, or a column does not take the value.
        """
        memory, now = snapshot.memory, int(time.time())
        kept = given.pop(_SUMMARY, None)
        columns = self._columns[self._sessions]
        if lost := next((name for name in given if name not in columns), None):
            raise Rejected(
                "refused", f"{visible(self._sessions)!r} has no column {visible(lost)!r}"
            )
        if there is None:
            row: dict[str, Any] = {"session_type": _AGENT, "created_at": now, "updated_at": now}
            row |= {"agent_id": self._agent} if self._agent else {}
            row |= given
            if memory.summary or kept:
                row[_SUMMARY] = _with_text(kept, memory.summary)
            named = {"session_id": key.session, "user_id": key.user or None} | row
            await self._insert(connection, self._sessions, named)
            return row
        changed = {
            name: value
            for name, value in given.items()
            if memory.extra != there.memory.extra and value != there.session.get(name)
        }
        if memory.summary is not None and memory.summary != _summary(there.session):
            own = there.session.get(_SUMMARY)
            changed[_SUMMARY] = _with_text(own if isinstance(own, dict) else kept, memory.summary)
        if changed:
            await self._update(connection, self._sessions, "session_id", key.session, changed)
        return there.session | changed

    async def _save_run(
        self,
        connection: AsyncConnection,
        key: MemoryKey,
        session: dict[str, Any],
        run: Run,
        before: Run | None,
        index: Any,
    ) -> None:
        """Insert or update the row of a run.

        ``session`` are the columns of the session.  ``before`` is the stored run; None for a new
        run.  ``index`` is the new ``run_index``.

        Raises:
            Rejected: a column is missing or does not take the value, or another session has the
                run.
        """
        if before is not None:
            row: dict[str, Any] = {}
            if run.messages != before.messages or (run.data != before.data and not run.is_made):
                whole = replace(before if run.is_made else run, messages=run.messages)
                whole = replace(whole, owned=before.owned)
                row["run_data"] = _run_data(key, session, whole)
            if index != before.columns.get("run_index"):
                row["run_index"] = index
            if row:
                await self._update(connection, self._runs, "run_id", run.id, row)
            return
        columns = {"user_id": key.user or None} | (run.columns or _columns_of_made(session, run))
        if lost := next((one for one in columns if one not in self._columns[self._runs]), None):
            raise _no_column(self._runs, lost)
        if await self._is_there(connection, "run_id", run.id):
            raise Rejected("refused", f"the run {run.id!r} is in another session already")
        columns |= {"run_id": run.id, "session_id": key.session, "run_index": index}
        columns["run_data"] = _run_data(key, session, run)
        await self._insert(connection, self._runs, columns)

    async def _is_there(self, connection: AsyncConnection, column: str, wanted: str) -> bool:
        quoted, exact = self._quoted, self.database.syntax.exact
        sql = f"SELECT 1 FROM {quoted(self._runs)} WHERE {exact(quoted(column))} = :wanted LIMIT 1"
        return bool(await self.database.fetch_all(connection, sql, {"wanted": wanted}))

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        async with self.changing(erases=True) as connection:
            if (there := await self._expected(connection, key, expect)) is not None:
                which = ("session_id", key.session)
                if there.runs:
                    await self._delete(connection, self._runs, *which, rows=len(there.runs))
                await self._delete(connection, self._sessions, *which)

    # Statements

    def _stored(self, table: str, values: dict[str, Any]) -> dict[str, Any]:
        """Convert the values of a row of ``table``, by column, for the database driver.

        Raises:
            Rejected: a column does not take its value.
        """
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name in _JSON_COLUMNS and value is not None:
                value = json.dumps(value)
            try:
                found[name] = self._columns[table][name].stored(value)
            except ValueError as error:
                raise Rejected("refused", f"the column {name!r} takes no {value!r}") from error
            if isinstance(found[name], dict | list):
                raise Rejected("refused", f"the column {name!r} takes no JSON")
        return found

    async def _insert(
        self, connection: AsyncConnection, table: str, values: dict[str, Any]
    ) -> None:
        stored = self._stored(table, values)
        names, rows = list(stored), [tuple(stored.values())]
        types = types_of(self._columns[table], names, rows)
        await self.database.insert_rows(connection, table, names, rows, types)

    async def _update(
        self,
        connection: AsyncConnection,
        table: str,
        name: str,
        wanted: str,
        values: dict[str, Any],
    ) -> None:
        quoted, syntax, own = self._quoted, self.database.syntax, self._columns[table]
        stored = self._stored(table, values)
        places = {f"v{at}": own[one].bound(value) for at, (one, value) in enumerate(stored.items())}
        changes = ", ".join(
            f"{quoted(column)} = {own[column].placed(f':{place}')}"
            for column, place in zip(stored, places, strict=True)
        )
        sql = f"UPDATE {quoted(table)} SET {changes} WHERE {syntax.exact(quoted(name))} = :wanted"
        done = await connection.execute(*syntax.bind(sql, places | {"wanted": wanted}))
        self.database.check_updated(table, 1, done.rowcount)

    async def _delete(
        self, connection: AsyncConnection, table: str, name: str, wanted: str, rows: int = 1
    ) -> None:
        syntax = self.database.syntax
        condition = f"{syntax.exact(self._quoted(name))} = :wanted"
        sql = f"DELETE FROM {self._quoted(table)} WHERE {condition}"
        done = await connection.execute(*syntax.bind(sql, {"wanted": wanted}))
        self.database.check_deleted(table, rows, done.rowcount)


def _backed_up(value: Any) -> list[Any]:
    """Return the runs in the column ``runs``; empty if it has none."""
    if isinstance(value, str):
        try:
            value = jsonio.loads(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return []
    return value if isinstance(value, list) else []


def _ids(runs: Sequence[Any]) -> list[str]:
    ids = (run.get("run_id") for run in runs if isinstance(run, dict))
    return [id for id in ids if isinstance(id, str)]


def _without(value: Any, ids: Collection[str]) -> list[Any]:
    return [run for run in _backed_up(value) if not ids or set(_ids([run])).isdisjoint(ids)]


def _revised(value: Any, revised: dict[str, Any]) -> Any:
    """Return the column ``runs`` with some runs replaced.

    ``revised`` has the new ``run_data`` by id of the run; None removes the run.
    """
    found = [revised.get(run["run_id"], run) if _ids([run]) else run for run in _backed_up(value)]
    if not any(id in revised for id in _ids(_backed_up(value))):
        return value
    return _like(value, [run for run in found if run is not None])


def _in_order(value: Any, runs: Sequence[tuple[str, Any]]) -> Any:
    """Return the column ``runs`` with missing runs inserted before the runs that follow them.

    ``runs`` are the ids and the ``run_data`` of all runs of the session, in order.  Missing runs at
    the end are not inserted.
    """
    found, missing = _backed_up(value), list[Any]()
    known = set(_ids(found))
    if not known:
        return value
    added = 0
    for id, data in runs:
        if id not in known:
            missing.append(data)
        elif missing:
            at = next(at for at, run in enumerate(found) if _ids([run]) == [id])
            found[at:at] = missing
            added, missing = added + len(missing), []
    return _like(value, found) if added else value


def _like(value: Any, runs: list[Any]) -> Any:
    return json.dumps(runs) if isinstance(value, str) else runs


def _no_column(table: str, name: str) -> Rejected:
    return Rejected("refused", f"{visible(table)!r} has no column {visible(name)!r}")


def _decoded(table: str, column: Column, value: Any) -> Any:
    """Return the value of a column; parse the value of a JSON column.

    Raises:
        BadData: the value is not UTF-8, or a JSON column has invalid JSON.
    """
    name = column.name
    if isinstance(value, str) and not is_text(value):
        raise BadData(f"the column {name!r} of {visible(table)!r} is not UTF-8")
    if name not in _JSON_COLUMNS or value is None:
        return shown(column.read(value))
    text = value if isinstance(value, bytes) else str(value).encode()
    try:
        found = jsonio.loads(text)
        # Agno 2 encodes a summary twice; Agno 3 reads both forms.
        twice = name == _SUMMARY and isinstance(found, str)
        return jsonio.loads(found.encode("utf-8", "surrogatepass")) if twice else found
    except ValueError as error:
        raise BadData(f"the column {name!r} of {visible(table)!r} is not JSON: {error}") from error


def _name(value: Any) -> str:
    return "" if value is None else decoded(value)


def _summary(session: dict[str, Any]) -> str:
    found = session.get(_SUMMARY)
    text = found.get(_SUMMARY) if isinstance(found, dict) else None
    return text if isinstance(text, str) else ""


def _with_text(summary: Any, text: str | None) -> dict[str, Any] | None:
    """Return the column ``summary`` with a new text; its other fields stay.

    Returns None if there is neither a text nor another field.
    """
    others = summary if isinstance(summary, dict) else {}
    return {**others, _SUMMARY: text} if text or others else None


def _extra(session: dict[str, Any], runs: Sequence[Run]) -> str:
    columns = {
        name: value
        for name, value in session.items()
        if value is not None and name not in (*_NAMES, _SUMMARY)
    }
    if columns.get("session_type") == _AGENT:
        del columns["session_type"]
    summary = session.get(_SUMMARY)
    if isinstance(summary, dict) and (more := {k: v for k, v in summary.items() if k != _SUMMARY}):
        columns[_SUMMARY] = more
    aside = [run.document() | {"messages": run.messages} for run in runs if run.is_aside]
    found = {"session": columns} | ({"aside": aside} if aside else {})
    return jsonio.dumps(found).decode()


def _parse_extra(extra: str) -> tuple[dict[str, Any], list[Run]]:
    """Parse the ``Memory.extra`` of a session of Agno.

    Returns the columns of the session, and the runs that Agno leaves out of the history; both are
    empty if ``extra`` is empty.

    Raises:
        Rejected: ``extra`` is not the extra of a session of Agno.
    """
    try:
        found = jsonio.loads(extra.encode("utf-8", "surrogatepass")) if extra else {}
    except ValueError:
        found = None
    if isinstance(found, dict):
        session, aside = found.get("session", {}), found.get("aside", [])
        if isinstance(session, dict) and isinstance(aside, list):
            runs = [run for run in map(parse_document, aside) if run is not None]
            if len(runs) == len(aside):
                return {k: v for k, v in session.items() if k not in _NAMES}, runs
    raise Rejected("refused", "what the session has besides messages is not of Agno")


def _run_data(key: MemoryKey, session: dict[str, Any], run: Run) -> dict[str, Any]:
    owner = {"session_id": key.session, "user_id": key.user}
    data: dict[str, Any] = {
        name: value for name, value in owner.items() if name in run.owned and value
    }
    if run.is_made and not run.columns:
        data |= _data_of_made(session, run)
    return data | run.data | {"messages": run.messages}


def _first_index(columns: Sequence[dict[str, Any]]) -> int:
    """Return the ``run_index`` for a new first run, so that the runs that have one keep it.

    ``columns`` are the columns of the runs of a session, empty for new runs.
    """
    place = next((at for at, one in enumerate(columns) if one), 0)
    index = columns[place].get("run_index") if columns else None
    return min(0, index - place) if isinstance(index, int) else 0


def _data_of_made(session: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return the ``run_data`` of a made run, without id and messages."""
    which = "team_id" if session.get("session_type") == "team" else "agent_id"
    return {which: session.get(which), "created_at": run.first_time, "status": "COMPLETED"}


def _columns_of_made(session: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return the columns of a made run, without ids, ``run_index`` and ``run_data``."""
    return {
        "run_type": session["session_type"],
        "status": "COMPLETED",
        "created_at": run.first_time,
        "updated_at": run.first_time,
        **{name: session.get(name) for name in ("agent_id", "team_id", "workflow_id")},
    }


def _as_made(key: MemoryKey, session: dict[str, Any], run: Run, last: Run | None) -> bool:
    """Return whether memctl would make an equal run from the messages of ``run`` alone.

    ``session`` are the columns of the session.  ``last`` is the run before; None for the first run.
    """
    if not run.is_made:
        return False
    made = Run(run.id, {}, {"run_id": run.id, "metadata": run.data["metadata"]}, run.messages)
    index = last.columns.get("run_index") if last is not None else None
    place = 0 if last is None else None if index is None else index + 1
    columns = _columns_of_made(session, made) | {"run_index": place}
    behind = last.messages if last is not None and last.is_made else []
    first = AGNO.unpack(run.messages[0])
    return (
        run.id == made_id(key.session, AGNO.message_id({CONTENT: first[CONTENT]}))
        and run.columns == {name: value for name, value in columns.items() if value is not None}
        and run.data == made.data | _data_of_made(session, made)
        and run.owned == made.owned
        and (not behind or begins_run(run.messages[0], behind))
        and is_one_run(run.messages)
    )


def _examine(
    names: Sequence[str], database: Database, connection: Connection
) -> dict[str, dict[str, Column]]:
    there = set(inspect(connection).get_table_names())
    found = {name: columns_of(database, name, connection) for name in names if name in there}
    return {
        name: {one.name: one for one in found.get(name, {}).values() if not one.computed}
        for name in names
    }


def _create(sessions: str, runs: str, connection: Connection) -> None:
    metadata = MetaData()
    _tables(sessions, runs, metadata)
    create_missing(connection, metadata)


def _tables(sessions: str, runs: str, metadata: MetaData) -> tuple[Table, Table]:
    def text(length: int = 128) -> Any:
        return String().with_variant(String(length), "mysql", "mariadb")

    document = JSON().with_variant(JSONB(), "postgresql")
    made = Table(
        sessions,
        metadata,
        TableColumn("session_id", text(), primary_key=True),
        TableColumn("session_type", text(20), nullable=False),
        *(TableColumn(one, text()) for one in ("agent_id", "team_id", "workflow_id", "user_id")),
        *(TableColumn(f"{one}_data", document) for one in ("session", "agent", "team", "workflow")),
        TableColumn("metadata", document),
        TableColumn(_SUMMARY, document),
        TableColumn("created_at", BigInteger, nullable=False),
        TableColumn("updated_at", BigInteger),
    )
    turns = Table(
        runs,
        metadata,
        TableColumn("run_id", text(), primary_key=True),
        TableColumn(
            "session_id",
            text(),
            ForeignKey(made.columns.session_id, ondelete="CASCADE"),
            nullable=False,
        ),
        TableColumn("run_type", text(20), nullable=False),
        *(TableColumn(one, text()) for one in ("agent_id", "team_id", "workflow_id", "user_id")),
        TableColumn("parent_run_id", text()),
        TableColumn("status", text(50)),
        TableColumn("run_index", BigInteger),
        TableColumn("run_data", document, nullable=False),
        TableColumn("created_at", BigInteger, nullable=False),
        TableColumn("updated_at", BigInteger),
    )
    for table, columns in (
        (made, ("session_type", "created_at")),
        (
            turns,
            (
                *("session_id", "run_type", "agent_id", "team_id", "workflow_id", "user_id"),
                *("status", "created_at"),
            ),
        ),
    ):
        for name in columns:
            Index(f"idx_{table.name}_{name}", table.columns[name])
    Index(f"idx_{runs}_session_id_run_index", turns.columns.session_id, turns.columns.run_index)
    return made, turns
