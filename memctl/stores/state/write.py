"""Writing memories into the documents of a store, each whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from memctl.errors import BadData, Failure
from memctl.model import Memory, Page, WriteMode, WriteResult
from memctl.stores.batching import Large, Small, gather
from memctl.stores.state.document import Changed, Document, find
from memctl.stores.state.rewrite import Draft, Plan, Rewrite, plan

if TYPE_CHECKING:
    from memctl.stores.state.store import StateStore

DEFAULT_PATH = "memory"
"""Where a session holds its memory, unless told otherwise: the name that
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
                for tally in await self._write_small(group):
                    yield tally
                await asyncio.sleep(0)

    async def _write_large(self, large: Large) -> WriteResult:
        async with self._begun(large.memory, large.offset, messages=True) as rewrite:
            async for page in large.pages:
                if isinstance(rewrite, Rewrite):
                    await rewrite.add(page.messages)
                await asyncio.sleep(0)
            [tally] = await publish(self._store, [rewrite])
            return tally

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
        """Whether a document is to be written for its expiry alone."""
        return memory.ttl is not None and self._store.features.ttl

    async def _plan(
        self, document: Document | None, memory: Memory, offset: int, *, messages: bool
    ) -> Plan | Failure:
        store = self._store
        path = memory.key.part or store.path
        bare = document is None and not store.default_path
        usual = "" if bare else memory.place or DEFAULT_PATH
        wanted = usual if path is None else path
        if document is None:
            return plan(None, wanted, memory, self._mode, offset, messages=messages)
        try:
            index = await find(document, wanted=wanted)
        except Changed as error:
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
    """Completes the rewrites and makes them durable; tallies pass.  ``keep``: see the store's."""
    tallies: list[WriteResult] = []
    complete: list[Rewrite] = []
    for rewrite in rewrites:
        if isinstance(rewrite, WriteResult):
            tallies.append(rewrite)
            continue
        failure = await rewrite.finish()
        if failure:
            tallies.append(WriteResult(rewrite.memory.key, failure=failure))
        else:
            complete.append(rewrite)
    drafts = [(rewrite.draft, rewrite.memory.ttl) for rewrite in complete]
    failures = await store.publish(drafts, keep=keep)
    for rewrite, failure in zip(complete, failures, strict=True):
        tally = WriteResult(rewrite.memory.key, rewrite.written, rewrite.deleted)
        tallies.append(WriteResult(rewrite.memory.key, failure=failure) if failure else tally)
    return tallies


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
