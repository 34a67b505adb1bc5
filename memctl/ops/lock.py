"""The lock of an open store, taken once for all operations on the store."""

from __future__ import annotations

from weakref import WeakSet

from memctl.store import Store
from memctl.storekit.locks import lock_owner

_locked: WeakSet[Store] = WeakSet()
"""Open stores whose lock is held."""


async def lock(store: Store) -> None:
    """Keep other runs from writing to the store until the store is closed.

    A second call for the same store does nothing.

    Raises:
        Busy: another run holds the lock.
        Unavailable: the store cannot be locked.
    """
    if store not in _locked:
        await store.lock(lock_owner())
        _locked.add(store)
