"""The conformance suite: tests of the store contract, also for the stores of plugins.

The suite needs ``pip install 'agentscope-memctl[testing]'``.  A test module for a store::

    import pytest
    from memctl.testing import Backend, StoreSuite

    @pytest.fixture
    def backend() -> Backend:
        return Backend("notes", lambda folder: f"{folder}/m.notes")

    class TestNotes(StoreSuite):
        pass

A store with ``Features.whole_memories`` uses ``SessionSuite``.
A store of facts uses ``FactSuite``, and a backend with ``style=Style("fact", frozenset())``.

The suite tests the features claimed in ``Store.features``, and skips the tests of all others.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("memctl.testing.drive", "memctl.testing.suite")

from memctl.testing.backend import Backend, Place, SharedTable, new_place  # noqa: E402
from memctl.testing.samples import Style  # noqa: E402
from memctl.testing.suite import FactSuite, SessionSuite, StoreSuite  # noqa: E402

__all__ = [
    "Backend",
    "FactSuite",
    "Place",
    "SessionSuite",
    "SharedTable",
    "StoreSuite",
    "Style",
    "new_place",
]
