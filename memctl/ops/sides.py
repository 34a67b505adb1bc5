"""Two stores side by side: what both can hold, and so what is the same between them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from memctl.ops.fingerprint import Fingerprint
from memctl.store import Store

SHORTEST_DRIFT = 5.0
LONGEST_DRIFT = 300.0
DRIFT = 0.1
"""Expiries may differ by so much of what is left, within these bounds in seconds: a memory is on
its way for a while, and its clock starts again in the target."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What can be compared between a source and a target."""

    mark_order: bool
    summaries: bool
    """Whether the target has a place for summaries, so that none is there where it names none."""
    expiry: bool
    """Whether a memory may expire on both sides, and when is the source's to say."""
    moments: bool
    """Whether it makes sense to ask when: an archive keeps the time that was left."""

    @classmethod
    def of(cls, source: Store, target: Store) -> Sides:
        """What these two have in common."""
        here, there = source.features, target.features
        # An expiry that a URL asks for is meant to be another.
        asked = any("ttl" in store.location.options for store in (source, target))
        expiry = here.ttl and there.ttl and not asked
        return cls(
            here.mark_order and there.mark_order,
            there.summaries,
            expiry,
            expiry and here.ttl_counts_down and there.ttl_counts_down,
        )

    def summaries_differ(self, source: bytes | None, target: bytes | None) -> bool:
        """Whether two digests are those of different summaries.

        None stands for a source, or a target, that had no place for one: an archive of SQL memory.
        """
        if target is None and self.summaries:
            target = b""
        return None not in (source, target) and source != target

    def expiry_differs(self, source: float | None, target: float | None) -> bool:
        """Whether two moments of expiry, in seconds since the epoch, are not the same."""
        if not self.expiry:
            return False
        if source is None or target is None:
            return source is not target
        left = max(source, target) - time.time()
        allowed = min(max(SHORTEST_DRIFT, DRIFT * left), LONGEST_DRIFT)
        return self.moments and abs(source - target) > allowed

    def lacks(self, source: Fingerprint, target: Fingerprint) -> bool:
        """Whether the target lacks something of what the source has beside messages."""
        adds_summary = bool(source.summary) and not target.summary and self.summaries
        expires = source.expires is not None and self.expiry_differs(source.expires, target.expires)
        return adds_summary or expires
