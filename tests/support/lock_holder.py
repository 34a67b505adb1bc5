"""A holder of a lock with the short lease of the tests; see ``memctl.testing.lock_holder``."""

from __future__ import annotations

import asyncio
import sys

from memctl.engines.redis import server
from memctl.testing.lock_holder import hold
from tests.support.backends import LEASE

if __name__ == "__main__":
    server.LEASE_SECONDS = LEASE
    asyncio.run(hold(*sys.argv[1:]))
