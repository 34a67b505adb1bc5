"""A sample of what ``make soak`` does: migrations killed between some pairs of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.pool import Servers
from tests.trust import kills
from tests.trust.kills import Trial, WriteResult, Yard
from tests.trust.places import NEW, OLD

pytestmark = pytest.mark.slow

SEED = "sample"
TRIALS = 1
"""For each pair; now and then one kills more than one run."""
PAIRS = [
    *((OLD[n], OLD[(n + step) % len(OLD)]) for step in (0, 1) for n in range(len(OLD))),
    *zip(OLD, [NEW[1], NEW[0], NEW[3], NEW[2]], strict=False),
    *zip(NEW, [NEW[3], NEW[1], NEW[0], NEW[2]], strict=True),
]
"""Each kind of store several times as a source and as a target."""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, servers: Servers) -> Iterator[Yard]:
    """Yield sources that all pairs of this process share; none may change."""
    yard = Yard(tmp_path_factory.mktemp("trust"), servers, SEED, WriteResult())
    yield yard
    yard.close()


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_migrate_killed_at_any_moment(
    yard: Yard, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "PATIENCE", 0)  # the soak waits for locks that expire
    for number in range(TRIALS):
        Trial(yard, (source, target), number).run()
    assert yard.tally.phases.total() >= TRIALS


@pytest.mark.parametrize(
    ("source", "target"), [("sqlite", "postgresql"), ("mysql", "redis"), ("redis", "sessions")]
)
def test_migrate_parts_killed_at_any_moment(
    yard: Yard, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "PATIENCE", 0)
    Trial(yard, (source, target), TRIALS, parts=3).run()
