"""AgentScope's SQL memory as a store: what the databases have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

from memctl.model import Edit, Entry, Fault, Memory, MemoryInfo, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import Matches, Note, Record
from memctl.stores._catalogue import catalogue
from memctl.stores.sql.count import count
from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.edit import SqlEditor
from memctl.stores.sql.faults import faults
from memctl.stores.sql.mend import MENDS, Mender
from memctl.stores.sql.read import Reading, SqlReader
from memctl.stores.sql.search import search
from memctl.stores.sql.write import SqlWriter
from memctl.streams import closing


class SqlStore(SqlDatabase):
    """Reading, counting and writing the memories of a database."""

    brief = True
    picks = True
    mends = MENDS

    async def is_empty(self) -> bool:
        async with self.snapshot(opened=False) as connection:
            for table in "message", "session":  # of a memory without messages
                found = await connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1")
                if found.first() is not None:
                    return False
        return True

    async def read(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(where.apply(SqlReader(self, where).pages())) as pages:
            async for page in pages:
                yield page

    async def pick(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(where.apply(SqlReader(self, where, Reading.PLACED).pages())) as pages:
            async for page in pages:
                yield page

    async def search(
        self, where: Selection, matches: Matches
    ) -> AsyncIterator[tuple[MemoryKey, Entry]]:
        async with closing(search(self, where, matches)) as found:
            async for one in found:
                yield one

    async def outlines(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(SqlReader(self, where, Reading.OUTLINE).pages()) as pages:
            async for page in pages:
                yield page

    async def faults(self, where: Selection) -> AsyncIterator[Fault]:
        async with closing(faults(self, where)) as found:
            async for fault in found:
                yield fault

    async def mend(self, code: str, where: Selection, note: Note) -> int:
        return await Mender(self).mend(code, where, note)

    async def unmend(self, records: AsyncIterator[Record]) -> int:
        return await Mender(self).unmend(records)

    async def headers(self, where: Selection) -> AsyncIterator[Memory]:
        if not where.whole:
            async with closing(super().headers(where)) as memories:
                async for memory in memories:
                    yield memory
            return
        async with self.snapshot(opened=False) as connection:
            keys = dict.fromkeys(await self.count_positions(connection, {}))
            async with closing(self.sessions(connection)) as sessions:
                keys |= dict.fromkeys([key async for key in sessions])
        for key in filter(where.has_key, keys):
            yield Memory(key)

    async def memories(self, where: Selection) -> AsyncIterator[MemoryInfo]:
        counted = count(self, where) if where.whole else catalogue(self.read(where))
        async with closing(counted) as infos:
            async for info in infos:
                yield info

    async def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        async with closing(SqlWriter(self, mode).write(pages)) as tallies:
            async for tally in tallies:
                yield tally

    async def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        async with closing(SqlEditor(self).edit(edits)) as tallies:
            async for tally in tallies:
                yield tally
