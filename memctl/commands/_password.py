"""The password of a database, asked for at the terminal."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from memctl.errors import Interrupted, MemctlError, PasswordMissing
from memctl.location import Location
from memctl.machine import signals
from memctl.machine.system import at_terminal

if TYPE_CHECKING:
    from memctl.engines.sql.database import Database

PATIENCE = 2.0
"""The seconds to wait for a server that is asked whether it wants a password."""
_SERVERS = frozenset({"postgresql", "mysql"})


def ask_password(location: Location) -> Location:
    """Return the location with the password that the user types, if its server wants one.

    The location stays unchanged without a terminal, if the URL or the environment has a password,
    if the server takes the login, or if it does not answer: the command then reports that.

    Raises:
        Interrupted: a signal came instead of a password.
    """
    engine = location.kind.partition("-")[0]
    if engine not in _SERVERS or urlsplit(location.url).password or not at_terminal():
        return location
    if not asyncio.run(_wants_password(location)):
        return location
    try:
        password = getpass.getpass(f"Password for {location.label}: ", sys.stderr)
    except (KeyboardInterrupt, EOFError) as end:
        sys.stderr.write("\n")
        stopped = Interrupted("no password was given", "nothing was read or changed")
        if isinstance(end, KeyboardInterrupt):
            stopped.exit_code = 128 + signals.stopped_by(end)
        raise stopped from None
    return location.with_password(password)


async def _wants_password(location: Location) -> bool:
    from memctl.engines.sql.database import make_database  # imports a driver
    from memctl.store import OpenMode

    with suppress(MemctlError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            database = make_database(location, location.label)
            if os.environ.get(database.password_variable):
                return False
            try:
                await database.start(OpenMode.READ, partial(_log_in, database))
            except PasswordMissing:
                return True
            await database.close()
    return False


async def _log_in(database: Database) -> None:
    await database.identity()
