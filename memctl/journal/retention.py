"""The limits for the records of runs that are kept."""

from __future__ import annotations

from msgspec import Struct


class Retention(Struct, frozen=True):
    """The limits for kept runs: the age in days, and the total size in bytes."""

    days: int = 30
    bytes: int = 1_000_000_000
