"""A base class for stores of facts: unordered records with an id, each in one scope.

A ``MemoryKey`` names a scope: the user, the run (as session) and the agent (as part).  A field is
empty if the framework does not have it.  ``memctl.dialects.fact`` defines the format of a fact.
"""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Self

from memctl.dialects.fact import FACT, without_vector
from memctl.errors import BadData, Failure
from memctl.location import visible
from memctl.machine.spool import ItemSpool
from memctl.machine.temporary import scratch
from memctl.model import (
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import DamagedMemory, Features
from memctl.storekit.batching import PageBuilder
from memctl.storekit.edits import is_same_text
from memctl.storekit.files import system_errors
from memctl.storekit.simple import ConnectedStore, Rejected

SOME = 500
"""The maximum number of facts loaded together."""


class FactEntry(NamedTuple):
    """The scope ``key`` and the id of a fact, and the time that orders the facts of a scope."""

    key: MemoryKey
    id: str
    time: str = ""


class LoadedFact(NamedTuple):
    """A fact as stored, and its scope ``key``.

    ``damage`` describes the damage of the fact, or is empty.  Only the id of a damaged fact is
    valid.
    """

    key: MemoryKey
    fact: StoredMessage
    damage: str = ""


class FactStore(ConnectedStore):
    """A store of facts, defined by six short methods.

    ::

        class NotesStore(FactStore):
            kind = "notes"

            async def connect(self, mode: OpenMode) -> None: ...

            async def disconnect(self) -> None: ...

            async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
                for row in self.rows():
                    yield FactEntry(MemoryKey(row.user, ""), row.id, row.created_at)

            async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]: ...

            async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None: ...

            async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None: ...

    Facts are read scope after scope, ordered by time and id.  A temporary file holds the ids.

    Each fact is written whole or not at all.  If a run is killed, some facts of a scope may be
    written and others not.  The same command then continues with the remaining facts.  Edits
    accept a fact that is already in its new state.
    """

    features = Features(marks=frozenset(), parts=True, selects_texts=True)
    dialect = FACT

    # Required

    @abstractmethod
    def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        """Yield an entry (scope, id and time) for every fact of the selected scopes, in any order.

        Entries of other scopes are allowed: the caller filters with ``Selection.has_key``.

        Raises:
            Unavailable: the store cannot be reached any more.
        """

    @abstractmethod
    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        """Return the existing facts with these ids, in any order.

        The caller passes at most ``SOME`` ids.  The facts are expected in the scope ``key``.  If
        ids are unique in the whole store, a fact with one of these ids in another scope is
        returned, too, with its scope.

        Raises:
            Unavailable: the store cannot be reached any more.
        """

    @abstractmethod
    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        """Store facts of the scope ``key``; replace facts with the same ids.

        The caller passes at most as many facts as fit a page.  The facts are durable on return.

        Raises:
            Rejected: the store does not accept the scope or a value; nothing was stored.
            Unavailable: the store cannot be reached any more; some facts may have been stored.
        """

    @abstractmethod
    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:
        """Remove the facts with these ids from the scope ``key``; ignore ids without a fact.

        The removal is durable on return.

        Raises:
            Unavailable: the store cannot be reached any more; some facts may have been removed.
        """

    def damaged_fact(self, id: str, damage: str) -> BadData:
        """Return the error for a fact of which the text or the memory is unknown."""
        return BadData(
            f"{self.label}: {visible(id)!r} is damaged: {visible(damage)}",
            "memctl doctor names what is damaged; delete it, or restore it from a backup",
        )

    # The interface of ``Store``

    async def is_empty(self) -> bool:
        async with aclosing(self.entries(Selection())) as entries:
            async for _ in entries:
                return False
        return True

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        with await self._index(where) as index:
            for key in index.scopes():
                builder = PageBuilder(Memory(key))
                for ids in index.ids(key):
                    for page in builder.take(await self._load(key, ids, begun=builder.offset > 0)):
                        yield page
                    if key in self.left_out.failures:
                        break
                else:
                    if builder.entries:
                        yield builder.page(last=True)

    async def _load(self, key: MemoryKey, ids: list[str], *, begun: bool) -> list[StoredMessage]:
        """Return the undamaged facts of a scope in the order of ``ids``.

        Damaged facts are recorded.  If the store does not skip damage, the result is then empty.

        Raises:
            DamagedMemory: a fact is damaged, and other facts were already yielded (``begun``).
        """
        found = {one.fact.id: one for one in await self.load(key, ids) if one.key == key}
        facts = []
        for id in ids:
            one = found.get(id)
            if one is None:  # deleted since the index was read
                continue
            if not one.damage:
                facts.append(one.fact)
            elif self.skips_damage:
                self.damage.append(Finding("damaged-fact", key, 1, (id,), one.damage))
            else:
                failure = Failure("damaged", f"the fact {id!r}: {one.damage}")
                self.left_out.failures[key] = failure
                if begun:
                    raise DamagedMemory(self.label, key, failure)
                return []
        self.left_out.others = self.left_out.others or bool(facts)
        return facts

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        if not where.whole:
            async with aclosing(super().headers(where)) as memories:
                async for memory in memories:
                    yield memory
            return
        with await self._index(where) as index:
            for key in index.scopes():
                yield Memory(key)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        with await self._index(where) as index:
            for key in index.scopes():
                yield key

    async def _index(self, where: Selection) -> FactIndex:
        index = FactIndex()
        try:
            async with aclosing(self.entries(where)) as entries:
                async for entry in entries:
                    if where.has_key(entry.key):
                        index.add(entry)
        except BaseException:
            index.close()
            raise
        return index

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write facts into scopes; facts have no order, so ``Page.offset`` is ignored.

        ADD fails with the code ``changed`` if the store has a different fact with the same id.
        REPLACE stores the facts and then removes all other facts of the scope.
        """
        written: set[str] = set()
        result: WriteResult | None = None
        async for page in pages:
            key = page.memory.key
            result = result or WriteResult(key)
            if result.failure is None:
                result = await self._add(page, mode, written, result)
            if page.last:
                if result.failure is None and mode is WriteMode.REPLACE:
                    result = replace(result, deleted=await self._remove_others(key, written))
                yield result
                result = None
                written.clear()

    async def _add(
        self, page: Page, mode: WriteMode, written: set[str], result: WriteResult
    ) -> WriteResult:
        key, facts = page.memory.key, page.messages
        ids = [fact.id for fact in facts]
        if len(set(ids)) < len(ids) or not written.isdisjoint(ids):
            return replace(result, failure=Failure("repeated-id", "a fact has the id of another"))
        try:
            there = await self._there(key, ids)
            failure = self.refusal(key, facts, there, mode)
            if failure is not None:
                return replace(result, failure=failure)
            if mode is WriteMode.ADD:
                facts = [fact for fact in facts if fact.id not in there]
            if facts:
                await self.put(key, facts)
        except Rejected as rejected:
            return replace(result, failure=rejected.failure)
        if mode is WriteMode.REPLACE:
            written.update(ids)
        return replace(result, written=result.written + len(page.messages))

    def refusal(
        self,
        key: MemoryKey,
        facts: Sequence[StoredMessage],
        there: Mapping[str, LoadedFact],
        mode: WriteMode,
    ) -> Failure | None:
        """Return why the facts cannot be written to the scope ``key``, or None if they can.

        ``there`` maps ids to the stored facts that have the id of one of the facts.
        """
        for fact in facts:
            one = there.get(fact.id)
            if one is None:
                continue
            if one.key != key:
                text = f"the id {fact.id!r} is that of a fact of {one.key}"
                return Failure("refused", text)
            if mode is WriteMode.ADD and (one.damage or not _same(one.fact, fact.message)):
                return Failure("changed", f"there is another fact {fact.id!r}")
        return None

    async def _there(self, key: MemoryKey, ids: Sequence[str]) -> dict[str, LoadedFact]:
        found: dict[str, LoadedFact] = {}
        for some in _some(ids):
            found |= {one.fact.id: one for one in await self.load(key, some)}
        return found

    async def _remove_others(self, key: MemoryKey, written: set[str]) -> int:
        count = 0
        with await self._index(Selection(keys=frozenset({key}))) as index:
            for ids in index.ids(key):
                others = [id for id in ids if id not in written]
                if others:
                    await self.remove(key, others)
                count += len(others)
        return count

    # Editing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Delete and insert facts of scopes; yield a result for each scope.

        All changes of a scope are compared with the stored facts before the first change is made.
        """
        parts: ItemSpool[Edit] | None = None
        try:
            async for edit in edits:
                with system_errors(scratch(), "write"):
                    parts = parts or ItemSpool()
                    parts.add(edit)
                if edit.last:
                    yield await self._apply(parts)
                    parts.close()
                    parts = None
        finally:
            if parts is not None:
                parts.close()

    async def _apply(self, parts: ItemSpool[Edit]) -> WriteResult:
        key = parts[0].memory.key
        result = WriteResult(key)
        for edit in parts:
            failure = await self._misfit(key, edit)
            if failure is not None:
                return replace(result, failure=failure)
        written = deleted = 0
        try:
            for edit in parts:
                there = await self._there(key, [change.id for change in edit.changes])
                gone = [
                    change.id
                    for change in edit.changes
                    if change.new is None and change.id in there
                ]
                new = [
                    StoredMessage(change.id, change.message, shape=change.shape)
                    for change in edit.changes
                    if change.old is None and change.id not in there
                ]
                if gone:
                    await self.remove(key, gone)
                if new:
                    await self.put(key, new)
                written += len(new)
                deleted += len(gone)
        except Rejected as rejected:
            return replace(result, failure=rejected.failure)
        return WriteResult(key, written, deleted)

    async def _misfit(self, key: MemoryKey, edit: Edit) -> Failure | None:
        """Return why an edit does not fit the stored facts, or None."""
        if edit.memory.summary or edit.summary:
            return Failure("refused", "facts have no summary")
        there = await self._there(key, [change.id for change in edit.changes])
        for change in edit.changes:
            one = there.get(change.id)
            if change.new or change.old:
                return Failure("refused", "facts have no marks")
            if one is None:
                continue
            if one.key != key:
                return Failure("refused", f"the id {change.id!r} is that of a fact of {one.key}")
            if one.damage or (change.message and not _same(one.fact, change.message)):
                return Failure("changed", f"the fact {change.id!r} is not as it was")
        return None

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        with await self._index(where) as index:
            for key in index.scopes():
                count = 0
                for ids in index.ids(key):
                    await self.remove(key, ids)
                    count += len(ids)
                yield WriteResult(key, deleted=count)


def _same(one: StoredMessage, text: bytes) -> bool:
    """Return whether a fact has the given text, apart from vectors."""
    if one.message == text:
        return True
    return is_same_text(without_vector(one.message), without_vector(text))


def _some(ids: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while some := list(islice(rest, SOME)):
        yield some


class FactIndex:
    """The scopes and ids of facts, sorted by scope, time and id, in an unnamed temporary file."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._rows: list[tuple[bytes, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close and remove the temporary file."""
        self._database.close()

    def add(self, entry: FactEntry) -> None:
        """Add the scope, the id and the time of a fact."""
        texts = (*entry.key, entry.time, entry.id)
        self._rows.append(tuple(map(encoded, texts)))
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        self._database.executemany("INSERT OR IGNORE INTO fact VALUES (?, ?, ?, ?, ?)", self._rows)
        self._rows.clear()

    def scopes(self) -> Iterator[MemoryKey]:
        """Yield the scopes of the added facts, in order."""
        self._flush()
        rows = self._database.execute(
            "SELECT DISTINCT user, session, part FROM fact ORDER BY 1, 2, 3"
        )
        for row in rows.fetchall():
            yield MemoryKey(*map(decoded, row))

    def ids(self, key: MemoryKey) -> Iterator[list[str]]:
        """Yield lists of at most ``SOME`` ids of the facts of a scope, ordered by time and id."""
        self._flush()
        names = tuple(map(encoded, key))
        rows = self._database.execute(_IDS, names)
        while some := rows.fetchmany(SOME):
            yield [decoded(id) for (id,) in some]


_ROWS = 1000
_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE fact (user BLOB, session BLOB, part BLOB, time BLOB, id BLOB);
CREATE UNIQUE INDEX place ON fact (user, session, part, time, id);
"""
_IDS = "SELECT id FROM fact WHERE user = ? AND session = ? AND part = ? ORDER BY time, id"


def encoded(text: str) -> bytes:
    """Encode a text as bytes for SQLite, whose text type excludes lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> str:
    """Return the text that ``encoded`` encoded."""
    return text.decode("utf-8", "surrogatepass")
