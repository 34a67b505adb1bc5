"""Session histories and memories of agentscope-runtime in Tablestore.

Sources: ``engine/services/session_history/tablestore_session_history_service.py``,
``engine/services/memory/tablestore_memory_service.py`` and
``engine/services/utils/tablestore_service_utils.py`` of agentscope-runtime 1.0.5, with the same
tables as 0.2.0; ``memory/async_memory_store.py`` of tablestore-for-agent-memory 1.1.3.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from hashlib import blake2b
from typing import Any, NamedTuple

from memctl.dialects.runtime import RUNTIME
from memctl.engines.tablestore.rows import MemoryChange, change_memories
from memctl.engines.tablestore.service import (
    LARGEST_COLUMN,
    LARGEST_KEY,
    Columns,
    Delete,
    Key,
    Put,
    Row,
    TableSchema,
    TablestoreInstance,
)
from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.layouts.tablestore import TABLES, open_tables
from memctl.location import Location, visible
from memctl.model import Finding, Memory, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.store import Features, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected, SimpleStore, VersionChanged
from memctl.stores.runtime.paths import HISTORY, MEMORY, path_of

_SESSIONS, _MESSAGES, _DOCUMENTS = TABLES["runtime"]
_SESSION_KEY = ("user_id", "session_id")
_MESSAGE_KEY = ("session_id", "create_time", "message_id")
_DOCUMENT_KEY = ("document_id", "tenant_id")
_NO_TENANT = "__default"
"""The ``tenant_id`` of all rows of memories; a further column names the user."""
_LIST = "content_list"
_FIRST = (
    *("sequence_number", "object", "status", "error", "id", "type", "role", "content", "code"),
    *("message", "usage", "metadata"),
)
"""The fields of a message in the order of the runtime's ``Message``."""
_SCHEMAS = (
    TableSchema(
        _SESSIONS,
        tuple((name, "STRING") for name in _SESSION_KEY),
        (("update_time", "INTEGER"),),
        (
            "agentscope_runtime_session_secondary_index",
            ("user_id", "update_time", "session_id"),
        ),
    ),
    TableSchema(
        _MESSAGES,
        (("session_id", "STRING"), ("create_time", "INTEGER"), ("message_id", "STRING")),
        (),
        (
            "agentscope_runtime_message_secondary_index",
            ("session_id", "message_id", "create_time"),
        ),
    ),
    TableSchema(_DOCUMENTS, tuple((name, "STRING") for name in _DOCUMENT_KEY)),
)


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


