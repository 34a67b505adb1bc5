"""The stores of JSON documents: each session is a document, its memories are inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from memctl import foreign
from memctl.errors import BadData, Failure
from memctl.foreign import ForeignFormat
from memctl.json_stream import Cursor
from memctl.model import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    Edit,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, Features, Maintenance
from memctl.stores.states.content import Content
from memctl.stores.states.document import (
    Document,
    DocumentChanged,
    DocumentIndex,
    MemoryPart,
    damaged,
    find,
)
from memctl.stores.states.maintenance import REPAIRS, StateMaintenance
from memctl.stores.states.place import DocumentPlace, OwnedDocument
from memctl.stores.states.write import StateWriter

_SMALLEST = len("{ }")
"""The bytes of an empty object, which is passed over in silence."""
_STEP = 50
"""The number of messages put into a page at once."""


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A selected memory in an open document."""

    memory: Memory
    part: MemoryPart
    document: Document


class StateStore(DocumentPlace):
    """A store whose sessions are JSON documents, each holding one memory or several.

    The option ``path`` names the memory in every document; without it, the one memory of a
    document has no part in its key, and several have their paths.
    """

    features = Features(
        summaries=True,
        empty=True,
        duplicate_ids=True,
        mark_order=True,
        parts=True,
        repairs=REPAIRS,
    )

    # Reading

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        return self._infos(where) if where.whole else super().list_memories(where)

    async def _infos(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        async with aclosing(self._found(where, keep=False)) as memories:
            async for found in memories:
                yield replace(found.part.info, key=found.memory.key, ttl=found.memory.ttl)

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._headers(where) if where.whole else super().headers(where)

    async def _headers(self, where: Selection) -> AsyncGenerator[Memory]:
        async with aclosing(self._found(where, keep=False)) as memories:
            async for found in memories:
                yield found.memory

    async def check_integrity(self, where: Selection) -> None:
        if self.features.single_session and not (self.mode.creates or self.skips_damage):
            async with aclosing(self._found(where, keep=False)) as found:
                async for _ in found:
                    pass

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._pages(where)) as pages:
            async for page in where.apply(pages):
                yield page
                await asyncio.sleep(0)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page, None]:
        async with aclosing(self._found(where, keep=True)) as memories:
            async for found in memories:
                if found.part.entries is not None:
                    for page in _kept(found.memory, found.part.entries):
                        yield page
                else:
                    async for page in _streamed(found):
                        yield page

    async def _found(self, where: Selection, *, keep: bool) -> AsyncGenerator[FoundMemory, None]:
        """The selected memories; with ``keep``, those of small documents have their messages.

        A document is checked to its end before anything of it is handed out.  One that is damaged
        is left out where there may be others.
        """
        any_found = False
        async with aclosing(self.documents(where)) as documents:
            async for owned in documents:
                document = owned.document
                try:
                    index = await self.index(document, keep=keep)
                except BadData as error:
                    start = await document.read_at(0, foreign.BEGINNING)
                    encoding = foreign.encoding_of(start)
                    if encoding is None and (found := foreign.of_text(start)):
                        self.pass_over(document, found)
                        continue
                    fault = encoding.refusal(document.name) if encoding else error
                    any_found = True  # what is damaged is something, too
                    if self.skips_damage:
                        self.damage.append(await damaged(owned.owner, document, fault, self.path))
                    elif self.features.single_session:
                        raise fault from error
                    else:
                        failure = Failure("damaged", fault.message)
                        self.left_out.failures[MemoryKey(*owned.owner)] = failure
                    continue
                if not index.parts and document.size > _SMALLEST:
                    self.pass_over(document, await format_of(document))
                self.check(document, index)
                any_found |= bool(index.parts)
                for key, part in self._named(owned, index, where):
                    memory = Memory(key, part.text, document.ttl, place=part.path or None)
                    self.left_out.others = True
                    yield FoundMemory(memory, part, document)
                await asyncio.sleep(0)
        self.end_of(where, found=any_found)

    def check(self, document: Document, index: DocumentIndex) -> None:
        """Object to a document that should hold something else."""

    def pass_over(self, document: Document, found: ForeignFormat | None) -> None:
        """Take note of a document without a memory; ``found`` is its format, if recognized."""

    def end_of(self, where: Selection, *, found: bool) -> None:
        """Take note of the end of the documents; ``found`` says whether one held a memory."""

    def _named(
        self, owned: OwnedDocument, index: DocumentIndex, where: Selection
    ) -> list[tuple[MemoryKey, MemoryPart]]:
        # A document that is itself a memory has no paths to choose from.
        parts = [part for part in index.parts.values() if self._is_chosen(part.path, where)] or [
            part for part in index.parts.values() if part.path == ""
        ]
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

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return StateWriter(self).write(pages, mode)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return StateWriter(self).edit(edits)

    def maintenance(self) -> Maintenance:
        return StateMaintenance(self)

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Remove the documents of the sessions, with all that they hold besides memories."""
        async with aclosing(self.documents(where)) as documents:
            found = [
                self.key_of(owned)
                async for owned in documents
                if any(where.has_key(MemoryKey(*one)) for one in (owned.owner, owned.bare) if one)
            ]
        for key in found:
            yield await self._erase(key)

    async def _erase(self, key: MemoryKey) -> WriteResult:
        name = self.name_of(key)
        if isinstance(name, Failure):
            return WriteResult(key, failure=name)
        messages = 0
        for _ in range(EDIT_ATTEMPTS):
            document = await self.document(name)
            try:
                if document is None or not document.exists:
                    return WriteResult(key, deleted=messages)
                index = await find(document)
                if not (index.parts or self.keys_tell):
                    raise BadData(
                        f"{document.name} holds no memory: remove it if it belongs to the erased "
                        "user"
                    )
                messages = sum(part.info.messages for part in index.parts.values())
                await self.remove(name, document)
            except BadData as error:
                if not self.keys_tell or document is None:
                    return WriteResult(key, failure=Failure("damaged", error.message))
                await self.remove(name, document)
            finally:
                if document is not None:
                    await document.close()
        return WriteResult(key, failure=Failure("changed", "another program is writing to it"))


async def format_of(document: Document) -> ForeignFormat | None:
    """Return the format of a document that memctl recognizes and does not read."""
    return foreign.of_text(await document.read_at(0, foreign.BEGINNING))


async def _streamed(found: FoundMemory) -> AsyncGenerator[Page]:
    """The messages of a memory, read once more from its document, in pages."""
    part = found.part
    if part.content is None:
        yield Page(found.memory, [])
        return
    content = Content(Cursor(found.document, part.content.start))
    held: list[StoredMessage] = []
    size = offset = total = 0
    async for entries in content.entries(plain=part.plain):
        while entries:
            step = entries[:_STEP]
            del entries[:_STEP]
            more = sum([len(entry.message) for entry in step])
            if held and (size + more > PAGE_BYTES or len(held) + len(step) > PAGE_ENTRIES):
                yield Page(found.memory, held, offset, last=False)
                offset += len(held)
                held, size = [], 0
            held += step
            step.clear()
            size += more
            total += more
    if offset + len(held) != part.info.messages or (part.plain and total != part.info.bytes):
        raise DocumentChanged(found.document.name)
    await found.document.verify()
    yield Page(found.memory, held, offset)


def _kept(memory: Memory, entries: list[StoredMessage]) -> Iterator[Page]:
    for start in range(0, len(entries), PAGE_ENTRIES) or [0]:
        stop = start + PAGE_ENTRIES
        yield Page(memory, entries[start:stop], start, stop >= len(entries))
