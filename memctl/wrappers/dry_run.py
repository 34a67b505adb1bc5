"""A target that is read, but not written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from memctl.errors import NotFound, Uninitialised
from memctl.model import Edit, MemoryInfo, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import Capability, Store
from memctl.streams import closing


class DryRun(Store):
    """Stands for a target: what is there is read, what is written is only counted.

    The target is opened without creating it; one that does not exist yet is read as empty.
    """

    kind = "dry-run"
    at_once = True

    def __init__(self, target: Store) -> None:
        super().__init__(target.location)
        self._target = target
        self._exists = False

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """Those of the target."""
        return self._target.capabilities

    async def open(self) -> None:
        try:
            await self._target.open()
            self._exists = True
        except (NotFound, Uninitialised):
            self._exists = False

    async def lock(self, holder: str) -> None:
        """Who only looks is in nobody's way."""

    async def close(self) -> None:
        if self._exists:
            await self._target.close()

    async def identity(self) -> str:
        return await self._target.identity() if self._exists else f"absent:{self.label}"

    @property
    def single(self) -> bool:  # type: ignore[override]
        """That of the target."""
        return self._target.single

    @property
    def ambiguous(self) -> bool:  # type: ignore[override]
        """That of the target."""
        return self._target.ambiguous

    def expect(self, keys: Iterable[MemoryKey]) -> None:
        self._target.expect(keys)

    async def memories(self, where: Selection) -> AsyncIterator[MemoryInfo]:
        if self._exists:
            async with closing(self._target.memories(where)) as infos:
                async for info in infos:
                    yield info

    async def read(self, where: Selection) -> AsyncIterator[Page]:
        if self._exists:
            async with closing(self._target.read(where)) as pages:
                async for page in pages:
                    yield page

    async def outlines(self, where: Selection) -> AsyncIterator[Page]:
        if self._exists:
            async with closing(self._target.outlines(where)) as pages:
                async for page in pages:
                    yield page

    async def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        """Counts what would be written and deleted; what the target would refuse it cannot tell."""
        held: dict[MemoryKey, int] = {}
        if mode is WriteMode.REPLACE:
            async with closing(self.memories(Selection())) as infos:
                held = {info.key: info.messages async for info in infos}
        messages = 0
        async for page in pages:
            messages = len(page.entries) + (messages if page.offset and messages else 0)
            if page.last:
                yield Tally(page.memory.key, messages, held.get(page.memory.key, 0))
                messages = 0

    async def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        """Counts what would be changed; whether a memory is still as it was seen it cannot tell."""
        written = deleted = 0
        async for edit in edits:
            gone = sum([change.new is None for change in edit.changes])
            written += len(edit.changes) - gone
            deleted += gone
            if edit.last:
                yield Tally(edit.memory.key, written, deleted)
                written = deleted = 0
