"""Copy memories between two stores: only messages that the target lacks.

A copy is a sync without a journal of its progress.  ``copy`` compares fingerprints of the memories
in both stores, then streams the differing memories from the source.  A memory that the target lacks
is written whole.  If the target has exactly the first messages of a memory, the later messages are
appended.  If the memory in the target differs otherwise, it is a conflict.  So a second run resumes
an interrupted copy, and a run without new messages reads no message.

Pages are written while the next pages are read, with one writer or several.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Set
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct, structs

from memctl.dialects.live import not_read
from memctl.dialects.view import COMPRESSED, Unread
from memctl.errors import Failure, UsageError
from memctl.location import is_one_file, same_file
from memctl.machine.concurrency import Queue, run_both
from memctl.model import (
    PAGE_BYTES,
    Memory,
    MemoryKey,
    OnConflict,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.ops.copy.compare import (
    DIGEST_BYTES,
    NOTHING,
    Comparability,
    FactComparer,
    Fingerprint,
    Precision,
    PrefixComparer,
    fingerprints,
    id_digest,
    share_names,
)
from memctl.ops.copy.mirror import Mirror
from memctl.ops.holds import HoldSource
from memctl.ops.recording import Recording
from memctl.ops.report import CopyReport, Progress, SilentProgress, Total, count_all
from memctl.ops.retry import leaving_damaged
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Deletion, Store
from memctl.storekit.batching import Group, page_size
from memctl.storekit.catalog import IdSet
from memctl.text.numbers import count
from memctl.wrappers.clean import CleanStore
from memctl.wrappers.converted import in_one_dialect, inside, is_converted, takes_summaries


async def without_repeats(
    pages: AsyncGenerator[Page], changed: set[MemoryKey]
) -> AsyncGenerator[Page]:
    """Yield the pages without messages whose id an earlier message of the memory has.

    The keys of memories with such messages are added to ``changed``.
    """
    seen: set[int] = set()
    offset = 0
    async with aclosing(pages):
        async for page in pages:
            if page.offset == 0:
                seen.clear()
                offset = 0
            entries = []
            for entry in page.messages:
                digest = id_digest(page.memory.key, entry)
                if digest in seen:
                    changed.add(page.memory.key)
                else:
                    seen.add(digest)
                    entries.append(entry)
            yield Page(page.memory, entries, offset, page.last)
            offset += len(entries)


class CopyOptions(Struct, frozen=True):
    """The options of a copy.

    ``on_conflict`` says what happens to a memory that differs in the target.  ``lossy`` drops data
    that the target has no place for.  ``jobs`` is the number of writers.  ``checksum`` compares the
    contents of messages, too.  Without ``checksum``, only ids, order, marks and summaries are
    compared, unless ``on_conflict`` is REPLACE.
    """

    on_conflict: OnConflict = OnConflict.FAIL
    lossy: bool = False
    jobs: int = 1
    checksum: bool = False
    limit: tuple[float, bool] | None = None
    """The largest number of messages that REPLACE may remove from the target; see ``CopyRun``.

    If the second element is True, the first is a percentage of all messages of the target in the
    selected users and sessions.
    """
    all_messages: bool = False
    """True if messages that the framework of the source does not read become messages that the
    framework of the target reads; else notes keep them."""
    exact: bool = False
    """True if memories go back into the store that they came from, each message with its shape."""
    holds: HoldSource | None = None
    """The holds on the target, whose memories are not replaced; None for the recorded holds."""

    @property
    def form(self) -> Precision:
        """The precision with which memories are compared."""
        return Precision.TEXT if self.checksum or self.on_conflict.rewrites else Precision.OUTLINE


def same_store(source: Store) -> UsageError:
    """Return the error that refuses a copy from a store to itself."""
    return UsageError(
        f"source and target are the same store: {source.label}", "name another target"
    )


async def copy(
    source: Store,
    target: Store,
    where: Selection,
    options: CopyOptions,
    report: CopyReport,
    progress: Progress | None = None,
    stop: Stop | None = None,
    mirror: Mirror | None = None,
    recorder: Recording | None = None,
    taken: dict[MemoryKey, Fingerprint] | None = None,
    *,
    dry_run: bool = False,
) -> None:
    """Copy the selected memories; ``report`` is filled in, even if an error ends the copy.

    Data that the target has no place for are dropped.  A caller refuses or reports such data
    beforehand with ``refuse_losses``.

    ``mirror`` has what earlier copies of a run left in the target, and is updated.  A memory that
    nobody else has changed there is made equal to the source, unless the source has no message of
    it: a source that was emptied empties no target.  With SKIP and APPEND, nothing is removed.
    ``recorder`` records changes before they are made.  ``taken`` is filled with the fingerprints of
    memories that are written whole, for a comparison afterwards.  A ``dry_run`` does not warn of
    what cannot be undone.

    Raises:
        UsageError: source and target are the same store.
        Interrupted: a stop was asked for; no memory is half written.
        MemctlError: as ``Store.read`` and ``Store.write``.
    """
    one, other = source.location.path, target.location.path
    hard_links = same_file(one) != same_file(other) and is_one_file(one, other)
    if hard_links or await source.identity() == await target.identity():
        raise same_store(source)
    target.origin = source.label
    target.adopt(source.dialect, source.embedding)
    report.noun = source.dialect.noun
    source, target = in_one_dialect(source, target)
    stop = stop or Stop()
    heard = progress or SilentProgress()
    before = report.settled.keys() | set()
    report.total = None  # an earlier copy may have set it

    noted: set[MemoryKey] = set()
    understood: set[MemoryKey] = set()

    async def attempt() -> None:
        rest = where.without(frozenset(report.settled.keys() - before))
        ways = options, report, heard, stop, mirror, recorder, taken, dry_run
        work = _Copy(source, target, rest, *ways)
        await work.run()
        noted.update(work.noted)
        understood.update(work.understood)

    await leaving_damaged(attempt)
    _report_damage(source, report)
    if understood:
        report.warnings += await _left_out(source, target, frozenset(understood))
    if noted:
        report.warnings.append(
            f"{target.label} has no place for what the source keeps of sessions besides messages, "
            "such as their states: notes in their first messages keep it for the way back "
            f"({count(len(noted), 'memory')}, such as {min(noted)})"
        )
    stop.end_if_asked("what was reported as written is complete")


async def _left_out(source: Store, target: Store, keys: frozenset[MemoryKey]) -> list[str]:
    """Return warnings of what agents of the target do not read as those of the source did.

    ``keys`` are the copied memories that may have such messages, or a summary.
    """
    unread: Counter[str] = Counter()
    summaries = messages = 0
    async with aclosing(inside(source).list_memories(Selection(keys=keys))) as infos:
        async for info in infos:
            unread.update(info.unread if inside(target).dialect.holds_marks else not_read(info))
            summaries += bool(info.summary)
            messages += inside(source).dialect.depends_on_later and Unread.COMPACTED in info.unread
    place, found = inside(target), []
    if unread and not source.dialect.all_messages:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in unread.items())
        noted = inside(source).dialect.notes_unread and place.dialect.holds_notes
        noted = noted and not isinstance(place, CleanStore)
        kept = "notes keep them" if noted else "they are left out"
        found.append(
            f"agents of {source.label} do not read {count(unread.total(), 'message')} of the "
            f"copied memories ({reasons}): {kept}; --all-messages copies them as messages"
        )
    if summaries and place.dialect.summary_setting:
        found.append(
            f"agents of {target.label} get the summary of a session only with "
            f"{place.dialect.summary_setting}=True ({count(summaries, 'memory')})"
        )
    if messages and not takes_summaries(place):
        found.append(
            f"{target.label} has no place for summaries that all agents get: the summary in "
            f"{count(messages, 'memory')} is a message"
        )
    if summaries and not place.dialect.holds_summary:
        found.append(
            f"{target.label} has no place for summaries: the first message of "
            f"{count(summaries, 'memory')} is the summary"
        )
    return found


def _report_damage(source: Store, report: CopyReport) -> None:
    """Add the memories that the source left out as damaged to the failures of the report."""
    failed = {key for key, _ in report.failures}
    for key, failure in source.left_out.failures.items():
        if key not in failed:
            report.settle(key, 0)
            report.fail(key, failure)


_Found = dict[MemoryKey, Fingerprint]


@dataclass
class _Copy:
    """One attempt of a copy.

    Memories whose messages differ as texts are compared again by their JSON values.  Memories that
    still differ are conflicts.
    """

    source: Store
    target: Store
    where: Selection
    options: CopyOptions
    report: CopyReport
    progress: Progress
    stop: Stop
    mirror: Mirror | None
    recorder: Recording | None
    taken: dict[MemoryKey, Fingerprint] | None
    dry_run: bool

    def __post_init__(self) -> None:
        self._summarised: set[MemoryKey] = set()
        """The memories that have a summary in the target."""
        self._sides = Comparability.of(self.source, self.target)
        contents = self.options.checksum or self.mirror is None
        self._form = self.options.form if contents else Precision.OUTLINE
        if self._sides.facts:  # a fact may change and keep its id, unlike a message
            self._form = Precision.TEXT
        self._suspects: dict[MemoryKey, str] = {}
        """The memories that differ in the target, with the reason."""
        self._outdated: set[MemoryKey] = set()
        """The memories that changed in the source, but not in the target, since the last copy."""
        self._selected: dict[MemoryKey, int] = {}
        """The number of messages read so far of each memory that is not settled."""
        self._passed: dict[MemoryKey, int] = {}
        """The number of messages passed to the writer, of each memory without a result."""
        converts = is_converted(self.source) or is_converted(self.target) or not self.where.whole
        self._taken = None if converts or self._sides.facts else self.taken
        self.understood: set[MemoryKey] = set()
        """The memories passed to the writer, of which the agents of the target may read less."""
        self.noted: set[MemoryKey] = set()
        """The written memories whose ``Memory.extra`` is in a note."""
        self._found: set[MemoryKey] = set()
        """The memories of the source, if there is a mirror."""

    async def run(self) -> None:
        await self._copy()
        damaged = self.source.left_out.failures
        for key in self.mirror.filled() if self.mirror is not None else ():
            if key not in self._found and key not in damaged and self.where.has_key(key):
                self._vanished(key)

    async def _copy(self) -> None:
        await share_names(self.source, self.target, self.where)
        form = self._form
        where = self.where
        if form is Precision.OUTLINE and where.whole:
            found, held = await self._outlines()
            self._note_found(found)
            if held:
                messages = sum(one.messages for one in found.values())
                self.report.total = Total(len(found), messages)
                where = where.only(self._changed(found, held))
                if not where.keys:
                    return
        else:
            held = await self._held(where.around, form)
        if self.report.total is None:
            self.report.total = await count_all(self.source, where, self.progress)
        await self._write(self._missing(self._counted(self._read(where)), held, form))
        if self._suspects and form is Precision.TEXT:
            keys = frozenset(self._suspects)
            self._suspects = {}
            held = await self._held(Selection(keys=keys), Precision.VALUE)
            pages = self._read(self.where.only(keys))
            await self._write(self._missing(pages, held, Precision.VALUE))
        if self._outdated:
            keys = await self._followed(frozenset(self._outdated))
            keys = await self._replaceable(keys, own=True)
            pages = self._read(self.where.only(keys))
            await self._write(self._missing(pages, {}, form), WriteMode.REPLACE)
        if self._suspects and not self.stop.asked:
            await self._resolve(frozenset(self._suspects), held)

    async def _held(self, where: Selection, form: Precision) -> dict[MemoryKey, Fingerprint]:
        """Return the fingerprints of the selected memories of the target.

        ``Precision.OUTLINE`` covers ids, order and marks; ``TEXT`` and ``VALUE`` cover contents,
        too.
        """
        read = self.target.outline if form is Precision.OUTLINE else self.target.read
        found = await self._fingerprints(read(where), form)
        if self.recorder is not None:
            self._summarised.update(key for key, one in found.items() if one.summary)
        return found

    async def _outlines(self) -> tuple[_Found, _Found]:
        """Return the fingerprints of outlines of source and target.

        Both are empty if the target is empty.  If neither store reads texts for outlines, both are
        read at the same time; otherwise in turn, so that two large messages are not in RAM
        together.
        """
        where = self.where
        around = where.around
        brief = self.source.features.cheap_outline and self.target.features.cheap_outline
        if brief and not await self.target.is_empty():
            return await run_both(self._outlined(where), self._held(around, Precision.OUTLINE))
        held = await self._held(around, Precision.OUTLINE)
        return await self._outlined(where) if held else {}, held

    async def _outlined(self, where: Selection) -> _Found:
        return await self._fingerprints(self.source.outline(where), Precision.OUTLINE)

    async def _fingerprints(self, pages: AsyncGenerator[Page], form: Precision) -> _Found:
        return await fingerprints(pages, form, self._sides)

    def _changed(self, found: _Found, held: _Found) -> frozenset[MemoryKey]:
        """Return the memories that differ in the target; settle the equal memories.

        ``found`` are fingerprints of the source, ``held`` of the target.
        """
        changed = set()
        for key, here in found.items():
            there = held.get(key)
            if (
                there is None
                or here.digest != there.digest
                or (here.summary and self._sides.summaries_differ(here.summary, there.summary))
                or self._sides.lacks(here, there)
                or (here.messages and self._sides.settings_differ(here, there))
            ):
                changed.add(key)
                continue
            if self.mirror is not None:
                self.mirror.holds(key, here, there)
            self.progress.advance(memories=1, messages=here.messages)
            self._unchanged(key, here.messages, held=here.messages)
        return frozenset(changed)

    # Reading

    def _read(self, where: Selection) -> AsyncGenerator[Page]:
        pages = self.source.read(where)
        if self.options.lossy and not self.target.features.duplicate_ids:
            return without_repeats(pages, self.report.uneven)
        return pages

    async def _counted(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        """Yield and count the pages; stop after a memory if asked."""
        async with aclosing(pages):
            async for page in pages:
                if self.stop.asked and page.offset == 0:
                    return
                key, messages = page.memory.key, len(page.messages)
                self._note_found([key])
                self._selected[key] = self._selected.get(key, 0) + messages
                size = sum([len(entry.message) for entry in page.messages])
                self.report.largest = max(self.report.largest, size)
                self.progress.advance(memories=int(page.last), messages=messages, size=size)
                yield page
                del page  # free a large page before the next read

    # What the target lacks

    async def _missing(
        self, pages: AsyncGenerator[Page], held: dict[MemoryKey, Fingerprint], form: Precision
    ) -> AsyncGenerator[Page]:
        """Yield the messages that the target, with fingerprints ``held``, lacks.

        A memory that differs in the target goes to ``_suspects`` or ``_outdated`` instead.
        """
        beginning: PrefixComparer | None = None
        restores = self.options.exact and not self._sides.facts
        async with aclosing(pages):
            async for page in pages:
                memory, last = page.memory, page.last
                if restores and memory.key in held:  # equal messages may have different positions
                    self._suspects[memory.key] = "it differs from the record"
                    continue
                if page.offset == 0:
                    there = held.get(memory.key)
                    if there is None and not self._is_storable(page):
                        self._unchanged(memory.key, 0, held=0)
                        continue
                    beginning = self._beginning(memory, there, form)
                rest = page if beginning is None else beginning.take(page)
                del page  # free a large page before the next read
                if last and beginning is not None:  # before the target can answer
                    self._close(memory.key, beginning)
                if rest is not None:
                    yield rest
                    del rest

    def _beginning(
        self, memory: Memory, there: Fingerprint | None, form: Precision
    ) -> PrefixComparer | None:
        """Return a comparer of a memory with ``there``, its fingerprint in the target.

        None if the target lacks the memory, and no digest is needed.
        """
        if there is None and self.mirror is None and self._taken is None:
            return None
        if there is None and self._taken is not None:
            form = Precision.TEXT
        comparer = PrefixComparer if there is None or not self._sides.facts else FactComparer
        return comparer(memory, there or NOTHING, form, self._sides)

    def _is_storable(self, page: Page) -> bool:
        """Return whether the target can hold the page: some targets hold no empty memory."""
        if page.messages or page.offset or page.memory.summary:
            return True
        return self.target.features.empty

    def _note_found(self, keys: Iterable[MemoryKey]) -> None:
        if self.mirror is not None:
            self._found.update(keys)

    def _vanished(self, key: MemoryKey) -> None:
        """Report a memory that the last copy found, and that the source no longer has."""
        if self.options.on_conflict is OnConflict.FAIL:
            reason = "the source no longer has the memory"
            self.report.fail(key, Failure("conflict", reason))
        else:
            self.report.uneven.add(key)

    def _close(self, key: MemoryKey, beginning: PrefixComparer) -> None:
        mirror, there = self.mirror, beginning.there
        if beginning.conflict:
            if mirror is not None and mirror.is_own(key, there, self._sides):
                self._outdated.add(key)
            else:
                self._suspects[key] = beginning.conflict
            return
        if mirror is not None:
            note = mirror.sends if beginning.passed else mirror.holds
            note(key, beginning.fingerprint, there)
        if self._taken is not None and beginning.there is NOTHING:
            self._taken[key] = beginning.fingerprint
        if beginning.passed:
            self.report.messages.skipped += beginning.there.messages
        else:
            self._unchanged(key, beginning.messages, held=beginning.there.messages)

    def _unchanged(self, key: MemoryKey, messages: int, *, held: int) -> None:
        if key not in self.report.settled:  # counted by an earlier copy of the same run
            self.report.memories.unchanged += 1
            self.report.messages.skipped += held
        self._settle(key, messages)

    def _settle(self, key: MemoryKey, messages: int | None = None) -> None:
        read = self._selected.pop(key, 0)
        self.report.settle(key, read if messages is None else messages)

    # Writing

    async def _write(self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD) -> None:
        """Write the pages to the target, and count the results.

        A stop ends the copy after the current memory.  If the target makes all memories durable
        together, a stop cancels the copy instead.
        """
        before = None if self.recorder is None else self.recorder.flush
        written = write(self.target, self._track(pages, mode), mode, self.options.jobs, before)
        with self.stop.cooperative_while(when=not self.target.features.commits_at_end):
            async with aclosing(written) as results:
                async for result in results:
                    self._count(result)

    async def _track(self, pages: AsyncGenerator[Page], mode: WriteMode) -> AsyncGenerator[Page]:
        """Yield the pages for the target, after counting and recording their messages."""
        async with aclosing(pages):
            async for page in pages:
                if page.memory.version is not None:  # the source's version
                    page = structs.replace(page, memory=replace(page.memory, version=None))
                if not self.options.exact and any(entry.shape for entry in page.messages):
                    entries = [entry._replace(shape="") for entry in page.messages]
                    page = structs.replace(page, messages=entries)
                key = page.memory.key
                self._passed[key] = self._passed.get(key, 0) + len(page.messages)
                if (
                    is_converted(self.target)
                    and page.offset == 0
                    and page.messages
                    and not self.source.dialect.is_default(page.memory.extra, *key[:2])
                ):
                    self.noted.add(key)
                if self._reads_less(page):
                    self.understood.add(key)
                if self.recorder is not None:
                    summary = self.target.features.summaries and key not in self._summarised
                    self.recorder.adds(page, summary=summary, whole=mode is WriteMode.REPLACE)
                yield page
                del page

    def _reads_less(self, page: Page) -> bool:
        """Return whether agents of the target may get less of a memory, or its summary apart."""
        source, target = (inside(one).dialect for one in (self.source, self.target))
        return source.name != target.name and (
            page.memory.key in self.report.unread
            or (not target.holds_marks and any(COMPRESSED in one.marks for one in page.messages))
            or (bool(page.memory.summary) and not (target.holds_summary and target.holds_marks))
        )

    def _count(self, result: WriteResult) -> None:
        report = self.report
        messages = self._passed.pop(result.key, 0)
        self._settle(result.key)
        if self.recorder is not None:
            self.recorder.wrote(result)
        if self.mirror is not None:
            self.mirror.answered(result.key, written=not result.failure)
        if result.failure:
            self.noted.discard(result.key)
            self.understood.discard(result.key)
            report.fail(result.key, result.failure, messages)
            return
        report.memories.written += 1
        report.messages.written += result.written
        if self.options.on_conflict is OnConflict.MERGE:
            return  # the messages of the target are written again
        report.messages.deleted += result.deleted
        if result.deleted:
            report.removed[result.key] = result.deleted

    # Conflicts

    async def _resolve(
        self, keys: frozenset[MemoryKey], held: dict[MemoryKey, Fingerprint]
    ) -> None:
        report = self.report
        if self._sides.facts and self.options.on_conflict is not OnConflict.REPLACE:
            keys = await self._complete(keys, held)
        match self.options.on_conflict:
            case OnConflict.FAIL:
                for key, reason in self._suspects.items():
                    report.fail(key, Failure("conflict", reason), self._selected[key])
                    self._settle(key)
            case OnConflict.SKIP:
                report.uneven |= keys
                report.memories.skipped += len(keys)
                for key in keys:
                    report.messages.skipped += self._selected[key]
                    self._settle(key)
            case OnConflict.APPEND:
                report.uneven |= keys
                await self._write(self._unknown(keys, held))
            case OnConflict.REPLACE | OnConflict.MERGE:
                keys = await self._replaceable(keys)
                if self.recorder is None and not self.dry_run:
                    report.warnings.append(
                        f"memories of {self.target.label} that differ are replaced, which "
                        f"cannot be undone: {len(keys):,}"
                    )
                merges = self.options.on_conflict is OnConflict.MERGE
                report.uneven |= keys if merges else set()
                read = self._merged(keys) if merges else self._read(self.where.only(keys))
                await self._write(read, WriteMode.REPLACE)

    async def _replaceable(
        self, keys: frozenset[MemoryKey], *, own: bool = False
    ) -> frozenset[MemoryKey]:
        """Return the memories of the target that may be replaced; record them as they are.

        The others are reported as failed.  ``own`` is True if only the run has changed them.
        """
        keys -= self._held_back(keys)
        keys -= await self._affecting_others(keys)
        if self.recorder is None:
            return keys
        keys -= await self._duplicated(keys)
        there = inside(self.target)
        keys -= await self._unrestorable(there, keys)
        same = not is_converted(self.target)
        await self.recorder.replaces(there, keys, own=own, counted=same)
        damaged = keys & there.left_out.partly
        keys -= self._refuse(damaged, "damaged", "some of its messages are damaged")
        return keys - self._held_back(keys)

    async def _complete(
        self, keys: frozenset[MemoryKey], held: dict[MemoryKey, Fingerprint]
    ) -> frozenset[MemoryKey]:
        """Add missing facts to scopes of the target in which no fact differs from the source.

        Return the scopes in which a fact differs.
        """
        known: dict[int, bytes] = {}
        async with aclosing(self.target.read(Selection(keys=keys))) as pages:
            async for page in pages:
                for entry in page.messages:
                    known[id_digest(page.memory.key, entry)] = self._fact_digest(entry)
        self._suspects = {}
        shared: dict[MemoryKey, int] = {}
        async with aclosing(self._read(self.where.only(keys))) as pages:
            async for page in pages:
                key = page.memory.key
                for entry in page.messages:
                    there = known.get(id_digest(key, entry))
                    shared[key] = shared.get(key, 0) + (there is not None)
                    if there not in (None, self._fact_digest(entry)):
                        text = f"facts of the target differ from those of the source: {entry.id!r}"
                        self._suspects.setdefault(key, text)
        apart = keys - self._suspects.keys()
        self.report.uneven |= {key for key in apart if shared.get(key, 0) < held[key].messages}
        if apart:
            await self._write(self._unknown(apart, held))
        return keys - apart

    def _fact_digest(self, entry: StoredMessage) -> bytes:
        found = self._sides.content(entry, Precision.VALUE)
        return blake2b(found, digest_size=DIGEST_BYTES).digest()

    def _held_back(self, keys: frozenset[MemoryKey]) -> Set[MemoryKey]:
        """Return the memories that are held in the target; report them as failed."""
        holds = (self.options.holds or HoldSource()).read(inside(self.target))
        failed = {key: failure for key in keys if (failure := holds.failure(key))}
        for key, failure in failed.items():
            self._fail(key, failure)
        return failed.keys()

    def _refuse(self, keys: Set[MemoryKey], code: str, what: str) -> Set[MemoryKey]:
        """Report that the memories ``keys`` are not replaced, for the reason ``what``; return them.

        ``code`` is the code of the failure.
        """
        for key in keys:
            self._fail(key, Failure(code, f"{what} and could not be restored after a replace"))
        return keys

    def _fail(self, key: MemoryKey, failure: Failure) -> None:
        self.report.fail(key, failure, self._selected.get(key, 0))
        if self.recorder is not None:
            self.recorder.wrote(WriteResult(key, failure=failure))
        self._settle(key)

    async def _unrestorable(self, target: Store, keys: frozenset[MemoryKey]) -> Set[MemoryKey]:
        """Return the memories with values that undo could not restore; report them as failed."""
        if not await target.unrestorable(Selection(keys=keys)):
            return set()
        refused: set[MemoryKey] = set()
        for key in keys:
            if found := await target.unrestorable(Selection(keys=frozenset({key}))):
                refused |= self._refuse({key}, "refused", f"it has values in {found}")
        return refused

    async def _affecting_others(self, keys: frozenset[MemoryKey]) -> Set[MemoryKey]:
        """Return the memories whose replacement would change other data; report them as failed."""
        effects = self.target.side_effects
        failed: set[MemoryKey] = set()
        if not keys or not await effects(Selection(keys=keys), Deletion.MESSAGES):
            return failed
        for key in keys:
            if found := await effects(Selection(keys=frozenset({key})), Deletion.MESSAGES):
                failed.add(key)
                self._fail(key, Failure("refused", f"not replaced: {'; '.join(found)}"))
        return failed

    async def _followed(self, keys: frozenset[MemoryKey]) -> frozenset[MemoryKey]:
        """Return the memories to make equal to the source; the others become suspects."""
        if self.options.on_conflict in (OnConflict.SKIP, OnConflict.APPEND):
            return await self._superseded(keys)
        emptied = {key for key in keys if not self._selected[key]}
        reason = "the source no longer has any message of the memory"
        self._suspects |= dict.fromkeys(emptied, reason)
        return keys - emptied

    async def _superseded(self, keys: frozenset[MemoryKey]) -> frozenset[MemoryKey]:
        """Return the memories of which the source has each message that the target has."""
        known: dict[MemoryKey, set[int]] = {key: set() for key in keys}
        async with aclosing(self.source.outline(Selection(keys=keys))) as pages:
            async for page in pages:
                key = page.memory.key
                known[key].update(id_digest(key, entry) for entry in page.messages)
        gone: Counter[MemoryKey] = Counter()
        async with aclosing(self.target.outline(Selection(keys=keys))) as pages:
            async for page in pages:
                key = page.memory.key
                gone[key] += sum(id_digest(key, entry) not in known[key] for entry in page.messages)
        for key, number in (+gone).items():
            what = count(number, "message")
            self._suspects[key] = f"the source no longer has {what} of the target"
        return keys - (+gone).keys()

    async def _duplicated(self, keys: frozenset[MemoryKey]) -> Set[MemoryKey]:
        """Return the memories of the target with duplicate message ids; report them as failed."""
        if self.target.features.duplicate_ids:
            return set()
        found: set[MemoryKey] = set()
        seen = IdSet()
        async with aclosing(self.target.outline(Selection(keys=keys))) as pages:
            async for page in pages:
                if page.offset == 0:
                    seen = IdSet()
                seen.add(entry.id for entry in page.messages)
                if page.last and seen.duplicates:
                    found.add(page.memory.key)
        return self._refuse(found, "repeated-id", "it holds a duplicate message id")

    async def _merged(self, keys: frozenset[MemoryKey]) -> AsyncGenerator[Page]:
        """Yield the messages of the source, and between them the other messages of the target.

        Another message of the target follows its predecessor in the target.  The last messages of
        the target are newer than the source, and come last.
        """
        known: dict[MemoryKey, Counter[int]] = {key: Counter() for key in keys}
        async with aclosing(self.source.outline(Selection(keys=keys))) as pages:
            async for page in pages:
                key = page.memory.key
                known[key].update(id_digest(key, entry) for entry in page.messages)
        followers: dict[tuple[MemoryKey, _Which | None], list[StoredMessage]] = {}
        """Other messages of the target, by their predecessor; None is the beginning."""
        newer: dict[MemoryKey, list[StoredMessage]] = {}
        present: dict[MemoryKey, Memory] = {}
        before: _Which | None = None
        own: list[StoredMessage] = []
        seen: Counter[int] = Counter()
        async with aclosing(self.target.read(Selection(keys=keys))) as pages:
            async for page in pages:
                key = page.memory.key
                if page.offset == 0:
                    before, seen, present[key] = None, Counter(), page.memory
                for entry, which in _told_apart(page, seen):
                    if which.place >= known[key][which.digest]:
                        own.append(entry)
                        continue
                    if own:
                        followers[key, before], own = own, []
                    before = which
                if page.last:
                    newer[key], own = own, []
        offset = 0
        async with aclosing(self._read(self.where.only(keys))) as pages:
            async for page in pages:
                key, entries = page.memory.key, list[StoredMessage]()
                if page.offset == 0:
                    offset, seen = 0, Counter()
                    entries += followers.pop((key, None), ())
                for entry, which in _told_apart(page, seen):
                    entries += [entry, *followers.pop((key, which), ())]
                if page.last:
                    entries += newer.pop(key, ())
                # Agents go on with the settings and the expiry that the target has.
                memory = replace(present.get(key, page.memory), summary=page.memory.summary)
                yield Page(memory, entries, offset, page.last)
                offset += len(entries)

    async def _unknown(
        self, keys: frozenset[MemoryKey], held: dict[MemoryKey, Fingerprint]
    ) -> AsyncGenerator[Page]:
        """Yield the messages of the source whose ids the target lacks."""
        async with aclosing(self.target.outline(Selection(keys=keys))) as pages:
            known = {
                id_digest(page.memory.key, entry) async for page in pages for entry in page.messages
            }
        offset = 0
        async with aclosing(self._read(self.where.only(keys))) as pages:
            async for page in pages:
                key = page.memory.key
                there = held[key]
                if page.offset == 0:
                    offset = there.messages
                entries = [entry for entry in page.messages if id_digest(key, entry) not in known]
                self.report.messages.skipped += len(page.messages) - len(entries)
                # The target keeps its summary.
                adds = page.memory.summary and not there.summary
                memory = page.memory if adds else replace(page.memory, summary=None)
                if entries or (page.last and (adds or offset > there.messages)):
                    yield Page(memory, entries, offset, page.last)
                elif page.last:
                    self._unchanged(key, self._selected[key], held=0)
                offset += len(entries)


_ROOM = 2 * PAGE_BYTES
"""The bytes of messages that may wait for a writer; a larger page waits alone."""


async def write(
    target: Store,
    pages: AsyncGenerator[Page],
    mode: WriteMode,
    jobs: int = 1,
    before: Callable[[], None] | None = None,
) -> AsyncGenerator[WriteResult]:
    """Write the pages to the target while the next pages are read; yield the results.

    ``jobs`` is the number of writers; a target without ``Features.parallel`` has only one.  All
    memories of a session have the same writer.  ``before`` is called before pages go to a writer.

    Raises:
        MemctlError: reading or writing failed; memories with a yielded result are durable.
    """
    writers = jobs if target.features.parallel else 1
    parcels = [_Parcels(before) for _ in range(writers)]
    results: Queue[WriteResult] = Queue()
    tasks = [asyncio.create_task(_pump(pages, parcels))]
    tasks += [asyncio.create_task(_work(target, one, mode, results)) for one in parcels]
    try:
        for _ in parcels:
            async for result in results.items():
                yield result
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _Parcels:
    """The queue of pages for one writer; small pages are sent in batches.

    If the queue is empty, a page is sent alone at once.
    """

    def __init__(self, before: Callable[[], None] | None) -> None:
        self._before = before
        self.queue: Queue[list[Page]] = Queue(_ROOM)
        self._pages: Group[Page] = Group(PAGE_BYTES // 2)

    async def add(self, page: Page) -> None:
        """Put a page into the queue, at once or together with the next pages."""
        if self._pages.add(page, *page_size(page)) or self.queue.empty:
            await self.send()

    async def send(self) -> None:
        """Put the collected pages into the queue."""
        size = self._pages.size
        if pages := self._pages.take():
            if self._before is not None:
                self._before()
            await self.queue.put(pages, size)

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the pages in the queue, for the writer, until the queue ends."""
        parcels = self.queue.items()
        parcel: list[Page] = []
        while True:
            try:
                parcel = await anext(parcels)
            except StopAsyncIteration:
                return
            parcel.reverse()
            while parcel:
                yield parcel.pop()


