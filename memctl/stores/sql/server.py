"""AgentScope's SQL memory on a server, which keeps the lock of a run itself."""

from __future__ import annotations

from typing import ClassVar

from memctl.stores.sql.locks import SqlLock
from memctl.stores.sql.store import SqlStore


class SqlServerStore(SqlStore):
    """A database that others reach over a network too."""

    lock_class: ClassVar[type[SqlLock]]
    row_lock = "FOR UPDATE"
    no_wait = "NOWAIT"
    _lock: SqlLock | None = None

    async def lock(self, owner: str) -> None:
        self._lock = self.lock_class(self)
        await self._lock.take(owner)

    async def close(self) -> None:
        try:
            if self._lock is not None:
                await self._lock.release()
        finally:
            await super().close()
