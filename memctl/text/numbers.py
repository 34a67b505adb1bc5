"""Numbers for people."""

from __future__ import annotations

from datetime import datetime

_PLURALS = {
    "memory": "memories",
    "summary": "summaries",
    "index": "indexes",
    "identity": "identities",
}
_BLOCKS = " ▏▎▍▌▋▊▉█"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 message``, ``1,234 messages``."""
    plural = _PLURALS.get(noun, f"{noun}s")
    return f"{number:,} {noun if number == 1 else plural}"


def size(number: int) -> str:
    """Return a number of bytes in powers of 1000: ``812 B``, ``1.3 kB``, ``128.0 MB``."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``2d 4h``, ``59m 30s``."""
    rest = int(seconds)
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= length:
            parts.append(f"{rest // length}{unit}")
            rest %= length
    return " ".join(parts[:2]) or "0s"


def local_time(text: str) -> str:
    """Return an ISO 8601 time in the local time zone: ``2026-10-02 11:14 CEST``.

    A text that is not a time, or whose year is out of range, is returned unchanged.
    """
    try:
        return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M %Z}"
    except (ValueError, OverflowError):  # a year out of range
        return text


def minute(text: str | None) -> str:
    """Return a stored time to the minute, as ``2026-10-02 11:14``; empty without a time."""
    return (text or "")[:16].replace("T", " ")


def bar(share: float, width: int = 8) -> str:
    """Return a bar of characters, ``width`` columns wide, of which the part ``share`` is filled.

    ``share`` is between 0 and 1.
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)
