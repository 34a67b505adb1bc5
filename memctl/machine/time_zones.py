"""Time zones: by name, and as a server converts times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from io import BytesIO
from itertools import pairwise
from struct import pack

_UTC = ("UTC", "Etc/UTC", "GMT")
_OF_THIS_MACHINE = ("", "localtime")
_EPOCH = datetime(1970, 1, 1)
_QUARTER = 15 * 60
"""Zones change their offset at a quarter of an hour."""
_STEPS = range(0, 2**31, _QUARTER * 2**10)
"""Times in seconds since 1970: no zone changes its offset twice in a step of 11 days."""


def zone_named(name: str) -> tzinfo | None:
    """Return a time zone by its name, such as ``Asia/Shanghai``; None if the name is unknown."""
    if name in _UTC:
        return UTC
    from zoneinfo import ZoneInfo  # most runs need no zone but UTC

    try:
        return None if name in _OF_THIS_MACHINE else ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # no zone, no name, or a folder of zones
        return None


def naming(zone: tzinfo | None) -> str:
    """Return a sentence on the zone of times without one; None stands for the local zone."""
    local = f"of this machine ({datetime.now().astimezone():%Z})"
    return f"times without a zone are in the time zone {zone or local}"


async def zone_by(local_times: Callable[[Sequence[int]], Awaitable[list[datetime]]]) -> tzinfo:
    """Return the time zone in which a server converts times, from 1970 to 2037.

    ``local_times`` returns the server's times, without a zone, for seconds since 1970.
    """

    async def offsets(seconds: Sequence[int]) -> dict[int, int]:
        found = zip(seconds, await local_times(seconds), strict=True)
        return {one: int((local - _EPOCH).total_seconds()) - one for one, local in found}

    known = await offsets(_STEPS)
    changes = [(a, b) for a, b in pairwise(_STEPS) if known[a] != known[b]]
    if not changes:
        return timezone(timedelta(seconds=known[0]))
    while any(b - a > _QUARTER for a, b in changes):
        middles = [(a + b) // 2 for a, b in changes]
        known |= await offsets(middles)
        changes = [
            (middle, b) if known[middle] == known[a] else (a, middle)
            for middle, (a, b) in zip(middles, changes, strict=True)
        ]
    from zoneinfo import ZoneInfo

    kinds = list(dict.fromkeys([known[0], *(known[b] for _, b in changes)]))
    # The format of zone files, TZif: a header, the changes, the kinds of time, and their names.
    return ZoneInfo.from_file(
        BytesIO(
            pack(">4s16x6l", b"TZif", 0, 0, 0, len(changes), len(kinds), 1)
            + pack(f">{len(changes)}l", *(b for _, b in changes))
            + bytes(kinds.index(known[b]) for _, b in changes)
            + b"".join(pack(">lbb", offset, 0, 0) for offset in kinds)
            + b"\0"
        ),
        key="the zone of the server",
    )
