"""One worker with the real AgentScope for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.agentscope import AgentScope
from tests.support.servers.pool import start


@pytest.fixture(scope="session")
def agentscope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentScope]:
    """The real AgentScope; importing it takes seconds."""
    log = tmp_path_factory.mktemp("agentscope") / "log"
    with start(lambda: AgentScope(log)) as worker:
        yield worker
