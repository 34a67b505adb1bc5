"""The real ReMe of each version, and AgenticMemory, for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.reme import Library
from tests.support.servers.pool import start


def _library(environment: str, script: str) -> Callable[..., Iterator[Library]]:
    @pytest.fixture(scope="session")
    def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
        """The worker; importing its library takes seconds."""
        log = tmp_path_factory.mktemp(environment.strip(".")) / "log"
        with start(lambda: Library(environment, script, log)) as worker:
            yield worker

    return library


reme2 = _library(".interop-reme2", "worker2.py")
reme3 = _library(".interop-reme3", "worker3.py")
reme4 = _library(".interop-reme4", "worker4.py")
agentic = _library(".interop2", "worker_agentic.py")
