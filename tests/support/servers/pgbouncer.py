"""PgBouncer in front of the PostgreSQL server of the tests, with its default settings."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

from tests.support.servers import Missing, free_port, give, keep, run_as, shared, variant
from tests.support.servers.postgresql import PASSWORD, Postgresql

MODES = ["session", "transaction"]
"""The values of ``pool_mode`` that memctl works with."""


class Pgbouncer:
    """A running pooler for every database of the server."""

    def __init__(self, run: Path, behind: Postgresql, mode: str, *settings: str) -> None:
        """``settings`` are further lines of the configuration.

        Raises:
            Missing: PgBouncer is not installed.
        """
        name = variant(f"pgbouncer-{mode}", settings)
        info = shared(run, name, lambda folder: _start(folder, behind, mode, settings))
        self.port: int = info["port"]

    def url(self, url: str) -> str:
        """Return the URL of the same database through the pooler."""
        login, _, place = url.rpartition("@")
        return f"{login}@127.0.0.1:{self.port}/{place.partition('/')[2]}"


def _start(
    folder: Path, behind: Postgresql, mode: str, settings: tuple[str, ...]
) -> dict[str, Any]:
    port = free_port()
    (folder / "users.txt").write_text(f'"memctl" "{PASSWORD}"\n')
    (folder / "pgbouncer.ini").write_text(
        "\n".join(
            [
                "[databases]",
                f"* = host=127.0.0.1 port={behind.port}",
                "[pgbouncer]",
                "listen_addr = 127.0.0.1",
                f"listen_port = {port}",
                "unix_socket_dir =",
                "auth_type = plain",
                f"auth_file = {folder}/users.txt",
                f"pool_mode = {mode}",
                *settings,
            ]
        )
    )
    user = run_as()
    give(folder, user)
    keep(folder, [_program(), str(folder / "pgbouncer.ini")], lambda: _is_up(port), user=user)
    return {"port": port}


def _is_up(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


def _program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise Missing("pgbouncer is not installed")
    return found