async def _pump(pages: AsyncGenerator[Page], parcels: list[_Parcels]) -> None:
    failure: Exception | None = None
    try:
        async with aclosing(pages):
            async for page in pages:
                session = page.memory.key.session.encode("utf-8", "surrogatepass")
                await parcels[crc32(session) % len(parcels)].add(page)
                del page  # free a huge message before the next read
        for one in parcels:
            await one.send()
    except Exception as error:  # noqa: BLE001 - raised again by the writers
        failure = error
    for one in parcels:
        await one.queue.end(failure)


async def _work(
    target: Store, parcels: _Parcels, mode: WriteMode, results: Queue[WriteResult]
) -> None:
    failure: Exception | None = None
    try:
        async with aclosing(target.write(parcels.pages(), mode)) as written:
            async for result in written:
                await results.put(result)
    except Exception as error:  # noqa: BLE001 - raised again by the caller of write
        failure = error
    await results.end(failure)


class _Which(NamedTuple):
    """A message among those of its memory with the same id: the digest of the id, and its place.

    Messages without an id and a time share an id if they are equal.
    """

    digest: int
    place: int


def _told_apart(page: Page, seen: Counter[int]) -> Iterator[tuple[StoredMessage, _Which]]:
    """Yield the messages of a page with their places; ``seen`` counts those of earlier pages."""
    for entry in page.messages:
        digest = id_digest(page.memory.key, entry)
        yield entry, _Which(digest, seen[digest])
        seen[digest] += 1
