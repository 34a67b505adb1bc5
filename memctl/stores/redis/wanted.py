"""Which messages of a Redis memory may be selected, as far as ids and marks tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from memctl.model import MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.stores.redis.keys import MARK, PAYLOAD, decode, encode
from memctl.stores.redis.look import Marks, Sight
from memctl.stores.redis.scan import Named
from memctl.stores.redis.spellings import every
from memctl.stores.redis.wire import Wire

_TOGETHER = 500
_NAMES = 100
"""So many marks, or ids, are asked for before a memory is looked at."""


class Wanted:
    """What is wanted of each memory, for the payload is read of nothing else."""

    def __init__(self, wire: Wire, where: Selection) -> None:
        self._wire = wire
        self._where = Selection(marks=where.marks, exclude_marks=where.exclude_marks, ids=where.ids)
        self._after: dict[tuple[MemoryKey, str], str | None] = {}
        """What the messages that are wanted stand behind; ``_kept`` is the last unwanted one."""
        self._kept: str | None = None

    def memories(self, memories: Iterable[Named]) -> Iterator[Named]:
        """Those that may have such a message: not one without its mark, or without its id."""
        names = self._where.marks or self._where.ids
        suffix = MARK if self._where.marks else PAYLOAD
        if not names or len(names) > _NAMES:
            yield from memories
            return
        found = {name for name in map(_bytes, names) if name is not None}
        if self._where.marks:
            found = every(found)
        source = iter(memories if found else ())
        while some := list(islice(source, _TOGETHER)):
            counts = self._wire.ask(
                [(b"EXISTS", *(named.base + suffix + name for name in found)) for named in some]
            )
            yield from (named for named, count in zip(some, counts, strict=True) if count)

    def messages(
        self, sight: Sight, ids: list[bytes], *, going_on: bool = False
    ) -> tuple[list[bytes], list[Marks]]:
        """The ids that are wanted, of some that follow one another, and their marks."""
        if not going_on:
            self._kept = None
        if self._where.whole:
            return ids, [some or () for some in map(sight.marks, ids)]
        wanted: list[bytes] = []
        marks: list[Marks] = []
        last = -1
        for at in self._candidates(sight, ids):
            id = ids[at]
            entry = StoredMessage(decode(id), b"", sight.marks(id) or ())
            if self._where.matches(entry):
                if at > last + 1:
                    self._kept = decode(ids[at - 1])
                last = at
                self._after[sight.named.key, entry.id] = self._kept
                wanted.append(id)
                marks.append(entry.marks)
        if last < len(ids) - 1:
            self._kept = decode(ids[-1])
        return wanted, marks

    def _candidates(self, sight: Sight, ids: list[bytes]) -> Iterable[int]:
        """Where those stand that have a mark that is selected."""
        found = set[int]()
        for mark in self._where.marks:
            found.update([at for at, has in enumerate(map(sight.under(mark), ids)) if has])
        return sorted(found) if self._where.marks else range(len(ids))

    def placed(self, pages: Iterator[Page]) -> Iterator[Page]:
        """The pages of a memory or some with what their messages stand behind."""
        if self._where.whole:
            yield from pages
            return
        for page in pages:
            key = page.memory.key
            after = [self._after.pop((key, entry.id), None) for entry in page.messages]
            yield replace(page, anchors=after)
        self._after.clear()


def _bytes(name: str) -> bytes | None:
    """The bytes of a name; None where there are none."""
    try:
        return encode(name)
    except UnicodeEncodeError:
        return None
