"""The changes that a restore or an import makes in a store, memory by memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from memctl.model import MemoryKey
from memctl.ops.copy.compare import Difference
from memctl.reports.copy import RestoredMemory
from memctl.reports.report import named
from memctl.text.words import natural

_STAY = frozenset({"message-extra", "memory-extra", "settings", "path", "expiry"})
"""The differences that a restore leaves: what the archive lacks, and what agents set anew."""


def restored(differences: Iterable[Difference]) -> list[RestoredMemory]:
    """Return what the first of two compared stores gives back to each memory of the second.

    Memories that stay as they are are left out.
    """
    by_key: dict[MemoryKey, list[Difference]] = {}
    for difference in differences:
        by_key.setdefault(difference.key, []).append(difference)
    return [
        _restored(key, some)
        for key, some in sorted(by_key.items(), key=lambda item: natural(item[0]))
        if any(one.code not in _STAY for one in some)
    ]


def _restored(key: MemoryKey, differences: list[Difference]) -> RestoredMemory:
    codes = Counter(one.code for one in differences)
    changed = {one.id for one in differences if one.code in ("content", "marks", "order")}
    return RestoredMemory(
        **named(key),
        whole=bool(codes["memory-missing"]),
        back=codes["message-missing"],
        changed=len(changed),
        stay=codes["message-extra"],
        summary=bool(codes["summary"]),
    )
