"""The session states that TablestoreSession of AgentScope 1.x keeps in Tablestore.

Sources: ``session/_tablestore_session.py`` of AgentScope 1.0.21, and
``memory/async_memory_store.py`` of tablestore-for-agent-memory 1.1.3.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from memctl.engines.tablestore.rows import MovedRow, move_rows
from memctl.engines.tablestore.service import (
    CONDITION_FAILED,
    LARGEST_COLUMN,
    LARGEST_KEY,
    Columns,
    Delete,
    Key,
    Put,
    Row,
    RowChange,
    RowFailure,
    TableSchema,
    Update,
)
from memctl.errors import Failure
from memctl.layouts.tablestore import TablestoreStore, open_tables, table_of
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.states.document import Document
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft, HeldDraft
from memctl.stores.states.store import StateStore

KEY = ("user_id", "session_id")
_STATE, _TIME = "__state__", "update_time"
_COLUMNS = ("user_id", _STATE, _TIME)
_INDEX = "agentscope_session_secondary_index"
_BETWEEN = "\0"
"""Separates user and session in the name of a document."""


class RowDocument(Document):
    """A session document, the state in a row; ``row`` is None if the row does not exist."""

    def __init__(self, key: Key, row: Row | None) -> None:
        self.key = key
        self.columns: Columns | None = None if row is None else row.columns
        state = (self.columns or {}).get(_STATE)
        data = state.encode() if isinstance(state, str) else state
        super().__init__(
            f"the row {', '.join(visible(str(each)) for each in key)}",
            None if data is None else bytes(data),
        )

    @property
    def where(self) -> Columns:
        """The columns, with their values, that change if another program writes to the row.

        Empty if the row does not exist.
        """
        columns = self.columns or {}
        name = _TIME if _TIME in columns else _STATE
        return {name: columns[name]} if name in columns else {}


class RowDraft(HeldDraft):
    """A new state for a row."""

    largest = LARGEST_COLUMN
    too_large = "Tablestore holds no state of more than 2 MB"

    def __init__(self, old: RowDocument) -> None:
        super().__init__()
        self.old = old

    def change(self) -> RowChange:
        """Return the conditional change that writes the state.

        Tablestore refuses it if another program has written to the row since ``old`` was read.
        """
        before = (self.old.columns or {}).get(_TIME)
        now = time.time_ns() // 1000
        columns = {
            _STATE: self.data().decode(),
            _TIME: max(now, before + 1) if isinstance(before, int) else now,
        }
        if self.old.columns is None:
            return Put(self.old.key, columns)
        return Update(self.old.key, columns, self.old.where)


class TablestoreSessionStore(TablestoreStore, StateStore):
    """The sessions of TablestoreSession, rows of the table ``agentscope_session``.

    The column ``__state__`` is the document.  The column ``update_time`` shows whether another
    program has written to a row.  TablestoreSession stores a session without a user under the user
    ``default``; this store refuses to write a session without a user.
    """

    kind = "tablestore-session"
    features = replace(StateStore.features, renames=frozenset({"user", "session", "merge"}))
    keys_tell = True
    clock = _TIME

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._table = table_of(location, "session")

    async def prepare(self, mode: OpenMode) -> None:
        schema = TableSchema(
            self._table,
            tuple((name, "STRING") for name in KEY),
            ((_TIME, "INTEGER"),),
            (_INDEX, ("user_id", _TIME, "session_id")),
        )
        await open_tables(self.instance, self.location, mode, "session", [schema])

    async def identity(self) -> str:
        return f"{self.instance.identity()}/{self._table}"

    # Reading

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        async with aclosing(self._rows(where)) as rows:
            async for row in rows:
                user, session = map(str, row.key)
                document = RowDocument(row.key, row)
                if document.exists:
                    yield OwnedDocument(document, (user, session))
                await document.close()

    async def _rows(self, where: Selection) -> AsyncGenerator[Row]:
        if where.keys is not None:
            asked = sorted({key[:2] for key in where.keys if _unfit(key) is None})
            keys = [list(zip(KEY, names, strict=True)) for names in asked]
            for row in await self.instance.get(self._table, keys):
                if row is not None:
                    yield row
            return
        starts: list[tuple[str, ...]] = [(user,) for user in sorted(where.users)]
        for first in starts or [()]:
            scan = self.instance.scan(self._table, KEY, _COLUMNS, start=first)
            async with aclosing(scan) as pages:
                async for page in pages:
                    for row in page:
                        if not where.sessions or row.key[1] in where.sessions:
                            yield row

    # Rewriting

    @property
    def text_tables(self) -> Mapping[str, Sequence[str]]:
        return {self._table: KEY}

    # Writing

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        text = _unfit(key)
        return None if text is None else Failure("bad-name", text)

    def name_of(self, key: MemoryKey) -> str | Failure:
        return self.name_refusal(key) or f"{key.user}{_BETWEEN}{key.session}"

    async def document(self, name: str) -> Document | None:
        key = tuple(name.split(_BETWEEN, 1))
        [row] = await self.instance.get(self._table, [list(zip(KEY, key, strict=True))])
        return RowDocument(key, row)

    async def draft(self, name: str, old: Document | None) -> Draft:
        assert isinstance(old, RowDocument), name
        return RowDraft(old)

    async def remove(self, name: str, document: Document) -> None:
        assert isinstance(document, RowDocument), name
        await self._change([Delete(document.key, document.where)])

    async def move(self, name: str, new: str) -> Failure | None:
        document, names = await self.document(name), tuple(new.split(_BETWEEN, 1))
        assert isinstance(document, RowDocument), name
        if document.columns is None:
            return None
        row = MovedRow(document.key, document.columns, document.where, names, document.columns)
        return await move_rows(self.instance, self._table, KEY, [row])

    async def publish(
        self,
        drafts: list[tuple[Draft, float | None]],
        *,
        keep: bool = False,  # noqa: ARG002 - rows do not expire by themselves
    ) -> list[Failure | None]:
        rows = [draft for draft, _ in drafts if isinstance(draft, RowDraft)]
        outcomes = await self._change([row.change() for row in rows])
        return [
            None if outcome is None else _failure(row.old.name, outcome)
            for row, outcome in zip(rows, outcomes, strict=True)
        ]

    async def _change(self, changes: list[RowChange]) -> list[RowFailure | None]:
        outcomes: list[RowFailure | None] = []
        await self.instance.change(self._table, KEY, changes, outcomes)
        return outcomes


def _failure(name: str, outcome: RowFailure) -> Failure:
    if outcome.code == CONDITION_FAILED:
        return Failure("changed", f"{name} was changed meanwhile")
    return Failure("refused", f"Tablestore refuses {name}: {outcome.message.rstrip('.')}")


def _unfit(key: MemoryKey) -> str | None:
    if not key.user:
        return f"TablestoreSession keeps no session without a user: {key} would be of 'default'"
    try:
        sizes = [len(name.encode()) for name in key[:2]]
    except UnicodeEncodeError:
        return f"{key} has half of a surrogate pair in its name"
    if _BETWEEN in key.user:
        return f"{key} has a NUL in the name of its user"
    if max(sizes) > LARGEST_KEY:
        return "a user or session has more than 1024 bytes in its name"
    return None
