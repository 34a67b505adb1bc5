"""Servers of a test's own, which it may kill, and which keep what they acknowledged."""

from __future__ import annotations

import os
import threading
import time
from functools import cached_property
from pathlib import Path

from tests.support.servers.mariadb import Mariadb
from tests.support.servers.pool import Servers, start
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

Server = Postgresql | Mariadb | Redis

POSTGRESQL = ("full_page_writes=on", "restart_after_crash=on")
MARIADB = ("--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=1")
REDIS = ("--appendonly", "yes", "--appendfsync", "always")


class Mortals(Servers):
    """Servers of this process alone."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self._name = f"mortal-{os.getpid()}"

    @cached_property
    def postgresql(self) -> Postgresql:
        return start(lambda: Postgresql(self.run, f"{self._name}-pg", *POSTGRESQL))

    @cached_property
    def mariadb(self) -> Mariadb:
        return start(lambda: Mariadb(self.run, f"{self._name}-my", *MARIADB))

    @cached_property
    def redis(self) -> Redis:
        return start(lambda: Redis(self.run, f"{self._name}-re", *REDIS))

    def of(self, kind: str) -> Server:
        """The server that stores of the kind are on."""
        name = kind.removesuffix("-agentscope2").replace("mysql", "mariadb")
        found: Server = getattr(self, name)
        return found


class Outage(threading.Thread):
    """An outage: a server is killed, and started again some seconds later."""

    def __init__(self, server: Server, seconds: float) -> None:
        super().__init__()
        self._server = server
        self._seconds = seconds
        server.kill()
        self.start()

    def run(self) -> None:
        time.sleep(self._seconds)
        self._server.start()
