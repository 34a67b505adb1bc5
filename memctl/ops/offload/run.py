"""The runs of ``memctl offload`` and ``memctl rehydrate``: messages get other texts, in place.

An edit deletes each message and inserts its other text under the same id, so ``undo`` restores the
messages byte for byte.  The blobs of an edit are durable before the store gets the edit: no message
ever refers to nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

from msgspec import Struct, field

from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import Dialect
from memctl.errors import BadData, Failure, Loss, MemctlError, UsageError
from memctl.model import Change, Edit, MemoryKey, Page, StoredMessage
from memctl.ops.change.change import ChangeRun
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.migrated import (
    Described,
    all_described,
    comes_back,
    for_offloaded,
    for_restored,
    id_of,
    in_whole_groups,
    restored_in,
)
from memctl.ops.offload.references import origins
from memctl.ops.offload.slim import (
    Rule,
    may_refer,
    refused,
    restored,
    shortened,
    slim,
    tokens,
)
from memctl.ops.select import select_with_anchors
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.batching import paginate
from memctl.storekit.edits import Snapshot
from memctl.text.numbers import count


class Sizes(Struct):
    """The number of messages with another text in one memory, with bytes and tokens.

    ``before`` and ``after`` are the bytes of the stored JSON.  ``tokens_before`` and
    ``tokens_after`` count the tokens of texts and tool results, without media.
    """

    messages: int = 0
    before: int = 0
    after: int = 0
    tokens_before: int = 0
    tokens_after: int = 0

    def add(self, other: Sizes) -> None:
        """Add the numbers of ``other``."""
        self.messages += other.messages
        self.before += other.before
        self.after += other.after
        self.tokens_before += other.tokens_before
        self.tokens_after += other.tokens_after


class RewriteReport(Struct):
    """The plan of a run: sizes, contents that stay in their messages, and failures, by memory."""

    sizes: dict[MemoryKey, Sizes] = field(default_factory=dict)
    left: dict[MemoryKey, int] = field(default_factory=dict)
    failures: dict[MemoryKey, Failure] = field(default_factory=dict)
    """The memories with a message that cannot be rehydrated; their other messages are."""

    def forget(self, key: MemoryKey) -> None:
        """Forget a memory, which is planned anew."""
        for known in (self.sizes, self.left, self.failures):
            known.pop(key, None)


@dataclass(eq=False)
class RewriteRun(ChangeRun, ABC):
    """A run that gives messages another text.

    The store gets the old texts, too.  A store in whose framework a text may change under its id
    compares them, and leaves a memory alone if a text has changed since.  The limit of ``options``
    is that of the messages to change.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rewritten = RewriteReport()
        self.report.changed = set()
        self.prepare = self.make_ready

    def messages(self) -> int:
        """Return the number of changed messages: each is deleted and restored anew."""
        return self.seen().deleted

    def sizes(self, *, dry_run: bool) -> Sizes:
        """Return the numbers of all changed memories; with ``dry_run``, of all planned ones."""
        found = Sizes()
        for key, one in self.rewritten.sizes.items():
            if dry_run or key in (self.report.changed or ()):
                found.add(one)
        return found

    @abstractmethod
    def rewrite(self, dialect: Dialect, text: bytes, id: str, key: MemoryKey) -> bytes:
        """Return the new text for a text of the message ``id`` of the memory ``key``."""

    @abstractmethod
    def renew(self, some: Described) -> bytes:
        """Return the first of the new texts of messages, with the note renewed."""

    async def make_ready(self, store: Store, edits: Sequence[Edit]) -> None:
        """Do what must be done before the store gets edits; do nothing unless overridden."""

    def counts(self) -> dict[str, int]:
        """Return the number of messages with another text, for the journal."""
        return {"replaced": self.report.done.deleted}

    async def check(self, store: Store) -> None:
        """Report messages that cannot be changed, and refuse a plan that exceeds the limit.

        Raises:
            Loss: the plan changes more messages than the limit allows.
            MemctlError: as ``Store.read``.
        """
        self.report.failures += self.rewritten.failures.items()
        self.most = await self.most_allowed(store)
        planned = self.report.planned.deleted
        if planned > self.most:
            raise Loss(
                f"{count(planned, self.report.noun)} of {store.label} would change, more than "
                f"{self.options.limit_name}",
                "nothing was changed; preview with --dry-run",
            )

    async def plan(self, store: Store) -> bool:
        refuse(store)
        return await super().plan(store)

    async def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        async with aclosing(in_whole_groups(select_with_anchors(store, where))) as pages:
            stays: str | None = None
            async for page in pages:
                edit, stays = await asyncio.to_thread(self._edit, store, page, stays)
                yield edit
                del page, edit  # free a large page before the next read

    def _edit(
        self,
        store: Store,
        page: Page,
        stays: str | None,
        texts: Iterator[bytes | None] = repeat(None),
    ) -> tuple[Edit, str | None]:
        """Return the edit of a page, and the last message so far that stays as it is.

        ``stays`` is that message before the page.  ``texts`` yields the new text of each message;
        for None, ``rewrite`` makes the text.
        """
        key = page.memory.key
        if page.offset == 0:
            stays = None
            self.rewritten.forget(key)
        changes: list[Change] = []
        anchors = page.anchors or [None] * len(page.messages)
        before: str | None = None
        told = [next(texts) for _ in page.messages]
        rewritten = self.texts(store.dialect, page, told)
        pairs = zip(page.messages, rewritten, strict=True)
        for (entry, text), anchor, place in zip(pairs, anchors, page.places, strict=True):
            if anchor != before:  # messages that are not selected come before this message
                before = stays = anchor
            others = store.dialect.other_texts(entry.shape) if entry.shape else []
            new_others = [self.rewrite(store.dialect, one, entry.id, key) for one in others]
            if text == entry.message and new_others == others:
                stays = entry.id
                continue
            shape = entry.shape
            if new_others != others:
                shape = store.dialect.with_other_texts(shape, new_others)
            at = place if store.features.duplicate_ids else None
            new = id_of(store.dialect, entry, text)
            fields = (stays, entry.position)
            changes.append(
                Change(entry.id, entry.marks, None, entry.message, *fields, entry.shape, at=at)
            )
            changes.append(Change(new, None, entry.marks, text, *fields, shape=shape, to=at))
            self._count(store.dialect, key, [entry.message, *others], [text, *new_others])
        memory = replace(page.memory, summary=None, version=None)
        return Edit(memory, changes, page.offset, page.last), stays

    def texts(self, dialect: Dialect, page: Page, told: Sequence[bytes | None]) -> list[bytes]:
        """Return the new text of each message of a page, with the notes renewed.

        ``told`` are the new texts that are known already.
        """
        key = page.memory.key
        pairs = zip(page.messages, told, strict=True)
        found = [
            self.rewrite(dialect, one.message, one.id, key) if text is None else text
            for one, text in pairs
        ]
        if found == [one.message for one in page.messages]:
            return found
        first = page.offset == 0
        for start, some in all_described(dialect, page.messages, found, first=first):
            found[start] = self.renew(some)
        return found

    def _count(
        self, dialect: Dialect, key: MemoryKey, old: Sequence[bytes], new: Sequence[bytes]
    ) -> None:
        """Count a message; the last of its texts is that of the context."""
        sizes = (sum(map(len, old)), sum(map(len, new)))
        known = self.rewritten.sizes.setdefault(key, Sizes())
        known.add(Sizes(1, *sizes, tokens(dialect, old[-1]), tokens(dialect, new[-1])))


