"""Time zones: by name, and as a server converts times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from io import BytesIO
from itertools import pairwise
from struct import pack
from zoneinfo import ZoneInfo

_UTC = ("UTC", "Etc/UTC", "GMT")
_OF_THIS_MACHINE = ("", "localtime")
_EPOCH = datetime(1970, 1, 1)
_WEEKS = range(0, 2**31, 7 * 24 * 60 * 60)
"""Times in seconds since 1970: no two changes of a zone's offset are within a week."""


def zone_named(name: str) -> tzinfo | None:
    """Return a time zone by its name, such as ``Asia/Shanghai``; None if the name is unknown."""
    if name in _UTC:
        return UTC
    try:
        return None if name in _OF_THIS_MACHINE else ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # no zone, no name, or a folder of zones
        return None


async def zone_by(local_times: Callable[[Sequence[int]], Awaitable[list[datetime]]]) -> tzinfo:
    """Return the time zone in which a server converts times, from 1970 to 2037.

    ``local_times`` returns the server's times, without a zone, for seconds since 1970.
    """

    async def offsets(seconds: Sequence[int]) -> dict[int, int]:
        found = zip(seconds, await local_times(seconds), strict=True)
        return {one: int((local - _EPOCH).total_seconds()) - one for one, local in found}

    known = await offsets(_WEEKS)
    changes = [(a, b) for a, b in pairwise(_WEEKS) if known[a] != known[b]]
    if not changes:
        return timezone(timedelta(seconds=known[0]))
    while any(b - a > 1 for a, b in changes):
        middles = [(a + b) // 2 for a, b in changes]
        known |= await offsets(middles)
        changes = [
            (middle, b) if known[middle] == known[a] else (a, middle)
            for middle, (a, b) in zip(middles, changes, strict=True)
        ]
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
