"""Damaged data that ``doctor --repair`` moves into quarantine, as records."""

from __future__ import annotations

from typing import Any

from memctl.model import MemoryKey
from memctl.store import Record


def to_text(value: bytes) -> str:
    """Decode bytes for a quarantine record; bytes that are not UTF-8 become surrogates."""
    return value.decode("utf-8", "surrogateescape")


def record_of(key: MemoryKey, code: str, **more: Any) -> Record:
    """Return a quarantine record about a memory; ``more`` adds members to the record."""
    return {"code": code, "user": key.user, "session": key.session, **more}
