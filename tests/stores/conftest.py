"""What the tests of the stores share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.conftest import Servers


@pytest.fixture
def client(servers: Servers, redis_url: str) -> Iterator[redis.Redis]:
    with servers.redis.client(redis_url) as found:
        yield found
