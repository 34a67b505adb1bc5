"""AgentScope's Redis memory (``RedisMemory``).

Source: ``memory/_working_memory/_redis_memory.py`` of agentscope 1.0.21.  ``scan`` has the rules
for keys that are ambiguous.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, closing, suppress
from functools import partial

from memctl.errors import MemctlError
from memctl.location import Location
from memctl.model import Edit, Memory, MemoryInfo, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, OpenMode, Store
from memctl.stores.batching import Large, Small, gather, group_pages
from memctl.stores.catalog import catalog
from memctl.stores.redis.edit import (
    Editor,
    InlineChanges,
    LargeEdit,
    SmallEdit,
    StagedChanges,
    group_edits,
)
from memctl.stores.redis.keys import Keys
from memctl.stores.redis.lock import RedisLock
from memctl.stores.redis.maintenance import REPAIRS, RedisMaintenance
from memctl.stores.redis.pipeline import Pipeline, in_thread
from memctl.stores.redis.read import Reader
from memctl.stores.redis.scan import Catalogue, MemoryRef
from memctl.stores.redis.server import RedisServer
from memctl.stores.redis.write import BufferedMemory, MemoryRefused, StagedMemory, Writer


class RedisMemoryStore(Store):
    """The memories of AgentScope's ``RedisMemory``.

    Each is a list of ids, a string for each message, and a list of ids for each mark.

    What is written gets the ``ttl`` of the location in seconds, else ``Memory.ttl``; with neither,
    an existing memory keeps its own expiry.  Ids without payload are not messages, as for
    AgentScope; a memory that has only such ids is not listed.  Reading changes no expiry.
    """

    kind = "redis"
    features = Features(
        ttl=True, parallel=True, cheap_outline=True, cheap_positions=True, repairs=REPAIRS
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.server = RedisServer(location)
        self.keys = Keys(self.server.prefix)
        self._lock: RedisLock | None = None
        self.catalogue = Catalogue(self.keys)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self.server.open()

    async def lock(self, owner: str) -> None:
        self._lock = RedisLock(self.server, "memory", self.warnings)
        await self._lock.take(owner)

    async def close(self) -> None:
        try:
            if self._lock is not None:
                await self._lock.release()
        finally:
            await self.server.close()

    async def identity(self) -> str:
        return f"redis:{self.server.identity()}"

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Prefer these of the names that a memory may have."""
        for key in keys:
            base = self.keys.base_or_none(key)
            if base is not None and not key.part:
                self.catalogue.claim(base, key)

    # Reading

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        async with aclosing(catalog(self.read(where))) as infos:
            async for info in infos:
                yield info

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        if not where.whole:
            async for memory in super().headers(where):
                yield memory
            return
        async with self.server.pipeline() as pipeline:
            batches = await in_thread(pipeline, partial(self._headers, pipeline, where))
            while (batch := await in_thread(pipeline, partial(next, batches, None))) is not None:
                for memory in batch:
                    yield memory

    def _headers(self, pipeline: Pipeline, where: Selection) -> Iterator[list[Memory]]:
        reader, memories = self._reader(pipeline, where)
        yield from reader.headers(memories)

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(where.apply(self._pages(where))) as pages:
            async for page in pages:
                yield page

    def maintenance(self) -> Maintenance:
        return RedisMaintenance(self)

    async def outline(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield outlines; they count payloads that ``read`` skips as they are not JSON objects."""
        async with aclosing(self._pages(where, payloads=False)) as pages:
            async for page in pages:
                yield page

    async def _pages(self, where: Selection, *, payloads: bool = True) -> AsyncGenerator[Page]:
        async with self.server.pipeline() as pipeline:
            find = partial(self._reader, pipeline, where, payloads=payloads)
            reader, memories = await in_thread(pipeline, find)
            batches = group_pages(reader.pages(memories))
            while batch := await in_thread(pipeline, partial(next, batches, None)):
                for page in batch:
                    yield page
        if self.skips_damage:
            self.damage = reader.damage()
        else:
            self.warnings += [line for line in reader.warnings() if line not in self.warnings]

    def _reader(
        self, pipeline: Pipeline, where: Selection, *, payloads: bool = True
    ) -> tuple[Reader, list[MemoryRef]]:
        memories = self.catalogue.memories(pipeline, where)
        marks = self.catalogue.marks(pipeline, where) if memories else {}
        return Reader(pipeline, marks, where, payloads=payloads), memories

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline, self.server.pipeline() as side:
            marks = await in_thread(pipeline, partial(self.catalogue.marks, pipeline, Selection()))
            writer = Writer(pipeline, side, marks, mode)
            async for batch in gather(pages):
                if isinstance(batch, Large):
                    yield await self._write_large(writer, pipeline, batch)
                else:
                    for result in await in_thread(
                        pipeline, partial(self._write_small, writer, batch)
                    ):
                        yield result

    def _write_small(self, writer: Writer, batch: list[Small]) -> list[WriteResult]:
        results: list[WriteResult] = []
        good: dict[bytes, BufferedMemory] = {}
        for small in batch:
            try:
                base = self._base(small.memory.key)
                pending = BufferedMemory(base, small, self._ttl(small.memory))
            except MemoryRefused as refusal:
                results.append(WriteResult(small.memory.key, failure=refusal.failure))
                continue
            if base in good:  # the second must see what the first makes
                results += writer.write([good.pop(base)])
            good[base] = pending
        return results + writer.write(list(good.values())) if good else results

    async def _write_large(self, writer: Writer, pipeline: Pipeline, large: Large) -> WriteResult:
        try:
            base = self._base(large.memory.key)
            with closing(StagedMemory(self.keys, base, large, self._ttl(large.memory))) as staged:
                try:
                    async for page in large.pages:
                        await in_thread(pipeline, partial(staged.add, pipeline, page.messages))
                    [result] = await in_thread(pipeline, partial(writer.write, [staged]))
                finally:
                    await self._discard(staged)
                return result
        except MemoryRefused as refusal:
            async for _ in large.pages:
                continue  # the memories after it are still to come
            return WriteResult(large.memory.key, failure=refusal.failure)

    async def _discard(self, staged: StagedMemory | StagedChanges) -> None:
        """Remove what is staged of a memory that was not written."""
        if staged.published:
            return
        with suppress(MemctlError):  # what cannot be removed expires by itself
            async with self.server.pipeline() as pipeline:
                await in_thread(pipeline, partial(staged.discard, pipeline))

    # Changing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline:
            marks = await in_thread(pipeline, partial(self.catalogue.marks, pipeline, Selection()))
            editor = Editor(pipeline, marks)
            async for batch in group_edits(edits):
                if isinstance(batch, LargeEdit):
                    yield await self._edit_large(editor, pipeline, batch)
                    continue
                done: list[WriteResult] = []
                failure: MemctlError | None = None
                try:
                    await in_thread(pipeline, partial(self._edit_small, editor, batch, done))
                except MemctlError as error:
                    failure = error
                for result in done:
                    yield result
                if failure is not None:
                    raise failure

    def _edit_small(self, editor: Editor, batch: list[SmallEdit], done: list[WriteResult]) -> None:
        """Change small memories; ``done`` gets a WriteResult for each."""
        good: dict[bytes, InlineChanges] = {}
        for memory, changes in batch:
            try:
                base = self._base(memory.key)
                inline = InlineChanges(base, memory, self._ttl(memory), changes)
            except MemoryRefused as refusal:
                done.append(WriteResult(memory.key, failure=refusal.failure))
                continue
            if base in good:  # the second must see what the first makes
                done.extend(editor.edit([good.pop(base)]))
            good[base] = inline
        if good:
            done.extend(editor.edit(list(good.values())))

    async def _edit_large(
        self, editor: Editor, pipeline: Pipeline, large: LargeEdit
    ) -> WriteResult:
        memory = large.memory
        try:
            base = self._base(memory.key)
            with closing(StagedChanges(self.keys, base, memory, self._ttl(memory))) as staged:
                try:
                    async for changes in large.changes:
                        await in_thread(pipeline, partial(staged.add, pipeline, changes))
                    [result] = await in_thread(pipeline, lambda: list(editor.edit([staged])))
                finally:
                    await self._discard(staged)
                return result
        except MemoryRefused as refusal:
            async for _ in large.changes:
                continue  # the memories after it are still to come
            return WriteResult(memory.key, failure=refusal.failure)

    def _base(self, key: MemoryKey) -> bytes:
        """Return the base of a memory; raise MemoryRefused if it cannot have that name."""
        if key.part:
            raise MemoryRefused(
                "bad-name", f"Redis holds one memory a session, not a part like {key.part!r}"
            )
        base = self.keys.base_or_none(key)
        if base is None:
            raise MemoryRefused("bad-name", f"{key} has half of a surrogate pair in its name")
        if not self.catalogue.claim(base, key):
            raise MemoryRefused("bad-name", f"the keys of {key} are those of another memory")
        return base

    def _ttl(self, memory: Memory) -> int | None:
        """Return the TTL to set in milliseconds; None to leave the expiry as it is."""
        if self.server.ttl is not None or memory.ttl is None:
            return self.server.ttl
        return max(1, round(memory.ttl * 1000))
