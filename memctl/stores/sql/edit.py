"""Changing memories that are there: many small ones in a transaction, a large one in its own."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import Failure
from memctl.model import PAGE_BYTES, Change, Edit, MemoryKey, StoredMessage, WriteResult
from memctl.stores.batching import PATIENCE
from memctl.stores.sql.database import Contended, Refused, SqlDatabase
from memctl.stores.sql.locks import Row, claim, lock_rows, lock_session, locked_rows, row_pages
from memctl.stores.sql.positions import Move, Places, Run
from memctl.stores.sql.write import Rows


class Puts(NamedTuple):
    """Messages to be put in behind one other; ``place`` says where that is."""

    after: str | None
    place: Run
    entries: list[StoredMessage]


class Held(NamedTuple):
    """A message that is there."""

    row_id: str
    index: int  # type: ignore[assignment]
    marks: frozenset[str]


@dataclass
class Fit:
    """What is to be done with the rows of one memory."""

    doomed: list[str] = field(default_factory=list)
    indexes: set[int] = field(default_factory=set)
    """Where the doomed rows stood."""
    cleared: list[str] = field(default_factory=list)
    """Rows that lose a mark: all of theirs are taken away, and those that stay are given again."""
    marks: list[tuple[str, str]] = field(default_factory=list)
    puts: dict[str | None, list[Change]] = field(default_factory=dict)
    """What is to be put in behind which message."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Messages to be put in that are there, with their rows: those must go first."""

    def runs(self, held: Mapping[str, Held], last: tuple[str | None, int] | None) -> list[Puts]:
        """What is to be put in, in the order of the places.

        ``last`` says behind what the last message was put in before, and the index that it got.
        """
        found = []
        for after, changes in self.puts.items():
            at = None if after is None else held[after].index
            low = last[1] if last and last[0] == after else None
            place = Run(at, low, [change.position for change in changes])
            entries = [StoredMessage(one.id, one.message, one.new or ()) for one in changes]
            found.append(Puts(after, place, entries))
        return sorted(found, key=lambda one: (one.place.after is not None, one.place.after or 0))


def fit(changes: Sequence[Change], held: Mapping[str, Held]) -> Fit | Failure:
    """Compares changes of one memory with its messages, by id."""
    found = Fit()
    done: set[str] = set()
    for change in changes:
        if change.old is None:
            found.puts.setdefault(change.after, []).append(change)
            continue
        there = held.get(change.id)
        if there is None or change.id in done:
            return Failure("changed", f"there is no message {change.id!r} any more")
        if there.marks != set(change.old):
            return Failure("changed", f"the message {change.id!r} is marked otherwise")
        done.add(change.id)
        if change.new is None:
            found.doomed.append(there.row_id)
            found.indexes.add(there.index)
        else:
            _mark(found, there, change.new)
    return _put(found, held) or found


def _mark(found: Fit, there: Held, new: tuple[str, ...]) -> None:
    wanted = dict.fromkeys(new)
    if there.marks <= wanted.keys():
        added = [mark for mark in wanted if mark not in there.marks]
    else:
        found.cleared.append(there.row_id)
        added = list(wanted)
    found.marks += [(there.row_id, mark) for mark in added]


def _put(found: Fit, held: Mapping[str, Held]) -> Failure | None:
    """Looks at what is to be put in; why it cannot be."""
    doomed = set(found.doomed)
    ids: set[str] = set()
    for after, changes in found.puts.items():
        if after is not None and (after not in held or held[after].row_id in doomed):
            return Failure("changed", f"there is no message {after!r} to put others behind")
        for change in changes:
            if change.id in ids:
                return Failure("changed", f"the message {change.id!r} is to be put in twice")
            ids.add(change.id)
            there = held.get(change.id)
            if there and there.row_id not in doomed:
                found.blocked[change.id] = there.row_id
    return None


class Name(NamedTuple):
    """A message by its name."""

    key: MemoryKey
    id: str


@dataclass
class Survey:
    """The positions of a memory, and whether rows of it have ids of another form."""

    places: Places = field(default_factory=Places)
    strange: bool = False


async def survey(
    store: SqlDatabase, connection: AsyncConnection, keys: Set[MemoryKey], missed: Set[Name]
) -> tuple[dict[MemoryKey, Survey], dict[Name, str]]:
    """Surveys these memories in one pass; gives the row ids of missed messages that are there.

    Reads every row of the sessions.  The name of a row is what ``SqlReader`` takes it for.
    """
    found = {key: Survey() for key in keys}
    aliases: dict[Name, str] = {}
    by_session = defaultdict(list)
    for key in keys:
        by_session[key.session].append(key)
    sql = (
        f"SELECT m.session_id, {store.user}, {store.index}, "
        f"CASE WHEN {store.splits()} THEN NULL ELSE m.id END, "
        f"CASE WHEN {store.splits()} THEN NULL ELSE {store.field('id')} END "
        f"FROM {store.source()} WHERE m.session_id IN :sessions"
    )
    rows = store.rows(connection, sql, {"sessions": sorted(by_session)})
    async with aclosing(rows) as partitions:
        async for some in partitions:
            for session, user, index, row_id, id in some:
                for key in by_session.get(session, ()):
                    own = key.user == user
                    places = found[key].places
                    (places.own if own else places.others).append(index)
                    if own and row_id and not row_id.startswith(f"{user}-{session}-"):
                        found[key].strange = True
                        name = Name(key, id or row_id)
                        if name in missed:
                            aliases[name] = row_id
    for one in found.values():
        one.places.sort()
    return found, aliases


