"""AgentScope's Redis memory (``RedisMemory``).

Source: ``memory/_working_memory/_redis_memory.py`` of agentscope 1.0.21.  The module ``scan``
documents the rules for ambiguous keys.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from memctl.engines.redis.pipeline import Command, Pipeline, in_thread, items_in_thread, scan
from memctl.engines.redis.text import decode, encode_or_none
from memctl.errors import MemctlError, UsageError
from memctl.layouts.redis.keys import MARKS_INDEX, MESSAGES, PAYLOAD, Keys
from memctl.layouts.redis.keyspace import look_at_keys
from memctl.layouts.redis.store import RedisStore
from memctl.location import Location
from memctl.model import Edit, Memory, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, OpenMode
from memctl.storekit.batching import Large, Small, gather, grouped, page_size
from memctl.storekit.edits import LargeEdit, batch_edits
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope1.redis.edit import Editor, MemoryChanges
from memctl.stores.agentscope1.redis.erase import erase_keys, owned_keys, rename_keys
from memctl.stores.agentscope1.redis.maintenance import REPAIRS, RedisMaintenance
from memctl.stores.agentscope1.redis.read import Reader
from memctl.stores.agentscope1.redis.scan import KEYS, Catalogue, MemoryRef
from memctl.stores.agentscope1.redis.snapshot import list_pages
from memctl.stores.agentscope1.redis.write import PendingMemory, Writer

S = TypeVar("S", Small, Edit)
M = TypeVar("M", PendingMemory, MemoryChanges)

_COUNTED = 5000
"""``count`` gives up above this number of memories: counting them takes too long."""


class RedisMemoryStore(RedisStore):
    """The memories of AgentScope's ``RedisMemory``.

    A memory is a list of message ids, a string (payload) for each message, and a list of ids for
    each mark.  As in AgentScope, an id without a payload is not a message.  A memory with only such
    ids is not listed.

    A written memory gets the ``ttl`` of the location in seconds, or else ``Memory.ttl``.  If
    neither is given, an existing memory keeps its expiry.  Reading changes no expiry.
    """

    kind = "redis"
    lock_name = "memory"
    text_types = frozenset({b"string"})
    features = Features(
        ttl=True,
        parallel=True,
        cheap_outline=True,
        cheap_positions=True,
        cheap_windows=True,
        repairs=REPAIRS,
        renames=frozenset({"user", "session", "merge"}),
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.keys = Keys(self.server.prefix)
        self.catalogue = Catalogue(self.keys)
        self._counted: tuple[Selection, list[MemoryRef]] | None = None
        """The selection and memories of the last ``count``, reused by the next read."""
        self._partly: set[MemoryKey] = set()
        """The memories whose lists name ids that are no messages, as windows have shown."""

    def restoring(self, key: MemoryKey) -> list[Command]:
        base = self.keys.base_or_none(key)
        if base is None:
            return []
        return [
            (b"RPUSH", base + MESSAGES, b"id"),
            (b"MSET", base + PAYLOAD + b"id", b""),
            (b"SADD", base + MARKS_INDEX, b"mark"),
        ]

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Prefer these names for memories whose Redis keys can be read as several names."""
        for key in keys:
            base = self.keys.base_or_none(key)
            if base is not None and not key.part:
                self.catalogue.claim(base, key)

    async def other_layout(self) -> str | None:
        async with self.server.pipeline() as pipeline:
            look = partial(look_at_keys, pipeline, self.keys.prefix)
            found = await in_thread(pipeline, look)
        others = found.layouts - {"memory"}
        if "memory" in found.layouts:
            others.discard("session")  # session states and memories share a database
        if self.mode.creates:
            others &= {"agentscope2"}  # a target adopts only this layout without ?layout=
        if others and (len(others) > 1 or "memory" in found.layouts):
            names = sorted(others | (found.layouts & {"memory"}))
            raise UsageError(
                f"{self.label} holds data of several layouts: {', '.join(names)}",
                f"choose one with ?layout={names[0]}",
            )
        if others:
            return others.pop()
        if found.unknown and not (found.layouts or self.mode.creates):
            raise found.refusal(self.label)
        return None

    # Reading

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._headers(where) if where.whole else super().headers(where)

    async def _headers(self, where: Selection) -> AsyncGenerator[Memory]:
        async with self.server.pipeline() as pipeline:
            reader, memories = await in_thread(pipeline, partial(self._reader, pipeline, where))
            async for memory in items_in_thread(pipeline, partial(reader.headers, memories)):
                yield memory

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.server.pipeline() as pipeline:
            find = partial(self.catalogue.memories, pipeline, where)
            memories = await in_thread(pipeline, find)
        for ref in memories:
            yield ref.key

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        where = Selection(keys=frozenset({key}))

        def look() -> Page | None:
            reader, memories = self._reader(pipeline, where)
            found = [reader.window(ref, start, count) for ref in memories]
            return found[0] if found else None

        # An id that is no message does not count: then the whole list is read for the indexes.
        if not self.skips_damage and key not in self._partly:
            async with self.server.pipeline() as pipeline:
                page = await in_thread(pipeline, look)
            if page is not None:
                return page
        page = await super().window(key, start, count)
        if page is not None:
            self._partly.add(key)
        return page

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    def maintenance(self) -> Maintenance:
        return RedisMaintenance(self, self.server, self.keys, self.catalogue)

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield outlines (``Store.outline``); texts that are not JSON objects count as messages."""
        return self._pages(where, payloads=False)

    async def _pages(self, where: Selection, *, payloads: bool = True) -> AsyncGenerator[Page]:
        async with self.server.pipeline() as pipeline:
            find = partial(self._reader, pipeline, where, payloads=payloads)
            reader, memories = await in_thread(pipeline, find)
            pages = partial(grouped, reader.pages(memories), page_size)
            async for page in items_in_thread(pipeline, pages):
                # A repair may remove the skipped messages, so no message may be anchored to them.
                yield replace(page, anchors=None) if self.skips_damage and where.whole else page
        self.left_out.partly.update(reader.broken)
        if self.skips_damage:
            others = [one for one in self.damage if not (one.key and where.has_key(one.key))]
            self.damage = others + reader.damage()
        else:
            self.warnings += [line for line in reader.warnings() if line not in self.warnings]

    def _reader(
        self, pipeline: Pipeline, where: Selection, *, payloads: bool = True
    ) -> tuple[Reader, list[MemoryRef]]:
        counted, self._counted = self._counted, None
        if counted and counted[0] == where:
            memories = counted[1]
        else:
            memories = self.catalogue.memories(pipeline, where)
        marks = self.catalogue.marks(pipeline, where) if memories else {}
        return Reader(pipeline, marks, where, payloads=payloads), memories

    async def is_empty(self) -> bool:
        if not await super().is_empty():
            return False
        if self.shard is not None:
            return True  # the keys below may be those of other shards
        pattern = self.keys.pattern(Selection(), KEYS)  # a removed memory may leave keys behind
        async with self.server.pipeline() as pipeline:
            return not await in_thread(pipeline, lambda: any(scan(pipeline, pattern)))

    async def count(self, where: Selection) -> tuple[int, int] | None:
        def work() -> tuple[int, int] | None:
            memories = self.catalogue.memories(pipeline, where)
            self._counted = where, memories
            if len(memories) > _COUNTED:
                return None
            lengths = pipeline.execute((b"LLEN", one.base + MESSAGES) for one in memories)
            return len(memories), sum(lengths)

        if not where.whole:
            return None
        async with self.server.pipeline() as pipeline:
            return await in_thread(pipeline, work)

    async def find_places(self, key: MemoryKey, ids: frozenset[str]) -> frozenset[str]:
        base = self.keys.base_or_none(key)
        wanted = {name for name in map(encode_or_none, ids) if name is not None}
        if base is None:
            return frozenset()

        def look() -> frozenset[str]:
            pages = list_pages(pipeline, base + MESSAGES)
            return frozenset(decode(id) for some in pages for id in wanted.intersection(some))

        async with self.server.pipeline() as pipeline:
            return await in_thread(pipeline, look)

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline:
            marks = await in_thread(pipeline, partial(self.catalogue.marks, pipeline, Selection()))
            writer = Writer(pipeline, marks, self.about_to_commit, mode)
            async for batch in gather(pages):
                if isinstance(batch, Large):
                    make = partial(self._pending, batch, self.keys)
                    parts = (page.messages async for page in batch.pages)
                    yield await self._large(pipeline, batch.memory, make, parts, writer.run)
                    continue
                make_small = partial(self._small_memory, pipeline)
                async for result in self._small(pipeline, batch, make_small, writer.run):
                    yield result

    def _pending(self, tail: Small | Large, staged: Keys | None = None) -> PendingMemory:
        base, ttl = self._target(tail.memory)
        return PendingMemory(base, tail.memory, tail.offset, ttl, staged)

    def _small_memory(self, pipeline: Pipeline, small: Small) -> PendingMemory:
        memory = self._pending(small)
        memory.add(pipeline, small.entries)
        return memory

    # Changing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline:
            marks = await in_thread(pipeline, partial(self.catalogue.marks, pipeline, Selection()))
            tolerant = self.skips_damage or self.mode is OpenMode.RESTORE
            editor = Editor(pipeline, marks, self.about_to_commit, tolerant=tolerant)
            async for batch in batch_edits(edits):
                if isinstance(batch, LargeEdit):
                    make = partial(self._changes, batch.edit, self.keys)
                    yield await self._large(
                        pipeline, batch.edit.memory, make, batch.pieces, editor.run
                    )
                    continue
                make_small = partial(self._small_changes, pipeline)
                async for result in self._small(pipeline, batch, make_small, editor.run):
                    yield result

    def _changes(self, edit: Edit, staged: Keys | None = None) -> MemoryChanges:
        base, ttl = self._target(edit.memory)
        return MemoryChanges(base, edit.memory, ttl, edit.before, staged)

    def _small_changes(self, pipeline: Pipeline, edit: Edit) -> MemoryChanges:
        changes = self._changes(edit)
        changes.add(pipeline, edit.changes)
        return changes

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        def look() -> list[MemoryKey]:
            found = owned_keys(pipeline, self.keys, self.catalogue, where)
            return list(dict.fromkeys(owned.memory for some in found for owned in some))

        async with self.server.pipeline() as pipeline:
            for key in await in_thread(pipeline, look):
                yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Remove all keys of the selected sessions, also those of session states (``:state``)."""
        async with self.server.pipeline() as pipeline:
            work = partial(erase_keys, pipeline, self.keys, self.catalogue, where)
            for result in await in_thread(pipeline, work):
                yield result

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename all keys of sessions, also those of session states (``:state``)."""
        async with self.server.pipeline() as pipeline:
            work = partial(rename_keys, pipeline, self.keys, self.catalogue, moves)
            for result in await in_thread(pipeline, work):
                yield result

    # Both

    async def _small(
        self,
        pipeline: Pipeline,
        batch: list[S],
        make: Callable[[S], M],
        run: Callable[[Sequence[M]], Iterator[WriteResult]],
    ) -> AsyncGenerator[WriteResult]:
        """Write or edit a batch of small memories; yield a result for each.

        ``make`` prepares a memory of the batch, and ``run`` changes the prepared memories.  After
        an error, first the results so far are yielded, then the error is raised.
        """
        done: list[WriteResult] = []
        failure: MemctlError | None = None
        try:
            await in_thread(pipeline, partial(self._run_small, batch, make, run, done))
        except MemctlError as error:
            failure = error
        for result in done:
            yield result
        if failure is not None:
            raise failure

    def _run_small(
        self,
        batch: list[S],
        make: Callable[[S], M],
        run: Callable[[Sequence[M]], Iterator[WriteResult]],
        done: list[WriteResult],
    ) -> None:
        good: dict[bytes, M] = {}
        for small in batch:
            try:
                one = make(small)
            except Rejected as refusal:
                done.append(WriteResult(small.memory.key, failure=refusal.failure))
                continue
            if one.base in good:  # the second change must see the result of the first
                done.extend(run([good.pop(one.base)]))
            good[one.base] = one
        if good:
            done.extend(run(list(good.values())))

    async def _large(
        self,
        pipeline: Pipeline,
        memory: Memory,
        make: Callable[[], M],
        parts: AsyncGenerator[Any],
        run: Callable[[Sequence[M]], Iterator[WriteResult]],
    ) -> WriteResult:
        """Stage the parts of a large memory on the server, then write or edit the memory.

        ``make`` returns an object that stages the parts.  ``run`` changes the memory.
        """
        try:
            with closing(make()) as staged:
                try:
                    async for part in parts:
                        await in_thread(pipeline, partial(staged.add, pipeline, part))
                    [result] = await in_thread(pipeline, lambda: list(run([staged])))
                finally:
                    await self._discard(staged)
                return result
        except Rejected as refusal:
            async for _ in parts:
                continue  # the next memories come from the same stream
            return WriteResult(memory.key, failure=refusal.failure)

    async def _discard(self, staged: PendingMemory | MemoryChanges) -> None:
        if staged.published:
            return
        with suppress(MemctlError):  # staged payloads expire by themselves
            async with self.server.pipeline() as pipeline:
                await in_thread(pipeline, partial(staged.payloads.discard, pipeline))

    def _target(self, memory: Memory) -> tuple[bytes, int | None]:
        """Return the base of a memory, and the TTL to set in milliseconds; None sets no TTL.

        The base is the prefix of all keys of the memory.

        Raises:
            Rejected: Redis cannot hold a memory of this name.
        """
        key = memory.key
        if key.part:
            raise Rejected(
                "bad-name", f"Redis holds one memory a session, not a part like {key.part!r}"
            )
        base = self.keys.base_or_none(key)
        if base is None:
            raise Rejected("bad-name", f"{key} has half of a surrogate pair in its name")
        if not self.catalogue.claim(base, key):
            raise Rejected("bad-name", f"the keys of {key} are those of another memory")
        return base, self.server.ttl_of(memory.ttl)
