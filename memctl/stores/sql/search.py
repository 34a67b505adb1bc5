"""Looking for messages by their text, in whatever order the database has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from memctl import codec
from memctl.model import MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import Matches
from memctl.stores.sql.database import SqlDatabase

Found = tuple[str, bytes]
"""A row id and a text."""


async def search(
    store: SqlDatabase, where: Selection, matches: Matches
) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
    """See ``Store.search``; the entries have the ids of the rows.

    Whose a message is takes a look at its session, so that is asked of those alone that match.
    """
    async with (
        store.snapshot(opened=store.seeks_huge) as connection,
        store.aside(connection) as aside,
    ):
        condition = store.of_sessions(where)
        async with aclosing(store.unsorted(connection, condition)) as partitions:
            async for rows in partitions:
                small = [row for row in rows if row[1] is not None]
                texts = _utf8([message for _, message, _ in small])
                found = [(small[place][0], texts[place]) for place in matches(texts)]
                for row_id, message, _ in rows if len(small) < len(rows) else ():
                    if message is None:
                        text = codec.utf8(await store.fetch(aside, row_id))
                        found += [(row_id, text) for _ in matches([text])]
                for key, entry in await _owned(store, found) if found else ():
                    if where.has_key(key):
                        yield key, entry


def _utf8(texts: list[str | bytes]) -> list[bytes]:
    found = [
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts
    ]
    return found if all(map(bytes.isascii, found)) else list(map(codec.utf8, found))


async def _owned(store: SqlDatabase, found: list[Found]) -> list[tuple[MemoryKey, StoredMessage]]:
    texts = dict(found)
    sql = f"SELECT m.session_id, {store.user}, m.id FROM {store.source()} WHERE m.id IN :rows"
    async with store.snapshot(opened=False) as connection:
        rows = await store.for_rows(connection, sql, list(texts))
    return [(MemoryKey(user, session), StoredMessage(id, texts[id])) for session, user, id in rows]
