"""A MariaDB server from the Debian packages ``mariadb-server-core`` and ``mariadb-client-core``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pymysql
from pymysql.constants import ER

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
EXACT = "utf8mb4_bin"
"""A collation that tells all texts apart; the default of most servers ignores case."""


class Mariadb:
    """A running server, over TCP with a password and over a socket."""

    def __init__(self, run: Path, name: str = "mariadb", *settings: str) -> None:
        """Start or share the server with this ``name`` and these command-line ``settings``.

        A setting such as ``TZ=Asia/Tokyo`` is a variable of its environment.

        Raises:
            Missing: MariaDB is not installed.
        """
        info = shared(run, variant(name, settings), lambda folder: _start(folder, settings))
        self.port: int = info["port"]
        self.socket: str = info["socket"]

    def fresh(self, collation: str = EXACT) -> str:
        """Return the URL of a new, empty database with this collation for its names."""
        number = self.execute("INSERT INTO meta.fresh VALUES (NULL)")
        name = f"test_{number}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE {collation}")
        return self.url(name)

    def url(self, name: str, *, user: str = "memctl", password: str = PASSWORD) -> str:
        """Return a URL over TCP with a login."""
        return f"mysql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"

    def socket_url(self, url: str) -> str:
        """Return the URL of the same database over the socket."""
        login = f"memctl:{quote(PASSWORD, safe='')}"
        return f"mysql://{login}@/{urlsplit(url).path[1:]}?unix_socket={self.socket}"

    def execute(self, sql: str, url: str = "") -> int:
        """Run one statement, in the database of the URL; return the id of the last row."""
        with _connect(self.socket, "memctl", PASSWORD, _database(url)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            connection.commit()
            return int(cursor.lastrowid or 0)

    def rows(self, url: str, sql: str) -> list[Any]:
        """Run one statement in the database of the URL; return the rows of its result."""
        with _connect(self.socket, "memctl", PASSWORD, _database(url)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            connection.commit()
            return list(cursor.fetchall())

    def cut(self, url: str) -> None:
        """End every connection to the database, as a restart or a firewall would."""
        with _connect(self.socket, "memctl", PASSWORD) as connection:
            cursor = connection.cursor()
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = %s", [_database(url)]
            )
            for (number,) in list(cursor.fetchall()):
                try:
                    cursor.execute(f"KILL CONNECTION {number}")
                except pymysql.OperationalError as error:
                    if error.args[0] != ER.NO_SUCH_THREAD:  # ended meanwhile
                        raise

    def kill(self) -> None:
        """End the server as a crash would."""
        kill(Path(self.socket).parent)

    def start(self) -> None:
        """Start the killed server again, with its data."""
        start_again(Path(self.socket).parent, lambda: _is_up(self.socket))

    def tables(self, url: str) -> list[str]:
        """Return the names of the tables of the database."""
        with _connect(self.socket, "memctl", PASSWORD, _database(url)) as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW TABLES")
            return [str(name) for (name,) in cursor.fetchall()]

    def dump(self, url: str) -> dict[str, list[Any]]:
        """Return the definition and all rows of each table."""
        dump: dict[str, list[Any]] = {}
        with _connect(self.socket, "memctl", PASSWORD, _database(url)) as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW TABLES")
            for (table,) in list(cursor.fetchall()):
                cursor.execute(f"SHOW CREATE TABLE `{table}`")
                definition = list(cursor.fetchall())
                cursor.execute(f"SELECT * FROM `{table}`")
                dump[table] = [*definition, *sorted(cursor.fetchall())]
        return dump


def _database(url: str) -> str | None:
    return unquote(urlsplit(url).path[1:]) or None


def _connect(
    path: str, user: str, password: str = "", database: str | None = None
) -> pymysql.connections.Connection[Any]:
    # A TLS context takes longer than the work over most connections.
    return pymysql.connect(
        unix_socket=path, user=user, password=password, database=database, ssl_disabled=True
    )


def _start(folder: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    server = _program("mariadbd")
    installer = _program("mariadb-install-db")
    user = run_as()
    give(folder, user)
    folder.chmod(0o755)
    data = folder / "data"
    subprocess.run(
        [
            *(installer, "--no-defaults", f"--datadir={data}", "--skip-test-db"),
            *("--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"),
            "--skip-name-resolve",
        ],
        check=True,
        capture_output=True,
        cwd=folder,
        user=user,
    )
    port = free_port()
    path = str(folder / "sock")
    keep(
        folder,
        [
            *("env", *(one for one in settings if not one.startswith("--"))),
            *(server, "--no-defaults", f"--datadir={data}", f"--tmpdir={folder}"),
            *(f"--socket={path}", f"--port={port}", "--bind-address=127.0.0.1"),
            *("--character-set-server=utf8mb4", "--skip-name-resolve", "--skip-log-bin"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"),
            *("--innodb-log-file-size=256M", "--max-allowed-packet=256M"),
            *("--innodb-buffer-pool-size=128M", "--pid-file=pid", "--sync-frm=0"),
            *(one for one in settings if one.startswith("--")),
        ],
        lambda: _is_up(path),
        user=user,
        stop="SIGKILL",  # its data are not needed
    )
    with _connect(path, "root") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE USER memctl@'%%' IDENTIFIED BY %s", [PASSWORD])
        cursor.execute("GRANT ALL ON *.* TO memctl@'%' WITH GRANT OPTION")
        cursor.execute("CREATE DATABASE meta")
        cursor.execute("CREATE TABLE meta.fresh (number INT AUTO_INCREMENT PRIMARY KEY)")
    return {"port": port, "socket": path}


def _is_up(path: str) -> bool:
    try:
        _connect(path, "root").close()
    except pymysql.OperationalError:
        return False
    return True


def _program(name: str) -> str:
    # Debian installs servers outside the PATH of ordinary users.
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise Missing(f"{name} is not installed (Debian: mariadb-server-core, mariadb-client-core)")
    return found
