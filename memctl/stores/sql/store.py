"""AgentScope's SQL memory as a store: what the databases have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from memctl.model import (
    Edit,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Features, Matches
from memctl.stores.catalog import catalog
from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.edit import SqlEditor
from memctl.stores.sql.maintenance import REPAIRS, SqlMaintenance
from memctl.stores.sql.read import Reading, SqlReader, count, search
from memctl.stores.sql.write import SqlWriter


class SqlStore(SqlDatabase):
    """Reading, counting and writing the memories of a database."""

    features = Features(empty=True, cheap_outline=True, cheap_positions=True, repairs=REPAIRS)

    async def is_empty(self) -> bool:
        async with self.snapshot(opened=False) as connection:
            for table in "message", "session":  # of a memory without messages
                found = await connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1")
                if found.first() is not None:
                    return False
        return True

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(where.apply(SqlReader(self, where).pages())) as pages:
            async for page in pages:
                yield page

    async def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(where.apply(SqlReader(self, where, Reading.PLACED).pages())) as pages:
            async for page in pages:
                yield page

    async def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        async with aclosing(search(self, where, matches)) as found:
            async for one in found:
                yield one

    async def outline(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(SqlReader(self, where, Reading.OUTLINE).pages()) as pages:
            async for page in pages:
                yield page

    def maintenance(self) -> SqlMaintenance:
        return SqlMaintenance(self)

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        if not where.whole:
            async with aclosing(super().headers(where)) as memories:
                async for memory in memories:
                    yield memory
            return
        async with self.snapshot(opened=False) as connection:
            keys = dict.fromkeys(await self.count_positions(connection, {}))
            async with aclosing(self.sessions(connection)) as sessions:
                keys |= dict.fromkeys([key async for key in sessions])
        for key in filter(where.has_key, keys):
            yield Memory(key)

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        counted = count(self, where) if where.whole else catalog(self.read(where))
        async with aclosing(counted) as infos:
            async for info in infos:
                yield info

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with aclosing(SqlWriter(self, mode).write(pages)) as tallies:
            async for tally in tallies:
                yield tally

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with aclosing(SqlEditor(self).edit(edits)) as tallies:
            async for tally in tallies:
                yield tally
