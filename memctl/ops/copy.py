"""Copies memories between two stores: what the target lacks, and nothing twice.

Sync, not a journal.  The target is fingerprinted, then the source streams by: a memory that the
target lacks passes whole; one whose beginning the target holds passes from there on; one that the
target holds otherwise is a conflict.  So a run that was cut short is resumed by running it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from memctl.errors import Failure, UsageError
from memctl.model import Entry, Memory, MemoryKey, OnConflict, Page, Tally, WriteMode
from memctl.ops import pipeline
from memctl.ops.fingerprint import (
    Fingerprint,
    Form,
    Hasher,
    fingerprints,
    keeps_mark_order,
    summary_digest,
)
from memctl.ops.names import introduce
from memctl.ops.report import CopyReport, Progress, Silent
from memctl.selection import Selection
from memctl.store import Capability, Store
from memctl.streams import closing


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How to copy: ``lossy`` lets go of what the target cannot hold; ``jobs`` counts writers."""

    on_conflict: OnConflict = OnConflict.FAIL
    lossy: bool = False
    jobs: int = 1


async def copy(
    source: Store,
    target: Store,
    where: Selection,
    options: CopyOptions,
    report: CopyReport,
    progress: Progress | None = None,
) -> None:
    """Copies the selected memories; ``report`` tells what was done, also when an error ends it.

    What the target cannot hold is left behind: ``losses.refuse_losses`` tells beforehand, when the
    target need not even be there.

    Raises:
        UsageError: source and target are the same.
        MemctlError: as ``Store.read`` and ``Store.write``.
    """
    if await source.identity() == await target.identity():
        raise UsageError(
            f"source and target are the same store: {source.label}", "name another target"
        )
    target.origin = source.label
    await _Copy(source, target, where, options, report, progress or Silent()).run()


