"""AgentScope's Redis memory (``RedisMemory``).

Source: ``memory/_working_memory/_redis_memory.py`` of agentscope 1.0.21.  How keys are taken apart
where they are ambiguous is said in ``scan``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, suppress
from functools import partial

from memctl.errors import MemctlError
from memctl.location import Location
from memctl.model import Edit, Finding, Memory, MemoryInfo, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, Note, OpenMode, Record, Store
from memctl.stores.batching import Large, Small, gather, group_pages
from memctl.stores.catalog import catalog
from memctl.stores.redis.changes import Few, Many, Parts, Whole, grouped
from memctl.stores.redis.edit import Editor
from memctl.stores.redis.faults import Examination
from memctl.stores.redis.incoming import InHand, Refused, Staged
from memctl.stores.redis.keys import Keys
from memctl.stores.redis.lock import RedisLock
from memctl.stores.redis.mend import REPAIRS, Mender
from memctl.stores.redis.read import Reader
from memctl.stores.redis.scan import Catalogue, Named
from memctl.stores.redis.server import RedisServer
from memctl.stores.redis.wire import Wire, in_thread
from memctl.stores.redis.write import Writer


class RedisMemoryStore(Store):
    """A list of ids, a string a message and a list of ids a mark, for each memory.

    What is written lives for the ``ttl`` of the location in seconds, else for ``Memory.ttl``; with
    neither, a memory that is there keeps its own expiry.  Ids without payload are no messages, as
    for AgentScope; a memory that has only such ids is not listed.  Reading changes no expiry.
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
        """Of the names that a memory may have, those are the right ones."""
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
        async with self.server.wire() as wire:
            batches = await in_thread(wire, partial(self._headers, wire, where))
            while (batch := await in_thread(wire, partial(next, batches, None))) is not None:
                for memory in batch:
                    yield memory

    def _headers(self, wire: Wire, where: Selection) -> Iterator[list[Memory]]:
        reader, memories = self._reader(wire, where)
        yield from reader.headers(memories)

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(where.apply(self._pages(where))) as pages:
            async for page in pages:
                yield page

    def maintenance(self) -> Maintenance:
        return RedisMaintenance(self)

    async def outline(self, where: Selection) -> AsyncGenerator[Page]:
        """See ``Store.outlines``; a payload counts that ``read`` leaves out as no JSON object."""
        async with aclosing(self._pages(where, payloads=False)) as pages:
            async for page in pages:
                yield page

    async def _pages(self, where: Selection, *, payloads: bool = True) -> AsyncGenerator[Page]:
        async with self.server.wire() as wire:
            find = partial(self._reader, wire, where, payloads=payloads)
            reader, memories = await in_thread(wire, find)
            batches = group_pages(reader.pages(memories))
            while batch := await in_thread(wire, partial(next, batches, None)):
                for page in batch:
                    yield page
        if self.skips_damage:
            self.damage = reader.damage()
        else:
            self.warnings += [line for line in reader.warnings() if line not in self.warnings]

    def _reader(
        self, wire: Wire, where: Selection, *, payloads: bool = True
    ) -> tuple[Reader, list[Named]]:
        memories = self.catalogue.memories(wire, where)
        marks = self.catalogue.marks(wire, where) if memories else {}
        return Reader(wire, marks, where, payloads=payloads), memories

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with self.server.wire() as wire, self.server.wire() as side:
            marks = await in_thread(wire, partial(self.catalogue.marks, wire, Selection()))
            writer = Writer(wire, side, marks, mode)
            async for batch in gather(pages):
                if isinstance(batch, Large):
                    yield await self._write_large(writer, wire, batch)
                else:
                    for tally in await in_thread(wire, partial(self._write_small, writer, batch)):
                        yield tally

    def _write_small(self, writer: Writer, batch: list[Small]) -> list[WriteResult]:
        tallies: list[WriteResult] = []
        good: dict[bytes, InHand] = {}
        for small in batch:
            try:
                base = self._base(small.memory.key)
                incoming = InHand(base, small, self._ttl(small.memory))
            except Refused as refused:
                tallies.append(WriteResult(small.memory.key, failure=refused.failure))
                continue
            if base in good:  # the second must see what the first makes
                tallies += writer.write([good.pop(base)])
            good[base] = incoming
        return tallies + writer.write(list(good.values())) if good else tallies

    async def _write_large(self, writer: Writer, wire: Wire, large: Large) -> WriteResult:
        try:
            base = self._base(large.memory.key)
            with Staged(self.keys, base, large, self._ttl(large.memory)) as staged:
                try:
                    async for page in large.pages:
                        await in_thread(wire, partial(staged.add, wire, page.messages))
                    [tally] = await in_thread(wire, partial(writer.write, [staged]))
                finally:
                    await self._discard(staged)
                return tally
        except Refused as refused:
            async for _ in large.pages:
                continue  # the memories behind it are still to come
            return WriteResult(large.memory.key, failure=refused.failure)

    async def _discard(self, staged: Staged | Many) -> None:
        """Removes what a memory that was not written has left; what is renamed is not there."""
        if staged.published:
            return
        with suppress(MemctlError):  # what cannot be removed expires by itself
            async with self.server.wire() as wire:
                await in_thread(wire, partial(staged.discard, wire))

    # Changing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with self.server.wire() as wire:
            marks = await in_thread(wire, partial(self.catalogue.marks, wire, Selection()))
            editor = Editor(wire, marks)
            async for batch in grouped(edits):
                if isinstance(batch, Parts):
                    yield await self._edit_large(editor, wire, batch)
                    continue
                done: list[WriteResult] = []
                failure: MemctlError | None = None
                try:
                    await in_thread(wire, partial(self._edit_small, editor, batch, done))
                except MemctlError as error:
                    failure = error
                for tally in done:
                    yield tally
                if failure is not None:
                    raise failure

    def _edit_small(self, editor: Editor, batch: list[Whole], done: list[WriteResult]) -> None:
        """Changes small memories; ``done`` gets a WriteResult as each is."""
        good: dict[bytes, Few] = {}
        for memory, changes in batch:
            try:
                base = self._base(memory.key)
                few = Few(base, memory, self._ttl(memory), changes)
            except Refused as refused:
                done.append(WriteResult(memory.key, failure=refused.failure))
                continue
            if base in good:  # the second must see what the first makes
                done.extend(editor.edit([good.pop(base)]))
            good[base] = few
        if good:
            done.extend(editor.edit(list(good.values())))

    async def _edit_large(self, editor: Editor, wire: Wire, large: Parts) -> WriteResult:
        memory = large.memory
        try:
            base = self._base(memory.key)
            with Many(self.keys, base, memory, self._ttl(memory)) as many:
                try:
                    async for changes in large.changes:
                        await in_thread(wire, partial(many.add, wire, changes))
                    [tally] = await in_thread(wire, lambda: list(editor.edit([many])))
                finally:
                    await self._discard(many)
                return tally
        except Refused as refused:
            async for _ in large.changes:
                continue  # the memories behind it are still to come
            return WriteResult(memory.key, failure=refused.failure)

    def _base(self, key: MemoryKey) -> bytes:
        """What the keys of a memory begin with; raises Refused if it cannot have that name."""
        if key.part:
            raise Refused(
                "bad-name", f"Redis holds one memory a session, not a part like {key.part!r}"
            )
        base = self.keys.base_or_none(key)
        if base is None:
            raise Refused("bad-name", f"{key} has half of a surrogate pair in its name")
        if not self.catalogue.claim(base, key):
            raise Refused("bad-name", f"the keys of {key} are those of another memory")
        return base

    def _ttl(self, memory: Memory) -> int | None:
        """How long a memory shall live, in milliseconds; None to leave that as it is."""
        if self.server.ttl is not None or memory.ttl is None:
            return self.server.ttl
        return max(1, round(memory.ttl * 1000))


class RedisMaintenance(Maintenance):
    """Findings and repairs of the keys of ``RedisMemory``."""

    store: RedisMemoryStore

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async with aclosing(super().check(where)) as damage:
            async for finding in damage:
                yield finding
        catalogue = self.store.catalogue
        async with self.store.server.wire() as wire:
            memories = await in_thread(wire, partial(catalogue.memories, wire, where))
            marks = await in_thread(wire, partial(catalogue.marks, wire, where))
            examination = Examination(wire, self.store.keys, where, memories, marks)
            found = examination.faults()
            while (some := await in_thread(wire, partial(next, found, None))) is not None:
                for finding in some:
                    yield finding

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        async with self.store.server.wire() as wire:
            mender = Mender(wire, self.store.keys, self.store.catalogue)
            return await mender.mend(code, where, note)

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        async with self.store.server.wire() as wire:
            mender = Mender(wire, self.store.keys, self.store.catalogue)
            return await mender.unmend(records)
