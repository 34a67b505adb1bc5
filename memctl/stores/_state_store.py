"""What the stores of JSON documents share: each session is a document, its memories are inside."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from memctl.errors import BadData, Failure
from memctl.json_stream import Cursor, Source
from memctl.location import Location
from memctl.model import Entry, Memory, MemoryInfo, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import PAGE_BYTES, PAGE_ENTRIES, Capability, Store
from memctl.stores._batches import Large, Small, gather
from memctl.stores._catalogue import catalogue
from memctl.stores._state_content import Content
from memctl.stores._state_document import Index, Part, changed, find
from memctl.stores._state_edit import Draft, Edit, Plan, plan

DEFAULT_PATH = "memory"
"""Where a session holds its memory, unless told otherwise: the name that
``load_session_state(..., memory=InMemoryMemory())`` gives it."""

_STEP = 50
"""How many messages are put into a page at once."""


class Document(Source):
    """A session's JSON, open for reading."""

    ttl: float | None

    @abstractmethod
    async def close(self) -> None:
        """Lets go of it."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A document, and the user and session that it belongs to.

    ``bare`` is to whom instead, where the document itself is a memory.
    """

    document: Document
    owner: tuple[str, str]
    bare: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A selected memory in an open document."""

    memory: Memory
    part: Part
    document: Document


class StateStore(Store):
    """A store whose sessions are JSON documents, each holding one memory or several.

    The option ``path`` names the memory in every document; without it, the one memory of a
    document has no part in its key, and several have their paths.
    """

    capabilities = (
        Capability.SUMMARIES
        | Capability.EMPTY
        | Capability.REPEATED_IDS
        | Capability.MARK_ORDER
        | Capability.PARTS
    )
    default_path = DEFAULT_PATH
    """Where a new document holds its memory."""
    batch = 64
    """How many documents are made durable together."""

    def __init__(self, location: Location, *, create: bool = False) -> None:
        super().__init__(location, create=create)
        self.path = location.options.get("path")
        self._checked: set[Selection] = set()

    # What a kind of document has to tell

    @abstractmethod
    def documents(self, where: Selection) -> AsyncIterator[Owned]:
        """The documents of the sessions that may be selected; each closed before the next opens."""

    @abstractmethod
    def name_of(self, key: MemoryKey) -> str | Failure:
        """What names the document that the memory is to be written to."""

    @abstractmethod
    async def document(self, name: str) -> Document | None:
        """The document of that name; None where there is none yet."""

    @abstractmethod
    async def draft(self, name: str, old: Document | None) -> Draft:
        """A new document of that name, to take the place of the old one."""

    @abstractmethod
    async def publish(self, drafts: list[tuple[Draft, float | None]]) -> list[Failure | None]:
        """Makes drafts durable, each with its expiry in seconds (None: as it was).

        A failure for each whose document was changed by somebody else meanwhile.
        """

    # Reading

    async def memories(self, where: Selection) -> AsyncIterator[MemoryInfo]:
        if not where.whole:
            async for info in catalogue(self.read(where)):
                yield info
            return
        async for found in self._found(where, keep=False):
            yield replace(found.part.info, key=found.memory.key, ttl=found.memory.ttl)

    async def headers(self, where: Selection) -> AsyncIterator[Memory]:
        if not where.whole:
            async for memory in super().headers(where):
                yield memory
            return
        async for found in self._found(where, keep=False):
            yield found.memory

    async def read(self, where: Selection) -> AsyncIterator[Page]:
        await self._check(where)
        async for page in where.apply(self._pages(where)):
            yield page
            await asyncio.sleep(0)

    async def _check(self, where: Selection) -> None:
        """Looks for broken documents before the first page is out, so that nothing is written."""
        if self.create or _scope(where) in self._checked:
            return
        async for _ in self._found(where, keep=False):
            pass

    async def _pages(self, where: Selection) -> AsyncIterator[Page]:
        async for found in self._found(where, keep=True):
            if found.part.entries is not None:
                for page in _kept(found.memory, found.part.entries):
                    yield page
            else:
                async for page in _streamed(found):
                    yield page

    async def _found(self, where: Selection, *, keep: bool) -> AsyncIterator[Found]:
        """The selected memories; with ``keep``, those of small documents have their messages."""
        async for owned in self.documents(where):
            document = owned.document
            index = await find(document, keep=keep and document.size <= PAGE_BYTES)
            self.check(document, index)
            for key, part in self._named(owned, index, where):
                yield Found(Memory(key, part.text, document.ttl), part, document)
            await asyncio.sleep(0)
        self._checked = {_scope(where)}

    def check(self, document: Document, index: Index) -> None:
        """Objects to a document that should hold something else."""

    def _named(self, owned: Owned, index: Index, where: Selection) -> list[tuple[MemoryKey, Part]]:
        parts = [part for part in index.parts.values() if self._is_chosen(part.path, where)]
        user, session = (owned.bare if "" in index.parts else None) or owned.owner
        named = []
        for part in parts:
            by_path = MemoryKey(user, session, part.path)
            key = by_path._replace(part="") if len(parts) == 1 else by_path
            # Who asks for it by its path gets it by its path, although it may be the only one.
            if not where.has_key(key) and where.keys is not None:
                key = by_path
            if where.has_key(key):
                named.append((key, part))
        return named

    def _is_chosen(self, path: str, where: Selection) -> bool:
        if self.path is not None:
            return path == self.path
        return not where.parts or path in where.parts

    # Writing

    async def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        async for batch in gather(pages):
            if isinstance(batch, Large):
                yield await self._write_large(batch, mode)
                continue
            for group in _groups(batch, self.batch):
                for tally in await self._write_small(group, mode):
                    yield tally
                await asyncio.sleep(0)

    async def _write_large(self, large: Large, mode: WriteMode) -> Tally:
        async with self._edit(large.memory, mode, large.offset, messages=True) as edit:
            async for page in large.pages:
                if isinstance(edit, Edit):
                    await edit.add(page.entries)
                await asyncio.sleep(0)
            if not isinstance(edit, Edit):
                return edit
            await edit.finish()
            [tally] = await self._publish([edit])
            return tally

    async def _write_small(self, group: list[Small], mode: WriteMode) -> list[Tally]:
        tallies: list[Tally] = []
        edits: list[Edit] = []
        async with AsyncExitStack() as stack:
            for small in group:
                edit = await stack.enter_async_context(
                    self._edit(small.memory, mode, small.offset, messages=bool(small.entries))
                )
                if isinstance(edit, Edit):
                    await edit.add(small.entries)
                    await edit.finish()
                    edits.append(edit)
                else:
                    tallies.append(edit)
            return tallies + await self._publish(edits)

    async def _publish(self, edits: list[Edit]) -> list[Tally]:
        failures = await self.publish([(edit.draft, edit.memory.ttl) for edit in edits])
        return [
            Tally(edit.memory.key, failure=failure)
            if failure
            else Tally(edit.memory.key, edit.written, edit.deleted)
            for edit, failure in zip(edits, failures, strict=True)
        ]

    @asynccontextmanager
    async def _edit(
        self, memory: Memory, mode: WriteMode, offset: int, *, messages: bool
    ) -> AsyncIterator[Edit | Tally]:
        """The memory on its way into its document, or why nothing is to be done.

        On leaving, a draft that was not published is removed.
        """
        name = self.name_of(memory.key)
        if isinstance(name, Failure):
            yield Tally(memory.key, failure=name)
            return
        document = await self.document(name)
        draft: Draft | None = None
        try:
            found = await self._plan(document, memory, mode, offset, messages=messages)
            if isinstance(found, Failure):
                yield Tally(memory.key, failure=found)
            elif not found.changes:
                yield Tally(memory.key)
            else:
                draft = await self.draft(name, document)
                edit = Edit(memory, draft, document, found)
                await edit.start()
                yield edit
        finally:
            if draft is not None:
                await draft.discard()
            if document is not None:
                await document.close()

    async def _plan(
        self,
        document: Document | None,
        memory: Memory,
        mode: WriteMode,
        offset: int,
        *,
        messages: bool,
    ) -> Plan | Failure:
        wanted = memory.key.part or self.path
        if wanted is None:
            wanted = self.default_path if document is None else DEFAULT_PATH
        index: Index | None = None
        if document is not None:
            try:
                index = await find(document, wanted=wanted)
            except BadData as error:
                return Failure("refused", error.message)
        if not memory.key.part and self.path is None and index is not None and index.parts:
            if len(index.parts) > 1:
                paths = ", ".join(sorted(index.parts))
                return Failure(
                    "bad-name",
                    f"the session holds several memories ({paths}): choose one with --path",
                )
            [wanted] = index.parts
        return plan(index, wanted, memory, mode, offset, messages=messages)


def _scope(where: Selection) -> Selection:
    """What of a selection names memories."""
    return Selection(where.users, where.sessions, where.parts, where.keys)


def _groups(batch: list[Small], size: int) -> Iterator[list[Small]]:
    """The batch in groups in which no session occurs twice, for each is one document."""
    group: list[Small] = []
    sessions: set[tuple[str, str]] = set()
    for small in batch:
        session = small.memory.key[:2]
        if len(group) >= size or session in sessions:
            yield group
            group = []
            sessions.clear()
        group.append(small)
        sessions.add(session)
    yield group


async def _streamed(found: Found) -> AsyncIterator[Page]:
    """The messages of a memory, read once more from its document, in pages."""
    part = found.part
    if part.content is None:
        yield Page(found.memory, [])
        return
    content = Content(Cursor(found.document, part.content.start), proven=part.plain)
    held: list[Entry] = []
    size = offset = total = 0
    async for batch in content.batches():
        for start in range(0, len(batch), _STEP):
            step = batch[start : start + _STEP]
            more = sum(item.size for item in step)
            if held and (size + more > PAGE_BYTES or len(held) + len(step) > PAGE_ENTRIES):
                yield Page(found.memory, held, offset, last=False)
                offset += len(held)
                held, size = [], 0
            held += [item.entry for item in step]
            size += more
            total += more
            step.clear()
        batch.clear()
    if offset + len(held) != part.info.messages or total != part.info.bytes:
        raise changed(found.document.name)
    yield Page(found.memory, held, offset)


def _kept(memory: Memory, entries: list[Entry]) -> Iterator[Page]:
    for start in range(0, len(entries), PAGE_ENTRIES) or [0]:
        stop = start + PAGE_ENTRIES
        yield Page(memory, entries[start:stop], start, stop >= len(entries))
