"""Messages on their way out of a document, and what the catalogue says of them."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from memctl.model import MemoryInfo, MemoryKey, StoredMessage


@dataclass(slots=True)
class Batch:
    """Messages as found, in columns: counting a million of them is a matter of these lists.

    ``texts`` are empty for large messages where those were not wanted; ``sizes`` are the lengths in
    the document.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    marks: list[tuple[str, ...]] = field(default_factory=list)
    roles: list[Any] = field(default_factory=list)
    times: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def entries(self) -> list[StoredMessage]:
        """The messages, which the batch then no longer holds."""
        entries = list(map(StoredMessage, self.ids, self.texts, self.marks))
        self.texts.clear()
        return entries


class Counts:
    """Counts messages for the catalogue."""

    def __init__(self) -> None:
        self.messages = 0
        self._bytes = 0
        self._marks: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        self._first: str | None = None
        self._last: str | None = None
        self._ids = array("q")

    def add(self, batch: Batch) -> None:
        """Counts the messages of a batch."""
        self.messages += len(batch.ids)
        self._bytes += sum(batch.sizes)
        self._marks.update(chain.from_iterable(batch.marks))
        self._roles.update([role for role in batch.roles if isinstance(role, str)])
        # The hashes of a million ids take 8 MB, the ids themselves 70.
        self._ids.extend(map(hash, batch.ids))
        times = [time for time in batch.times if isinstance(time, str)]
        if times:
            self._first = min(self._first or times[0], *times)
            self._last = max(self._last or times[0], *times)

    def info(self) -> MemoryInfo:
        """The counts; key, summary and expiry are the caller's to fill in."""
        repeated = sum(one == other for one, other in pairwise(sorted(self._ids)))
        return MemoryInfo(
            MemoryKey("", ""),
            messages=self.messages,
            bytes=self._bytes,
            marks=dict(self._marks),
            roles=dict(self._roles),
            first=self._first,
            last=self._last,
            repeated=repeated,
        )