async def _pages(stored: Snapshot) -> AsyncGenerator[Page]:
    for page in paginate(stored.memory, stored.messages, empty=False):
        yield page


def refuse(store: Store) -> None:
    """Refuse a store whose messages cannot be offloaded.

    Raises:
        UsageError: the store holds facts, or messages of a dialect that is not served; or as
            ``Store.refuse_edits``.
    """
    dialect = store.dialect
    if not dialect.offloads:
        served = sorted(name for name, one in DIALECTS.items() if one.offloads)
        what = "facts" if dialect.facts else f"messages of {dialect.name}"
        raise UsageError(
            f"{store.label} holds {what}, which memctl does not offload",
            f"memctl offloads messages of {', '.join(served)}",
        )
    store.refuse_edits()


@dataclass(eq=False)
class OffloadRun(RewriteRun):
    """A run that moves large contents of messages to blobs."""

    rule: Rule
    """What is large."""
    blobs: Blobs

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written = 0
        """The number of blobs that the run has written; blobs that were there do not count."""

    @property
    def nothing(self) -> str:
        return "no content is larger" if not self.rewritten.left else "nothing can be offloaded"

    def rewrite(self, dialect: Dialect, text: bytes, id: str, key: MemoryKey) -> bytes:  # noqa: ARG002
        found = slim(dialect, text, self.rule)
        if found.left:
            self.rewritten.left[key] = self.rewritten.left.get(key, 0) + found.left
        return found.text

    def renew(self, some: Described) -> bytes:
        renewed = for_offloaded(some)
        is_proven = renewed is not None and self._comes_back(some)
        return renewed[0].message if renewed and is_proven else some.new[0]

    def _comes_back(self, some: Described) -> bool:
        """Return whether messages come back exactly in the dialect that they came from.

        The proof offloads messages with shortened contents.  Whole contents would take RAM, and
        their size changes nothing.
        """
        texts = [shortened(some.dialect, one.message, self.rule) for one in some.old]
        short = for_offloaded(some._replace(new=texts))
        if short is None:
            return False
        found = [slim(some.dialect, one.message, self.rule) for one in short]
        contents = {blob.name: blob for one in found for blob in one.blobs}

        def fetch(name: str) -> Iterator[bytes]:
            if name not in contents:
                raise BadData(f"{name} was taken out before")
            return contents[name].pieces()

        new = for_offloaded(some._replace(old=short, new=[one.text for one in found]))
        return new is not None and comes_back(some.dialect, some.origin, short, new, fetch)

    async def make_ready(self, store: Store, edits: Sequence[Edit]) -> None:
        """Write the blobs of edits, durably, before the store gets the edits.

        Raises:
            Unavailable: the place of the blobs cannot be reached, or has no room.
        """
        await asyncio.to_thread(self._write, store.dialect, edits)

    def _write(self, dialect: Dialect, edits: Sequence[Edit]) -> None:
        for edit in edits:
            for change in edit.changes:
                if change.new is None:
                    for text in (change.message, *dialect.other_texts(change.was)):
                        for blob in slim(dialect, text, self.rule).blobs:
                            self.written += self.blobs.put(blob, edit.memory.key.user)


