"""Stores in a SQL database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from memctl.engines.sql.chosen import Chosen, RowTest
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, make_database
from memctl.engines.sql.inspector import inspect
from memctl.engines.sql.renaming import Named
from memctl.location import Location
from memctl.selection import EVERYTHING, Selection
from memctl.store import OpenMode, Store
from memctl.storekit.texts import Rewriter, TextResult


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

    async def is_alone(self) -> bool:
        tables = await self.database.look(lambda link: inspect(link).get_table_names())
        return {*tables} <= {*self.changed_tables, *self.text_tables}

    @property
    def text_tables(self) -> Sequence[str]:
        """The names of the tables with texts of memories; some of them may not exist."""
        return self.changed_tables

    @property
    def named(self) -> Sequence[Named]:
        """The columns that name the session and the user of rows, if no key has them."""
        return ()

    @property
    def of_users(self) -> Sequence[Named]:
        """The columns that name a user in rows besides those of sessions."""
        return ()

    @property
    def row_versions(self) -> Mapping[str, str]:
        """The column of each table that counts the changes of a row, if it has one."""
        return {}

    async def row_tests(self, chosen: Chosen) -> dict[str, RowTest]:
        """Return the tests of the rows of selected memories, by table."""
        return {one.table: chosen.test(one) for one in (*self.of_users, *self.named)}

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        from memctl.engines.sql.texts import RowTexts  # only needed to rewrite texts

        tables = dict.fromkeys(self.text_tables, frozenset[str]())
        for one in self.named:
            tables[one.table] |= {one.session, one.user}
        tests = None
        if where != EVERYTHING:
            chosen = Chosen(where)
            async with aclosing(self.names(EVERYTHING)) as names:
                async for key in names:
                    chosen.add(key)
            tests = await self.row_tests(chosen)
        texts = RowTexts(self.database, tables, self.row_versions, rewriter, tests)
        changed = False
        async with aclosing(texts.rewrite(writes=writes)) as results:
            async for result in results:
                changed = changed or bool(result.hits)
                yield result
        if writes and changed:
            await self.forget_replaced()

    async def forget_replaced(self) -> None:
        async with self.database.connect() as connection:
            await self.database.prepare_erasing(connection)
            await self.forget_words(connection)
        await self.database.clear_free_space(self.warnings)

    async def forget_words(self, connection: AsyncConnection) -> None:
        """Take words that no row has any more out of the indexes of the tables."""

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
