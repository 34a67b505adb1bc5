"""An operator who deletes, marks and restores while agents write: for the tests of edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from random import Random

from memctl.model import Change, Edit, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.store import Store

Back = Callable[[Page], list[Change]]
"""A function that restores the messages of a page."""


class Operator:
    """An operator who deletes hints, restores some and changes marks, in edits as of an undo."""

    def __init__(self, store: Store, hints: Selection, plain: Selection, back: Back) -> None:
        """``hints`` are deleted, ``plain`` messages marked; no ``back``, and a hint is gone."""
        self.done: Counter[str] = Counter()
        self._store = store
        self._hints = hints
        self._plain = plain
        self._back = back
        self._random = Random(7)
        self._gone: list[Edit] = []

    async def round(self) -> None:
        """Some edits of every memory."""
        await self.delete()
        if self._gone and self._random.random() < 0.3:
            await self._edit("put back", self._gone)
            self._gone = []
        if self._random.random() < 0.3:
            marked = [
                Edit(page.memory, [_other_mark(entry) for entry in page.messages])
                async for page in self._store.read(self._plain)
            ]
            await self._edit("marked", marked)

    async def delete(self) -> None:
        """Delete the first page of hints of each memory; they may come back."""
        pages = [page async for page in self._store.read(self._hints) if page.offset == 0]
        edits = [
            Edit(page.memory, [Change(entry.id, entry.marks) for entry in page.messages])
            for page in pages
        ]
        for key in await self._edit("deleted", edits):
            [page] = [page for page in pages if page.memory.key == key]
            if changes := self._back(page):
                self._gone.append(Edit(page.memory, changes))

    async def delete_all(self) -> None:
        """Delete all hints, several pages of a memory one by one, while no agent writes."""
        before = -1
        while left := sum([len(page.messages) async for page in self._store.read(self._hints)]):
            assert left != before, f"{left} hints cannot be deleted"
            before = left
            await self.delete()

    async def _edit(self, what: str, edits: list[Edit]) -> list[MemoryKey]:
        """Return the changed memories; half the time each is in an edit of its own."""
        if self._random.random() < 0.5:
            return [key for one in edits for key in await self._together(what, [one])]
        return await self._together(what, edits)

    async def _together(self, what: str, edits: list[Edit]) -> list[MemoryKey]:
        async def source() -> AsyncGenerator[Edit]:
            for one in edits:
                yield one

        keys = []
        async for result in self._store.edit(source()):
            if result.failure:
                assert result.failure.code == "changed", result
                self.done[f"{what}: changed"] += 1
            else:
                self.done[what] += 1
                keys.append(result.key)
        return keys


def _other_mark(entry: StoredMessage) -> Change:
    return Change(entry.id, entry.marks, () if "seen" in entry.marks else ("seen",))
