"""Each of memctl's own stores in turn."""

from __future__ import annotations

import pytest

from memctl.engines.redis import server
from memctl.testing import Backend, FactSuite, StoreSuite
from tests.support.backends import BACKENDS, FURTHER, LEASE
from tests.support.servers.pool import Servers

SLOW = (
    StoreSuite.test_catalog_agrees_with_reading,
    StoreSuite.test_edit_inserts_a_large_message,
    StoreSuite.test_edit_of_many_memories,
    StoreSuite.test_edit_refused_changes_nothing_of_a_large_memory,
    StoreSuite.test_erase_leaves_nothing_of_a_user,
    StoreSuite.test_keys_and_windows_of_any_name,
    StoreSuite.test_lock_of_a_killed_run_is_free,
    StoreSuite.test_outline_agrees_with_reading,
    StoreSuite.test_place_is_not_changed_by_reading,
    StoreSuite.test_read_cancelled,
    StoreSuite.test_read_may_stop_early,
    StoreSuite.test_read_pages_stay_small_when_messages_grow,
    StoreSuite.test_read_twice_at_once,
    StoreSuite.test_selection_by_the_store,
    StoreSuite.test_selection_of_several_pages,
    StoreSuite.test_shards_are_disjoint_and_the_whole,
    StoreSuite.test_write_of_many_pages_takes_a_time_that_is_linear,
    StoreSuite.test_write_of_many_small_memories,
    FactSuite.test_facts_all_go_and_come_back,
)
"""The tests with large memories, many memories, or processes; ``FactSuite`` shares most of them."""

for _test in SLOW:
    pytest.mark.slow(_test)

ENGINES = {"postgresql", "mysql", "tablestore", "archive-objects"}
"""The backends of ``FURTHER`` for the other tests of the contract: `make test` has each engine."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in FURTHER - ENGINES else ())
        for name in BACKENDS
    ]
)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Backend:
    """Each store in turn."""
    return BACKENDS[request.param](servers)


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LEASE_SECONDS", LEASE)
