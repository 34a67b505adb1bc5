"""Stores of sessions as JSON documents, with the memories inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from memctl.errors import BadData, Failure
from memctl.json.document import TAIL
from memctl.layouts import foreign
from memctl.layouts.foreign import ForeignFormat
from memctl.model import Edit, Memory, MemoryInfo, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, Features, Maintenance
from memctl.stores.states.document import Document
from memctl.stores.states.maintenance import StateMaintenance, finding_of
from memctl.stores.states.memories import DocumentIndex, MemoryPart, find
from memctl.stores.states.place import DocumentPlace, DocumentReader, OwnedDocument
from memctl.stores.states.write import StateWriter

_SMALLEST = len("{ }")
"""The size of an empty object, which is not reported."""


class FoundMemory(Struct, frozen=True):
    """A selected memory, found in a document."""

    memory: Memory
    part: MemoryPart

    def pages(self) -> Iterator[Page]:
        """Yield all messages of the memory in pages."""
        messages = self.part.messages
        for indexes in messages.pages():
            last = indexes.stop == len(messages)
            yield Page(self.memory, messages.entries(indexes), indexes.start, last)


class StateReader(DocumentReader):
    """The part of a store that reads sessions as JSON documents, each with one or more memories.

    The option ``?path=`` gives the path of the memory in every document.  Without the option, a
    document may have several memories; then the part of a key is the path of its memory.  If a
    document has only one memory, the part of its key is empty.
    """

    # Reading

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        return self._infos(where) if where.whole else super().list_memories(where)

    async def _infos(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        async with aclosing(self._found(where)) as memories:
            async for found in memories:
                yield replace(found.part.info, key=found.memory.key, ttl=found.memory.ttl)

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._headers(where) if where.whole else super().headers(where)

    async def _headers(self, where: Selection) -> AsyncGenerator[Memory]:
        async with aclosing(self._found(where)) as memories:
            async for found in memories:
                yield found.memory

    async def check_integrity(
        self,
        where: Selection,
        *,
        complete: bool = False,  # noqa: ARG002 - documents have no indexes
    ) -> None:
        if self.features.single_session and not (self.mode.creates or self.skips_damage):
            async with aclosing(self._found(where)) as found:
                async for _ in found:
                    pass

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._pages(where)) as pages:
            async for page in where.apply(pages, self.dialect):
                yield page
                await asyncio.sleep(0)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page, None]:
        async with aclosing(self._found(where)) as memories:
            async for found in memories:
                for page in found.pages():
                    yield page

    async def _found(self, where: Selection) -> AsyncGenerator[FoundMemory, None]:
        """Yield the selected memories, document by document.

        Each document is checked as a whole before its memories are yielded.  Damaged documents are
        noted and left out.

        Raises:
            BadData: the store has a single document, and it is damaged.
        """
        any_found = False
        async with aclosing(self.documents(where)) as documents:
            async for owned in documents:
                document = owned.document
                try:
                    index = self.index(document)
                except BadData as error:
                    start = document.data[: foreign.BEGINNING]
                    encoding = foreign.encoding_of(start)
                    if encoding is None and (found := foreign.of_text(start)):
                        self.pass_over(document, found)
                        continue
                    fault = encoding.refusal(document.name) if encoding else error
                    any_found = True  # a damaged document counts, too
                    if self.skips_damage:
                        self.damage.append(finding_of(owned.owner, document, fault, self.path))
                    elif self.features.single_session:
                        raise fault from error
                    else:
                        failure = Failure("damaged", fault.message)
                        self.left_out.failures[MemoryKey(*owned.owner)] = failure
                    continue
                if not index.parts and len(document.data) > _SMALLEST:
                    self.pass_over(document, foreign.of_text(document.data[: foreign.BEGINNING]))
                self.check(document, index)
                any_found |= bool(index.parts)
                for key, part in self._named(owned, index, where):
                    memory = Memory(key, part.text, document.ttl, place=part.path or None)
                    self.left_out.others = True
                    yield FoundMemory(memory, part)
                await asyncio.sleep(0)
        self.end_of(where, found=any_found)

    def index(self, document: Document) -> DocumentIndex:
        """Find the memories in a document (``find``)."""
        return find(document)

    def check(self, document: Document, index: DocumentIndex) -> None:
        """Called with each document and its memories; a subclass may raise an error."""

    def pass_over(self, document: Document, found: ForeignFormat | None) -> None:
        """Called for a document without a memory; ``found`` is its format, None if unknown."""

    def end_of(self, where: Selection, *, found: bool) -> None:
        """Called after the last document; ``found`` is True if any document had a memory."""

    def _named(
        self, owned: OwnedDocument, index: DocumentIndex, where: Selection
    ) -> list[tuple[MemoryKey, MemoryPart]]:
        # A document that is itself a memory belongs to every path.
        parts = [part for part in index.parts.values() if self._is_chosen(part.path, where)] or [
            part for part in index.parts.values() if part.path == ""
        ]
        user, session = (owned.bare if "" in index.parts else None) or owned.owner
        named = []
        for part in parts:
            by_path = MemoryKey(user, session, part.path)
            key = by_path._replace(part="") if len(parts) == 1 else by_path
            # A selection by path gets the path, even of the only memory.
            if not where.has_key(key) and where.keys is not None:
                key = by_path
            if where.has_key(key):
                named.append((key, part))
        return named

    def _is_chosen(self, path: str, where: Selection) -> bool:
        if self.path is not None:
            return path == self.path
        return not where.parts or path in where.parts


class StateStore(StateReader, DocumentPlace):
    """A store of sessions as JSON documents, each with one or more memories."""

    features = Features(
        summaries=True,
        empty=True,
        duplicate_ids=True,
        mark_order=True,
        parts=True,
        repairs=frozenset({TAIL}),
    )

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return StateWriter(self).write(pages, mode)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return StateWriter(self).edit(edits)

    def maintenance(self) -> Maintenance:
        return StateMaintenance(self)

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename documents, which do not name their users and sessions themselves."""
        for old, new in moves.items():
            failure: Failure | None = None
            if old.session:  # nothing is kept of users besides sessions
                names = self.name_of(old), self.name_of(new)
                bad = [one for one in names if isinstance(one, Failure)]
                good = [one for one in names if isinstance(one, str)]
                failure = bad[0] if bad else await self.move(*good)
            yield WriteResult(old, failure=failure)

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Remove the documents of the selected sessions, with all other data in these documents."""
        async with aclosing(self.documents(where)) as documents:
            found = [
                MemoryKey(*owned.owner)
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
                index = find(document)
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
