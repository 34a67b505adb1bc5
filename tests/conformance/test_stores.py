"""Every store of memctl passes the suite that stores of plugins pass."""

from __future__ import annotations

from memctl.testing import StoreSuite


class TestStores(StoreSuite):
    """The suite, once for each line of ``tests/support/backends.py``."""