class TablestoreRuntimeStore(SimpleStore):
    """Memories in the tables ``agentscope_runtime_session``, ``_message`` and ``_memory``.

    A session is a row, and each message of its history is a row.  Messages are in the order of
    their arrival times.  The rows of messages do not name the user, so two users cannot have
    sessions of the same name.  The messages of the memory service are the part ``memory`` of a
    session, in the order of the primary key.  With ``?path=history`` or ``?path=memory``, only
    these messages are available, without a part.

    The shape of a message is a JSON text: its position in the history, and the columns that the
    service would write differently, such as the vector.
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
        self.instance = TablestoreInstance(location)
        self._tables: frozenset[str] = frozenset()
        self._path = path_of(location)

    async def connect(self, mode: OpenMode) -> None:
        try:
            await open_tables(self.instance, self.location, mode, "runtime", _SCHEMAS)
            self._tables = await self.instance.tables()
        except BaseException:
            await self.instance.close()
            raise

    async def disconnect(self) -> None:
        await self.instance.close()

    async def identity(self) -> str:
        return f"{self.instance.identity()}/{self.kind}"

    # Reading

    @property
    def _part(self) -> str:
        """The part of the memory service's memories: ``memory``; empty with ``?path=memory``."""
        return "" if self._path == MEMORY else MEMORY

    def _service_of(self, key: MemoryKey) -> _Service:
        return _MEMORY if MEMORY in (key.part, self._path) else _HISTORY

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        async with aclosing(self._keys(Selection())) as keys:
            async for key in keys:
                yield key

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

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._keys(where)) as keys:
            async for key in keys:
                try:
                    snapshot = await self.load(key)
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

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with aclosing(self._keys(where)) as keys:
            async for key in keys:
                yield key

    async def load(self, key: MemoryKey) -> Snapshot | None:
        service = self._service_of(key)
        rows = await self._rows(key)
        if service is _HISTORY and not await self._has_session(key):
            return None
        if service is _MEMORY and not rows:
            return None
        messages = [_message(service, row) for row in rows]
        return Snapshot(Memory(key, version=_version(rows)), messages)

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

    # Writing

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        service = self._check(key, snapshot)
        rows = await self._rows(key)
        there = service is _HISTORY and await self._has_session(key)
        if service is _HISTORY and not there:
            await self._refuse_other_owner(key)
            rows = []  # the service never finds messages without a session
        if (_version(rows) if rows or there else None) != expect:
            raise VersionChanged
        old = {row.key: row.columns for row in rows}
        change = MemoryChange()
        for name, columns in _placed(service, key, snapshot.messages):
            before = old.pop(name, None)
            if before is None:
                change.add(Put(name, columns), Delete(name))
            elif before != columns:
                change.add(Put(name, columns, new=False), Put(name, before, new=False))
        for name, before in old.items():
            change.add(Delete(name, {}), Put(name, before, new=False))
        if service is _HISTORY and not there:
            user = (key.user, key.session)
            now = {"update_time": time.time_ns() // 1000}
            session = MemoryChange([Put(user, now)], [Delete(user)])
            await self._carry_out(_SESSIONS, _SESSION_KEY, session)
        await self._carry_out(service.table, service.key, change)

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        service = self._service_of(key)
        rows = await self._rows(key)
        if _version(rows) != expect:
            raise VersionChanged
        change = MemoryChange()
        for row in rows:
            change.add(Delete(row.key, {}), Put(row.key, row.columns, new=False))
        await self._carry_out(service.table, service.key, change)
        if service is _HISTORY:
            gone = Delete((key.user, key.session))
            await self._carry_out(_SESSIONS, _SESSION_KEY, MemoryChange([gone], [gone]))

    async def _carry_out(self, table: str, key: Sequence[str], change: MemoryChange) -> None:
        [failure] = await change_memories(self.instance, table, key, [change])
        if failure is not None and failure.code == "changed":
            raise VersionChanged
        if failure is not None:
            raise Rejected(failure.code, failure.message)

    def _check(self, key: MemoryKey, snapshot: Snapshot) -> _Service:
        """Check that a memory can be written; return the service that holds it.

        Raises:
            Rejected: the service cannot hold the name or the marks of the memory.
        """
        if key.part not in ("", self._part):
            text = f"a session has a history and the part {MEMORY!r}, not {key.part!r}"
            raise Rejected("bad-name", text)
        if not _fits(key):
            raise Rejected("bad-name", f"{key} has a name that Tablestore cannot hold")
        if any(one.marks for one in snapshot.messages):
            raise Rejected("refused", "the messages of agentscope-runtime have no marks")
        return self._service_of(key)

    async def _refuse_other_owner(self, key: MemoryKey) -> None:
        async with aclosing(self._keys(Selection(sessions=frozenset({key.session})))) as keys:
            async for other in keys:
                if not other.part and other.user != key.user:
                    text = f"the session {key.session!r} belongs to {other.user!r}"
                    raise Rejected("bad-name", text)


def _fits(key: MemoryKey) -> bool:
    try:
        return all(len(name.encode()) <= LARGEST_KEY for name in key[:2])
    except UnicodeEncodeError:
        return False


def _version(rows: Iterable[Row]) -> str:
    digest = blake2b(digest_size=16)
    for row in rows:
        digest.update(repr((row.key, sorted(row.times.items()))).encode("utf-8", "replace"))
    return digest.hexdigest()


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
    message = jsonio.dumps(ordered)
    return StoredMessage(id, message, shape=_shape(service, row, ordered))


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return jsonio.loads(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return value
    return value


def _columns(service: _Service, value: dict[str, Any]) -> Columns:
    """Return the columns of a message, without primary key, as the runtime writes them.

    The runtime's own function, ``convert_message_to_tablestore_message``, loses an empty text and
    cannot store lone surrogates.  Here both stay in the column ``content_list``.
    """
    columns: Columns = {}
    content = value.get("content")
    if isinstance(content, list):
        content = [dict(part) if isinstance(part, dict) else part for part in content]
        if value.get("type") == "message":
            for part in content:
                if isinstance(part, dict) and part.get("type") == "text":
                    text = part.get("text")
                    if isinstance(text, str) and text and _is_utf8(text):
                        columns[service.text] = part.pop("text")
                    break
    for name, one in value.items():
        if name in ("id", "content") or one is None:
            continue
        if isinstance(one, dict | list):
            columns[name] = _dumped(one)
        elif isinstance(one, str) or service is _MEMORY:
            columns[name] = one
        else:
            columns[name] = str(one)
    return columns | {_LIST: _dumped(content)}


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_utf8(text) else json.dumps(value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shape(service: _Service, row: Row, value: dict[str, Any]) -> str:
    """Return the shape of a message as JSON; empty if the service would write the same row.

    The shape has the time of the row in a history, and the columns that the service would write
    differently.
    """
    usual = _columns(service, value)
    others = {
        name: one
        for name, one in row.columns.items()
        if name not in _SESSION_KEY
        and not isinstance(one, bytearray)
        and (name not in usual or usual[name] != one)
    }
    others |= {name: None for name in usual if name not in row.columns}
    shape: dict[str, Any] = {"columns": others} if others else {}
    if service is _HISTORY:
        shape["create_time"] = row.key[1]
    return json.dumps(shape) if shape else ""


def _of_shape(shape: str) -> dict[str, Any]:
    try:
        found = json.loads(shape) if shape.startswith("{") else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.keys() <= {"columns", "create_time"} else {}


def _placed(
    service: _Service, key: MemoryKey, messages: Sequence[StoredMessage]
) -> Iterator[tuple[Key, Columns]]:
    """Yield the primary key and the columns of the row for each message, in order.

    A restored message gets the time that it had before, unless an earlier message now has this or a
    later time.

    Raises:
        Rejected: a message does not fit a row, or an id of the memory service is repeated.
    """
    now = time.time_ns() // 1000
    last: tuple[int, str] | None = None
    documents: set[str] = set()
    for message in messages:
        shape = _of_shape(message.shape)
        value = jsonio.loads(message.message)
        columns = _columns(service, value)
        _check_columns(service, message.id, value, columns)
        columns |= shape.get("columns") or {}
        columns = {name: one for name, one in columns.items() if one is not None}
        _check_size(message.id, columns)
        if service is _MEMORY:
            if message.id in documents:
                raise Rejected("repeated-id", "a message id occurs twice")
            documents.add(message.id)
            yield (message.id, _NO_TENANT), columns | dict(zip(_SESSION_KEY, key[:2], strict=True))
            continue
        wanted = shape.get("create_time")
        place = (wanted if isinstance(wanted, int) else now, message.id)
        if last is not None and place <= last:
            place = (last[0] + 1, message.id)
        last = place
        yield (key.session, *place), columns


def _check_columns(service: _Service, id: str, value: dict[str, Any], columns: Columns) -> None:
    """Check that the runtime would read the same message from its columns.

    ``id`` and ``value`` are the id and the fields of the message.  Fields without a value do not
    count.

    Raises:
        Rejected: the runtime would read another message.
    """
    key = ("", 0, id) if service is _HISTORY else (id, "")
    found = jsonio.loads(_message(service, Row(key, columns, {})).message)
    wanted = {name: one for name, one in value.items() if one is not None} | {"id": id}
    found = {name: one for name, one in found.items() if one is not None}
    if jsonio.canonical(jsonio.dumps(found)) != jsonio.canonical(jsonio.dumps(wanted)):
        raise Rejected("refused", f"a field of the message {id!r} would come back as another value")


def _check_size(id: str, columns: Columns) -> None:
    try:
        sizes = [len(one.encode()) for one in columns.values() if isinstance(one, str)]
        name = len(id.encode())
    except UnicodeEncodeError:
        raise Rejected("refused", f"the message {id!r} has a half of a surrogate pair") from None
    if max(sizes, default=0) > LARGEST_COLUMN or name > LARGEST_KEY:
        raise Rejected("refused", "Tablestore takes no message of more than 2 MB")
