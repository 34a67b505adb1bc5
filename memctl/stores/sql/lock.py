"""Locks of database servers, each held by a connection of its own that ends with its run."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from contextlib import suppress
from hashlib import sha256
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import MemctlError
from memctl.stores.locks import ServerLock
from memctl.stores.sql.database import SqlDatabase

_ANSWER_SECONDS = 15
_SPACE = 0x6D656D63
"""The upper half of memctl's advisory locks in PostgreSQL: ``memc`` in ASCII."""
_NAME_BYTES = 63
"""What PostgreSQL keeps of an ``application_name``."""
_WAIT_SECONDS = 60
"""After how long MySQL ends a connection that says nothing."""
_PAUSES = (0.01, 0.05, 0.2)
_HOLDER = re.compile(r"/\* memctl: (.*?) \*/")


class SqlLock(ServerLock):
    """A lock that belongs to a connection."""

    def __init__(self, store: SqlDatabase) -> None:
        super().__init__(store.label, store.warnings)
        self._store = store
        self._connection: AsyncConnection | None = None

    async def attempt(self) -> str | None:
        await self._drop()
        with self._store.errors():
            self._connection = await self._store.connect_alone()
            try:
                if await self.try_to_take():
                    return None
                other = await self.who_holds()
            except BaseException:
                await self._drop()
                raise
        await self._drop()
        return other

    async def stay(self) -> bool:
        if self._connection is None:
            await asyncio.sleep(self.period)
            return False
        try:
            with self._store.errors():
                await self.wait()
        except MemctlError:  # the lock has gone with the connection
            await self._drop()
            return False
        return True

    async def let_go(self) -> None:
        if self._connection is None:
            return
        try:
            # The server frees it in any case; asked to, it does so before the next run may ask.
            with suppress(MemctlError), self._store.errors():
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self.free()
        finally:
            await self._drop()

    async def ask(self, sql: str, **values: Any) -> Any:
        """The first row of an answer on the lock's connection, None where there is none."""
        assert self._connection is not None
        async with asyncio.timeout(self.period + _ANSWER_SECONDS):
            return (await self._connection.execute(text(sql), values)).first()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(MemctlError), self._store.errors():  # it broke before
                await connection.close()

    @abstractmethod
    async def try_to_take(self) -> bool:
        """Whether the lock is ours now."""

    @abstractmethod
    async def who_holds(self) -> str:
        """The text of who holds the lock, if there is one."""

    @abstractmethod
    async def wait(self) -> None:
        """Waits for a period; raises what the driver does when the connection has gone."""

    @abstractmethod
    async def free(self) -> None:
        """Frees the lock."""


class PostgresqlLock(SqlLock):
    """An advisory lock of the session, for the schema that the tables are in.

    The owner's text is the ``application_name`` of its connection, which every login may see.
    """

    async def try_to_take(self) -> bool:
        # Keep-alives end the session of a machine that is gone within a minute.
        settings = {
            "application_name": self._signature,
            "tcp_keepalives_idle": "30",
            "tcp_keepalives_interval": "10",
            "tcp_keepalives_count": "3",
        }
        for name, value in settings.items():
            await self.ask("SELECT set_config(:name, :value, false)", name=name, value=value)
        # A setting of newer servers, which end idle sessions by it.
        await self.ask(
            "SELECT set_config(name, '0', false) FROM pg_settings "
            "WHERE name = 'idle_session_timeout'"
        )
        [done] = await self.ask(
            f"SELECT pg_try_advisory_lock(({_SPACE}::bigint << 32) | oid::bigint) "
            "FROM pg_namespace WHERE nspname = current_schema()"
        )
        return bool(done)

    @property
    def _signature(self) -> str:
        return f"memctl {self.owner}"[:_NAME_BYTES]

    async def who_holds(self) -> str:
        row = await self.ask(
            "SELECT a.application_name, a.pid "
            "FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
            "JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() "
            "JOIN pg_namespace n ON n.oid = l.objid AND n.nspname = current_schema() "
            f"WHERE l.locktype = 'advisory' AND l.classid = {_SPACE} AND l.objsubid = 1 "
            "AND l.granted"
        )
        if row and row[0] == self._signature:
            await self.ask("SELECT pg_terminate_backend(:pid)", pid=row[1])
            return ""
        return str(row[0]).removeprefix("memctl ") if row else ""

    async def wait(self) -> None:
        await asyncio.sleep(self.period)
        await self.ask("SELECT 1")

    async def free(self) -> None:
        await self.ask("SELECT pg_advisory_unlock_all()")


class MysqlLock(SqlLock):
    """A named lock, for the database.

    The one text that a login may see of its other connections is the statement that they run.  So
    the connection that holds the lock sleeps on the server, statement after statement, and each
    says whose it is.  Other logins, and those who come while the run is stopped, get the number of
    the connection.  ``wait_timeout`` ends the connection of a machine that is gone.
    """

    period = 2.0
    """Also how long the server takes to see that the run has ended: it looks when it wakes."""
    _number: int | None = None

    async def try_to_take(self) -> bool:
        self._number = None
        await self._run(f"SET SESSION wait_timeout = {_WAIT_SECONDS}")
        name = await self._name()
        number, done = await self.ask("SELECT CONNECTION_ID(), GET_LOCK(:name, 0)", name=name)
        if done:
            self._number = number
        return bool(done)

    async def who_holds(self) -> str:
        name = await self._name()
        number = None
        for pause in _PAUSES:
            [number] = await self.ask("SELECT IS_USED_LOCK(:name)", name=name)
            if number is None:
                return ""
            row = await self.ask(
                "SELECT INFO FROM information_schema.PROCESSLIST WHERE ID = :id", id=number
            )
            found = _HOLDER.search(str(row[0])) if row else None
            if found and found[1] == self.owner:
                await self._run(f"KILL CONNECTION {number}")
                return ""
            if found:
                return found[1]
            await asyncio.sleep(pause)  # it may be between two statements
        return f"connection {number} of the server"

    async def wait(self) -> None:
        await self._run(f"SELECT SLEEP({self.period}) /* memctl: {self.owner} */")

    async def free(self) -> None:
        """Ends the connection, which may be asleep, and waits until the lock is free."""
        number, self._number = self._number, None
        await self._drop()
        self._connection = await self._store.connect_alone()
        name = await self._name()
        [owner] = await self.ask("SELECT IS_USED_LOCK(:name)", name=name)
        if number is not None and owner == number:
            await self._run(f"KILL CONNECTION {number}")
            await self.ask("SELECT GET_LOCK(:name, :seconds)", name=name, seconds=_ANSWER_SECONDS)
            await self.ask("SELECT RELEASE_LOCK(:name)", name=name)

    async def _run(self, sql: str) -> None:
        assert self._connection is not None
        async with asyncio.timeout(self.period + _ANSWER_SECONDS):
            await self._connection.exec_driver_sql(sql)

    async def _name(self) -> str:
        """A name within 64 characters, of which case does not count."""
        [database] = await self.ask("SELECT DATABASE()")
        return f"memctl {sha256(str(database).encode()).hexdigest()[:32]}"
