"""Fixtures of the tests of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.servers.pool import Servers


@pytest.fixture
def counted(servers: Servers, request: pytest.FixtureRequest) -> Iterator[tuple[redis.Redis, str]]:
    """A database of a server that counts the commands of this test alone."""
    server = servers.redis_with(request.function.__name__)
    url = server.fresh()
    with server.client(url) as client:
        yield client, url
