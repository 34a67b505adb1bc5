"""Session histories and memories of agentscope-runtime in Tablestore.

Sources: ``engine/services/session_history/tablestore_session_history_service.py``,
``engine/services/memory/tablestore_memory_service.py`` and
``engine/services/utils/tablestore_service_utils.py`` of agentscope-runtime 1.0.5, with the same
tables as 0.2.0; ``memory/async_memory_store.py`` of tablestore-for-agent-memory 1.1.3.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from memctl.dialects.runtime import RUNTIME
from memctl.engines.tablestore.service import (
    LARGEST_KEY,
    Delete,
    Key,
    Row,
    RowFailure,
    TableSchema,
)
from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.layouts.tablestore import TABLES, TablestoreStore, open_tables
from memctl.location import Location, visible
from memctl.model import Finding, Memory, MemoryKey, Page, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.store import Features, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.read_only import RetiredStore
from memctl.stores.runtime.paths import HISTORY, MEMORY, path_of

_SESSIONS, _MESSAGES, _DOCUMENTS = TABLES["runtime"]
_SESSION_KEY = ("user_id", "session_id")
_MESSAGE_KEY = ("session_id", "create_time", "message_id")
_DOCUMENT_KEY = ("document_id", "tenant_id")
_LIST = "content_list"
_FIRST = (
    *("sequence_number", "object", "status", "error", "id", "type", "role", "content", "code"),
    *("message", "usage", "metadata"),
)
"""The fields of a message in the order of the runtime's ``Message``."""


class _Service(NamedTuple):
    """A service of agentscope-runtime: its table, the primary key and further columns."""

    table: str
    key: tuple[str, ...]
    text: str
    """The column with the first text of a message."""
    others: frozenset[str]
    """The columns that are not fields of the message."""


_HISTORY = _Service(_MESSAGES, _MESSAGE_KEY, "content", frozenset())
_MEMORY = _Service(
    _DOCUMENTS, _DOCUMENT_KEY, "text", frozenset({"user_id", "session_id", "embedding"})
)


