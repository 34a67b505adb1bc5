"""The paths of the two services of agentscope-runtime that keep messages."""

from __future__ import annotations

from memctl.errors import UsageError
from memctl.location import Location, visible

HISTORY, MEMORY = "history", "memory"
"""The path of session histories, and the path of memories, which is the default part."""


def path_of(location: Location) -> str | None:
    """Return the ``path`` option of a location, or None.

    Raises:
        UsageError: the path is not valid for agentscope-runtime.
    """
    path = location.options.get("path")
    if path not in (None, HISTORY, MEMORY):
        raise UsageError(
            f"{location.label} has no path {visible(path)}",
            f"use {HISTORY!r} for the histories, {MEMORY!r} for the memory service",
        )
    return path
