"""A store with another one inside: what a wrapper does not change is the inner one's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from memctl.model import Edit, Entry, Fault, Memory, MemoryInfo, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import Capability, Matches, Note, Record, Store


class Around(Store):
    """Passes everything on."""

    kind = "around"

    def __init__(self, store: Store) -> None:
        self._store = store
        super().__init__(store.location, create=store.create)
        self.change = store.change
        self.kind = store.kind  # type: ignore[misc]
        self.single = store.single  # type: ignore[misc]
        self.ambiguous = store.ambiguous  # type: ignore[misc]
        self.ticking = store.ticking  # type: ignore[misc]
        self.picks = store.picks  # type: ignore[misc]
        self.brief = store.brief  # type: ignore[misc]
        self.at_once = store.at_once  # type: ignore[misc]
        self.mends = store.mends  # type: ignore[misc]

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """Those of the inner store."""
        return self._store.capabilities

    async def open(self) -> None:
        self._store.origin = self.origin
        await self._store.open()
        self.warnings = self._store.warnings

    async def close(self) -> None:
        await self._store.close()

    async def lock(self, holder: str) -> None:
        await self._store.lock(holder)

    async def identity(self) -> str:
        return await self._store.identity()

    async def prove(self, where: Selection) -> None:
        await self._store.prove(where)

    async def keeps_summary(self, key: MemoryKey) -> bool:
        return await self._store.keeps_summary(key)

    async def is_empty(self) -> bool:
        return await self._store.is_empty()

    def expect(self, keys: Iterable[MemoryKey]) -> None:
        self._store.expect(keys)

    def memories(self, where: Selection) -> AsyncIterator[MemoryInfo]:
        return self._store.memories(where)

    def headers(self, where: Selection) -> AsyncIterator[Memory]:
        return self._store.headers(where)

    def repeats(self, where: Selection) -> AsyncIterator[tuple[Memory, int]]:
        return self._store.repeats(where)

    def read(self, where: Selection) -> AsyncIterator[Page]:
        return self._store.read(where)

    def pick(self, where: Selection) -> AsyncIterator[Page]:
        return self._store.pick(where)

    def search(self, where: Selection, matches: Matches) -> AsyncIterator[tuple[MemoryKey, Entry]]:
        return self._store.search(where, matches)

    def examine(self) -> None:
        self._store.examine()

    def faults(self, where: Selection) -> AsyncIterator[Fault]:
        return self._store.faults(where)

    async def mend(self, code: str, where: Selection, note: Note) -> int:
        return await self._store.mend(code, where, note)

    async def unmend(self, records: AsyncIterator[Record]) -> int:
        return await self._store.unmend(records)

    def outlines(self, where: Selection) -> AsyncIterator[Page]:
        return self._store.outlines(where)

    def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        self._store.origin = self.origin
        return self._store.write(pages, mode)

    def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        return self._store.edit(edits)