class TablestoreRuntimeStore(RetiredStore, TablestoreStore):
    """Memories in the tables ``agentscope_runtime_session``, ``_message`` and ``_memory``.

    A session is a row, and each message of its history is a row.  Messages are in the order of
    their arrival times.  The rows of messages do not name the user, so two users cannot have
    sessions of the same name.  The messages of the memory service are the part ``memory`` of a
    session, in the order of the primary key.  With ``?path=history`` or ``?path=memory``, only
    these messages are available, without a part.
    """

    kind = "tablestore-runtime"
    dialect = RUNTIME
    features = Features(
        marks=frozenset(),
        empty=True,
        duplicate_ids=True,
        parts=True,
        session_owners=True,
        retired=True,
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._tables: frozenset[str] = frozenset()
        self._path = path_of(location)

    async def prepare(self, mode: OpenMode) -> None:
        if mode.creates:
            self.refuse_changes()
        schemas = [TableSchema(name, ()) for name in TABLES["runtime"]]
        await open_tables(self.instance, self.location, mode, "runtime", schemas)
        self._tables = await self.instance.tables()

    async def identity(self) -> str:
        return f"{self.instance.identity()}/{self.kind}"

    # Rewriting

    @property
    def text_tables(self) -> Mapping[str, Sequence[str]]:
        keys = (_SESSION_KEY, _MESSAGE_KEY, _DOCUMENT_KEY)
        return dict(zip(TABLES["runtime"], keys, strict=True))

    # Reading

    @property
    def _part(self) -> str:
        """The part of the memory service's memories: ``memory``; empty with ``?path=memory``."""
        return "" if self._path == MEMORY else MEMORY

    def _service_of(self, key: MemoryKey) -> _Service:
        return _MEMORY if MEMORY in (key.part, self._path) else _HISTORY

    async def _keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        if self._path != MEMORY and _SESSIONS in self._tables:
            for user in sorted(where.users) or [""]:
                start = (user,) if where.users else ()
                scan = self.instance.scan(_SESSIONS, _SESSION_KEY, _SESSION_KEY, start=start)
                async with aclosing(scan) as pages:
                    async for page in pages:
                        for row in page:
                            key = MemoryKey(str(row.key[0]), str(row.key[1]))
                            if where.has_key(key):
                                yield key
        if self._path != HISTORY and _DOCUMENTS in self._tables:
            found: set[MemoryKey] = set()
            columns = ("document_id", *_SESSION_KEY)
            scan = self.instance.scan(_DOCUMENTS, _DOCUMENT_KEY, columns)
            async with aclosing(scan) as pages:
                async for page in pages:
                    found.update(map(self._owner, page))
            for key in sorted(filter(where.has_key, found)):
                yield key

    def _owner(self, row: Row) -> MemoryKey:
        names = (row.columns.get(name) for name in _SESSION_KEY)
        user, session = (name if isinstance(name, str) else "" for name in names)
        return MemoryKey(user, session, self._part)

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._keys(where)) as keys:
            async for key in keys:
                try:
                    snapshot = await self._load(key)
                except BadData as error:
                    self._note_damage(key, error.message)
                    continue
                if snapshot is not None:
                    self.left_out.others = True
                    async with aclosing(snapshot.pages()) as pages:
                        async for page in pages:
                            yield page

    def _note_damage(self, key: MemoryKey, text: str) -> None:
        if self.skips_damage:
            self.damage.append(Finding("damaged-row", key, detail=text))
        else:
            self.left_out.failures[key] = Failure("damaged", text)

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with aclosing(self._keys(where)) as keys:
            found = dict.fromkeys([key async for key in keys])
        for key in found:
            yield key

    def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self.list_keys(where)

    async def _load(self, key: MemoryKey) -> Snapshot | None:
        service = self._service_of(key)
        rows = await self._rows(key)
        there = await self._has_session(key) if service is _HISTORY else bool(rows)
        if not there:
            return None
        return Snapshot(Memory(key), [_message(service, row) for row in rows])

    async def _has_session(self, key: MemoryKey) -> bool:
        if _SESSIONS not in self._tables or not _fits(key):
            return False
        names = [list(zip(_SESSION_KEY, key[:2], strict=True))]
        [row] = await self.instance.get(_SESSIONS, names)
        return row is not None

    async def _rows(self, key: MemoryKey) -> list[Row]:
        service = self._service_of(key)
        if service.table not in self._tables or not _fits(key):
            return []
        if service is _HISTORY:
            scan = self.instance.scan(_MESSAGES, _MESSAGE_KEY, start=(key.session,))
        else:
            where = [("session_id", key.session)] if key.session else []
            scan = self.instance.scan(_DOCUMENTS, _DOCUMENT_KEY, where=where)
        rows: list[Row] = []
        async with aclosing(scan) as pages:
            async for page in pages:
                rows += [
                    row for row in page if service is _HISTORY or self._owner(row)[:2] == key[:2]
                ]
        return rows

    # Erasing

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        async with aclosing(self._keys(where)) as found:
            keys = [key async for key in found]
        for key in keys:
            service = self._service_of(key)
            rows = await self._rows(key)
            failure = await self._delete(service.table, service.key, [row.key for row in rows])
            if service is _HISTORY and failure is None:
                session = (key.user, key.session)
                failure = await self._delete(_SESSIONS, _SESSION_KEY, [session])
            yield WriteResult(key, deleted=0 if failure else len(rows), failure=failure)

    async def _delete(self, table: str, key: Sequence[str], rows: Sequence[Key]) -> Failure | None:
        outcomes: list[RowFailure | None] = []
        await self.instance.change(table, key, [Delete(row) for row in rows], outcomes)
        refused = next(filter(None, outcomes), None)
        return refused and Failure("refused", f"Tablestore refuses a deletion: {refused.message}")


def _fits(key: MemoryKey) -> bool:
    try:
        return all(len(name.encode()) <= LARGEST_KEY for name in key[:2])
    except UnicodeEncodeError:
        return False


# Messages


def _message(service: _Service, row: Row) -> StoredMessage:
    """Return the message of a row, as the runtime reads the row.

    The runtime's function is ``_generate_init_json_from_tablestore_message``.

    Raises:
        BadData: the runtime could not make a message from the row.
    """
    id = str(row.key[2] if service is _HISTORY else row.key[0])
    columns = {name: one for name, one in row.columns.items() if name not in service.others}
    text = columns.pop(service.text, None)
    value = {name: _restored(one) for name, one in columns.items()}
    content = value.pop(_LIST, None)
    if isinstance(content, str) and content == columns[_LIST]:  # the column is not JSON
        raise BadData(f"the message {visible(id)!r} has no list in its column {_LIST}")
    if text is not None:
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "text":
                part["text"] = text
                break
    value |= {"id": id, "content": content}
    fields = [name for name in _FIRST if name in value]
    ordered = {name: value[name] for name in (*fields, *sorted(value.keys() - set(fields)))}
    return StoredMessage(id, jsonio.dumps(ordered))


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return jsonio.loads(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return value
    return value
