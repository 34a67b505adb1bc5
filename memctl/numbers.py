"""Numbers as people read them."""

from __future__ import annotations

from datetime import datetime

_PLURALS = {"memory": "memories", "summary": "summaries", "index": "indexes"}
_BLOCKS = " ▏▎▍▌▋▊▉█"


def count(number: int, noun: str) -> str:
    """``1 message``, ``1,234 messages``."""
    plural = _PLURALS.get(noun, f"{noun}s")
    return f"{number:,} {noun if number == 1 else plural}"


def size(number: int) -> str:
    """Bytes in powers of 1000: ``812 B``, ``1.3 kB``, ``128.0 MB``."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """The two largest units: ``2d 4h``, ``59m 30s``."""
    rest = int(seconds)
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= length:
            parts.append(f"{rest // length}{unit}")
            rest %= length
    return " ".join(parts[:2]) or "0s"


def local_time(text: str) -> str:
    """An ISO time in this machine's zone, such as ``2026-10-02 11:14 CEST``; other texts stay."""
    try:
        return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M %Z}"
    except ValueError:
        return text


def bar(share: float, width: int = 8) -> str:
    """A bar of ``width`` columns, ``share`` of it filled (0 to 1)."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)
