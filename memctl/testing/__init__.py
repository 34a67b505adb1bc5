"""The conformance suite: tests of the store contract, for the stores of plugins too.

It needs ``pip install 'agentscope-memctl[testing]'``.  A store passes it when this passes::

    import pytest
    from memctl.testing import Backend, StoreSuite

    @pytest.fixture
    def backend() -> Backend:
        return Backend("notes", lambda folder: f"{folder}/m.notes")

    class TestNotes(StoreSuite):
        pass

A store of facts passes ``FactSuite``, and its backend has ``style=Style("fact", frozenset())``.

``Store.features`` decide what is tested: what a store does not claim is skipped.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("memctl.testing.drive", "memctl.testing.suite")

from memctl.testing.backend import Backend, Place, new_place  # noqa: E402
from memctl.testing.samples import Style  # noqa: E402
from memctl.testing.suite import FactSuite, StoreSuite  # noqa: E402

__all__ = ["Backend", "FactSuite", "Place", "StoreSuite", "Style", "new_place"]
