"""What a run says of itself to the next one that wants to write to the same place."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from functools import cache

from memctl.system import user_name


@cache
def holder() -> str:
    """The text for ``Store.lock``: ``pid 4242 since 2026-11-21T02:17:53Z on web-1 (ada)``.

    It is the same throughout a run, which so knows a lock as its own that it lost.  Its end is the
    first to go where a server cuts it off.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"pid {os.getpid()} since {now} on {socket.gethostname()} ({user_name()})"
