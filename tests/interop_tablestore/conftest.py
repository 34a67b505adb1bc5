"""The real Tablestore classes: one worker for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.servers.pool import Servers
from tests.support.worker import Worker, for_the_session


class Classes(Worker):
    """The worker of the classes."""

    environment = ".interop-tablestore"
    script = "interop_tablestore/worker.py"


Agents = Callable[..., Any]

classes = for_the_session(Classes)


@pytest.fixture
def agents(servers: Servers, classes: Classes) -> Agents:
    """Ask the classes for something in the instance of a URL."""

    def ask(do: str, url: str, **about: Any) -> Any:
        return classes.ask(do=do, place=servers.tablestore.endpoint(url), **about)

    return ask
