"""What a session holds, found by reading through the table: there is no index on sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.model import MemoryKey
from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.places import Places


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
