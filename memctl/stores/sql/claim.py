"""Sessions that are written to: locked, and created where they are missing."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.model import MemoryKey
from memctl.stores.sql.database import SqlDatabase


async def claim(
    store: SqlDatabase, connection: AsyncConnection, keys: Sequence[MemoryKey], lock: str
) -> set[str]:
    """Makes the sessions ours until the transaction ends; gives those that it did not create.

    A session that is created here is empty.  Into one that was there, an agent or another run may
    have written up to now; from now on they wait.  ``lock`` is the SQL that locks its row.
    """
    owners: dict[str, str] = {}
    for key in keys:
        owners.setdefault(key.session, key.user)
    there = f"SELECT t.id FROM {store.keyed('session', 'id')} ORDER BY t.id {lock}"
    known = {row[0] for row in await store.for_rows(connection, there, sorted(owners))}
    users = sorted({(key.user,) for key in keys})
    await store.insert_missing(connection, "users", ["id"], users)
    new = sorted((name, user) for name, user in owners.items() if name not in known)
    if new and len(new) > await store.insert_missing(connection, "session", ["id", "user_id"], new):
        known |= {name for name, _ in new}
    return known