async def move(
    store: SqlDatabase, connection: AsyncConnection, moves: Sequence[tuple[str, Move]], lock: str
) -> None:
    """Moves the rows of sessions that are claimed, all of them in one pass over the table.

    ``lock`` is the SQL that locks them, empty where none are.
    """
    if not moves:
        return
    name = f"{store.quote}index{store.quote}"
    await connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS memctl_moves {store.moves_key} "
        f"AS SELECT session_id, {name} AS low, {name} AS distance FROM message WHERE 1 = 0"
    )
    if not store.moves_key:
        await connection.exec_driver_sql(
            "CREATE INDEX IF NOT EXISTS memctl_moves_low ON memctl_moves (session_id, low)"
        )
    rows = [(session, one.low, one.by) for session, one in moves]
    await store.insert(connection, "memctl_moves", ["session_id", "low", "distance"], rows)
    moved = f"m.session_id IN :sessions AND {store.index} >= :low"
    values = {
        "sessions": sorted({session for session, _ in moves}),
        "low": min(one.low for _, one in moves),
    }
    if store.locks_what_it_reads:
        change = f"UPDATE {store.keyed('message', 'id')} SET {_moved('t', name)}"
        async for row_ids in row_pages(store, connection, moved, values):
            await lock_rows(store, connection, row_ids, lock)
            await store.for_rows(connection, change, row_ids)
    else:
        if lock:
            locked = f"SELECT 1 FROM message m WHERE {moved} {lock}"
            counted = f"SELECT COUNT(*) FROM ({locked}) AS locked"
            await connection.execute(*store.bind(counted, values))
        change = f"UPDATE message AS m SET {_moved('m', name)} WHERE {moved}"
        await connection.execute(*store.bind(change, values))
    await connection.exec_driver_sql("DELETE FROM memctl_moves")


def _moved(row: str, name: str) -> str:
    distance = (
        f"SELECT v.distance FROM memctl_moves v WHERE v.session_id = {row}.session_id "
        f"AND v.low <= {row}.{name} ORDER BY v.low DESC LIMIT 1"
    )
    # PostgreSQL wants the column that is set without its table.
    return f"{name} = {row}.{name} + COALESCE(({distance}), 0)"


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


BATCH_BYTES = 2 * PAGE_BYTES
BATCH_CHANGES = 10_000
"""A memory with more is large: so much of it is done at once."""


@dataclass(slots=True)
class Large:
    """A memory of many changes.  ``pieces`` must be consumed to the end."""

    key: MemoryKey
    pieces: AsyncGenerator[list[Change]]


T = TypeVar("T")

PAUSES = (0.01, 0.03, 0.1, *[0.5] * 100)
"""Seconds between attempts while others hold a memory: InnoDB too waits for 50 seconds."""


