"""What a run says of itself to the next one that wants to write to the same place."""

from __future__ import annotations

import os
import pwd
import socket
from datetime import UTC, datetime
from functools import cache


@cache
def holder() -> str:
    """The text for ``Store.lock``: ``pid 4242 since 2026-11-21T02:17:53Z on web-1 (ada)``.

    It is the same throughout a run, which so knows a lock as its own that it lost.  Its end is the
    first to go where a server cuts it off.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"pid {os.getpid()} since {now} on {socket.gethostname()} ({_user()})"


def _user() -> str:
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container that runs under any number
        return f"uid {number}"
