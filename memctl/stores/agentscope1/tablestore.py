"""Conversations of TablestoreMemory (AgentScope 1.x) in Alibaba Cloud Tablestore.

Sources: ``memory/_working_memory/_tablestore_memory.py`` of AgentScope 1.0.21, and
``knowledge/async_knowledge_store.py`` of tablestore-for-agent-memory 1.1.3.  Each message is a
row.  AgentScope reads a memory through a search index, which lags behind writes, and sorts the
messages by the column ``timestamp``. memctl reads and writes the rows themselves.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from memctl.engines.tablestore.rows import (
    IndexedRow,
    MemoryChange,
    MovedRow,
    RowIndex,
    change_memories,
    move_rows,
)
from memctl.engines.tablestore.service import (
    LARGEST_COLUMN,
    LARGEST_KEY,
    Columns,
    Delete,
    Put,
    Row,
    TableSchema,
    Update,
)
from memctl.errors import Failure, UsageError
from memctl.inference.text import encodable
from memctl.json import jsonio
from memctl.layouts.tablestore import TablestoreStore, open_tables, table_of
from memctl.location import Location, visible
from memctl.model import (
    Edit,
    Finding,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    ServiceHit,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Features, Maintenance, Matches, OpenMode, searched_text
from memctl.storekit.batching import PageBuilder, Small, gather
from memctl.storekit.catalog import IdSet, count
from memctl.storekit.edits import (
    ChangeMatcher,
    Drop,
    Keep,
    LargeEdit,
    Mark,
    Step,
    batch_edits,
    is_same_text,
)
from memctl.storekit.edits import Put as PutIn
from memctl.storekit.simple import Rejected

KEY = ("document_id", "tenant_id")
_SEPARATOR = ":::"
_DOCUMENT, _TEXT, _SESSION, _TIME, _MARKS = (
    "document_id",
    "text",
    "session_id",
    "timestamp",
    "marks_json",
)
_OUTLINE = (_DOCUMENT, _SESSION, _TIME, _MARKS)
_NO_TENANT = "__default"
"""The tenant name that tablestore-for-agent-memory refuses: the library uses it for "no tenant"."""
_FOLLOWING = re.compile(r"(.*) \+(\d{6})", re.DOTALL)
_BYTES = "base64"
_BATCH_CHANGES = 20_000
_BATCH_BYTES = 16 * 1024 * 1024
"""The most bytes to write together; each batch reads the table once."""
_MOST_FOUND = 5000
"""The most rows that a search reads."""
_MOST_TERMS = 100
_FEW = 10
"""The most sessions to filter in the service; memctl filters longer lists itself."""


class TablestoreMemoryStore(TablestoreStore):
    """Messages as rows ``{message}:::{session}`` of a user, in the table ``agentscope_memory``.

    The messages of a memory are sorted by the column ``timestamp``, then by primary key.  If a
    message's own time would sort the message too early, memctl writes the time of the preceding
    message and a number: ``2026-01-02 03:04:05.678 +000001``.  AgentScope sorts by the column, but
    reads the time of a message from its text.

    The shape of a message is a JSON text with all columns that AgentScope would write differently.

    The service has no transactions over rows.  If a row of a memory cannot be changed, memctl
    restores the rows that it has changed.  If memctl is killed before that, some rows stay changed.
    """

    kind = "tablestore"
    features = Features(
        mark_order=True,
        cheap_outline=True,
        search=True,
        renames=frozenset({"user", "session", "merge"}),
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._table = table_of(location, "memory")
        self._other: str | None = None

    async def prepare(self, mode: OpenMode) -> None:
        schema = TableSchema(self._table, tuple((name, "STRING") for name in KEY))
        self._other = await open_tables(self.instance, self.location, mode, "memory", [schema])

    async def other_layout(self) -> str | None:
        return self._other

    async def identity(self) -> str:
        return f"{self.instance.identity()}/{self._table}"

    async def is_empty(self) -> bool:
        async with aclosing(self.instance.scan(self._table, KEY, KEY[:1], limit=1)) as pages:
            async for _ in pages:
                return False
        return True

    def maintenance(self) -> Maintenance:
        return _MemoryMaintenance(self)

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where, ()), self.dialect)

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._pages(where, _OUTLINE)

    async def _pages(self, where: Selection, columns: Sequence[str]) -> AsyncGenerator[Page]:
        with RowIndex() as index:
            await self._fill(index, where, columns)
            for key in index.memories():
                if self._is_damaged(key, index):
                    continue
                self.left_out.others = True
                builder = PageBuilder(Memory(key, version=index.version(key)))
                for row in index.rows(key):
                    if not row.damage:
                        for page in builder.take([row.stored()]):
                            yield page
                if builder.entries:
                    yield builder.page(last=True)

    def _is_damaged(self, key: MemoryKey, index: RowIndex) -> bool:
        """Note the damage of a memory; return whether to leave the memory out."""
        damage = index.damage(key)
        if not damage:
            return False
        names = tuple(name for name, _ in damage)
        text = damage[0][1]
        if self.skips_damage:
            found = Finding("damaged-row", key, len(names), names[:3], text)
            if found not in self.damage:
                self.damage.append(found)
            return False
        self.left_out.failures[key] = Failure("damaged", f"the row {names[0]!r}: {text}")
        return True

    async def _fill(self, index: RowIndex, where: Selection, columns: Sequence[str]) -> None:
        async with aclosing(self._rows(where, columns)) as rows:
            async for row in rows:
                index.add(row)

    async def _rows(
        self, where: Selection, columns: Sequence[str] = (), *, strays: bool = False
    ) -> AsyncGenerator[IndexedRow]:
        """Yield the rows of the selected memories; with ``strays``, also rows without a session.

        Reads only ``columns``; if empty, all columns.
        """
        scan = self.instance.scan(self._table, KEY, columns, where=_sought(where))
        async with aclosing(scan) as pages:
            async for page in pages:
                for row in page:
                    if not strays and not isinstance(row.columns.get(_SESSION), str):
                        continue  # AgentScope does not find rows without a session
                    found = _indexed(row, outline=bool(columns))
                    if where.has_key(found.key):
                        yield found

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        if not where.whole:
            async with aclosing(super().list_memories(where)) as some:
                async for info in some:
                    yield info
            return
        infos: dict[MemoryKey, MemoryInfo] = {}
        damage: dict[MemoryKey, str] = {}
        async with aclosing(self._rows(where)) as rows:
            async for row in rows:
                info = infos.setdefault(row.key, MemoryInfo(row.key, repeated=0))
                if row.damage:
                    damage.setdefault(row.key, f"the row {row.name!r}: {row.damage}")
                else:
                    count(info, [row.stored()])
        for key, info in sorted(infos.items()):
            if key in damage and not self.skips_damage:
                self.left_out.failures[key] = Failure("damaged", damage[key])
            elif info.messages:
                self.left_out.others = True
                yield info

    async def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        async with aclosing(self._rows(where)) as rows:
            async for row in rows:
                if not row.damage and list(matches([row.message])):
                    yield row.key, StoredMessage(row.id, row.message)

    # Rewriting

    @property
    def text_tables(self) -> Mapping[str, Sequence[str]]:
        return {self._table: KEY}

    # Searching

    async def search(self, query: str, where: Selection, top: int) -> list[ServiceHit]:
        """Search as ``Store.search`` does, in the column with the JSON of the messages."""
        text = searched_text(self, query, where)
        index = await self.instance.text_index(self._table, _TEXT)
        if index is None:
            raise UsageError(
                f"{self.label}: the table {visible(self._table)} has no search index of its texts",
                "AgentScope makes one when it starts; use --by words meanwhile",
            )
        hits: list[ServiceHit] = []
        read = 0
        found = self.instance.search(self._table, index, text, _sought_terms(where))
        async with aclosing(found) as pages:
            async for page in pages:
                hits += [hit for row, score in page if (hit := self._hit(row, score, where))]
                read += len(page)
                if len(hits) >= top or read >= _MOST_FOUND:
                    break
        return hits[:top]

    def _hit(self, row: Row, score: float, where: Selection) -> ServiceHit | None:
        """Return a row of a search as a hit; None if not selected or damaged."""
        if not isinstance(row.columns.get(_SESSION), str):
            return None  # AgentScope does not find rows without a session
        found = _indexed(row, outline=False)
        if not where.has_key(found.key):
            return None
        if found.damage:
            text = f"the row {found.name!r}: {found.damage}"
            self.left_out.failures[found.key] = Failure("damaged", text)
            return None
        stored = found.stored()
        return ServiceHit(found.key, stored, score) if where.matches(stored, self.dialect) else None

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write as ``Store.write`` does; holds a large memory or a batch of small ones."""
        async for batch in gather(pages, _BATCH_BYTES, _BATCH_CHANGES):
            if isinstance(batch, list):
                smalls = batch
            else:
                messages = [one async for page in batch.pages for one in page.messages]
                smalls = [Small(batch.memory, messages, batch.offset)]
            keys = frozenset(small.memory.key for small in smalls)
            with RowIndex() as index:
                await self._fill(index, Selection(keys=keys), _OUTLINE)
                planned = [await self._planned(small, mode, index) for small in smalls]
            async for result in self._carry_out(planned):
                yield result

    async def _planned(
        self, small: Small, mode: WriteMode, index: RowIndex
    ) -> tuple[WriteResult, MemoryChange]:
        """Plan to write a memory; return the row changes, and their result or a failure."""
        key, change = small.memory.key, MemoryChange()
        there = list(index.rows(key))
        replaces = mode is WriteMode.REPLACE
        try:
            _check_key(key)
            if not replaces and len(there) != small.offset:
                raise Rejected("changed", f"there are {len(there)} messages, not {small.offset}")
            version = index.version(key) if there else None
            if replaces and small.memory.version not in (None, version):
                raise Rejected("changed", "another program has changed it meanwhile")
            ids = IdSet()
            ids.add(one.id for one in small.entries)
            if not replaces:
                ids.add(row.id for row in there)
            if ids.duplicates:
                raise Rejected("repeated-id", "a message id occurs twice")
            rows = _placed(key, small.entries, None if replaces else _last(there))
            old = await self._read_again(there) if replaces else {}
            for name, columns in rows:
                document = (name, key.user)
                before = old.pop(name, None)
                if before is None:
                    change.add(Put(document, columns), Delete(document))
                else:
                    change.add(Put(document, columns, new=False), Put(document, before, new=False))
            for name, before in old.items():
                document = (name, key.user)
                change.add(Delete(document), Put(document, before, new=False))
        except Rejected as rejected:
            return WriteResult(key, failure=rejected.failure), MemoryChange()
        gone = len(there) if replaces else 0
        return WriteResult(key, len(small.entries), gone), change

    async def _read_again(self, rows: Iterable[IndexedRow]) -> dict[str, Columns]:
        keys = [list(zip(KEY, (row.name, row.key.user), strict=True)) for row in rows]
        found = await self.instance.get(self._table, keys)
        return {str(row.key[0]): row.columns for row in found if row is not None}

    async def _carry_out(
        self, planned: Sequence[tuple[WriteResult, MemoryChange]]
    ) -> AsyncGenerator[WriteResult]:
        self.about_to_commit(result for result, _ in planned)
        changes = [change for _, change in planned]
        failures = await change_memories(self.instance, self._table, KEY, changes)
        for (result, _), failure in zip(planned, failures, strict=True):
            yield result if failure is None else WriteResult(result.key, failure=failure)

    # Changing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Edit as ``Store.edit`` does; holds all changes of a memory and the rows to delete."""
        async for batch in batch_edits(edits, large=_BATCH_CHANGES, most_changes=_BATCH_CHANGES):
            if isinstance(batch, LargeEdit):
                changes = [change async for piece in batch.pieces for change in piece]
                batch = [replace(batch.edit, changes=changes, last=True)]
            keys = frozenset(edit.memory.key for edit in batch)
            with RowIndex() as index:
                await self._fill(index, Selection(keys=keys), _OUTLINE)
                planned = [await self._planned_edit(edit, index) for edit in batch]
            async for result in self._carry_out(planned):
                yield result

    async def _planned_edit(self, edit: Edit, index: RowIndex) -> tuple[WriteResult, MemoryChange]:
        """Plan to edit a memory; return the row changes, and their result or a failure."""
        key = edit.memory.key
        there = list(index.rows(key))
        going = {one.id for one in edit.changes if one.new is None}
        old = await self._read_again(row for row in there if row.id in going)
        matcher = ChangeMatcher(edit.shared_ids)
        matcher.give(edit.changes, last=True)
        ids, marks = [row.id for row in there], [row.marks for row in there]

        def has_text(at: int, text: bytes) -> bool:
            stored = old.get(there[at].name, {}).get(_TEXT)
            return isinstance(stored, str) and is_same_text(stored.encode(), text)

        steps, at = matcher.apply(ids, marks, has_text=has_text)
        steps += matcher.apply([], [])[0] if at == len(ids) else []
        failure = matcher.failure()
        if failure is not None:
            return WriteResult(key, failure=failure), MemoryChange()
        try:
            _check_key(key)
            change = _carried_out(key, steps, there, old)
        except Rejected as rejected:
            return WriteResult(key, failure=rejected.failure), MemoryChange()
        written, deleted = matcher.written, matcher.deleted
        return WriteResult(key, written, deleted, shared_ids=matcher.shared_ids()), change

    # Other names

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        try:
            _check_key(key)
        except Rejected as rejected:
            return rejected.failure
        return None

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename as ``Store.rename`` does; holds the rows of a session.

        If the program is killed, some messages of a session have both names until the same rename
        is done again.
        """
        for old, new in moves.items():
            with RowIndex() as index:
                rows = self._rows(Selection(keys=frozenset({old})), _OUTLINE, strays=True)
                async with aclosing(rows):
                    async for row in rows:
                        index.add(row)
                there = list(index.rows(old))
            columns = await self._read_again(there)
            try:
                moved = [
                    _moved(row, columns[row.name], new) for row in there if row.name in columns
                ]
                failure = await move_rows(self.instance, self._table, KEY, moved)
            except Rejected as rejected:
                failure = rejected.failure
            yield WriteResult(old, failure=failure)

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        keys: set[MemoryKey] = set()
        async with aclosing(self._rows(where, _OUTLINE, strays=True)) as rows:
            async for row in rows:
                keys.add(row.key)
        for key in sorted(keys):
            yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        with RowIndex() as index:
            async with aclosing(self._rows(where, _OUTLINE, strays=True)) as rows:
                async for row in rows:
                    index.add(row)
            for key in index.memories():
                change = MemoryChange()
                for row in index.rows(key):
                    gone = Delete((row.name, key.user))
                    change.add(gone, gone)
                planned = [(WriteResult(key, deleted=len(change.changes)), change)]
                async for result in self._carry_out(planned):
                    yield result


def _sought(where: Selection) -> list[tuple[str, str]]:
    """Return the filter of a scan: the selected sessions if they are few, else empty."""
    sessions = where.sessions
    if where.keys is not None:
        sessions = frozenset(key.session for key in where.keys)
    return [(_SESSION, one) for one in sorted(sessions)] if 0 < len(sessions) <= _FEW else []


def _sought_terms(where: Selection) -> dict[str, frozenset[str]]:
    """Return the filter of a search: the selected users and sessions, each if they are few."""
    keys = where.keys or frozenset()
    sought = {
        KEY[1]: where.users or frozenset(key.user for key in keys),
        _SESSION: where.sessions or frozenset(key.session for key in keys),
    }
    return {
        name: frozenset(map(encodable, values))
        for name, values in sought.items()
        if 0 < len(values) <= _MOST_TERMS
    }


# Rows


def _indexed(row: Row, *, outline: bool) -> IndexedRow:
    """Convert a row of the service to a row of a ``RowIndex``.

    With ``outline``, the row was read without its text, so the result has no message and no damage.
    """
    document, user = map(str, row.key)
    columns = row.columns
    session = columns.get(_SESSION)
    session = session if isinstance(session, str) else ""
    suffix = _SEPARATOR + session
    id = document.removesuffix(suffix) if document.endswith(suffix) else document
    raw, time = columns.get(_MARKS), columns.get(_TIME)
    marks = _marks(raw)
    stamp = ".".join(str(row.times.get(name, "")) for name in (_SESSION, _TIME, _MARKS))
    found = IndexedRow(
        MemoryKey(user, session),
        time if isinstance(time, str) else "",
        document,
        id,
        marks,
        raw if isinstance(raw, str) else "",
        stamp,
    )
    if outline:
        return found
    text = columns.get(_TEXT)
    if not isinstance(text, str):
        return found._replace(damage="it has no text")
    try:
        message = text.encode()
        value = jsonio.outline(message)
    except ValueError:
        return found._replace(damage="its text is not valid JSON")
    if not isinstance(value, dict):
        return found._replace(damage="its text is not a message")
    return found._replace(message=message, shape=_shape(columns, value, marks))


def _marks(raw: Any) -> tuple[str, ...]:
    try:
        value = json.loads(raw)
    except (ValueError, TypeError):
        return ()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(dict.fromkeys(value))
    return ()


def _usual(value: dict[str, Any], marks: Iterable[str]) -> Columns:
    """Return the columns that AgentScope writes for a message, except text and session.

    ``value`` is the parsed message.
    """
    columns = {
        name: found if isinstance(found := value.get(name), str) else ""
        for name in ("name", "role", _TIME, "invocation_id")
    }
    return columns | {_MARKS: json.dumps(list(marks), ensure_ascii=False)}


def _shape(columns: Columns, value: dict[str, Any], marks: tuple[str, ...]) -> str:
    """Return the shape of a message: the columns that AgentScope would write differently, as JSON.

    A column that the row lacks is null.  Empty if there is no difference.  ``value`` is the parsed
    message of the row, ``marks`` are its marks.
    """
    usual = _usual(value, marks)
    others: dict[str, Any] = {
        name: {_BYTES: base64.b64encode(one).decode()} if isinstance(one, bytearray) else one
        for name, one in columns.items()
        if name not in (_TEXT, _SESSION) and (name not in usual or usual[name] != one)
    }
    others |= {name: None for name in usual if name not in columns}
    return json.dumps(others) if others else ""


def _columns(key: MemoryKey, entry: StoredMessage, place: str | None = None) -> Columns:
    """Return the columns to write for a message; ``place``, if given, replaces its time.

    Raises:
        Rejected: a column is too large, or has half of a surrogate pair.
    """
    columns = {_TEXT: entry.message.decode(), _SESSION: key.session}
    columns |= _usual(jsonio.outline(entry.message), entry.marks)
    others = _of_shape(entry.shape)
    if _MARKS in others and _marks(others[_MARKS]) != entry.marks:
        del others[_MARKS]
    columns |= others
    if place is not None:
        columns[_TIME] = place
    for name, value in columns.items():
        try:
            size = len(value.encode()) if isinstance(value, str) else 0
        except UnicodeEncodeError:
            raise Rejected("refused", f"its {name} has a half of a surrogate pair") from None
        if size > LARGEST_COLUMN:
            raise Rejected("refused", "Tablestore takes no message of more than 2 MB")
    return {name: value for name, value in columns.items() if value is not None}


def _of_shape(shape: str) -> Columns:
    try:
        found = json.loads(shape) if shape.startswith("{") else None
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: bytearray(base64.b64decode(value[_BYTES])) if isinstance(value, dict) else value
        for name, value in found.items()
    }


def _document(key: MemoryKey, id: str) -> str:
    """Return the document id of a message: ``{id}:::{session}``.

    Raises:
        Rejected: the document id is too long, or has half of a surrogate pair.
    """
    document = f"{id}{_SEPARATOR}{key.session}"
    try:
        size = len(document.encode())
    except UnicodeEncodeError:
        raise Rejected("refused", f"the id {id!r} has a half of a surrogate pair") from None
    if size > LARGEST_KEY:
        raise Rejected(
            "refused", "an id and the name of its session have more than 1024 bytes together"
        )
    return document


def _moved(row: IndexedRow, columns: Columns, new: MemoryKey) -> MovedRow:
    """Return the move of a row to the session or the user ``new``.

    Raises:
        Rejected: the id of the row names another session, or would be too long.
    """
    document, new_columns, suffix = row.name, columns, _SEPARATOR + row.key.session
    if row.key.session != new.session:
        if not row.name.endswith(suffix):
            raise Rejected("refused", f"the id of the row {row.name!r} does not name the session")
        document, new_columns = _document(new, row.id), columns | {_SESSION: new.session}
    where = {_MARKS: row.raw} if row.raw else {}
    return MovedRow((row.name, row.key.user), columns, where, (document, new.user), new_columns)


def _check_key(key: MemoryKey) -> None:
    """Refuse a memory with a user or session name that TablestoreMemory cannot use.

    Raises:
        Rejected: the name cannot be used.
    """
    if key.part:
        raise Rejected(
            "bad-name", f"the store holds one memory a session, not a part like {key.part!r}"
        )
    if key.user == _NO_TENANT:
        raise Rejected("bad-name", f"TablestoreMemory takes no user {_NO_TENANT!r}")
    try:
        sizes = [len(name.encode()) for name in key]
    except UnicodeEncodeError:
        raise Rejected("bad-name", f"{key} has half of a surrogate pair in its name") from None
    if max(sizes) >= LARGEST_KEY:
        raise Rejected("bad-name", "a user or session has more than 1024 bytes in its name")


# Order


def _following(place: str) -> str:
    """Return the text of a time that sorts directly after the time ``place``.

    The result is ``T +000001`` for a time ``T``, ``T +000002`` for ``T +000001``, and so on.
    """
    found = _FOLLOWING.fullmatch(place)
    if found is None or found[2] == "999999":
        return f"{place} +000001"
    return f"{found[1]} +{int(found[2]) + 1:06}"


def _last(rows: Sequence[IndexedRow]) -> str | None:
    return rows[-1].place if rows else None


def _placed(
    key: MemoryKey, entries: Iterable[StoredMessage], last: str | None
) -> list[tuple[str, Columns]]:
    """Return the document id and the columns of each message to write.

    The times of the rows rise in the order of the messages, from the time ``last`` on.  ``last`` is
    None if no message precedes.

    Raises:
        Rejected: a message cannot be written.
    """
    rows = []
    for entry in entries:
        columns = _columns(key, entry)
        wanted = columns.get(_TIME, "")
        if last is not None and wanted <= last:
            columns[_TIME] = wanted = _following(last)
        last = wanted
        rows.append((_document(key, entry.id), columns))
    return rows


def _carried_out(
    key: MemoryKey, steps: Iterable[Step], there: Sequence[IndexedRow], old: dict[str, Columns]
) -> MemoryChange:
    """Return the row changes that carry out the steps of an edit.

    ``there`` are the rows of the memory in order.  ``old`` has all columns of the rows to delete,
    by row name.  A stored row gets a new time only to make room for inserted messages.

    Raises:
        Rejected: a message cannot be written.
    """
    change = MemoryChange()
    last: tuple[str, str] | None = None

    def stay(row: IndexedRow, new: Columns) -> None:
        nonlocal last
        place = row.place
        if last is not None and (place, row.name) <= last:
            place = _following(last[0])
            new = {**new, _TIME: place}
        last = place, row.name
        if new:
            before = {_TIME: row.place, _MARKS: row.raw}
            where = {_MARKS: row.raw} if row.raw else {}
            document = (row.name, key.user)
            reverse = {name: before[name] for name in new}
            change.add(Update(document, new, where), Update(document, reverse))

    for step in steps:
        match step:
            case Keep(start, stop):
                for row in there[start:stop]:
                    stay(row, {})
            case Mark(at, marks, shape):
                row = there[at]
                raw = _of_shape(shape).get(_MARKS)
                if not isinstance(raw, str) or _marks(raw) != marks:
                    raw = json.dumps(list(marks), ensure_ascii=False)
                _check_marks(raw)
                stay(row, {} if raw == row.raw else {_MARKS: raw})
            case PutIn(entry):
                document = _document(key, entry.id)
                columns = _columns(key, entry)
                place = columns.get(_TIME, "")
                if last is not None and (place, document) <= last:
                    columns[_TIME] = place = _following(last[0])
                last = place, document
                change.add(Put((document, key.user), columns), Delete((document, key.user)))
            case Drop(at):
                row = there[at]
                document = (row.name, key.user)  # type: ignore[assignment]
                if row.name in old:
                    where = {_MARKS: row.raw} if row.raw else {}
                    back = Put(document, old[row.name], new=False)  # type: ignore[arg-type]
                    change.add(Delete(document, where), back)  # type: ignore[arg-type]
    return change


def _check_marks(raw: str) -> None:
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise Rejected("refused", "a mark has a half of a surrogate pair") from None


class _MemoryMaintenance(Maintenance):
    """Checks of the rows of TablestoreMemory."""

    store: TablestoreMemoryStore

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        with RowIndex() as index:
            await self.store._fill(index, where, _OUTLINE)
            for key in index.memories():
                for finding in _misplaced(key, index):
                    yield finding


def _misplaced(key: MemoryKey, index: RowIndex) -> list[Finding]:
    """Return findings for rows with equal times, and for document ids without the session."""
    same: list[str] = []
    alien: list[str] = []
    before: str | None = None
    for row in index.rows(key):
        if row.place == before:
            same.append(row.id)
        if not row.name.endswith(_SEPARATOR + key.session):
            alien.append(row.name)
        before = row.place
    found = []
    if same:
        found.append(Finding("duplicate-index", key, len(same), tuple(same[:3])))
    if alien:
        found.append(Finding("row-id-mismatch", key, len(alien), tuple(alien[:3])))
    return found
