"""The stand-in for a target in a dry run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from memctl.errors import NotFound, Uninitialised
from memctl.model import Edit, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import WRITTEN_ONCE, Features, OpenMode, Store
from memctl.wrappers.wrapper import StoreWrapper


class DryRun(StoreWrapper):
    """A wrapper that reads the target of a run, but counts writes and edits instead of making them.

    A dry run does not create the target.  A missing target reads as an empty store.
    """

    def __init__(self, target: Store, *, is_open: bool = False) -> None:
        """``is_open`` is True if the target is open already."""
        super().__init__(target)
        self.mode = OpenMode.READ
        self._exists = is_open

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the target, without repairs and without cheap outlines and positions."""
        return replace(
            self._store.features,
            ttl_counts_down=True,
            cheap_outline=False,
            cheap_positions=False,
            commits_at_end=True,
            repairs=frozenset(),
        )

    async def open(self, mode: OpenMode) -> None:
        try:
            await super().open(mode)
            self._exists = True
            if not self.features.added_only:
                self.refuse_changes()
        except (NotFound, Uninitialised):
            self._exists = False

    async def lock(self, owner: str) -> None:
        """Take no lock: a dry run changes nothing."""

    async def close(self) -> None:
        if self._exists:
            await super().close()

    async def identity(self) -> str:
        return await super().identity() if self._exists else f"absent:{self.label}"

    async def is_empty(self) -> bool:
        return await super().is_empty() if self._exists else True

    def stream(self, name: str, *args: Any, **named: Any) -> AsyncGenerator[Any]:
        return super().stream(name, *args, **named) if self._exists else _nothing()

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        return await super().window(key, start, count) if self._exists else None

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Count the messages to write and to delete.

        A memory whose name the target refuses fails, as in a real run.  Only a real run shows what
        else the target refuses.
        """
        held: dict[MemoryKey, int] = {}
        if mode is WriteMode.REPLACE:
            async with aclosing(self.list_memories(Selection(shard=self.shard))) as infos:
                held = {info.key: info.messages async for info in infos}
        messages = offset = 0
        async for page in pages:
            if not (page.offset and messages):
                messages, offset = 0, page.offset
            messages += len(page.messages)
            if page.last:
                key = page.memory.key
                failure = self.name_refusal(key)
                if self.features.added_only and (offset or key in held):
                    failure = WRITTEN_ONCE
                if failure is None:
                    yield WriteResult(key, messages, held.get(key, 0))
                else:
                    yield WriteResult(key, failure=failure)
                messages = 0

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Yield results with the numbers of changes to make; change nothing.

        Changes by other programs since the last read are not detected.
        """
        written = deleted = 0
        async for edit in edits:
            gone = sum([change.new is None for change in edit.changes])
            written += len(edit.changes) - gone
            deleted += gone
            if edit.last:
                if self.features.added_only:
                    yield WriteResult(edit.memory.key, failure=WRITTEN_ONCE)
                else:
                    yield WriteResult(edit.memory.key, written, deleted)
                written = deleted = 0


async def _nothing() -> AsyncGenerator[Any]:
    """Yield nothing, as a target that does not exist."""
    return
    yield
