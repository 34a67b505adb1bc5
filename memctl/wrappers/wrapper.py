"""The base class of wrappers: stores that modify the behaviour of a store inside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager

from memctl.checkpoints import Checkpoints
from memctl.dialects.view import Dialect
from memctl.errors import Failure
from memctl.model import (
    Edit,
    Embedding,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    ServiceHit,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Deletion, Features, Foreseeing, Maintenance, Matches, OpenMode, Store
from memctl.storekit.edits import Snapshot


class StoreWrapper(Store):
    """A store that forwards every call to the store inside; subclasses override methods."""

    kind = "wrapper"

    def __init__(self, store: Store) -> None:
        super().__init__(store.location, store.mode)
        self._store = store
        self.shard = store.shard
        self.kind = store.kind
        self.warnings = store.warnings
        self.details = store.details
        self.left_out = store.left_out

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the store inside."""
        return self._store.features

    @property
    def dialect(self) -> Dialect:  # type: ignore[override]
        """The dialect of the store inside."""
        return self._store.dialect

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        self._store.origin = self.origin
        self._store.shard = self.shard
        await self._store.open(mode)
        self.kind = self._store.kind
        self.location = self._store.location
        self.warnings = self._store.warnings
        self.details = self._store.details
        self.left_out = self._store.left_out

    async def close(self) -> None:
        await self._store.close()

    async def lock(self, owner: str) -> None:
        self._store.shard = self.shard
        await self._store.lock(owner)

    def unlock(self) -> None:
        self._store.unlock()

    @contextmanager
    def foreseen(self, tell: Foreseeing) -> Iterator[None]:
        with self._store.foreseen(tell):
            yield

    async def identity(self) -> str:
        return await self._store.identity()

    async def generation(self) -> str:
        return await self._store.generation()

    async def check_integrity(self, where: Selection, *, complete: bool = False) -> None:
        await self._store.check_integrity(where, complete=complete)

    async def unrestorable(self, where: Selection) -> str:
        return await self._store.unrestorable(where)

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        return await self._store.side_effects(where, deletion)

    async def missing_right(self, key: MemoryKey | None) -> str:
        return await self._store.missing_right(key)

    async def keeps_summary(self, key: MemoryKey) -> bool:
        return await self._store.keeps_summary(key)

    async def settle_layout(self) -> bool:
        return await self._store.settle_layout()

    async def other_layout(self) -> str | None:
        return await self._store.other_layout()

    async def snapshot(self, key: MemoryKey) -> Snapshot:
        return await super().snapshot(key)  # not forwarded: built from the wrapper's own ``read``

    @property
    def embeds(self) -> str:  # type: ignore[override]
        """The field of a fact's metadata that the store inside embeds."""
        return self._store.embeds

    @property
    def embedding(self) -> Embedding | None:  # type: ignore[override]
        """The origin and size of the vectors in the store inside."""
        return self._store.embedding

    def adopt(self, dialect: Dialect, embedding: Embedding | None = None) -> None:
        self._store.adopt(dialect, embedding)

    async def is_empty(self) -> bool:
        return await self._store.is_empty()

    async def count(self, where: Selection) -> tuple[int, int] | None:
        return await self._store.count(where)

    def refuse_changes(self) -> None:
        self._store.refuse_changes()

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return self._store.name_refusal(key)

    async def other_contents(self) -> str:
        return await self._store.other_contents()

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        self._store.resolve_names(keys)

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        return self._store.list_memories(where)

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._store.headers(where)

    def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self._store.list_keys(where)

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        return await self._store.window(key, start, count)

    def duplicates(self, where: Selection) -> AsyncGenerator[tuple[Memory, int]]:
        return self._store.duplicates(where)

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return self._store.read(where)

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        return self._store.read_with_anchors(where)

    async def search(self, query: str, where: Selection, top: int) -> list[ServiceHit]:
        return await self._store.search(query, where, top)

    def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        return self._store.find_messages(where, matches)

    async def find_places(self, key: MemoryKey, ids: frozenset[str]) -> frozenset[str]:
        return await self._store.find_places(key, ids)

    def skip_damage(self) -> None:
        super().skip_damage()
        self._store.skip_damage()

    def maintenance(self) -> Maintenance:
        return self._store.maintenance()

    def checkpoints(self) -> Checkpoints:
        return self._store.checkpoints()

    def refuse_erase(self) -> None:
        self._store.refuse_erase()

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._store.outline(where)

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        self._store.origin = self.origin
        return self._store.write(pages, mode)

    def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self._store.names(where)

    def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        return self._store.erase(where)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return self._store.edit(edits)
