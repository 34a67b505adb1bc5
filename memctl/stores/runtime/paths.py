"""The paths of the two services of agentscope-runtime that keep messages."""

from __future__ import annotations

from memctl.errors import UsageError
from memctl.location import Location, visible

HISTORY, MEMORY = "history", "memory"
"""The values of ``?path=``: session histories, and memories of the memory service."""


def path_of(location: Location) -> str | None:
    """Return the ``?path=`` of a location, HISTORY or MEMORY; None if the location has none.

    Raises:
        UsageError: the path is neither of the two.
    """
    path = location.options.get("path")
    if path not in (None, HISTORY, MEMORY):
        raise UsageError(
            f"{location.label} has no path {visible(path)}",
            f"use {HISTORY!r} for the histories, {MEMORY!r} for the memory service",
        )
    return path
