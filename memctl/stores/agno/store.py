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
from contextlib import aclosing
from functools import partial
from itertools import repeat
from math import inf
from typing import Any

from msgspec import field
from msgspec.structs import replace
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
from memctl.engines.sql.chosen import Chosen, RowTest
from memctl.engines.sql.columns import Column, columns_of, shown
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, RejectedValue, is_text
from memctl.engines.sql.renaming import Named
from memctl.engines.sql.rows.store import Listed, RowStore
from memctl.engines.sql.rows.tables import FILLED, Row, Rows, RowTable
from memctl.engines.sql.schema import create_missing
from memctl.errors import BadData, Uninitialised
from memctl.json import jsonio
from memctl.layouts.sql import AGNO_RUNS, AGNO_SESSIONS
from memctl.location import Location, visible
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import Features, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import MADE, Rejected
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


class Held(Snapshot, frozen=True):
    """A stored session of Agno."""

    session: dict[str, Any] = field(default_factory=dict)
    """The columns of the row of the session."""
    runs: list[Run] = field(default_factory=list)
    backup: Any = None
    """The value of the column ``runs``, decoded once; see ``_backed_up``."""


_MEMORIES, _TRACES, _SPANS = "agno_memories", "agno_traces", "agno_spans"
_BESIDE = (_MEMORIES, _TRACES, _SPANS)
"""The tables beside sessions in which Agno keeps texts of them."""


