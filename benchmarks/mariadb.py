"""A database of MariaDB to delete from, filled anew for every run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sqlalchemy.dialects import mysql

from benchmarks.dataset import creation
from memctl.stores.agentscope1.sql.declared import METADATA
from tests.support.servers.mariadb import Mariadb

DURABLE = ("--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=1", "--sync-frm=1")
"""MariaDB as it comes."""


class MariadbPlace:
    """A database with AgentScope's tables."""

    def __init__(self, folder: Path, file: Path) -> None:
        """``file`` is the SQLite database with what it is filled with."""
        self._server = Mariadb(folder, "mariadb-bench", *DURABLE)
        self._file = file
        self._full = ""
        self._url = self._server.fresh()

    @property
    def url(self) -> str:
        """The database as memctl and the yardstick name it."""
        return self._server.socket_url(self._url)

    def fill(self) -> None:
        """Put the data set into it, and all of it on the disk."""
        if not self._full:
            full = self._server.fresh()
            copy = [sys.executable, "-m", "memctl", "migrate", "--no-verify"]
            subprocess.run([*copy, self._file, full], check=True, capture_output=True)
            self._full = full.rpartition("/")[2]
        tables = [table.name for table in METADATA.sorted_tables]
        for name in reversed(tables):
            self._run(f"DROP TABLE IF EXISTS {name}")
        for table in METADATA.sorted_tables:
            for statement in creation(table, mysql.dialect()):
                self._run(statement)
            self._run(f"INSERT INTO {table.name} SELECT * FROM {self._full}.{table.name}")
        for name in tables:
            self._run(f"FLUSH TABLES {name} FOR EXPORT")  # ends with the connection

    def _run(self, sql: str) -> None:
        self._server.execute(sql, self._url)
