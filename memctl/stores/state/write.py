"""Writing memories into the documents of a store, each whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from memctl.errors import BadData, Failure
from memctl.model import PAGE_BYTES, Edit, Memory, Page, WriteMode, WriteResult
from memctl.stores.batching import Large, Small, gather
from memctl.stores.state.document import Document, DocumentChanged, DocumentIndex, MemoryPart, find
from memctl.stores.state.rewrite import (
    Draft,
    EditFeed,
    EditRewrite,
    Rewrite,
    RewritePlan,
    plan,
    revision,
)

if TYPE_CHECKING:
    from memctl.stores.state.store import StateStore

DEFAULT_PATH = "memory"
"""The default path of the memory in a session: the name that
``load_session_state(..., memory=InMemoryMemory())`` gives it."""


class StateWriter:
    """One ``write`` of a store."""

    def __init__(self, store: StateStore, mode: WriteMode) -> None:
        self._store = store
        self._mode = mode

    async def write(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[WriteResult]:
        """See ``Store.write``."""
        async for batch in gather(pages):
            if isinstance(batch, Large):
                yield await self._write_large(batch)
                continue
            for group in _groups(batch, self._store.together):
                for result in await self._write_small(group):
                    yield result
                await asyncio.sleep(0)

    async def _write_large(self, large: Large) -> WriteResult:
        async with self._begun(large.memory, large.offset, messages=True) as rewrite:
            async for page in large.pages:
                if isinstance(rewrite, Rewrite):
                    await rewrite.add(page.messages)
                await asyncio.sleep(0)
            [result] = await publish(self._store, [rewrite])
            return result

    async def _write_small(self, group: list[Small]) -> list[WriteResult]:
        rewrites: list[Rewrite | WriteResult] = []
        async with AsyncExitStack() as stack:
            for small in group:
                rewrite = await stack.enter_async_context(
                    self._begun(small.memory, small.offset, messages=bool(small.entries))
                )
                if isinstance(rewrite, Rewrite):
                    await rewrite.add(small.entries)
                rewrites.append(rewrite)
            return await publish(self._store, rewrites)

    @asynccontextmanager
    async def _begun(
        self, memory: Memory, offset: int, *, messages: bool
    ) -> AsyncGenerator[Rewrite | WriteResult]:
        """The memory on its way into its document, or why nothing is to be done.

        On leaving, a draft that was not published is removed.
        """
        name = self._store.name_of(memory.key)
        if isinstance(name, Failure):
            yield WriteResult(memory.key, failure=name)
            return
        document = await self._store.document(name)
        present = document if document is not None and document.exists else None
        draft: Draft | None = None
        try:
            found = await self._plan(present, memory, offset, messages=messages)
            if isinstance(found, Failure):
                yield WriteResult(memory.key, failure=found)
            elif not found.splices and not self._expires_anew(memory):
                yield WriteResult(memory.key)
            else:
                draft = await self._store.draft(name, document)
                yield Rewrite(memory, draft, present, found)
        finally:
            if draft is not None:
                await draft.discard()
            if document is not None:
                await document.close()

    def _expires_anew(self, memory: Memory) -> bool:
        """Return whether a document is to be written for its expiry alone."""
        return memory.ttl is not None and self._store.features.ttl

    async def _plan(
        self, document: Document | None, memory: Memory, offset: int, *, messages: bool
    ) -> RewritePlan | Failure:
        store = self._store
        path = memory.key.part or store.path
        bare = document is None and not store.default_path
        usual = "" if bare else memory.place or DEFAULT_PATH
        wanted = usual if path is None else path
        if document is None:
            return plan(None, wanted, memory, self._mode, offset, messages=messages)
        try:
            index = await find(document, wanted=wanted)
        except DocumentChanged as error:
            return Failure("changed", error.message)
        except BadData as error:
            return Failure("refused", error.message)
        if path is None and len(index.parts) > 1:
            paths = ", ".join(sorted(index.parts))
            return Failure(
                "bad-name", f"the session holds several memories ({paths}): choose one with --path"
            )
        if path is None and index.parts:
            [wanted] = index.parts
        return plan(index, wanted, memory, self._mode, offset, messages=messages)


async def publish(
    store: StateStore, rewrites: Sequence[Rewrite | WriteResult], *, keep: bool = False
) -> list[WriteResult]:
    """Complete the rewrites and make them durable; tallies pass.  ``keep``: see the store's."""
    results: list[WriteResult] = []
    complete: list[Rewrite] = []
    for rewrite in rewrites:
        if isinstance(rewrite, WriteResult):
            results.append(rewrite)
            continue
        failure = await rewrite.finish()
        if failure:
            results.append(WriteResult(rewrite.memory.key, failure=failure))
        else:
            complete.append(rewrite)
    drafts = [(rewrite.draft, rewrite.memory.ttl) for rewrite in complete]
    failures = await store.publish(drafts, keep=keep)
    for rewrite, failure in zip(complete, failures, strict=True):
        result = WriteResult(rewrite.memory.key, rewrite.written, rewrite.deleted)
        results.append(WriteResult(rewrite.memory.key, failure=failure) if failure else result)
    return results


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


