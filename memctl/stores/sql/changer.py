"""The steps of a transaction that changes memories: look, compare, delete, mark, put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import Failure
from memctl.model import Change, MemoryKey, StoredMessage
from memctl.stores.sql.claim import claim
from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.fit import Fit, Held, fit
from memctl.stores.sql.moves import move
from memctl.stores.sql.places import Move
from memctl.stores.sql.row_locks import Row, lock_session, locked_rows
from memctl.stores.sql.survey import Name, Survey, survey
from memctl.stores.sql.write import Rows

NO_MARKS: frozenset[str] = frozenset()

_HeldById = dict[str, Held]


class Misfit(Exception):
    """Memories that are otherwise than their edits say: the transaction ends, others go on."""

    def __init__(self, failures: dict[MemoryKey, Failure]) -> None:
        super().__init__(f"{len(failures)} memories are otherwise")
        self.failures = failures


class Part(NamedTuple):
    """Changes of one memory."""

    key: MemoryKey
    changes: list[Change]


class Changer:
    """Changes memories within one transaction, piece by piece.

    The rows of messages and marks are locked before they are compared with what the edit says.  An
    agent that adds a mark needs a lock on the message's row, by the foreign key, and one that
    takes a mark away needs one on the mark's: so what was seen is true until the end.  No mark can
    come once the messages are locked, so theirs are looked at after them.

    What others hold is not waited for, or two could wait for each other, and the database would
    have one of them give way: mostly the agent, which has done less.
    """

    def __init__(self, store: SqlDatabase, connection: AsyncConnection) -> None:
        self._store = store
        self._connection = connection
        self._no_wait = store.no_wait
        self._surveys: dict[MemoryKey, Survey] = {}
        self._looked: list[str] = []
        """The row ids that were looked at last: the same list need not be told a database again."""
        self._last: dict[MemoryKey, tuple[str | None, int]] = {}
        """What the last message was put in behind, and its index."""
        self._waiting: dict[str, tuple[MemoryKey, StoredMessage]] = {}
        """Messages that take the place of others, by the rows that must go first."""

    async def hold(self, session: str) -> None:
        """Locks all that is in a session, before its memory is changed in many steps.

        Raises:
            Contended: others hold some of it.
        """
        if not self._store.row_lock:
            return
        await lock_session(self._store, self._connection, session, self._lock)
        # Others hold at most what came since, and that they may finish.
        self._no_wait = ""

    async def apply(self, parts: list[Part]) -> None:
        """Does the changes; of memories that share a session, only one may have messages put in.

        Empties the list, so that nothing but its caller holds a huge message when it is inserted.

        Raises:
            Misfit: something is otherwise, and the transaction must be rolled back.
            Contended: others hold some of it, and it must be rolled back too.
        """
        held = await self._look(parts)
        fits = _compare(parts, held)
        parts.clear()
        await self._delete(fits)
        await self._mark(fits.values())
        rows, moves = self._place(fits, held)
        del fits
        await move(self._store, self._connection, moves, self._lock)
        await rows.insert(self._store, self._connection)

    def finish(self) -> None:
        """Makes sure that nothing is left to be done.

        Raises:
            Misfit: a message that was to be put in is there.
        """
        if self._waiting:
            raise Misfit(
                {
                    key: Failure("changed", f"the message {entry.id!r} is there already")
                    for key, entry in self._waiting.values()
                }
            )

    @property
    def _lock(self) -> str:
        return f"{self._store.row_lock} {self._no_wait}".strip()

    # What is there

    async def _look(self, parts: Sequence[Part]) -> dict[MemoryKey, _HeldById]:
        """The messages that the changes name, as far as they are there, by id."""
        grown = {key for key, changes in parts if any(one.old is None for one in changes)}
        await self._claim(grown)
        wanted = {key: _ids(changes) for key, changes in parts}
        row_ids = [_start(key) + id for key in wanted for id in wanted[key]]
        self._looked = row_ids
        rows = await self._rows(row_ids)
        there: dict[MemoryKey, dict[str, str]] = {}
        missed: set[Name] = set()
        for key, ids in wanted.items():
            start = _start(key)
            there[key] = own = {}
            for id in ids:
                row_id = start + id
                row = rows.get(row_id)
                if row and (row.session, row.user) == (key.session, key.user):
                    own[id] = row_id
                else:
                    missed.add(Name(key, id))
        others = await self._search(missed, grown)
        for name, row_id in others.items():
            there[name.key][name.id] = row_id
        rows |= await self._rows(list(others.values()))
        marks = await self._marks(list(rows) if others else row_ids)
        return {
            key: {
                id: Held(row_id, rows[row_id].index, marks.get(row_id, NO_MARKS))
                for id, row_id in ids.items()
                if row_id in rows  # if not, it was deleted since the survey
            }
            for key, ids in there.items()
        }

    async def _claim(self, keys: set[MemoryKey]) -> None:
        """Makes sessions ours before messages are put in; one that is created is empty."""
        new = sorted(keys - self._surveys.keys())
        if new:
            known = await claim(self._store, self._connection, new, self._lock)
            self._surveys |= {key: Survey() for key in new if key.session not in known}

    async def _rows(self, row_ids: list[str]) -> dict[str, Row]:
        """The rows with these ids, which are locked."""
        if not row_ids:
            return {}
        return await locked_rows(self._store, self._connection, row_ids, self._lock)

    async def _search(self, missed: set[Name], grown: set[MemoryKey]) -> dict[Name, str]:
        """The row ids of messages that have none of the usual form.

        Surveys the memories that lack something, and those that messages are put into.
        """
        keys = {name.key for name in missed} | grown
        known = {key for key, found in self._surveys.items() if not found.strange}
        if keys <= known:
            return {}
        surveys, others = await survey(self._store, self._connection, keys - known, missed)
        self._surveys |= surveys
        return others

    async def _marks(self, row_ids: list[str]) -> dict[str, frozenset[str]]:
        found = self._store.keyed("message_mark", "msg_id")
        sql = f"SELECT t.msg_id, t.mark FROM {found} {self._lock}"
        marks: dict[str, frozenset[str]] = {}
        alone: dict[str, frozenset[str]] = {}
        for row_id, mark in await self._run(sql, row_ids):
            one = alone.setdefault(mark, frozenset((mark,)))
            marks[row_id] = marks[row_id] | one if row_id in marks else one
        return marks

    async def _run(self, sql: str, row_ids: list[str]) -> Sequence[Any]:
        return await self._store.for_rows(self._connection, sql, row_ids) if row_ids else []

    # What is done

    async def _delete(self, fits: Mapping[MemoryKey, Fit]) -> None:
        doomed = [row_id for found in fits.values() for row_id in found.doomed]
        cleared = [row_id for found in fits.values() for row_id in found.cleared]
        if doomed == self._looked:
            doomed = self._looked
        unmarked = doomed + cleared if cleared else doomed
        await self._run(self._store.delete("message_mark", "msg_id"), unmarked)
        await self._run(self._store.delete("message", "id"), doomed)
        for key, found in fits.items():
            if found.indexes and key in self._surveys:
                self._surveys[key].places.forget(found.indexes)

    async def _mark(self, fits: Iterable[Fit]) -> None:
        marks = [pair for found in fits for pair in found.marks]
        if marks:
            await self._store.insert(self._connection, "message_mark", ["msg_id", "mark"], marks)

    def _place(
        self, fits: Mapping[MemoryKey, Fit], held: Mapping[MemoryKey, _HeldById]
    ) -> tuple[Rows, list[tuple[str, Move]]]:
        """Rows for the messages that are put in, and what must make room for them."""
        rows = Rows()
        moves: list[tuple[str, Move]] = []
        for key, found in fits.items():
            entries = self._freed(found.doomed)
            if found.puts:
                runs = found.runs(held[key], self._last.get(key))
                numbers, moved = self._surveys[key].places.put([run.place for run in runs])
                moves += [(key.session, one) for one in moved]
                self._last[key] = (runs[-1].after, numbers[-1][-1])
                for run, given in zip(runs, numbers, strict=True):
                    for entry, index in zip(run.entries, given, strict=True):
                        placed = entry._replace(position=index)
                        if entry.id in found.blocked:
                            self._waiting[found.blocked[entry.id]] = (key, placed)
                        else:
                            entries.append(placed)
            for entry in entries:
                rows.add(key, [entry], -1 if entry.position is None else entry.position - 1)
        return rows, moves

    def _freed(self, doomed: list[str]) -> list[StoredMessage]:
        """The messages that waited for these rows to go."""
        return [self._waiting.pop(row_id)[1] for row_id in doomed if row_id in self._waiting]


def _start(key: MemoryKey) -> str:
    """How the row ids of a memory begin, as AgentScope's ``_make_message_id`` has it."""
    return f"{key.user}-{key.session}-"


def _compare(parts: Sequence[Part], held: Mapping[MemoryKey, _HeldById]) -> dict[MemoryKey, Fit]:
    fits: dict[MemoryKey, Fit] = {}
    failures: dict[MemoryKey, Failure] = {}
    for key, changes in parts:
        found = fit(changes, held[key])
        if isinstance(found, Failure):
            failures[key] = found
        else:
            fits[key] = found
    if failures:
        raise Misfit(failures)
    return fits


def _ids(changes: Sequence[Change]) -> dict[str, None]:
    """The messages that must be looked at, each once."""
    ids = dict.fromkeys([change.id for change in changes])
    after = [one.after for one in changes if one.after is not None and one.old is None]
    return ids | dict.fromkeys(after)
