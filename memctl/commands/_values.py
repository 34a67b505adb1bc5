"""The values of options: times, ages, limits and rates."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from memctl.encryption import check_recipients
from memctl.errors import UsageError
from memctl.wrappers.rate_limit import Rate

_AGE = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(option: str, text: str | None, now: datetime) -> datetime | None:
    """Parse an ISO time or an age, such as ``7d``; return it as local time without a zone.

    An age counts back from ``now``.  ``option`` is the name of the option for errors.  If ``text``
    is None, the result is None.

    Raises:
        UsageError: the text is neither a time nor an age.
    """
    if text is None:
        return None
    try:
        if age := _AGE.fullmatch(text):
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        found = datetime.fromisoformat(text)
        return found.astimezone().replace(tzinfo=None) if found.tzinfo else found
    except (ValueError, OverflowError):  # a year out of range
        raise UsageError(
            f"{option} {text!r} is not a valid time",
            "write 2026-01-31, 2026-01-31T12:00 or an age: 30d, 12h",
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


_LIMIT = re.compile(r"(\d+(?:\.\d+)?)(%?)")


def deletion_limit(text: str | None) -> tuple[float, bool] | None:
    """Parse ``--max-delete``; return the number, and True if it is a percentage.

    If ``text`` is None, the result is None.

    Raises:
        UsageError: the text is neither a number nor a percentage.
    """
    if text is None:
        return None
    found = _LIMIT.fullmatch(text.strip())
    if not found or (not found[2] and "." in found[1]):
        raise UsageError(f"--max-delete {text!r} is not a valid limit", "write 500, or 20%")
    return float(found[1]), bool(found[2])


_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]i?)?(B)?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def rate(text: str | None) -> Rate | None:
    """Parse ``--rate-limit``; if ``text`` is None, the result is None.

    Raises:
        UsageError: the text is not a valid rate.
    """
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    number = float(found[1]) if found else 0.0
    if not found or not number:
        raise UsageError(
            f"--rate-limit {text!r} is not a valid rate",
            "write 500 for messages a second, or 500kB, 2MB, 1.5MiB for bytes a second",
        )
    unit = (found[2] or "").lower()
    number *= (1024 if unit.endswith("i") else 1000) ** _POWERS[unit[:1]]
    return Rate(size=number) if found[3] else Rate(messages=number)


def recipients(texts: list[str] | None) -> tuple[str, ...]:
    """Return the values of ``--encrypt-to``.

    Raises:
        UsageError: a value is not a public key, or the library for age is not installed.
    """
    check_recipients(texts or (), "--encrypt-to")
    return tuple(texts or ())
