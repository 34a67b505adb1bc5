"""Are two stores the same, as far as the selection goes?  Fresh reads of both sides, one pass each.

Memories whose fingerprints differ as text are fingerprinted again by value; what still differs is
read once more, some memories at a time, to name every difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from memctl.model import MemoryKey
from memctl.ops.fingerprint import (
    Fingerprint,
    Form,
    content,
    encode_marks,
    fingerprints,
    keeps_mark_order,
)
from memctl.ops.names import introduce
from memctl.selection import Selection
from memctl.store import Capability, Store
from memctl.streams import closing

GROUP_MESSAGES = 200_000
"""How many messages are held in brief at a time to name their differences."""


class Difference(NamedTuple):
    """A difference.  ``code`` is stable; ``id`` names the message, empty for the memory itself."""

    key: MemoryKey
    code: str
    id: str
    message: str


@dataclass(slots=True)
class CompareReport:
    """How two stores compare: memories by outcome, messages on each side, every difference."""

    same: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    left_messages: int = 0
    right_messages: int = 0
    differences: list[Difference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What could not be compared, because one side has no place for it."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


async def compare(left: Store, right: Store, where: Selection) -> CompareReport:
    """Compares the selected memories of two stores.

    A summary counts where both stores have a place for one, and so does whether a memory expires;
    a memory without messages is the same as none where one of the stores cannot hold it.

    Raises:
        MemctlError: as ``Store.read``.
    """
    return await _Compare(left, right, where).run()


class _Brief(NamedTuple):
    """A message, as far as comparing needs it."""

    content: bytes
    marks: bytes


class _Compare:
    def __init__(self, left: Store, right: Store, where: Selection) -> None:
        self._left = left
        self._right = right
        self._where = where
        self._mark_order = keeps_mark_order(left, right)
        self._report = CompareReport()

    async def run(self) -> CompareReport:
        report = self._report
        await introduce(self._left, self._right, self._where)
        await introduce(self._right, self._left, self._where)
        left, right = await self._both(self._where, Form.TEXT)
        self._warn(self._left, left, self._right)
        self._warn(self._right, right, self._left)
        report.left_messages = sum(side.messages for side in left.values())
        report.right_messages = sum(side.messages for side in right.values())
        suspects = frozenset(
            key for key in left.keys() & right.keys() if not self._alike(left[key], right[key])
        )
        report.same = len(left.keys() & right.keys()) - len(suspects)
        self._report_absent(left, right)
        if suspects:
            left, right = await self._both(self._where.only(suspects), Form.VALUE)
            differing = [key for key in sorted(suspects) if self._differs(key, left, right)]
            report.same += len(suspects) - len(differing)
            report.different = len(differing)
            for group in _groups(differing, left, right):
                await self._name_differences(group)
        return report

    def _warn(self, store: Store, found: dict[MemoryKey, Fingerprint], other: Store) -> None:
        """Says what one side has and the other has no place for."""
        sides = found.values()
        for flag, what, has in (
            (Capability.SUMMARIES, "summaries", any(side.summary for side in sides)),
            (Capability.TTL, "expiries", any(side.expires for side in sides)),
        ):
            if has and flag not in other.capabilities:
                self._report.warnings.append(
                    f"the {what} of {store.label} were not compared: {other.label} has no place "
                    "for them"
                )

    async def _both(
        self, where: Selection, form: Form
    ) -> tuple[dict[MemoryKey, Fingerprint], dict[MemoryKey, Fingerprint]]:
        # One after the other: a huge message of each side at once would be one too many.
        left = await fingerprints(self._left, where, form, mark_order=self._mark_order)
        right = await fingerprints(self._right, where, form, mark_order=self._mark_order)
        both = self._left.capabilities & self._right.capabilities
        if Capability.EMPTY not in both:
            left, right = _inhabited(left, both), _inhabited(right, both)
        return left, right

    def _alike(self, left: Fingerprint, right: Fingerprint) -> bool:
        return left.digest == right.digest and not list(self._beside(left, right))

    def _beside(self, left: Fingerprint, right: Fingerprint) -> Iterator[tuple[str, str]]:
        """What differs beside the messages: code and text."""
        both = self._left.capabilities & self._right.capabilities
        if None not in (left.summary, right.summary) and left.summary != right.summary:
            yield "summary", "the summaries differ"
        if Capability.TTL in both and left.expires != right.expires:
            side = self._left if left.expires else self._right
            yield "expiry", f"it expires only in {side.label}"

    def _differs(
        self,
        key: MemoryKey,
        left: dict[MemoryKey, Fingerprint],
        right: dict[MemoryKey, Fingerprint],
    ) -> bool:
        if key not in left or key not in right:
            self._report_absent(
                {key: left[key]} if key in left else {}, {key: right[key]} if key in right else {}
            )
            return False
        for code, text in self._beside(left[key], right[key]):
            self._report.differences.append(Difference(key, code, "", text))
        return not self._alike(left[key], right[key])

    def _report_absent(
        self, left: dict[MemoryKey, Fingerprint], right: dict[MemoryKey, Fingerprint]
    ) -> None:
        for key in sorted(left.keys() - right.keys()):
            text = f"only in {self._left.label}, with messages: {left[key].messages}"
            self._report.differences.append(Difference(key, "memory-missing", "", text))
            self._report.missing += 1
        for key in sorted(right.keys() - left.keys()):
            text = f"only in {self._right.label}, with messages: {right[key].messages}"
            self._report.differences.append(Difference(key, "memory-extra", "", text))
            self._report.extra += 1

    # Naming every difference

    async def _name_differences(self, keys: list[MemoryKey]) -> None:
        where = self._where.only(frozenset(keys))
        left = await self._briefs(self._left, where)
        right = await self._briefs(self._right, where)
        for key in keys:
            self._report.differences += self._message_differences(
                key, left.get(key, {}), right.get(key, {})
            )

    async def _briefs(
        self, store: Store, where: Selection
    ) -> dict[MemoryKey, dict[tuple[str, int], _Brief]]:
        """Every message of some memories; the number tells messages of one id apart."""
        found: dict[MemoryKey, dict[tuple[str, int], _Brief]] = {}
        async with closing(store.read(where)) as pages:
            async for page in pages:
                messages = found.setdefault(page.memory.key, {})
                for entry in page.entries:
                    number = 0
                    while (entry.id, number) in messages:
                        number += 1
                    digest = hashlib.blake2b(content(entry, Form.VALUE), digest_size=16).digest()
                    marks = encode_marks(entry, mark_order=self._mark_order)
                    messages[entry.id, number] = _Brief(digest, marks)
        return found

    def _message_differences(
        self,
        key: MemoryKey,
        left: dict[tuple[str, int], _Brief],
        right: dict[tuple[str, int], _Brief],
    ) -> Iterator[Difference]:
        for name in left:
            if name not in right:
                text = f"only in {self._left.label}"
                yield Difference(key, "message-missing", name[0], text)
                continue
            if left[name].content != right[name].content:
                yield Difference(key, "content", name[0], "the content differs")
            if left[name].marks != right[name].marks:
                here, there = _mark_names(left[name]), _mark_names(right[name])
                yield Difference(key, "marks", name[0], f"marks {here} and {there}")
        for name in right:
            if name not in left:
                yield Difference(key, "message-extra", name[0], f"only in {self._right.label}")
        places = {name: place for place, name in enumerate(right)}
        shared = [name for name in left if name in places]
        for before, after in pairwise(shared):
            if places[before] > places[after]:
                text = f"it comes after {before[0]!r} in one store and before it in the other"
                yield Difference(key, "order", after[0], text)


def _mark_names(brief: _Brief) -> str:
    names = brief.marks.decode("utf-8", "surrogatepass").split("\0") if brief.marks else []
    return ", ".join(repr(name) for name in names) or "none"


def _inhabited(
    found: dict[MemoryKey, Fingerprint], both: Capability
) -> dict[MemoryKey, Fingerprint]:
    """Leaves out memories of which both stores could not hold anything."""
    summaries = Capability.SUMMARIES in both
    return {
        key: side for key, side in found.items() if side.messages or (summaries and side.summary)
    }


def _groups(
    keys: list[MemoryKey],
    left: dict[MemoryKey, Fingerprint],
    right: dict[MemoryKey, Fingerprint],
) -> Iterator[list[MemoryKey]]:
    group: list[MemoryKey] = []
    messages = 0
    for key in keys:
        group.append(key)
        messages += left[key].messages + right[key].messages
        if messages >= GROUP_MESSAGES:
            yield group
            group, messages = [], 0
    if group:
        yield group
