"""Writing memories into the documents of a store, each whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from memctl import jsonio
from memctl.errors import BadData, Failure
from memctl.model import Change, Edit, Memory, Page, WriteMode, WriteResult
from memctl.storekit.batching import Large, Small, gather
from memctl.storekit.edits import LargeEdit, batch_edits
from memctl.storekit.paths import split
from memctl.stores.states.document import (
    CONTENT,
    SUMMARY,
    Document,
    DocumentChanged,
    DocumentIndex,
    MemoryPart,
    find,
    span_with_comma,
)
from memctl.stores.states.place import DEFAULT_PATH, DocumentPlace
from memctl.stores.states.rewrite import (
    Draft,
    EditRewrite,
    Rewrite,
    RewritePlan,
    Splice,
    plan,
    revision,
    summary_splices,
)

T = TypeVar("T", Small, Edit)

Begin = Callable[[Draft], Rewrite]

_EMPTY_BYTES = 64 * 1024
"""A document that holds an empty memory alone is not larger."""


class StateWriter:
    """A writer of the states of a store.

    A new document is made of the opened one that it will replace, and takes its place only if
    nobody has written to that since: what an agent writes meanwhile is never lost.
    """

    def __init__(self, store: DocumentPlace) -> None:
        self._store = store

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode
    ) -> AsyncGenerator[WriteResult]:
        """See ``Store.write``."""
        async for batch in gather(pages):
            if isinstance(batch, Large):
                yield await self._write_large(batch, mode)
                continue
            for group in _groups(batch, self._store.batch_documents):
                for result in await self._write_small(group, mode):
                    yield result
                await asyncio.sleep(0)

    async def _write_large(self, large: Large, mode: WriteMode) -> WriteResult:
        prepare = partial(self._prepare_write, mode, large, messages=True)
        async with self._begun(large.memory, prepare) as rewrite:
            async for page in large.pages:
                if isinstance(rewrite, Rewrite):
                    await rewrite.add(page.messages)
                await asyncio.sleep(0)
            [result] = await self._publish([rewrite])
            return result

    async def _write_small(self, group: list[Small], mode: WriteMode) -> list[WriteResult]:
        rewrites: list[Rewrite | WriteResult] = []
        async with AsyncExitStack() as stack:
            for small in group:
                prepare = partial(self._prepare_write, mode, small, messages=bool(small.entries))
                rewrite = await stack.enter_async_context(self._begun(small.memory, prepare))
                if isinstance(rewrite, Rewrite):
                    await rewrite.add(small.entries)
                rewrites.append(rewrite)
            return await self._publish(rewrites)

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """See ``Store.edit``."""
        async for batch in batch_edits(edits, most=self._store.batch_documents):
            if isinstance(batch, LargeEdit):
                for result in await self._edit([batch.edit], batch.pieces):
                    yield result
                async for _ in batch.pieces:
                    continue  # the memories after it are still to come
                continue
            for group in _groups(batch, self._store.batch_documents):
                for result in await self._edit(group):
                    yield result
            await asyncio.sleep(0)

    async def _edit(
        self, edits: list[Edit], pieces: AsyncGenerator[list[Change]] | None = None
    ) -> list[WriteResult]:
        """Edit memories of different documents, and make them durable together."""
        async with AsyncExitStack() as stack:
            rewrites = [
                await stack.enter_async_context(
                    self._begun(edit.memory, partial(self._prepare_edit, edit, pieces))
                )
                for edit in edits
            ]
            results = await self._publish(rewrites, keep=True)
        undone = {edit.memory.key: edit for edit in edits if edit.before}
        for at, result in enumerate(results):
            edit = undone.get(result.key)
            if edit is None or result.failure is not None:
                continue
            if await self._tidy(edit.memory, edit.before):
                before = jsonio.loads(result.before.encode()) if result.before else {}
                before.setdefault("summary", "empty")
                results[at] = replace(result, before=jsonio.dumps(before).decode())
        return results

    async def _tidy(self, memory: Memory, before: str) -> bool:
        """Remove what was not there before the changes that were undone, if nothing is in it.

        A state that somebody writes to meanwhile keeps it.  Returns whether an empty summary went,
        which an undo of this one puts back.
        """
        name = self._store.name_of(memory.key)
        document = None if isinstance(name, Failure) else await self._store.document(name)
        if isinstance(name, Failure) or document is None:
            return False
        try:
            return document.exists and await self._restore(name, document, memory, before)
        finally:
            await document.close()

    async def _restore(self, name: str, document: Document, memory: Memory, before: str) -> bool:
        found = await self._locate(document, memory, editing=True)
        index, path = (None, "") if isinstance(found, Failure) else found
        part = index.parts.get(path) if index is not None else None
        if part is None:
            return False
        then = jsonio.loads(before.encode())
        made, empty = then.get("made"), not (part.text or part.info.messages)
        if made == "document":
            if empty and await self._is_alone(document, path):
                await self._store.remove(name, document)
            return False
        steps = split(path)
        splices: list[Splice] = []
        if made is not None:
            gone = [tuple(made)] if empty else []
        else:
            missing = {"summary": not part.text, "content": not part.info.messages}
            gone = [
                (*steps, {"summary": SUMMARY, "content": CONTENT}[key])
                for key, is_empty in missing.items()
                if then.get(key) == "missing" and is_empty
            ]
            if then.get("summary") == "null" and part.summary and not part.text:
                splices.append(Splice(part.summary.start, part.summary.end, b"null"))
            if then.get("summary") == "empty" and part.summary is None:
                splices += summary_splices(part, replace(memory, summary=""))
        for member in gone:
            span = await span_with_comma(document, member)
            if span is not None:
                splices.append(Splice(span.start, span.end, b""))
        if not splices:
            return False
        draft = await self._store.draft(name, document)
        try:
            rewrite = Rewrite(memory, draft, document, RewritePlan(splices))
            done = await rewrite.finish() is None
            if done:
                await self._store.publish([(draft, None)], keep=True)
        finally:
            await draft.discard()
        return done and then.get("summary") == "missing" and (*steps, SUMMARY) in gone

    async def _is_alone(self, document: Document, path: str) -> bool:
        """Return whether the document holds nothing but the memory, which is empty."""
        if document.size > _EMPTY_BYTES:
            return False
        value = jsonio.loads(await document.read_at(0, document.size))
        for step in split(path):
            if not isinstance(value, dict) or value.keys() != {step}:
                return False
            value = value[step]
        return isinstance(value, dict) and value.keys() <= {SUMMARY, CONTENT}

    @asynccontextmanager
    async def _begun(
        self,
        memory: Memory,
        prepare: Callable[[Document | None], Awaitable[Begin | Failure | None]],
    ) -> AsyncGenerator[Rewrite | WriteResult]:
        """Provide the memory on its way into its document, or why nothing is to be done.

        ``prepare`` gets the document that is there.  On leaving, a draft that was not published is
        removed.
        """
        name = self._store.name_of(memory.key)
        if isinstance(name, Failure):
            yield WriteResult(memory.key, failure=name)
            return
        document = await self._store.document(name)
        draft: Draft | None = None
        try:
            begin = await prepare(document if document is not None and document.exists else None)
            if begin is None or isinstance(begin, Failure):
                yield WriteResult(memory.key, failure=begin)
            else:
                draft = await self._store.draft(name, document)
                yield begin(draft)
        finally:
            if draft is not None:
                await draft.discard()
            if document is not None:
                await document.close()

    async def _prepare_write(
        self, mode: WriteMode, tail: Small | Large, document: Document | None, *, messages: bool
    ) -> Begin | Failure | None:
        memory = tail.memory
        found = await self._locate(document, memory, editing=False)
        if isinstance(found, Failure):
            return found
        planned = plan(*found, memory, mode, tail.offset, messages=messages)
        if isinstance(planned, Failure):
            return planned
        expires_anew = memory.ttl is not None and self._store.features.ttl
        if not planned.splices and not expires_anew:
            return None
        return partial(Rewrite, memory, old=document, plan=planned)

    async def _prepare_edit(
        self, edit: Edit, pieces: AsyncGenerator[list[Change]] | None, document: Document | None
    ) -> Begin | Failure | None:
        memory, messages = edit.memory, bool(edit.changes) or not edit.last
        found = await self._locate(document, memory, editing=True)
        if isinstance(found, Failure):
            return found
        index, path = found
        part = index.parts.get(path) if index else None
        if edit.summary is not None and edit.summary != (part.text if part else ""):
            return Failure("changed", "the summary differs")
        planned: RewritePlan | Failure = RewritePlan([])
        if part is not None:
            if memory.summary is None and _may_become_unknown(edit, part):
                memory = replace(memory, summary="")
            planned = revision(part, memory, messages=messages)
        elif messages or memory.summary:
            planned = plan(index, path, memory, WriteMode.ADD, 0, messages=messages)
        if isinstance(planned, Failure):
            return planned
        if not planned.splices:
            return None
        return partial(EditRewrite, edit, pieces, old=document, plan=planned, part=part)

    async def _locate(
        self, document: Document | None, memory: Memory, *, editing: bool
    ) -> tuple[DocumentIndex | None, str] | Failure:
        """Return the index of the document, if there is one, and the memory's path in it."""
        store = self._store
        path = memory.key.part or store.path
        bare = document is None and not store.default_path
        usual = "" if bare else memory.place or DEFAULT_PATH
        wanted = usual if path is None else path
        if document is None:
            if path is None and wanted and memory.place is None:
                store.warn_of_default_path()
            return None, wanted
        try:
            if editing:  # mostly of memories that were read before
                index = await store.index(document, keep=False)
            else:
                index = await find(document, wanted=wanted)
            if path is None and len(index.parts) > 1:
                paths = ", ".join(sorted(index.parts))
                text = f"the session holds several memories ({paths}): choose one with --path"
                return Failure("bad-name", text)
            if path is None and index.parts:
                [wanted] = index.parts
            elif not memory.key.part and wanted not in index.parts and "" in index.parts:
                wanted = ""  # a document that is itself a memory has no paths to choose from
            if editing and wanted not in index.parts:
                index = await find(document, wanted=wanted)
        except DocumentChanged as error:
            return Failure("changed", error.message)
        except BadData as error:
            return Failure("refused", error.message)
        return index, wanted

    async def _publish(
        self, rewrites: Sequence[Rewrite | WriteResult], *, keep: bool = False
    ) -> list[WriteResult]:
        """Complete the rewrites and make them durable; results pass.  ``keep``: see the store's."""
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
        failures = await self._store.publish(drafts, keep=keep)
        for rewrite, failure in zip(complete, failures, strict=True):
            key = rewrite.memory.key
            counts = rewrite.written, rewrite.deleted
            result = WriteResult(key, *counts, before=rewrite.before, shared_ids=rewrite.shared_ids)
            results.append(WriteResult(key, failure=failure) if failure else result)
        return results


def _may_become_unknown(edit: Edit, part: MemoryPart) -> bool:
    """Return whether a memory might be none any more: its first message tells that it is one."""
    if part.summary is not None:
        return False
    gone = sum([change.new is None for change in edit.changes])
    if not part.told_by_any and (gone or not edit.last):
        return True
    return part.told_by_messages and (not edit.last or gone == part.info.messages)


def _groups(batch: list[T], size: int) -> Iterator[list[T]]:
    """Yield the batch in groups in which no session occurs twice, for each is one document."""
    group: list[T] = []
    sessions: set[tuple[str, str]] = set()
    for one in batch:
        session = one.memory.key[:2]
        if len(group) >= size or session in sessions:
            yield group
            group = []
            sessions.clear()
        group.append(one)
        sessions.add(session)
    yield group
