"""The values of options and of settings with the same meaning: times, ages and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta, tzinfo

from memctl.errors import UsageError
from memctl.location import visible
from memctl.machine.time_zones import zone_named

_AGE = re.compile(r"(\d+)([smhdw])")
_DAYS = {"today": 0, "yesterday": 1}
"""Words for a day at midnight, and how many days ago it was."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(option: str, text: str | None, now: datetime) -> datetime | None:
    """Parse an ISO time, an age such as ``7d``, ``today`` or ``yesterday``.

    Return it as local time without a zone.

    An age counts back from ``now``.  ``option`` is the name of the option for errors.  If ``text``
    is None, the result is None.

    Raises:
        UsageError: the text is neither a time nor an age.
    """
    if text is None:
        return None
    try:
        if (days := _DAYS.get(text)) is not None:
            return datetime.combine(now.date(), time()) - timedelta(days=days)
        if age := _AGE.fullmatch(text):
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        found = datetime.fromisoformat(text)
        return found.astimezone().replace(tzinfo=None) if found.tzinfo else found
    except (ValueError, OverflowError):  # a year out of range
        raise UsageError(
            f"{option} {text!r} is not a valid time",
            "write 2026-01-31, 2026-01-31T12:00, today, yesterday, or an age: 30d, 12h",
        ) from None


def age(option: str, text: str | None, now: datetime) -> datetime | None:
    """Parse an age, such as ``7d``; return the time that long before ``now``.

    ``option`` is the name of the option for errors.  If ``text`` is None, the result is None.

    Raises:
        UsageError: the text is not a valid age.
    """
    if text is not None and not _AGE.fullmatch(text):
        raise UsageError(f"{option} {text!r} is not a valid age", "write 30d, 12h, 15m or 2w")
    return moment(option, text, now)


def period(
    texts: Mapping[str, str | None], option: Callable[[str], str], now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Parse ``since``, ``newer_than``, ``until`` and ``older_than``; return the beginning and end.

    ``option`` returns the name of an option for errors.  A text that is missing sets no limit.

    Raises:
        UsageError: a text is not valid, or the period ends before it begins.
    """
    since, newer, until, older = map(option, ("since", "newer_than", "until", "older_than"))
    begins = (
        moment(since, texts.get("since"), now),
        age(newer, texts.get("newer_than"), now),
    )
    ends = moment(until, texts.get("until"), now), age(older, texts.get("older_than"), now)
    first, end = max(filter(None, begins), default=None), min(filter(None, ends), default=None)
    if first is not None and end is not None and first >= end:
        raise UsageError(
            f"the selected time ends, at {end:%Y-%m-%d %H:%M:%S}, before it begins, at "
            f"{first:%Y-%m-%d %H:%M:%S}",
            f"{since} and {newer} give the beginning, {until} and {older} the end",
        )
    return first, end


def time_zone(name: str) -> tzinfo:
    """Return the time zone that the option ``tz`` of a store names.

    Raises:
        UsageError: there is no such zone.
    """
    found = zone_named(name)
    if found is None:
        hint = "write the name of a zone on this machine, such as Asia/Shanghai or Etc/GMT-8"
        raise UsageError(f"tz={visible(name)} is not a time zone", hint)
    return found


_LIMIT = re.compile(r"(\d+(?:\.\d+)?)(%?)")


def deletion_limit(text: str | None, option: str = "--max-delete") -> tuple[float, bool] | None:
    """Parse ``--max-delete``; return the number, and True if it is a percentage.

    ``option`` is the name of the option for errors.  If ``text`` is None, the result is None.

    Raises:
        UsageError: the text is neither a number nor a percentage.
    """
    if text is None:
        return None
    found = _LIMIT.fullmatch(text.strip())
    if not found or (not found[2] and "." in found[1]):
        raise UsageError(f"{option} {text!r} is not a valid limit", "write 500, or 20%")
    return float(found[1]), bool(found[2])


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def data_size(option: str, text: str) -> int:
    """Parse a size such as ``64kB``, ``1MiB`` or ``5000``; return the number of bytes.

    ``option`` is the name of the option for errors.

    Raises:
        UsageError: the text is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{option} {text!r} is not a valid size", "write 64kB, 1MB or 64KiB")
    return int(float(found[1]) * unit_bytes(found[2]))


def unit_bytes(unit: str | None) -> int:
    """Return the number of bytes of a unit: ``k``, ``Mi``; 1 for None."""
    name = (unit or "").lower()
    power: int = (1024 if name.endswith("i") else 1000) ** _POWERS[name[:1]]
    return power
