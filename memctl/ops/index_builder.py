"""Write the messages of a store into a search index: all messages, or only changed memories.

Outlines show which memories have changed.  These memories are read again.  Their blocks are
rewritten from the first differing block on.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from memctl.dialects.live import tags, understood
from memctl.index import folder
from memctl.index.database import FORMAT, Batch, BlockMark, IndexFile, MemoryRow, NewBlock
from memctl.index.entries import pack, source
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey, Page, StoredMessage
from memctl.ops.copy.compare import Comparability, Hasher, Precision
from memctl.ops.report import Progress
from memctl.ops.retry import undamaged_pages
from memctl.selection import Selection
from memctl.store import Store

BLOCK_MESSAGES = 32
BLOCK_BYTES = 64 * 1024
"""The limits of a block: a block is full at this number of messages, or at this number of bytes."""

_BATCH_BYTES = 4096 * 1024
"""The bytes of messages that a thread writes at once, while the next messages are read."""


class IndexBuilder:
    """A writer of the messages of a store into an index."""

    def __init__(self, store: Store, index: IndexFile, progress: Progress) -> None:
        self.new = 0
        self._store = store
        self._index = index
        self._progress = progress
        self._batch = Batch()
        self._writing: asyncio.Task[None] | None = None
        self._last_memory = index.last_number("memory")
        self._last_block = index.last_number("block")
        self._form = Precision.OUTLINE if store.features.cheap_outline else Precision.TEXT
        self._forgets = False
        """True if the file of the index must lose texts that the store has lost."""

    async def describe(self, location: Location, stamp: str | None) -> None:
        """Write the label, the place and the state of the store into the index.

        ``stamp`` is the stamp of the file of the store before the read; None if there is no file.
        """
        store = self._store
        self._index.describe(
            format=FORMAT,
            label=store.label.encode("utf-8", "backslashreplace").decode(),
            kind=location.kind,
            identity=folder.digest(await store.identity()),
            path=os.fsencode(location.path.absolute()) if location.path.name else None,
            facts=int(store.dialect.facts),
            noun=store.dialect.noun,
            zone=None if store.dialect.zone is None else str(store.dialect.zone),
            stamp=stamp,
            updated=time.time(),
            damaged=len(store.left_out.failures),
        )

    async def build(self, where: Selection) -> None:
        """Write the selected memories into an empty index.

        Raises:
            MemctlError: as ``Store.read``; or the disk has no room.
        """
        await self._write_memories(where, {})

    async def update(self, *, checksum: bool) -> None:
        """Write new and changed memories into the index, and remove deleted memories.

        With ``checksum``, all texts are read to find changes.  Without ``checksum``, outlines show
        the changes.

        Raises:
            MemctlError: as ``Store.read``; or the disk has no room.
            DamagedIndex: the index cannot be read.
        """
        changed, gone = await self._changes(checksum=checksum)
        if not (changed or gone):
            return
        # Read before a thread writes: only one of them can use the file at a time.
        known = {
            key: (row, self._index.marks_of(row.number)) for key, row in changed.items() if row
        }
        await in_thread(self._index.begin)
        self._batch.gone = gone
        self._forgets = bool(gone)
        await self._write_memories(Selection(keys=frozenset(changed)), known)
        if self._forgets:
            await in_thread(self._index.forget_removed, self._index.interrupt)
        await in_thread(self._index.commit)
        await in_thread(self._index.checkpoint)

    async def _changes(
        self, *, checksum: bool
    ) -> tuple[dict[MemoryKey, MemoryRow | None], list[int]]:
        """Return the memories to write, and the numbers of memories deleted from the store.

        Each memory to write has its row in the index, or None if the memory is new.
        """
        changed: dict[MemoryKey, MemoryRow | None] = {}
        seen = set()
        pages = undamaged_pages(self._store.read if checksum else self._store.outline, Selection())
        hasher = self.hasher()
        async with aclosing(pages):
            async for page in pages:
                if page.offset == 0:
                    hasher = self.hasher()
                hasher.add(page.messages)
                if page.last:
                    row = self._index.memory(page.memory.key)
                    if row is not None:
                        seen.add(row.number)
                    if checksum or row is None or row.digest != hasher.digest():
                        changed[page.memory.key] = row
        gone = [row.number for row in self._index.memories() if row.number not in seen]
        return changed, gone

    def hasher(self) -> Hasher:
        """Return a new running digest for the outline of one memory."""
        return Comparability(facts=self._store.dialect.facts).hasher(self._form)

    async def _write_memories(
        self, where: Selection, known: dict[MemoryKey, tuple[MemoryRow, list[BlockMark]]]
    ) -> None:
        memory: _Memory | None = None
        pages = understood(undamaged_pages(self._store.read, where), self._store.dialect)
        try:
            async with aclosing(pages):
                async for page in pages:
                    key = page.memory.key
                    if page.offset == 0 or memory is None:
                        self._abandon(memory)
                        memory = self._begin(key, known.pop(key, None))
                    memory.add(page)
                    self._progress.advance(
                        memories=int(page.last),
                        messages=len(page.messages),
                        size=sum([len(entry.message) for entry in page.messages]),
                    )
                    last = page.last
                    del page  # free a large page before the next read
                    if last:
                        memory.end()
                        memory = None
                    if self._batch.size >= _BATCH_BYTES:
                        await self._write()
            self._abandon(memory)
            # Deleted, or damaged, since the outline.
            self._batch.gone += [row.number for row, _ in known.values()]
            self._forgets |= bool(known)
            await self._write()
        finally:
            await self._written()

    def _abandon(self, memory: _Memory | None) -> None:
        """Remove a damaged memory from the index and from the batch."""
        if memory is not None:
            self._batch.added = [new for new in self._batch.added if new.memory != memory.number]
            self._batch.gone.append(memory.number)

    def _begin(self, key: MemoryKey, known: tuple[MemoryRow, list[BlockMark]] | None) -> _Memory:
        if known is None:
            self._last_memory += 1
            return _Memory(self, self._last_memory, key, [])
        return _Memory(self, known[0].number, key, known[1])

    async def _write(self) -> None:
        """Wait for the last write, then begin to write the batch."""
        await self._written()
        batch, self._batch = self._batch, Batch()
        writing = in_thread(partial(self._apply, batch), self._index.interrupt)
        self._writing = asyncio.create_task(writing)

    def _apply(self, batch: Batch) -> None:
        self._index.apply(batch, pack(batch))

    async def _written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    # A memory, block by block

    def add_block(
        self, memory: int, place: int, messages: list[StoredMessage], digest: bytes
    ) -> None:
        """Add a block of messages to the batch.

        ``memory`` is the number of the memory, ``place`` the index of the first message in it.
        """
        self._last_block += 1
        mark = BlockMark(self._last_block, place, len(messages), digest)
        sources = [source(message, self._store.dialect) for message in messages]
        self._batch.added.append(NewBlock(mark, memory, sources))
        self._batch.size += sum([len(one.message) for one in messages])
        self.new += len(messages)

    def remove_blocks(self, marks: list[BlockMark], *, forget: bool) -> None:
        """Remove blocks from the index.

        ``forget`` is True if texts of the blocks may be deleted from the store.
        """
        self._batch.removed += [mark.number for mark in marks]
        self.new -= sum(mark.messages for mark in marks)
        self._forgets |= forget

    def end_memory(self, row: MemoryRow) -> None:
        """Add the row of a memory to the batch, after its blocks."""
        self._batch.memories.append(row)


@dataclass
class _Memory:
    """Writes one memory into the index; unchanged first blocks stay."""

    builder: IndexBuilder
    number: int
    key: MemoryKey
    known: list[BlockMark]
    _kept: int = 0
    _place: int = 0
    _pending: list[StoredMessage] = field(default_factory=list)
    _size: int = 0

    def __post_init__(self) -> None:
        self._hasher = self.builder.hasher()

    def add(self, page: Page) -> None:
        """Add the next messages of the memory, with the marks that ``tags`` gives them."""
        self._hasher.add(page.messages)
        for entry, place in zip(page.messages, page.places, strict=True):
            marks = tags(entry.marks, page.unread.get(place, ""))
            self._pending.append(entry._replace(marks=marks))
            self._size += len(entry.message)
            if len(self._pending) >= BLOCK_MESSAGES or self._size >= BLOCK_BYTES:
                self._flush()

    def end(self) -> None:
        """Write the last block and the row of the memory, after all messages were added."""
        if self._pending:
            self._flush()
        left = self.known[self._kept :]
        if left:
            self.builder.remove_blocks(left, forget=True)
        row = MemoryRow(self.number, self.key, self._place, self._hasher.digest())
        self.builder.end_memory(row)

    def _flush(self) -> None:
        messages, self._pending, self._size = self._pending, [], 0
        place, self._place = self._place, self._place + len(messages)
        digest = _digest(messages)
        if self._kept < len(self.known):
            there = self.known[self._kept]
            if there[1:] == (place, len(messages), digest):
                self._kept += 1
                return
            # The following blocks move, unless this block only grew, or got new marks.
            grown = _digest(messages[: there.messages])[:_CONTENT] == there.digest[:_CONTENT]
            last = self._kept == len(self.known) - 1
            if there.place == place and grown and (last or there.messages == len(messages)):
                self.known.pop(self._kept)
                self.builder.remove_blocks([there], forget=False)
            else:
                left = self.known[self._kept :]
                del self.known[self._kept :]
                self.builder.remove_blocks(left, forget=True)
        self.builder.add_block(self.number, place, messages, digest)


_CONTENT = 8
"""The size in bytes of each half of a block's digest: of ids and texts, then of marks."""


def _digest(messages: list[StoredMessage]) -> bytes:
    """Return the digest of a block: a half for ids and texts, then a half for marks."""
    ids = "\0".join([entry.id for entry in messages]).encode("utf-8", "surrogatepass")
    texts = b"\0".join([entry.message for entry in messages])
    names = "\0".join([f"{len(entry.marks)}\0{chr(0).join(entry.marks)}" for entry in messages])
    content = sha256(ids + b"\0\0" + texts)
    marks = sha256(names.encode("utf-8", "surrogatepass"))
    return content.digest()[:_CONTENT] + marks.digest()[:_CONTENT]
