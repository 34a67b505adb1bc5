"""Changing memories in the documents of a store, each whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from memctl.errors import BadData, Failure
from memctl.model import PAGE_BYTES, Edit, Memory, WriteMode, WriteResult
from memctl.stores.state.document import Changed, Document, Index, Part, find
from memctl.stores.state.revise import Feed, Revision
from memctl.stores.state.rewrite import Draft, Plan, Rewrite, plan, revision
from memctl.stores.state.write import DEFAULT_PATH, publish

if TYPE_CHECKING:
    from memctl.stores.state.store import StateStore


class StateEditor:
    """One ``edit`` of a store.

    The new document is made of the same opened document whose messages are looked at, and takes its
    place only if nobody has written to it since: what an agent writes meanwhile is never lost.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """See ``Store.edit``."""
        group = _Group(self._store.together)
        async for edit in edits:
            if not group.takes(edit):
                for tally in await self._change(group.take()):
                    yield tally
            if edit.last:
                group.add(edit, edits)
            else:  # the next one goes on with it
                for tally in await self._change([Feed(edit, edits)]):
                    yield tally
            await asyncio.sleep(0)
        for tally in await self._change(group.take()):
            yield tally

    async def _change(self, feeds: list[Feed]) -> list[WriteResult]:
        """Changes memories of different documents, and makes them durable together."""
        rewrites: list[Rewrite | WriteResult] = []
        async with AsyncExitStack() as stack:
            for feed in feeds:
                rewrite = await stack.enter_async_context(self._begun(feed))
                if isinstance(rewrite, WriteResult):
                    await feed.drain()
                rewrites.append(rewrite)
            return await publish(self._store, rewrites, keep=True)

    @asynccontextmanager
    async def _begun(self, feed: Feed) -> AsyncGenerator[Rewrite | WriteResult]:
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
            yield Revision(feed, draft, present, planned, content, plain=plain)
        finally:
            if draft is not None:
                await draft.discard()
            if document is not None:
                await document.close()

    async def _plan(
        self, document: Document | None, feed: Feed
    ) -> tuple[Plan, Part | None] | Failure:
        """How to change the memory, and the memory as it is."""
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
            return Plan([]), None
        new = plan(index, path, memory, WriteMode.ADD, 0, messages=messages)
        return new if isinstance(new, Failure) else (new, None)

    async def _find(
        self, document: Document | None, memory: Memory
    ) -> tuple[Index | None, str] | Failure:
        """What the document holds, None where there is none, and the path of the memory in it."""
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
        except Changed as error:
            return Failure("changed", error.message)
        except BadData as error:
            return Failure("refused", error.message)
        return index, wanted


class _Group:
    """Edits of different sessions, each of one page, to be made durable together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._feeds: list[Feed] = []
        self._sessions: set[tuple[str, str]] = set()
        self._size = 0

    def takes(self, edit: Edit) -> bool:
        """Whether the edit may join."""
        full = len(self._feeds) >= self._most or self._size >= PAGE_BYTES
        return edit.last and not full and edit.memory.key[:2] not in self._sessions

    def add(self, edit: Edit, rest: AsyncGenerator[Edit]) -> None:
        self._feeds.append(Feed(edit, rest))
        self._sessions.add(edit.memory.key[:2])
        self._size += sum([len(change.message) for change in edit.changes])

    def take(self) -> list[Feed]:
        """All that joined; the next group begins."""
        feeds, self._feeds, self._size = self._feeds, [], 0
        self._sessions.clear()
        return feeds