class StateEditor:
    """One ``edit`` of a store.

    The new document is made of the same opened document whose messages are looked at, and takes its
    place only if nobody has written to it since: what an agent writes meanwhile is never lost.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """See ``Store.edit``."""
        group = _EditGroup(self._store.together)
        async for edit in edits:
            if not group.takes(edit):
                for result in await self._change(group.take()):
                    yield result
            if edit.last:
                group.add(edit, edits)
            else:  # the next one goes on with it
                for result in await self._change([EditFeed(edit, edits)]):
                    yield result
            await asyncio.sleep(0)
        for result in await self._change(group.take()):
            yield result

    async def _change(self, feeds: list[EditFeed]) -> list[WriteResult]:
        """Change memories of different documents, and make them durable together."""
        rewrites: list[Rewrite | WriteResult] = []
        async with AsyncExitStack() as stack:
            for feed in feeds:
                rewrite = await stack.enter_async_context(self._begun(feed))
                if isinstance(rewrite, WriteResult):
                    await feed.drain()
                rewrites.append(rewrite)
            return await publish(self._store, rewrites, keep=True)

    @asynccontextmanager
    async def _begun(self, feed: EditFeed) -> AsyncGenerator[Rewrite | WriteResult]:
        """The memory on its way into its document, or why nothing is to be done.

        On leaving, a draft that was not published is removed.
        """
        memory = feed.first.memory
        name = self._store.name_of(memory.key)
        if isinstance(name, Failure):
            yield WriteResult(memory.key, failure=name)
            return
        document = await self._store.document(name)
        present = document if document is not None and document.exists else None
        draft: Draft | None = None
        try:
            found = await self._plan(present, feed)
            if isinstance(found, Failure):
                yield WriteResult(memory.key, failure=found)
                return
            planned, part = found
            if not planned.splices:
                yield WriteResult(memory.key)
                return
            draft = await self._store.draft(name, document)
            content = part.content if part else None
            plain = part is not None and part.plain
            yield EditRewrite(feed, draft, present, planned, content, plain=plain)
        finally:
            if draft is not None:
                await draft.discard()
            if document is not None:
                await document.close()

    async def _plan(
        self, document: Document | None, feed: EditFeed
    ) -> tuple[RewritePlan, MemoryPart | None] | Failure:
        """Return the rewrite of the memory, and the memory as it is."""
        memory, messages = feed.first.memory, not feed.is_empty
        found = await self._find(document, memory)
        if isinstance(found, Failure):
            return found
        index, path = found
        part = index.parts.get(path) if index else None
        there = part.text if part else ""
        if feed.first.summary is not None and feed.first.summary != there:
            return Failure("changed", "the summary is another one")
        if part is not None:
            return revision(part, memory, messages=messages), part
        if not messages and not memory.summary:
            return RewritePlan([]), None
        new = plan(index, path, memory, WriteMode.ADD, 0, messages=messages)
        return new if isinstance(new, Failure) else (new, None)

    async def _find(
        self, document: Document | None, memory: Memory
    ) -> tuple[DocumentIndex | None, str] | Failure:
        """Return the index of the document, if there is one, and the memory's path in it."""
        store = self._store
        path = memory.key.part or store.path
        bare = document is None and not store.default_path
        usual = "" if bare else memory.place or DEFAULT_PATH
        wanted = usual if path is None else path
        if document is None:
            return None, wanted
        try:
            index = await store.index(document, keep=False)
            if path is None and len(index.parts) > 1:
                paths = ", ".join(sorted(index.parts))
                return Failure("bad-name", f"the session holds several memories ({paths})")
            if path is None and index.parts:
                [wanted] = index.parts
            elif wanted not in index.parts and "" in index.parts:
                wanted = ""  # a document that is itself a memory has no paths to choose from
            if wanted not in index.parts:
                index = await find(document, wanted=wanted)
        except DocumentChanged as error:
            return Failure("changed", error.message)
        except BadData as error:
            return Failure("refused", error.message)
        return index, wanted


class _EditGroup:
    """Edits of different sessions, each of one page, to be made durable together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._feeds: list[EditFeed] = []
        self._sessions: set[tuple[str, str]] = set()
        self._size = 0

    def takes(self, edit: Edit) -> bool:
        """Return whether the edit may join."""
        full = len(self._feeds) >= self._most or self._size >= PAGE_BYTES
        return edit.last and not full and edit.memory.key[:2] not in self._sessions

    def add(self, edit: Edit, rest: AsyncGenerator[Edit]) -> None:
        self._feeds.append(EditFeed(edit, rest))
        self._sessions.add(edit.memory.key[:2])
        self._size += sum([len(change.message) for change in edit.changes])

    def take(self) -> list[EditFeed]:
        """All that joined; the next group begins."""
        feeds, self._feeds, self._size = self._feeds, [], 0
        self._sessions.clear()
        return feeds
