"""PostgreSQL through a pooler, such as PgBouncer, which shares server connections among clients.

In PgBouncer's mode ``transaction``, each transaction of a client may run in a different session of
the server.  The state of a session is lost after the transaction: settings, prepared statements,
temporary tables, advisory locks.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from memctl.errors import Lost, MemctlError, NotFound, Unavailable, UsageError

_FULL = "raise default_pool_size of PgBouncer, or run with fewer --jobs"
_BEHIND = "check that PostgreSQL runs where PgBouncer expects it, and the log of PgBouncer"


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection to PostgreSQL that leaves no state in the server session after a transaction.

    The driver sends a statement in two steps: it prepares the statement and then runs it.  Both
    steps share a transaction, and the statement has no name.
    """

    async def _get_statement(self, *arguments: Any, **settings: Any) -> Any:
        settings |= {"named": "", "use_cache": False}
        return await super()._get_statement(*arguments, **settings)

    async def _execute(self, *arguments: Any, **settings: Any) -> Any:
        if self.is_in_transaction():
            return await super()._execute(*arguments, **settings)
        async with self.transaction():
            return await super()._execute(*arguments, **settings)


async def is_pooled(connection: PooledConnection) -> bool:
    """Return whether the connection leads to a pooler, which reports another process id.

    Raises:
        asyncpg.PostgresError: the server refuses the query.
    """
    number = await connection.fetchval("SELECT pg_backend_pid()")
    return bool(number != connection.get_server_pid())


def pooler_error(message: str) -> MemctlError | None:
    """Return the error, with a hint, for an error message of PgBouncer; None for other messages."""
    words = message.lower()
    if "unsupported startup parameter" in words:
        return UsageError(
            message,
            "leave it out of the URL, or name it in ignore_startup_parameters of PgBouncer",
        )
    if "statement pooling mode" in words:
        return Unavailable(message, "set pool_mode of PgBouncer to transaction or session")
    if "no such database" in words:
        return NotFound(message, "use a name of the section [databases] of PgBouncer")
    if "no such user" in words:
        return Unavailable(message, "add the user to the auth_file of PgBouncer")
    if "query_wait_timeout" in words:
        return Lost(message, _FULL)
    if "max_client_conn" in words:
        return Lost(message, "raise max_client_conn of PgBouncer, or run with fewer --jobs")
    if "server login has been failing" in words or "server_login_retry" in words:
        return Lost(message, _BEHIND)
    if "cannot connect to server" in words or "server conn crashed" in words:
        return Lost(message, _BEHIND)
    return None
