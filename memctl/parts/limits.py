"""The limits of a whole run, shared out among its parts: no sum of parts exceeds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from memctl.errors import Busy, Unavailable
from memctl.parts.part import PartResult
from memctl.shard import Shard

_REPEATED = (Unavailable.exit_code, Busy.exit_code)
_CENTS = 1_000_000
"""The shares of a cost are rounded down to a millionth."""


class CostLimit:
    """``--max-cost``: the amount that each part may spend.

    Each part gets an equal share of the amount that is neither spent nor reserved, and returns the
    unspent rest when the part ends.  A part without a report has spent its share.
    """

    def __init__(self, whole: float, shards: Iterable[Shard]) -> None:
        self._left = whole
        self._waiting = set(shards)
        self._reserved: dict[Shard, float] = {}

    def begin(self, shard: Shard) -> float:
        """Return the share of a part that starts now."""
        self._waiting.add(shard)
        share = math.floor(max(0.0, self._left) / len(self._waiting) * _CENTS) / _CENTS
        self._waiting.remove(shard)
        self._reserved[shard] = share
        self._left -= share
        return share

    def end(self, result: PartResult) -> None:
        """Take back what a part has not spent."""
        reserved = self._reserved.pop(result.shard)
        if result.report is not None:
            self._left += reserved - (result.report.get("model", {}).get("cost") or 0.0)
        if result.exit in _REPEATED or result.is_lost:
            self._waiting.add(result.shard)


class DeletionLimit:
    """``--max-delete`` as a number: each part may delete what it planned, and a share of the rest.

    ``planned`` has the number of messages that each part plans to delete.
    """

    def __init__(self, whole: int, planned: Mapping[Shard, int]) -> None:
        self.planned = sum(planned.values())
        self._of = planned
        self._more = max(0, whole - self.planned) // max(1, len(planned))

    def begin(self, shard: Shard) -> int:
        """Return the largest number of messages that a part may delete."""
        return self._of[shard] + self._more


class Limits:
    """The options with the share of a part in the limits of the whole run.

    ``fixed`` are options that are the same for all parts.
    """

    def __init__(
        self,
        fixed: Iterable[str] = (),
        cost: CostLimit | None = None,
        deletions: DeletionLimit | None = None,
    ) -> None:
        self._fixed = tuple(fixed)
        self._cost = cost
        self._deletions = deletions

    def begin(self, shard: Shard) -> Iterator[str]:
        """Yield the options of a part that starts now."""
        yield from self._fixed
        if self._cost is not None:
            yield f"--max-cost={self._cost.begin(shard):f}"
        if self._deletions is not None:
            yield f"--max-delete={self._deletions.begin(shard)}"

    def end(self, result: PartResult) -> None:
        """Note how a part has ended."""
        if self._cost is not None:
            self._cost.end(result)