class SqlEditor:
    """One ``edit`` of a store."""

    def __init__(self, store: SqlDatabase) -> None:
        self._store = store

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """See ``Store.edit``."""
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            async for batch in gather(edits, self._store.batch_changes):
                if connection is None:
                    connection = await stack.enter_async_context(self._store.connected())
                if isinstance(batch, Large):
                    yield await self._edit_large(connection, batch)
                else:
                    for tally in await self._edit_small(connection, batch):
                        yield tally
                del batch  # the next one needs its room

    async def _edit_small(
        self, connection: AsyncConnection, batch: list[Part]
    ) -> list[WriteResult]:
        """Changes small memories together, without those that cannot be changed."""
        failures = {part.key: found for part in batch if (found := _objection(part.key))}
        good = [part for part in batch if part.key not in failures]
        try:
            done = await self._commit_small(connection, good) if good else []
        except Misfit as misfit:
            failures |= misfit.failures
            done = await self._edit_small(
                connection, [part for part in good if part.key not in failures]
            )
        except (Refused, Contended) as error:
            if len(good) > 1:  # It is one of them, and the database does not say which.
                half = len(good) // 2
                done = await self._edit_small(connection, good[:half])
                done += await self._edit_small(connection, good[half:])
            else:
                failures[good[0].key] = error.failure
                done = []
        return [*(WriteResult(key, failure=found) for key, found in failures.items()), *done]

    async def _commit_small(
        self, connection: AsyncConnection, batch: list[Part]
    ) -> list[WriteResult]:
        if len(batch) == 1:
            return await _insist(lambda: self._try_small(connection, batch))
        return await self._try_small(connection, batch)

    async def _try_small(self, connection: AsyncConnection, batch: list[Part]) -> list[WriteResult]:
        async with self._store.transaction(connection):
            changer = Changer(self._store, connection)
            for parts in _apart(batch):
                await changer.apply(parts)
            changer.finish()
        return [WriteResult(part.key, *_count(part.changes)) for part in batch]

    async def _edit_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        key = large.key
        failure = _objection(key)
        if not failure:
            try:
                return await self._commit_large(connection, large)
            except Misfit as misfit:
                failure = misfit.failures[key]
            except (Refused, Contended) as error:
                failure = error.failure
        async for _ in large.pieces:
            pass
        return WriteResult(key, failure=failure)

    async def _commit_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        written = deleted = 0
        changer = Changer(self._store, connection)
        async with await _insist(lambda: self._hold(connection, changer, large.key)):
            async for changes in large.pieces:
                added, removed = _count(changes)
                written += added
                deleted += removed
                parts = [Part(large.key, changes)]
                del changes  # a huge message must be gone before the next step
                await changer.apply(parts)
            changer.finish()
        return WriteResult(large.key, written, deleted)

    async def _hold(
        self, connection: AsyncConnection, changer: Changer, key: MemoryKey
    ) -> AsyncExitStack:
        """A transaction that holds a memory: once its pieces are taken, it cannot begin again."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._store.transaction(connection))
            await changer.hold(key.session)
            return stack.pop_all()


async def _insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Tries again while others hold what is to be changed, and lets them go on in between.

    Raises:
        Contended: they hold it all the time.
    """
    for pause in PAUSES:
        try:
            return await attempt()
        except Contended:
            await asyncio.sleep(pause)
    return await attempt()


def _objection(key: MemoryKey) -> Failure | None:
    if not key.part:
        return None
    return Failure(
        "bad-name", f"SQL memory holds one memory a session, not a part like {key.part!r}"
    )


def _count(changes: list[Change]) -> tuple[int, int]:
    """How many messages are written, and how many deleted."""
    deleted = sum([change.new is None for change in changes])
    return len(changes) - deleted, deleted


def _apart(batch: list[Part]) -> list[list[Part]]:
    """The memories in lists within which no two share a session."""
    lists: list[list[Part]] = []
    times: dict[str, int] = {}
    for part in batch:
        number = times.get(part.key.session, 0)
        times[part.key.session] = number + 1
        if number == len(lists):
            lists.append([])
        lists[number].append(part)
    return lists


async def gather(edits: AsyncGenerator[Edit], most: int) -> AsyncGenerator[list[Part] | Large]:
    """Lists of small memories, which share ``most`` changes or are alone, and large ones.

    An edit is let go of before it is handed on: one message may be most of the memory in use.
    """
    batch: list[Part] = []
    size = count = 0
    begun = time.monotonic()
    held = _Held()
    async for edit in edits:
        held.add(edit)
        del edit
        key = held.key
        await held.fill(edits)
        if batch and (held.full or _is_full(size + held.size, count + held.count, most)):
            yield batch
            batch, size, count = [], 0, 0
        if held.full:
            yield Large(key, _pieces(held, edits))
            continue
        if not batch:
            begun = time.monotonic()
        size += held.size
        count += held.count
        batch.append(Part(key, held.take()))
        if time.monotonic() - begun > PATIENCE:
            yield batch
            batch, size, count = [], 0, 0
    if batch:
        yield batch


async def _pieces(held: _Held, rest: AsyncGenerator[Edit]) -> AsyncGenerator[list[Change]]:
    """The changes of a large memory, so many that a step is worth its while."""
    while True:
        last = held.last
        yield held.take()
        if last:
            return
        held.add(await anext(rest))
        await held.fill(rest)


class _Held:
    """Edits of one memory that follow one another."""

    def __init__(self) -> None:
        self.key = MemoryKey("", "")
        self.size = 0
        self.count = 0
        self.last = False
        self._changes: list[Change] = []

    def add(self, edit: Edit) -> None:
        """Takes the next one."""
        self.key = edit.memory.key
        self.last = edit.last
        self.size += sum([len(change.message) for change in edit.changes])
        self.count += len(edit.changes) + 1
        self._changes += edit.changes

    async def fill(self, edits: AsyncGenerator[Edit]) -> None:
        """Takes more, up to the end of the memory or until it is a step's worth."""
        while not (self.last or self.full):
            self.add(await anext(edits))

    @property
    def full(self) -> bool:
        """Whether these are enough for a step."""
        return _is_full(self.size, self.count, BATCH_CHANGES)

    def take(self) -> list[Change]:
        """The changes, which are no longer held then."""
        changes = self._changes
        self._changes, self.size, self.count = [], 0, 0
        return changes


def _is_full(size: int, count: int, most: int) -> bool:
    return size > BATCH_BYTES or count > most
