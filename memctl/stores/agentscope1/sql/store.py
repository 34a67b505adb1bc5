"""The store of AgentScope 1.x's SQL memory, in any SQL database."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from memctl.engines.sql.chosen import Chosen, RowTest
from memctl.engines.sql.database import is_text
from memctl.engines.sql.renaming import Named
from memctl.engines.sql.side_effects import ALLOW, SIDE_EFFECTS
from memctl.engines.sql.store import SqlStore
from memctl.engines.sql.syntax import EVERY, Condition, session_condition
from memctl.errors import UsageError
from memctl.layouts.sql import find_layouts, has_agentscope_table, preset_layouts, unknown_database
from memctl.location import Location
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
from memctl.store import Deletion, Features, Matches, OpenMode
from memctl.storekit.catalog import catalog
from memctl.stores.agentscope1.sql.read import (
    ReadMode,
    SqlReader,
    count_marks,
    count_messages,
    find_messages,
)
from memctl.stores.agentscope1.sql.schema import REPAIRS
from memctl.stores.agentscope1.sql.statements import COLUMNS
from memctl.stores.agentscope1.sql.tables import MemoryTables, make_tables

if TYPE_CHECKING:
    from memctl.stores.agentscope1.sql.erase import SqlEraser
    from memctl.stores.agentscope1.sql.maintenance import SqlMaintenance


class SqlMemoryStore(SqlStore):
    """The memories in AgentScope's tables."""

    features = Features(
        parallel=True,
        empty=True,
        cheap_outline=True,
        cheap_positions=True,
        cheap_windows=True,
        repairs=REPAIRS,
        renames=frozenset({"user", "session", "merge"}),
        selects_texts=True,
    )

    database: MemoryTables

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode, make_tables)
        self.features = structs.replace(self.features, parallel=self.database.parallel)
        self._other: str | None = None
        """The layout of the tables; None for the layout of AgentScope 1.x's memory."""

    async def prepare(self) -> None:
        if not {"layout", "state"} & self.location.options.keys():
            layouts = await self.database.look(find_layouts)
            if not layouts:
                layouts = await self.database.look(preset_layouts)
            if len(layouts) > 1:
                several = ", ".join(sorted(layouts))
                raise UsageError(
                    f"{self.label} holds data of several layouts: {several}",
                    f"choose one with ?layout={min(layouts)}",
                )
            if layouts and layouts != {"memory"}:
                [self._other] = layouts
                return
            if not (layouts or self.mode.creates) and not await self.database.look(
                has_agentscope_table
            ):
                raise await self.database.look(partial(unknown_database, self.label))
        await self.database.prepare()

    async def other_layout(self) -> str | None:
        return self._other

    @property
    def changed_tables(self) -> Sequence[str]:
        return tuple(COLUMNS)

    @property
    def named(self) -> Sequence[Named]:
        return [
            Named("session", "id", "user_id"),
            Named("message", "session_id"),
            Named("users", user="id"),
        ]

    async def row_tests(self, chosen: Chosen) -> dict[str, RowTest]:
        """Return the tests, with that of messages by the user at the beginning of their row ids."""

        def passes(id: str, session: str) -> bool:
            users = chosen.users(session)
            named = [user for user in users if id.startswith(f"{user}-{session}-")]
            return bool(users) and chosen.has(session, named or users)

        message = RowTest(("id", "session_id"), passes, "session_id", chosen.sessions)
        return await super().row_tests(chosen) | {"message": message}

    async def lock(self, owner: str) -> None:
        self.database.require_keys()  # before the journal records anything
        await super().lock(owner)

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - rights of tables
        tables = "message", "message_mark"
        return await self.database.missing_right(tables, locked=tables)

    async def check_integrity(self, where: Selection, *, complete: bool = False) -> None:
        if self.mode.writes:
            self.database.require_keys()
        await super().check_integrity(where, complete=complete)

    async def unrestorable(self, where: Selection) -> str:
        # Check all users: to find the user of a message, memctl may have to parse the message.
        messages = session_condition(where)
        for table, condition in ("message", messages), ("message_mark", _marks(messages)):
            if found := await self.database.find_other_values(table, COLUMNS[table], condition):
                return found
        return ""

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        if deletion is Deletion.MARKS:
            statements = self.database.statements
            messages = statements.condition(replace(where, users=frozenset()))
            return await self._lost_with_marks(_marks(messages, statements.source()))
        tables = {"message": session_condition(where), "message_mark": EVERY}
        if deletion is not Deletion.MESSAGES:
            tables |= {"session": session_condition(where, "id"), "users": EVERY}
        found = await self.database.side_effects(tables, COLUMNS)
        if deletion is Deletion.REPAIRS and self.database.sees_part:
            found.append("a repair may take rows that row-level security hides for missing rows")
        return found

    async def _lost_with_marks(self, where: Condition) -> list[str]:
        found = await self.database.side_effects({"message_mark": where}, COLUMNS)
        if not self.database.check_option(SIDE_EFFECTS, ALLOW):
            known = COLUMNS["message_mark"]
            values = await self.database.find_other_values("message_mark", known, where)
            found += [f"removing marks deletes values in {values}"] if values else []
        return found

    async def is_empty(self) -> bool:
        shard, statements = self.shard, self.database.statements
        async with self.database.snapshot(shard, long=False) as connection:
            # An empty memory is only a session.
            for table, session in ("session", "m.id"), ("message", "m.session_id"):
                condition = statements.in_shard(shard, session)
                sql = f"SELECT 1 FROM {table} m WHERE {condition} LIMIT 1"
                if await self.database.fetch_all(connection, sql, {}):
                    return False
        return True

    async def count(self, where: Selection) -> tuple[int, int] | None:
        if where != Selection():  # a selection needs the users of all messages
            return None
        async with self.database.snapshot(long=False) as connection:
            memories, messages = [
                (await connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}")).scalar()
                for table in ("session", "message")
            ]
        return memories, messages

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return self._proving(where, self._read(where)) if self.skips_damage else self._read(where)

    def _read(self, where: Selection) -> AsyncGenerator[Page]:
        return self.database.read_pages(where, self._read_here)

    def _read_here(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where, ReadMode.FULL), self.dialect)

    async def _proving(self, where: Selection, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        database = self.database
        database.proved, doubts = None, database.doubts
        async with aclosing(pages):
            async for page in pages:
                yield page
                del page
        if database.doubts == doubts and not database.statements.has_unsound:
            database.proved = where

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where, ReadMode.ANCHORED), self.dialect)

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._pages(where, ReadMode.OUTLINE)

    async def _pages(self, where: Selection, mode: ReadMode) -> AsyncGenerator[Page]:
        reader = SqlReader(self.database, where, mode, skip_damage=self.skips_damage)
        with self._noting_damage(where):
            async with aclosing(reader.pages()) as pages:
                async for page in pages:
                    self.left_out.others |= page.last
                    yield page
                    del page  # do not hold a large page while reading the next page

    @contextmanager
    def _noting_damage(self, where: Selection) -> Iterator[None]:
        """Add the memories that the ``with`` block finds damaged to ``left_out``, at its end."""
        try:
            yield
        finally:
            found = self.database.damaged.items()
            self.left_out.failures |= {key: why for key, why in found if where.has_key(key)}

    def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        return find_messages(self.database, where, matches)

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._headers(where) if where.whole else super().headers(where)

    async def _headers(self, where: Selection) -> AsyncGenerator[Memory]:
        with self._noting_damage(where):
            async with self.database.snapshot(where.shard) as connection:
                extents = await self.database.extents(connection, {}, where.shard)
                keys = dict.fromkeys(extents)
                async with aclosing(self.database.sessions(connection, where.shard)) as sessions:
                    keys |= dict.fromkeys([key async for key in sessions])
            for key in filter(where.has_key, keys):
                if not self.database.is_damaged(key):
                    yield Memory(key)

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        seen: set[MemoryKey] = set()
        # The rows of ``session`` name the owners; only row ids name other users of a session.
        owned = partial(self.database.sessions, shard=where.shard)
        for find in owned, partial(self.database.shared_sessions, where):
            async with (
                self.database.snapshot(where.shard, long=False) as connection,
                aclosing(find(connection)) as keys,
            ):
                found = [key async for key in keys if where.has_key(key)]
            for key in found:
                if key not in seen and is_text(key.user + key.session):
                    seen.add(key)
                    yield key

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        if self.skips_damage:
            return await super().window(key, start, count)
        where = Selection(keys=frozenset({key}))
        reader = SqlReader(self.database, where, ReadMode.FULL, skip_damage=False)
        with self._noting_damage(where):
            return await reader.window(key, start, count)

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        whole = where.whole
        counted = count_messages(self.database, where) if whole else catalog(self.read(where))
        with self._noting_damage(where):
            async with aclosing(counted) as infos:
                async for info in infos:
                    self.left_out.others = True
                    yield info

    def count_marks(
        self, where: Selection, marks: frozenset[str]
    ) -> AsyncGenerator[tuple[Memory, Counter[str]]]:
        return self._count_marks(where, marks) if where.whole else super().count_marks(where, marks)

    async def _count_marks(
        self, where: Selection, marks: frozenset[str]
    ) -> AsyncGenerator[tuple[Memory, Counter[str]]]:
        with self._noting_damage(where):
            async with aclosing(count_marks(self.database, where, marks)) as found:
                async for key, counts in found:
                    yield Memory(key), counts

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        from memctl.stores.agentscope1.sql.write import SqlWriter  # not needed to read

        return SqlWriter(self.database, mode, self.shard).write(pages)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        from memctl.stores.agentscope1.sql.edit import SqlEditor  # not needed to read

        return SqlEditor(self.database).edit(edits)

    def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self._eraser().names(where)

    def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        return self._eraser().erase(where)

    def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        from memctl.stores.agentscope1.sql.rename import rename  # not needed to read

        return rename(self.database, moves)

    def _eraser(self) -> SqlEraser:
        from memctl.stores.agentscope1.sql.erase import SqlEraser  # not needed to read

        return SqlEraser(self.database)

    def maintenance(self) -> SqlMaintenance:
        from memctl.stores.agentscope1.sql.maintenance import SqlMaintenance  # for doctor alone

        return SqlMaintenance(self, self.database)


def _marks(messages: Condition, source: str = "message m") -> Condition:
    """Return the condition that a row ``m`` of ``message_mark`` marks one of these messages.

    ``source`` is the SQL after FROM that the condition ``messages`` needs.
    """
    return Condition(
        f"m.msg_id IN (SELECT m.id FROM {source} WHERE {messages.sql})", messages.values
    )
