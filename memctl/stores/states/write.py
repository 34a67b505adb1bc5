"""Writes memories into the session documents of a store, each completely or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.model import Change, Edit, Memory, Page, WriteMode, WriteResult
from memctl.storekit.batching import Large, Small, gather
from memctl.storekit.edits import LargeEdit, batch_edits
from memctl.storekit.paths import split
from memctl.stores.states.document import Document, DocumentChanged
from memctl.stores.states.memories import (
    CONTENT,
    SUMMARY,
    DocumentIndex,
    MemoryPart,
    find,
    member_span,
)
from memctl.stores.states.place import DEFAULT_PATH, DocumentPlace
from memctl.stores.states.rewrite import Draft, EditRewrite, Rewrite
from memctl.stores.states.splices import RewritePlan, Splice, plan, revision, summary_splices

T = TypeVar("T", Small, Edit)

Begin = Callable[[Draft], Rewrite]

_EMPTY_BYTES = 64 * 1024
"""The maximum size of a document that contains only an empty memory."""


class StateWriter:
    """Writes and edits the memories in the session documents of a store.

    A new document is made from the old document, and is published only if no other program has
    changed the old document.  So data that an agent writes meanwhile is never lost.
    """

    def __init__(self, store: DocumentPlace) -> None:
        self._store = store

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode
    ) -> AsyncGenerator[WriteResult]:
        """Write the memories in ``pages``; yield a result for each memory."""
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
        """Carry out edits of memories; yield a result for each memory."""
        async for batch in batch_edits(edits, most=self._store.batch_documents):
            if isinstance(batch, LargeEdit):
                for result in await self._edit([batch.edit], batch.pieces):
                    yield result
                async for _ in batch.pieces:
                    continue  # the edits of other memories follow
                continue
            for group in _groups(batch, self._store.batch_documents):
                for result in await self._edit(group):
                    yield result
            await asyncio.sleep(0)

    async def _edit(
        self, edits: list[Edit], pieces: AsyncGenerator[list[Change]] | None = None
    ) -> list[WriteResult]:
        """Carry out edits of memories in different documents, and make all durable together.

        ``pieces`` yields the further changes of a large edit, which is then the only edit.
        """
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
        """Remove the empty members or the empty document that an undone change had created.

        ``before`` is ``Edit.before``.  Does nothing if another program writes to the document
        meanwhile.  Returns True if an empty summary was removed, so that a reverse of the undo must
        add it.
        """
        name = self._store.name_of(memory.key)
        if isinstance(name, Failure):
            return False
        try:
            document = await self._store.document(name)
        except DocumentChanged:
            return False
        if document is None:
            return False
        try:
            return document.exists and await self._restore(name, document, memory, before)
        finally:
            await document.close()

    async def _restore(self, name: str, document: Document, memory: Memory, before: str) -> bool:
        found = self._locate(document, memory)
        index, path = (None, "") if isinstance(found, Failure) else found
        part = index.parts.get(path) if index is not None else None
        if part is None:
            return False
        then = jsonio.loads(before.encode())
        made, empty = then.get("made"), not (part.text or part.info.messages)
        if made == "document":
            if empty and _is_alone(document, path):
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
            span = member_span(document, member)
            if span is not None:
                splices.append(Splice(span.start, span.end, b""))
        if not splices:
            return False
        done = await self._store.splice(name, document, splices) is None
        return done and then.get("summary") == "missing" and (*steps, SUMMARY) in gone

    @asynccontextmanager
    async def _begun(
        self,
        memory: Memory,
        prepare: Callable[[Document | None], Begin | Failure | None],
    ) -> AsyncGenerator[Rewrite | WriteResult]:
        """Open the document of a memory, and provide a ``Rewrite`` that changes it.

        Provides a ``WriteResult`` if the memory needs no change or cannot be written.  ``prepare``
        gets the document, None if no document is stored.  It returns a function that begins the
        rewrite, or None for no change, or a failure.  On exit, a draft that was not published is
        removed.
        """
        name = self._store.name_of(memory.key)
        if isinstance(name, Failure):
            yield WriteResult(memory.key, failure=name)
            return
        try:
            document = await self._store.document(name)
        except DocumentChanged as error:
            yield WriteResult(memory.key, failure=Failure("changed", error.message))
            return
        draft: Draft | None = None
        try:
            begin = prepare(document if document is not None and document.exists else None)
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

    def _prepare_write(
        self, mode: WriteMode, tail: Small | Large, document: Document | None, *, messages: bool
    ) -> Begin | Failure | None:
        memory = tail.memory
        found = self._locate(document, memory)
        if isinstance(found, Failure):
            return found
        planned = plan(*found, memory, mode, tail.offset, messages=messages)
        if isinstance(planned, Failure):
            return planned
        expires_anew = memory.ttl is not None and self._store.features.ttl
        if not planned.splices and not expires_anew:
            return None
        return partial(Rewrite, memory, old=document, plan=planned)

    def _prepare_edit(
        self, edit: Edit, pieces: AsyncGenerator[list[Change]] | None, document: Document | None
    ) -> Begin | Failure | None:
        memory, messages = edit.memory, bool(edit.changes) or not edit.last
        found = self._locate(document, memory)
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

    def _locate(
        self, document: Document | None, memory: Memory
    ) -> tuple[DocumentIndex | None, str] | Failure:
        """Find the memories in a document, and decide at which path ``memory`` belongs.

        Returns the index of the document (None without a document) and the path.  Returns a failure
        if the document is damaged, or if it has several memories and no path is chosen.
        """
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
            index = find(document, wanted=wanted)
        except BadData as error:
            return Failure("refused", error.message)
        if path is None and len(index.parts) > 1:
            paths = ", ".join(sorted(index.parts))
            text = f"the session holds several memories ({paths}): choose one with --path"
            return Failure("bad-name", text)
        if path is None and index.parts:
            [wanted] = index.parts
        elif not memory.key.part and wanted not in index.parts and "" in index.parts:
            wanted = ""  # a document that is itself a memory belongs to every path
        return index, wanted

    async def _publish(
        self, rewrites: Sequence[Rewrite | WriteResult], *, keep: bool = False
    ) -> list[WriteResult]:
        """Complete the rewrites, publish the new documents, and return the results.

        A ``WriteResult`` in ``rewrites`` is returned unchanged.  With ``keep``, existing documents
        keep their TTLs.
        """
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
        written = [
            WriteResult(
                *(one.memory.key, one.written, one.deleted),
                before=one.before,
                shared_ids=one.shared_ids,
            )
            for one in complete
        ]
        self._store.about_to_commit(written)
        failures = await self._store.publish(drafts, keep=keep)
        results += [
            WriteResult(one.key, failure=failure) if failure else one
            for one, failure in zip(written, failures, strict=True)
        ]
        return results


def _is_alone(document: Document, path: str) -> bool:
    if len(document.data) > _EMPTY_BYTES:
        return False
    value = jsonio.loads(document.data)
    for step in split(path):
        if not isinstance(value, dict) or value.keys() != {step}:
            return False
        value = value[step]
    return isinstance(value, dict) and value.keys() <= {SUMMARY, CONTENT}


def _may_become_unknown(edit: Edit, part: MemoryPart) -> bool:
    """Return whether ``find`` may not recognize the memory ``part`` after the edit.

    Without a summary, a memory is recognized by its messages, which the edit may delete.
    """
    if part.summary is not None:
        return False
    gone = sum([change.new is None for change in edit.changes])
    if not part.told_by_any and (gone or not edit.last):
        return True
    return part.told_by_messages and (not edit.last or gone == part.info.messages)


def _groups(batch: list[T], size: int) -> Iterator[list[T]]:
    """Divide the batch into groups of at most ``size``, in which no session occurs twice."""
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