@dataclass(eq=False)
class RehydrateRun(RewriteRun):
    """A run that puts the contents of blobs back into their messages."""

    fetch: Callable[[str, str], Iterable[bytes]]
    """Returns the content of a blob for the user of a message: ``Blobs.get``."""

    @property
    def nothing(self) -> str:
        if self.rewritten.failures:
            return "nothing could be put back"
        return "no message refers to a blob"

    async def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        migrated = await self._migrated(store, where)
        rest = super().edits(store, where.without(frozenset(migrated)))
        async with aclosing(rest) as edits:
            async for edit in edits:
                yield edit
                del edit  # free a large edit before the next read
        for key, origin in migrated.items():
            stored = await store.snapshot(key)
            restore = partial(self._restore, origin, key)
            texts = restored_in(origin, store.dialect, stored, restore)
            stays: str | None = None
            async with aclosing(in_whole_groups(_pages(stored))) as whole:
                async for page in whole:
                    edit, stays = await asyncio.to_thread(self._edit, store, page, stays, texts)
                    yield edit
                    del edit

    async def _migrated(self, store: Store, where: Selection) -> dict[MemoryKey, Dialect]:
        """Return the memories whose contents were taken out in another dialect, with the dialect.

        Such a memory is converted whole, so a selection of single messages finds none.
        """
        found: dict[MemoryKey, Dialect] = {}
        if not where.whole:
            return found

        def others(text: bytes) -> set[str]:
            return (origins(text) - {store.dialect.name}) & DIALECTS.keys()

        def matches(texts: Sequence[bytes]) -> list[int]:
            return [index for index, text in enumerate(texts) if others(text)]

        async with aclosing(store.find_messages(where, matches)) as messages:
            async for key, message in messages:
                found.setdefault(key, DIALECTS[min(others(message.message))])
        return found

    def rewrite(self, dialect: Dialect, text: bytes, id: str, key: MemoryKey) -> bytes:
        if not may_refer(text):
            return text
        try:
            text = restored(dialect, text, lambda name: self.fetch(name, key.user))
            if others := origins(text) - {dialect.name}:
                raise refused(min(others), dialect)
        except MemctlError as error:
            failure = Failure(error.code, f"message {id!r}: {error.message}")
            self.rewritten.failures.setdefault(key, failure)
        return text

    def renew(self, some: Described) -> bytes:
        return for_restored(some) or some.new[0]

    def _restore(self, origin: Dialect, key: MemoryKey, message: StoredMessage) -> bytes:
        """Return the text of a message in the dialect ``origin`` with its contents.

        Contents that were taken out in another dialect since then are left to this dialect.
        """
        names = origins(message.message)
        if names and origin.name not in names:
            return message.message
        return self.rewrite(origin, message.message, message.id, key)
