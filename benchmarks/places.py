"""The stores of the benchmarks: full ones to read from, empty ones to write to."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.dialects import registry

from benchmarks import dataset, inputs
from memctl.stores.agentscope1.sql.declared import METADATA, create_tables
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

DURABLE = ("fsync=on", "full_page_writes=on", "max_wal_size=4GB")
"""PostgreSQL as it comes, but for checkpoints, which would hit one run and spare the next."""


def need(program: str) -> str:
    """Return the path of a program; end the benchmark where it is not installed."""
    found = shutil.which(program)
    if found is None:
        sys.exit(f"this benchmark needs {program}")
    return found


@dataclass(frozen=True)
class Target:
    """A store to write to, as memctl and others name it, and what empties it."""

    name: str
    empty: Callable[[], None]


class Places:
    """One data set in every store, and an empty store of every kind."""

    def __init__(self, folder: Path, messages: int) -> None:
        """Make the data set and starts the servers."""
        self.folder = folder
        self.messages = messages
        self._postgresql = Postgresql(folder, "postgresql-bench", *DURABLE)
        self._redis = Redis(folder, "redis-bench")
        self.psql = str(self._postgresql.program("psql"))
        self.file = folder / f"source-{messages}.db"
        dataset.make(self.file, messages)
        self.inputs = inputs.make(self.file, folder / f"inputs-{messages}")
        self.sources = {
            "SQLite": str(self.file),
            "PostgreSQL": self._new_database(),
            "Redis": self._redis.socket_url(self._redis.fresh()),
            "archive": str(folder / f"source-{messages}.ndjson"),
        }
        self.targets = {
            "SQLite": Target(str(folder / "target.db"), self._empty_sqlite),
            "PostgreSQL": Target(self._new_database(), self._empty_postgresql),
            "Redis": Target(self._redis.socket_url(self._redis.fresh()), self._empty_redis),
            "archive": Target(str(folder / "target.ndjson"), self._empty_archive),
        }
        subprocess.run(self.copy_in(self.sources["PostgreSQL"]), check=True, capture_output=True)
        subprocess.run(self.pipe_in(self.sources["Redis"]), check=True, capture_output=True)
        memctl = [sys.executable, "-m", "memctl", "migrate", "--no-verify"]
        subprocess.run(
            [*memctl, self.file, self.sources["archive"]], check=True, capture_output=True
        )

    def sqlalchemy_url(self, url: str) -> str:
        """The URL of a database as SQLAlchemy takes it."""
        return url.replace("postgresql://", "postgresql+asyncpg://", 1)

    def pgloader_url(self) -> str:
        """The target as pgloader takes it, which makes tables of its own."""
        server = self._postgresql
        name = self.targets["PostgreSQL"].name.removeprefix("postgresql:///").partition("?")[0]
        return f"postgresql://memctl@unix:{server.sockets}:{server.port}/{name}"

    def empty_loaded(self) -> None:
        """Empty the target of what pgloader makes."""
        tables = ", ".join(METADATA.tables)
        url = self.targets["PostgreSQL"].name
        self._postgresql.execute(url, f"DROP TABLE IF EXISTS {tables}")

    # What others do with the same rows and keys

    def copy_in(self, url: str) -> list[str]:
        """``psql \\copy`` of every table in one transaction."""
        return [self.psql, url, "-Xq", "-v", "ON_ERROR_STOP=1", "-f", str(self.inputs.copy)]

    def pipe_in(self, url: str) -> list[str]:
        """``redis-cli --pipe`` of every key."""
        socket, _, number = url.removeprefix("unix://").partition("?db=")
        command = f"{need('redis-cli')} -s {socket} -n {number} --pipe < {self.inputs.keys}"
        return ["sh", "-c", f"exec {command}"]

    def insert(self, path: str) -> list[str]:
        """``executemany`` of the standard library."""
        script = Path(__file__).with_name("yardsticks") / "executemany.py"
        return [sys.executable, str(script), str(self.inputs.rows), path]

    def read(self, kind: str) -> list[str]:
        """One ordered read by the plain driver."""
        script = Path(__file__).with_name("yardsticks") / "ordered_read.py"
        return [sys.executable, str(script), kind.lower(), self.sources[kind]]

    def outlines(self) -> list[str]:
        """The ordered outlines of SQLite and of PostgreSQL's target, by the plain drivers."""
        script = Path(__file__).with_name("yardsticks") / "outlines.py"
        target = self.targets["PostgreSQL"].name
        return [sys.executable, str(script), self.sources["SQLite"], target]

    # Filling what is changed

    def fill_postgresql(self) -> None:
        """Put the data set into the target of PostgreSQL."""
        self._empty_postgresql()
        url = self.targets["PostgreSQL"].name
        subprocess.run(self.copy_in(url), check=True, capture_output=True)
        self._postgresql.execute(url, "VACUUM ANALYZE")
        self._postgresql.execute(self._postgresql.admin_url("any/postgres"), "CHECKPOINT")

    def fill_redis(self) -> None:
        """Put the data set into the target of Redis."""
        self._empty_redis()
        url = self.targets["Redis"].name
        subprocess.run(self.pipe_in(url), check=True, capture_output=True)

    # Emptying what is written to

    def _new_database(self) -> str:
        url = self._postgresql.socket_url(self._postgresql.fresh())
        self._make_tables(url)
        return url

    def _make_tables(self, url: str) -> None:
        dialect = registry.load("postgresql")()
        for table in METADATA.sorted_tables:
            for statement in dataset.creation(table, dialect):
                self._postgresql.execute(url, statement)

    def _empty_postgresql(self) -> None:
        url = self.targets["PostgreSQL"].name
        tables = ", ".join(METADATA.tables)
        self._postgresql.execute(url, f"DROP TABLE IF EXISTS {tables}")
        self._make_tables(url)
        self._postgresql.execute(self._postgresql.admin_url("any/postgres"), "CHECKPOINT")

    def _empty_redis(self) -> None:
        with self._redis.client(self.targets["Redis"].name) as client:
            client.flushdb()

    def _empty_sqlite(self) -> None:
        self._empty_archive("target.db")
        with create_engine(f"sqlite:///{self.folder / 'target.db'}").begin() as connection:
            create_tables(connection)

    def _empty_archive(self, name: str = "target.ndjson") -> None:
        (self.folder / name).unlink(missing_ok=True)
