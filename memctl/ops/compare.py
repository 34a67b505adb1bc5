"""Are two stores the same, as far as the selection goes?  Fresh reads of both sides, one pass each.

Memories whose fingerprints differ as text are fingerprinted again by value; what still differs is
read once more, some memories at a time, to name every difference.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from memctl.concurrency import together
from memctl.model import MemoryKey, Page
from memctl.ops.differences import Difference, differences
from memctl.ops.fingerprint import Fingerprint, Form, fingerprints
from memctl.ops.names import introduce
from memctl.ops.report import Progress, Silent
from memctl.ops.sides import Sides
from memctl.selection import Selection
from memctl.store import Store

GROUP_MESSAGES = 500_000
"""How many messages are looked at together to name their differences."""


@dataclass(slots=True)
class CompareReport:
    """How two stores compare: memories by outcome, messages on each side, every difference."""

    same: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    left_messages: int = 0
    right_messages: int = 0
    grown: int = 0
    """Messages that came to the left side after the copy: no differences."""
    differences: list[Difference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What could not be compared, because one side has no place for it."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


async def compare(
    left: Store,
    right: Store,
    where: Selection,
    copied: Mapping[MemoryKey, int] | None = None,
    progress: Progress | None = None,
    *,
    together: bool = False,
) -> CompareReport:
    """Compares the selected memories of two stores.

    A summary counts where both stores have a place for one, and so does when a memory expires; a
    memory without messages is the same as none where one of the stores cannot hold it.  With
    ``copied``, the memories that the right side was given and how many messages they had, the left
    side may have gone on since: messages behind those of the right side, and other memories, are
    counted as ``grown``.  With ``together`` both sides are read at the same time: faster, and too
    much where messages are huge, for then each side has one.

    Raises:
        MemctlError: as ``Store.read``.
    """
    heard = progress or Silent()
    return await _Compare(left, right, where, copied, heard, together=together).run()


_Found = dict[MemoryKey, Fingerprint]


class _Compare:
    def __init__(
        self,
        left: Store,
        right: Store,
        where: Selection,
        copied: Mapping[MemoryKey, int] | None,
        progress: Progress,
        *,
        together: bool,
    ) -> None:
        self._left = left
        self._right = right
        self._where = where
        self._copied = copied
        self._progress = progress
        self._together = together
        self._sides = Sides.of(left, right)
        self._report = CompareReport()

    async def run(self) -> CompareReport:
        report = self._report
        await introduce(self._left, self._right, self._where)
        await introduce(self._right, self._left, self._where)
        left, right = await self._texts()
        self._warn(self._left, left, self._right)
        self._warn(self._right, right, self._left)
        report.left_messages = sum(side.messages for side in left.values())
        report.right_messages = sum(side.messages for side in right.values())
        suspects = self._sort(left, right)
        if suspects:
            left, right = await self._values(self._where.only(suspects))
            await self._name(self._sort(left, right), left, right)
        return report

    def _sort(self, left: _Found, right: _Found) -> frozenset[MemoryKey]:
        """Counts what is the same or on one side only; gives the rest."""
        suspects = set()
        for key in left.keys() & right.keys():
            if self._alike(left[key], right[key]):
                self._report.same += 1
                self._report.grown += left[key].messages - right[key].messages
            else:
                suspects.add(key)
        for key in sorted(left.keys() - right.keys()):
            if self._copied is None or self._was_given(key, self._copied):
                text = f"only in {self._left.label}, with messages: {left[key].messages}"
                self._report.differences.append(Difference(key, "memory-missing", "", text))
                self._report.missing += 1
            else:
                self._report.grown += left[key].messages
        for key in sorted(right.keys() - left.keys()):
            text = f"only in {self._right.label}, with messages: {right[key].messages}"
            self._report.differences.append(Difference(key, "memory-extra", "", text))
            self._report.extra += 1
        return frozenset(suspects)

    def _was_given(self, key: MemoryKey, copied: Mapping[MemoryKey, int]) -> bool:
        """Whether the right side should hold a memory: not one that was empty, if it holds none."""
        holds_empty = self._right.features.empty
        return key in copied and (holds_empty or copied[key] > 0)

    async def _name(self, differing: Iterable[MemoryKey], left: _Found, right: _Found) -> None:
        """Names the differences of memories that both sides hold."""
        report = self._report
        sizes: dict[MemoryKey, int] = {}
        for key in sorted(differing):
            report.different += 1
            for code, text in self._beside(left[key], right[key]):
                report.differences.append(Difference(key, code, "", text))
            if not _same_messages(left[key], right[key]):
                sizes[key] = left[key].messages + right[key].messages
        order = self._sides.mark_order
        for keys in _groups(sizes):
            found = differences(self._left, self._right, self._where, keys, mark_order=order)
            async with aclosing(found) as named:
                report.differences += [difference async for difference in named]

    def _warn(self, store: Store, found: _Found, other: Store) -> None:
        """Says what one side has and the other has no place for."""
        sides = found.values()
        for fits, what, has in (
            (other.features.summaries, "summaries", any(side.summary for side in sides)),
            (other.features.ttl, "expiries", any(side.expires is not None for side in sides)),
        ):
            if has and not fits:
                self._report.warnings.append(
                    f"the {what} of {store.label} were not compared: {other.label} has no place "
                    "for them"
                )

    async def _texts(self) -> tuple[_Found, _Found]:
        """Both sides; together, one goes on while the other waits for its store."""
        read = partial(self._fingerprints, where=self._where, form=Form.TEXT)
        if not self._together:
            left = await read(self._left)
            return self._comparable(left, await read(self._right))
        return self._comparable(*await together(read(self._left), read(self._right)))

    async def _values(self, where: Selection) -> tuple[_Found, _Found]:
        """The right side first: whether the left one has gone on since is asked by its lengths."""
        right = await self._fingerprints(self._right, where, Form.VALUE)
        grows = self._copied is not None
        lengths = {key: side.messages for key, side in right.items()} if grows else None
        left = await self._fingerprints(self._left, where, Form.VALUE, lengths)
        return self._comparable(left, right)

    async def _fingerprints(
        self,
        store: Store,
        where: Selection,
        form: Form,
        beginnings: dict[MemoryKey, int] | None = None,
    ) -> _Found:
        order = self._sides.mark_order
        pages = store.read(where)
        if form is Form.TEXT:  # what is looked at again was counted
            pages = self._counted(pages)
        return await fingerprints(pages, form, mark_order=order, beginnings=beginnings)

    async def _counted(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        async with aclosing(pages):
            async for page in pages:
                size = sum([len(entry.message) for entry in page.messages])
                messages = len(page.messages)
                self._progress.advance(memories=int(page.last), messages=messages, size=size)
                yield page
                del page  # not kept while the next one is read: it may be large

    def _comparable(self, left: _Found, right: _Found) -> tuple[_Found, _Found]:
        """Both sides, without the memories that one of the stores could not hold."""
        here, there = self._left.features, self._right.features
        if not (here.empty and there.empty):
            summaries = here.summaries and there.summaries
            left = _inhabited(left, summaries=summaries)
            right = _inhabited(right, summaries=summaries)
        return left, right

    def _alike(self, left: Fingerprint, right: Fingerprint) -> bool:
        return _same_messages(left, right) and not list(self._beside(left, right))

    def _beside(self, left: Fingerprint, right: Fingerprint) -> Iterator[tuple[str, str]]:
        """What differs beside the messages: code and text."""
        if self._sides.summaries_differ(left.summary, right.summary):
            yield "summary", "the summaries differ"
        if not self._sides.expiry_differs(left.expires, right.expires):
            return
        if left.expires is None or right.expires is None:
            store = self._right if left.expires is None else self._left
            yield "expiry", f"it expires only in {store.label}"
        else:
            seconds = abs(left.expires - right.expires)
            yield "expiry", f"it does not expire at the same time: {seconds:.0f} seconds apart"


def _same_messages(left: Fingerprint, right: Fingerprint) -> bool:
    return right.digest in (left.digest, left.beginning)


def _inhabited(found: _Found, *, summaries: bool) -> _Found:
    """Leaves out memories of which both stores could not hold anything."""
    return {
        key: side for key, side in found.items() if side.messages or (summaries and side.summary)
    }


def _groups(sizes: dict[MemoryKey, int]) -> Iterator[list[MemoryKey]]:
    """The memories, some at a time, by how many messages they have."""
    group: list[MemoryKey] = []
    messages = 0
    for key, size in sizes.items():
        group.append(key)
        messages += size
        if messages >= GROUP_MESSAGES:
            yield group
            group, messages = [], 0
    if group:
        yield group
