"""A migration in parts that are killed at random; see ``tests.trust.divided`` for a larger one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.pool import Servers
from tests.trust.divided import Trial


@pytest.mark.slow
def test_parts_killed_at_random_copy_each_message_once(servers: Servers, tmp_path: Path) -> None:
    trial = Trial(servers.postgresql, tmp_path, 40_000)
    try:
        outcome = trial.run(shards=8, seed=7, kills=2)
    finally:
        trial.close()
    assert outcome.kills > 3
    assert outcome.repeats > 3
