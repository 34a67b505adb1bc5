"""The identity and the last change of a store in a single file, without opening the store."""

from __future__ import annotations

import os
import time

from memctl.location import Location, same_file

_SINGLE_FILES = frozenset({"sqlite", "archive", "state"})
"""The kinds of store in a single file, whose times show every change."""
_SETTLED = 2.0
"""The seconds after which the times of a file show every change."""


def file_identity(location: Location) -> str | None:
    """Return ``Store.identity`` of a store in a single file, without opening the store.

    None for other kinds of store, and if the file does not exist.
    """
    if location.kind not in _SINGLE_FILES or not location.path.is_file():
        return None
    return f"file:{same_file(location.path)}"


def stamp_of(location: Location) -> str | None:
    """Return a text that differs after every change of a store, without opening the store.

    None for a store that is not a single file, and for a file that was written in the last two
    seconds: such a text could miss a change.
    """
    if file_identity(location) is None:
        return None
    parts = []
    for suffix in ("", "-wal", "-journal"):
        try:
            found = os.stat(f"{location.path}{suffix}")
        except OSError:
            continue
        if abs(time.time() - found.st_mtime) < _SETTLED:
            return None
        parts.append(f"{suffix}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}")
    return " ".join(parts)
