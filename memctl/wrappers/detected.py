"""A store whose layout is found by what is in it, where its URL does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memctl.model import MemoryKey
from memctl.store import OpenMode, Store
from memctl.wrappers.wrapper import StoreWrapper


class DetectedStore(StoreWrapper):
    """The store of the usual layout until it is opened; then that of the layout that is there."""

    def __init__(self, usual: Store, choose: Callable[[str], Store]) -> None:
        """``choose`` makes the store of a layout that ``Store.other_layout`` names."""
        super().__init__(usual)
        self._choose = choose
        self._names: list[MemoryKey] = []

    async def open(self, mode: OpenMode) -> None:
        await super().open(mode)
        try:
            layout = await self._store.other_layout()
        except BaseException:
            await self._store.close()
            raise
        if layout is None:
            return
        await self._store.close()
        self._store = self._choose(layout)
        self.kind = self._store.kind  # type: ignore[misc]
        self.location = self._store.location
        self.left_out = self._store.left_out
        self._store.resolve_names(self._names)
        if self.skips_damage:
            self._store.skip_damage()
        await super().open(mode)

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        keys = list(keys)
        self._names += keys
        super().resolve_names(keys)
