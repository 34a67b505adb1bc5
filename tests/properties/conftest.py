"""The effort of hypothesis: the same examples each time where ``CI=true``, else random ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "memctl",
    deadline=None,  # a store may be slow for reasons of its own
    max_examples=40,
    # The fixtures hold servers and a folder; each example makes a place of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("memctl")
