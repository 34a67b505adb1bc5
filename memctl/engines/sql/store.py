"""Stores in a SQL database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from memctl.engines.sql.database import Database, make_database
from memctl.location import Location
from memctl.selection import Selection
from memctl.store import OpenMode, Store


class SqlStore(Store):
    """The base class of stores in a SQL database."""

    def __init__(
        self,
        location: Location,
        mode: OpenMode = OpenMode.READ,
        make: Callable[[Location, str], Database] = make_database,
    ) -> None:
        super().__init__(location, mode)
        self.kind = location.kind
        self.database = make(location, self.label)
        self.database.about_to_commit = self.about_to_commit
        self.details = self.database.details

    @abstractmethod
    async def prepare(self) -> None:
        """Check the tables of the store; create missing tables if the open mode is to create.

        Raises:
            MemctlError: as ``Store.open``.
        """

    async def waits_for(self) -> str:
        return await self.database.waits_for()

    @property
    def changed_tables(self) -> Sequence[str]:
        """The names of the tables in which the store changes or deletes rows."""
        return ()

    async def lock(self, owner: str) -> None:
        await self.database.require_replica_identity(self.changed_tables)
        await self.database.lock(owner, self.warnings, self.shard)

    async def generation(self) -> str:
        return await self.database.generation()

    async def check_integrity(
        self,
        where: Selection,  # noqa: ARG002 - the database is checked whole
        *,
        complete: bool = False,
    ) -> None:
        if self.mode.writes:
            await self.database.require_replica_identity(self.changed_tables)
        if complete:
            await self.database.check_structure(self.warnings)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self.database.start(mode, self.prepare)

    async def close(self) -> None:
        await self.database.close()

    async def identity(self) -> str:
        return await self.database.identity()
