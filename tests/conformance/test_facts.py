"""Every store of facts of memctl passes the suite that such stores of plugins pass."""

from __future__ import annotations

import pytest

from memctl.testing import Backend, FactSuite, Style

_NONE = frozenset[str]()
_VECTORS = Style("fact", _NONE, dimensions=8)
BACKENDS = {
    "vault": Backend(
        "vault", lambda folder: f"vault:{folder}/v", style=Style("fact", _NONE), refuses_names=True
    ),
    "reme": Backend(
        "reme", lambda folder: f"reme:{folder}/v", style=Style("fact", _NONE), refuses_names=True
    ),
    "reme-0.3": Backend(
        "reme-0.3",
        lambda folder: f"reme:{folder}/r?layout=0.3",
        style=_VECTORS,
        refuses_names=True,
    ),
    "reme-0.2": Backend(
        "reme-0.2",
        lambda folder: f"reme:{folder}/r?layout=0.2",
        style=_VECTORS,
        refuses_names=True,
    ),
}


class TestFacts(FactSuite):
    """The suite, once for each store of facts."""

    @pytest.fixture(params=list(BACKENDS))
    def backend(self, request: pytest.FixtureRequest) -> Backend:
        """Each store in turn."""
        return BACKENDS[request.param]