class AgnoStore(RowStore):
    """The sessions of Agno in a SQL database; each session is a memory.

    ``?table=`` names the table of sessions.  ``?agent=`` names the agent of new sessions.
    """

    features = Features(
        marks=frozenset(),
        summaries=True,
        empty=True,
        duplicate_ids=True,
        session_owners=True,
        renames=frozenset({"user", "session", "merge"}),
        selects_texts=True,
    )
    dialect = AGNO
    damage_code = "damaged-state"
    belongs = "the session {!r} belongs to {!r}"

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._sessions = location.options.get("table", AGNO_SESSIONS)
        custom = "table" in location.options
        self._runs = f"{self._sessions}_runs" if custom else AGNO_RUNS
        self._agent = location.options.get("agent")
        self._columns: dict[str, dict[str, Column]] = {}
        self.misnamed = (
            f"a row of {visible(self._sessions)!r} names it with a value that is not a text"
        )

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

        self._use_tables()

    def _use_tables(self) -> None:
        """Set the tables; sessions that no run was stored for have no table of runs yet."""
        self.head = self.log = _row_table(
            self._sessions, "session_id", self._columns[self._sessions], owner="user_id"
        )
        self.tables = (self.head,)
        if columns := self._columns[self._runs]:
            order = ("run_index", "created_at", "run_id")
            self.log = _row_table(self._runs, "run_id", columns, order=order)
            self.tables = (self.head, self.log)
        self.own_tables = {self._sessions}

    @property
    def text_tables(self) -> Sequence[str]:
        return [*self.changed_tables, *_BESIDE]

    # Reading

    async def listed(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        async with aclosing(super().listed(connection, where)) as listed:
            found = [one async for one in listed]
        for one in sorted(found, key=lambda one: one.key):
            yield one

    def read_rows(self, key: MemoryKey, rows: Rows, bad: list[str]) -> Snapshot | None:
        try:
            return self._held(key, rows)
        except BadData as error:
            bad.append(error.message)
            return None

    def _held(self, key: MemoryKey, rows: Rows) -> Held:
        [session] = map(self._decoded, repeat(self.head), rows[self._sessions].values())
        found = [self._decoded(self.log, row) for row in rows.get(self._runs, {}).values()]
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
        memory = Memory(key, _summary(session), extra=_extra(session, runs))
        return Held(memory, messages, session=session, runs=runs, backup=backup)

    def _decoded(self, table: RowTable, row: Row) -> dict[str, Any]:
        """Return a row of ``table`` as values by column."""
        columns = zip(table.columns, row, strict=True)
        return {name: _decoded(table.name, table.typed[name], value) for name, value in columns}

    # Writing

    def changed_rows(
        self, key: MemoryKey, rows: Rows, there: Snapshot, new: Snapshot, undone: str | None
    ) -> tuple[Rows, str]:
        if undone == MADE and not (new.messages or new.memory.summary):
            return {table.name: {} for table in self.tables}, ""
        if not there.exists and rows.get(self._runs):
            text = f"{visible(self._runs)!r} has runs of {key.session!r}, which is not a session"
            raise Rejected("refused", text)
        held = there if isinstance(there, Held) else Held(there.memory, exists=False)
        before, about = "", dict[str, Any]()
        if undone is not None:
            new, before = _drop_copies(held, new)
            about = jsonio.loads(undone.encode()) if undone.startswith("{") else {}
            new = replace(new, messages=with_copies(new.messages, about.get("copies", {})))
        before = before if there.exists else MADE
        given, aside = _parse_extra(new.memory.extra)
        runs = Regrouping(key.session, held.runs).runs(new.messages)
        changed = self._session(key, new.memory, held, given)
        session = held.session | changed
        if held.backup:
            backup = _changed_backup(key, session, held, runs, about)
            changed |= {_BACKUP: backup} if backup != held.backup else {}
        found: Rows = {self._sessions: rows[self._sessions]}
        if changed:
            row = next(iter(rows[self._sessions].values()), None)
            row = self._row(self.head, changed, row)
            found[self._sessions] = {row[:1]: row}
        known = {run.id: run for run in held.runs}
        wanted = {run.id for run in runs}
        runs += [run for run in aside if run.id not in known and run.id not in wanted]
        stored = {
            (run.id,): rows[self._runs][(run.id,)]
            for run in held.runs
            if run.is_aside or run.id in wanted
        }
        last: tuple[Any, ...] = ()
        first = _first_index([(known.get(run.id) or run).columns for run in runs])
        for run in runs:
            was = known.get(run.id)
            columns = (was or run).columns
            index = columns.get("run_index")
            if not run.is_aside:
                behind = (columns.get("created_at", run.first_time), run.id)
                if (self._rank(index if columns else inf), *behind) <= last or not columns:
                    index = first if not last else last[0] + 1 if last[0] != inf else 0
                last = (self._rank(index), *behind)
            values = self._run(key, session, run, was, index)
            stored[(run.id,)] = self._row(self.log, values, stored.get((run.id,)))
        return found | {self._runs: stored}, before

    def _rank(self, index: Any) -> Any:
        """Return a ``run_index`` as a number that sorts like the column.

        NULL becomes -1 or infinity, because the database sorts NULL first or last.
        """
        if index is None:
            return -1 if self.database.syntax.nulls_first else inf
        return index

    def _session(
        self, key: MemoryKey, memory: Memory, there: Held, given: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the columns of the row of a session that change, or all of a new session.

        ``given`` are the columns in ``Memory.extra``.

        Raises:
            Rejected: the table lacks a given column.
        """
        now = int(time.time())
        kept = given.pop(_SUMMARY, None)
        if lost := next((name for name in given if name not in self.head.columns), None):
            raise _no_column(self._sessions, lost)
        if not there.exists:
            row: dict[str, Any] = {"session_id": key.session, "user_id": key.user or None}
            row |= {"session_type": _AGENT, "created_at": now, "updated_at": now}
            row |= {"agent_id": self._agent} if self._agent else {}
            row |= given
            if memory.summary or kept:
                row[_SUMMARY] = _with_text(kept, memory.summary)
            return row
        changed = {
            name: value
            for name, value in given.items()
            if memory.extra != there.memory.extra and value != there.session.get(name)
        }
        if memory.summary is not None and memory.summary != _summary(there.session):
            own = there.session.get(_SUMMARY)
            changed[_SUMMARY] = _with_text(own if isinstance(own, dict) else kept, memory.summary)
        return changed

    def _run(
        self, key: MemoryKey, session: dict[str, Any], run: Run, was: Run | None, index: Any
    ) -> dict[str, Any]:
        """Return the columns of a run that change, or all of a new run.

        ``session`` are the columns of the session.  ``was`` is the stored run; None for a new run.
        ``index`` is the new ``run_index``.

        Raises:
            Rejected: the table lacks a column.
        """
        if was is not None:
            changed = {} if index == was.columns.get("run_index") else {"run_index": index}
            if run.messages != was.messages or (run.data != was.data and not run.is_made):
                whole = replace(was if run.is_made else run, messages=run.messages)
                changed["run_data"] = _run_data(key, session, replace(whole, owned=was.owned))
            return changed
        columns = {"user_id": key.user or None} | (run.columns or _columns_of_made(session, run))
        if lost := next((one for one in columns if one not in self.log.columns), None):
            raise _no_column(self._runs, lost)
        columns |= {"run_id": run.id, "session_id": key.session, "run_index": index}
        return columns | {"run_data": _run_data(key, session, run)}

    async def settled(self, connection: AsyncConnection, rows: Rows, new: Rows) -> Rows:
        fresh = {id for (id,) in new.get(self._runs, {}).keys() - rows.get(self._runs, {}).keys()}
        for (id,) in await self.rows.find(connection, self.log, fresh) if fresh else ():
            raise Rejected("refused", f"the run {id!r} is in another session already")
        return new

    @property
    def named(self) -> Sequence[Named]:
        tables = [table.name for table in self.tables]
        return [Named(name, "session_id", "user_id") for name in (*tables, _TRACES)]

    @property
    def of_users(self) -> Sequence[Named]:
        return [Named(name, user="user_id") for name in (_MEMORIES, _TRACES)]

    async def row_tests(self, chosen: Chosen) -> dict[str, RowTest]:
        """Return the tests, with that of the spans of traces."""
        found = await super().row_tests(chosen)
        if not await self.database.run(lambda connection: inspect(connection).has_table(_TRACES)):
            return found
        of_traces = found[_TRACES]
        async with self.database.snapshot() as connection:
            sql = f"SELECT trace_id, {', '.join(of_traces.columns)} FROM {_TRACES}"
            rows = await self.database.fetch_all(connection, sql, {})
        traces = {trace for trace, *names in rows if of_traces.passes(*names)}
        return found | {_SPANS: RowTest(("trace_id",), traces.__contains__)}

    def renamed_rows(self, old: MemoryKey, new: MemoryKey, rows: Rows) -> Rows:
        [session] = (self._decoded(self.head, row) for row in rows[self._sessions].values())
        if session.get(_BACKUP):
            text = (
                f"its runs are in the column {_BACKUP!r}, too: migrate them with Agno 3, {_MIGRATE}"
            )
            raise Rejected("refused", text)
        names = {"session_id": (old.session, new.session), "user_id": (old.user, new.user)}
        found = {}
        for key, row in rows.get(self._runs, {}).items():
            data = self._decoded(self.log, row)["run_data"]
            changed = {
                name: now
                for name, (was, now) in names.items()
                if isinstance(data, dict) and was != now and data.get(name) == was
            }
            values = {"run_data": data | changed} if changed else {}
            found[key] = self._row(self.log, values, row) if changed else row
        return {self._runs: found}

    async def count_messages(
        self, connection: AsyncConnection, rows: dict[str, int]
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        for session, held in (await self.rows.load(connection, rows)).items():
            for key in self.keys_in(session, held):
                try:
                    found[session] = len(self.there(key, held).messages)
                except Rejected as error:
                    raise RejectedValue(error.failure.message, error.failure.code) from error
        return found

    def _row(self, table: RowTable, values: dict[str, Any], row: Row | None) -> Row:
        """Return a row of ``table`` with new values by column; ``row`` is the present row, if any.

        Raises:
            Rejected: a column does not take its value.
        """
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name in _JSON_COLUMNS and value is not None:
                value = json.dumps(value)
            try:
                found[name] = table.typed[name].stored(value)
            except ValueError as error:
                raise Rejected("refused", f"the column {name!r} takes no {value!r}") from error
            if isinstance(found[name], dict | list):
                raise Rejected("refused", f"the column {name!r} takes no JSON")
        there = row or repeat(FILLED)
        return tuple(found.get(name, was) for name, was in zip(table.columns, there, strict=False))


def _row_table(name: str, key: str, columns: dict[str, Column], **more: Any) -> RowTable:
    return RowTable(
        name,
        key=(key,),
        columns=(key, *(one for one in columns if one != key)),
        session="session_id",
        casts=_JSON_COLUMNS,
        typed=columns,
        **more,
    )


def _drop_copies(there: Held, left: Snapshot) -> tuple[Snapshot, str]:
    """Remove the data in runs that repeats deleted messages; return it as a text for an undo."""
    stay = {entry.id for entry in left.messages}
    gone = [entry for entry in there.messages if entry.id not in stay]
    messages, kept = without_copies(left.messages, gone)
    about: dict[str, Any] = {"copies": kept} if kept else {}
    touched = {run_of(entry) for entry in gone} | kept.keys()
    revised = {id for id in _ids(_backed_up(there.backup)) if id in touched}
    about |= {"backup": there.backup, "revised": sorted(revised)} if revised else {}
    return replace(left, messages=messages), jsonio.compact(about).decode() if about else ""


def _changed_backup(
    key: MemoryKey,
    session: dict[str, Any],
    there: Held,
    runs: Sequence[Run],
    undone: dict[str, Any],
) -> Any:
    """Return the column ``runs``, where Agno 2 kept the runs of a session, after a change.

    Agno 3 reads both the column and the table of runs, and shows runs that only the column has.
    Therefore the column gets the same changes as the table; an undo restores the former value.

    ``there`` is the stored session, ``runs`` are its new runs, and ``undone`` is what the change
    that is undone has removed.
    """
    backup = there.backup
    if undone:
        former, revised = undone.get("backup"), frozenset(undone.get("revised", ()))
        return former if _without(former, revised) == _without(backup, revised) else backup
    wanted = {run.id: run for run in runs}
    changed: dict[str, Any] = {}
    for run in there.runs:
        new = wanted.get(run.id)
        if new is None and not run.is_aside:
            changed[run.id] = None
        elif new is not None and any(one not in new.messages for one in run.messages):
            changed[run.id] = _run_data(key, session, replace(new, owned=run.owned))
    documents = [(run.id, _run_data(key, session, run)) for run in runs]
    return _in_order(_revised(backup, changed), documents)


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