class _Copy:
    """One copy.  Memories whose texts differ are looked at again by value, then as conflicts."""

    def __init__(
        self,
        source: Store,
        target: Store,
        where: Selection,
        options: CopyOptions,
        report: CopyReport,
        progress: Progress,
    ) -> None:
        self._source = source
        self._target = target
        self._where = where
        self._options = options
        self._report = report
        self._progress = progress
        self._mark_order = keeps_mark_order(source, target)
        self._suspects: dict[MemoryKey, str] = {}
        self._sizes: dict[MemoryKey, int] = {}
        self._flying: dict[MemoryKey, int] = {}

    async def run(self) -> None:
        await introduce(self._source, self._target, self._where)
        where = Selection(users=self._where.users, sessions=self._where.sessions)
        held = await self._fingerprints(where, Form.TEXT)
        await self._write(self._missing(self._read(self._where, first=True), held, Form.TEXT))
        if self._suspects:
            keys = frozenset(self._suspects)
            self._suspects = {}
            held = await self._fingerprints(Selection(keys=keys), Form.VALUE)
            pages = self._read(self._where.only(keys), first=False)
            await self._write(self._missing(pages, held, Form.VALUE))
        if self._suspects:
            await self._resolve(frozenset(self._suspects), held)

    async def _fingerprints(self, where: Selection, form: Form) -> dict[MemoryKey, Fingerprint]:
        return await fingerprints(self._target, where, form, mark_order=self._mark_order)

    async def _read(self, where: Selection, *, first: bool) -> AsyncIterator[Page]:
        """The source's pages, counted when they are read for the first time."""
        report = self._report
        read = self._source.read(where)
        if self._options.lossy and Capability.REPEATED_IDS not in self._target.capabilities:
            read = _without_repeats(read, self._report.uneven)
        async with closing(read) as pages:
            async for page in pages:
                if first:
                    report.memories.selected += page.last
                    report.messages.selected += len(page.entries)
                    size = sum(len(entry.message) for entry in page.entries)
                    self._progress.advance(
                        memories=int(page.last), messages=len(page.entries), size=size
                    )
                yield page

    # What the target lacks

    async def _missing(
        self, pages: AsyncIterator[Page], held: dict[MemoryKey, Fingerprint], form: Form
    ) -> AsyncIterator[Page]:
        """Of every memory what the target lacks; what it holds otherwise becomes a suspect."""
        beginning: _Beginning | None = None
        async for page in pages:
            if page.offset == 0:
                beginning = self._beginning(page.memory, held, form)
            if beginning is None:
                if self._is_something(page):
                    yield page
                continue
            rest = beginning.take(page)
            if rest is not None:
                yield rest
            if page.last:
                self._close(page.memory.key, beginning)

    def _beginning(
        self, memory: Memory, held: dict[MemoryKey, Fingerprint], form: Form
    ) -> _Beginning | None:
        there = held.get(memory.key)
        if there is None:
            return None
        return _Beginning(memory, there, Hasher(form, mark_order=self._mark_order))

    def _is_something(self, page: Page) -> bool:
        """Whether there is anything to write: some stores hold no memory without messages."""
        if page.entries or page.offset or page.memory.summary:
            return True
        if Capability.EMPTY in self._target.capabilities:
            return True
        self._report.memories.unchanged += 1
        return False

    def _close(self, key: MemoryKey, beginning: _Beginning) -> None:
        if beginning.conflict:
            self._suspects[key] = beginning.conflict
            self._sizes[key] = beginning.messages
            return
        self._report.messages.skipped += beginning.there.messages
        if not beginning.passed:
            self._report.memories.unchanged += 1

    # Writing

    async def _write(self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD) -> None:
        pages = self._track(pages)
        written = pipeline.write(self._target, pages, mode, self._options.jobs)
        async with closing(written) as tallies:
            async for tally in tallies:
                self._count(tally)

    async def _track(self, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
        """Counts the messages of each memory that is being written."""
        async with closing(pages):
            async for page in pages:
                key = page.memory.key
                self._flying[key] = self._flying.get(key, 0) + len(page.entries)
                yield page

    def _count(self, tally: Tally) -> None:
        report = self._report
        messages = self._flying.pop(tally.key, 0)
        if tally.failure:
            report.fail(tally.key, tally.failure, messages)
            return
        report.memories.written += 1
        report.messages.written += tally.written
        report.messages.deleted += tally.deleted

    # Conflicts

    async def _resolve(
        self, keys: frozenset[MemoryKey], held: dict[MemoryKey, Fingerprint]
    ) -> None:
        report = self._report
        match self._options.on_conflict:
            case OnConflict.FAIL:
                for key, reason in self._suspects.items():
                    report.fail(key, Failure("conflict", reason), self._sizes[key])
            case OnConflict.SKIP:
                report.uneven |= keys
                report.memories.skipped += len(keys)
                report.messages.skipped += sum(self._sizes.values())
            case OnConflict.APPEND:
                report.uneven |= keys
                await self._write(self._unknown(keys, held))
            case OnConflict.REPLACE:
                report.warnings.append(
                    f"what {self._target.label} held otherwise is replaced, and that cannot be "
                    f"taken back; memories: {len(keys)}"
                )
                pages = self._read(self._where.only(keys), first=False)
                await self._write(pages, WriteMode.REPLACE)

    async def _unknown(
        self, keys: frozenset[MemoryKey], held: dict[MemoryKey, Fingerprint]
    ) -> AsyncIterator[Page]:
        """Messages whose ids the target lacks, to go behind what it holds."""
        async with closing(self._target.read(Selection(keys=keys))) as pages:
            known = {
                _id_digest(page.memory.key, entry) async for page in pages for entry in page.entries
            }
        offset = 0
        async with closing(self._read(self._where.only(keys), first=False)) as pages:
            async for page in pages:
                there = held[page.memory.key]
                if page.offset == 0:
                    offset = there.messages
                entries = [
                    entry
                    for entry in page.entries
                    if _id_digest(page.memory.key, entry) not in known
                ]
                self._report.messages.skipped += len(page.entries) - len(entries)
                # A summary that the target has is part of what it holds, and stays.
                adds = page.memory.summary and not there.summary
                memory = page.memory if adds else replace(page.memory, summary=None)
                if entries or (page.last and (adds or offset > there.messages)):
                    yield Page(memory, entries, offset, page.last)
                elif page.last:
                    self._report.memories.unchanged += 1
                offset += len(entries)


class _Beginning:
    """Compares a memory, page by page, with what the target holds, and passes on the rest."""

    def __init__(self, memory: Memory, there: Fingerprint, hasher: Hasher) -> None:
        self.there = there
        self.conflict = _summary_conflict(memory, there)
        self.passed = False
        self.messages = 0
        self._hasher = hasher

    def take(self, page: Page) -> Page | None:
        """What of the page is to be written, if anything."""
        self.messages += len(page.entries)
        if self.conflict:
            return None
        compared = max(0, min(len(page.entries), self.there.messages - page.offset))
        for entry in page.entries[:compared]:
            self._hasher.add(entry)
        if page.last and self.messages < self.there.messages:
            self.conflict = (
                f"the target holds {self.there.messages} messages, the source {self.messages}"
            )
            return None
        if self.messages < self.there.messages:
            return None
        reached = compared or not page.offset
        if reached and self._hasher.digest() != self.there.digest:
            self.conflict = (
                f"the first {self.there.messages} messages of the source are not those that "
                "the target holds"
            )
            return None
        return self._rest(page, page.entries[compared:], page.offset + compared)

    def _rest(self, page: Page, entries: list[Entry], offset: int) -> Page | None:
        summary = summary_digest(page.memory)
        adds_summary = page.last and bool(summary) and self.there.summary == b""
        if not entries and not self.passed and not adds_summary:
            return None
        if not entries and not page.last:
            return None
        self.passed = True
        return Page(page.memory, entries, offset, page.last)


def _summary_conflict(memory: Memory, there: Fingerprint) -> str:
    summary = summary_digest(memory)
    if summary is not None and there.summary and summary != there.summary:
        return "the target holds another summary"
    return ""


async def _without_repeats(
    pages: AsyncIterator[Page], changed: set[MemoryKey]
) -> AsyncIterator[Page]:
    """Keeps the first of the messages of a memory that share an id."""
    seen: set[int] = set()
    offset = 0
    async for page in pages:
        if page.offset == 0:
            seen.clear()
            offset = 0
        entries = []
        for entry in page.entries:
            digest = _id_digest(page.memory.key, entry)
            if digest in seen:
                changed.add(page.memory.key)
            else:
                seen.add(digest)
                entries.append(entry)
        yield Page(page.memory, entries, offset, page.last)
        offset += len(entries)


def _id_digest(key: MemoryKey, entry: Entry) -> int:
    text = "\0".join((*key, entry.id)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
