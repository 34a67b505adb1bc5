"""Messages with the times by which another store of the same dialect orders messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from msgspec import structs

from memctl.dialects.conversion import Times
from memctl.json import jsonio
from memctl.model import MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.store import Store
from memctl.wrappers.wrapper import StoreWrapper


def timed(store: Store, other: Store) -> Store:
    """Return a store as ``other`` would order its messages; the store itself if that is the same.

    A conversion to another dialect gives messages their times itself.  Notes keep the ids of
    messages whose times change.
    """
    one, two = store.dialect, other.dialect
    orders = two.orders_by_time and not (one.orders_by_time or two.holds_notes)
    return Timed(store, other) if orders and one.name == two.name else store


class Timed(StoreWrapper):
    """A store whose messages have the times that another store would give them."""

    count_marks = Store.count_marks
    duplicates = Store.duplicates
    headers = Store.headers
    list_memories = Store.list_memories
    survey = Store.survey

    def __init__(self, store: Store, other: Store) -> None:
        super().__init__(store)
        self._ordering = other.dialect
        self.moved: set[MemoryKey] = set()
        """The memories read in which messages have another time."""

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self.read(where)

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        times = Times(self._ordering, fills=True)
        whole = replace(where.around, parts=where.parts, keys=where.keys, done=where.done)
        async with aclosing(self._store.read(whole)) as pages:
            async for page in pages:
                if page.offset == 0:
                    times = Times(self._ordering, fills=True)
                messages = [self._timed(one, times) for one in page.messages]
                if times.moved:
                    self.moved.add(page.memory.key)
                yield structs.replace(page, messages=messages)
                del page, messages

    def _timed(self, entry: StoredMessage, times: Times) -> StoredMessage:
        before, value = times.moved, jsonio.loads(entry.message)
        times.put_in_order([value])
        if times.moved == before:
            return entry
        id = self.dialect.message_id(value) or entry.id
        return entry._replace(id=id, message=jsonio.dumps(value))
