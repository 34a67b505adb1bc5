"""The store of the example plugin passes the suite that memctl's own stores pass."""

from __future__ import annotations

import pytest

from memctl.testing import Backend, StoreSuite


@pytest.fixture
def backend() -> Backend:
    """Return a backend with files of the plugin's store."""
    return Backend("lines", lambda folder: f"{folder}/m.lines")


@pytest.mark.usefixtures("plugin")
class TestLines(StoreSuite):
    """The suite, for the plugin."""
