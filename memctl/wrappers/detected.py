"""A store that finds its layout in the stored data if the URL names no layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.errors import NotFound, Uninitialised, UsageError
from memctl.model import MemoryKey
from memctl.store import OpenMode, Store
from memctl.wrappers.wrapper import StoreWrapper

_USUAL = "memory"
"""The ``?layout=`` to assume if neither the URL nor the stored data tell the layout."""


class DetectedStore(StoreWrapper):
    """A wrapper of the store of the usual layout.

    If the data have another layout, ``open`` replaces the store by a store of that layout.
    """

    def __init__(
        self, usual: Store, choose: Callable[[str], Store], known: Collection[str]
    ) -> None:
        """``usual`` is the store of the usual layout, and ``known`` the options of its URL.

        ``choose`` makes the store of a layout that ``Store.other_layout`` names.
        """
        super().__init__(usual)
        self._choose = choose
        self._known = known
        self._names: list[MemoryKey] = []
        self._is_settled = False
        """True if ``settle_layout`` found the layout before ``open``."""

    async def open(self, mode: OpenMode) -> None:
        unknown = sorted(self.location.options.keys() - self._known)
        if unknown and not self._is_settled:
            await self._refuse_usual(mode, unknown[0])
        await super().open(mode)
        if self._is_settled:
            return
        try:
            layout = await self._store.other_layout()
        except BaseException:
            await self._store.close()
            raise
        if layout is None:
            options = self.location.options | {"layout": _USUAL}
            self.location = replace(self.location, options=options)
            return
        await self._store.close()
        self._take(layout)
        await super().open(mode)

    async def _refuse_usual(self, mode: OpenMode, option: str) -> None:
        """Refuse an option of the URL if the usual layout, which does not have it, is to be opened.

        Raises:
            UsageError: the data have the usual layout, or ``mode`` would create it.
            MemctlError: as ``Store.open``.
        """
        usual = self._store
        try:
            await usual.open(OpenMode.READ)
        except (NotFound, Uninitialised):
            if not mode.creates:
                raise
        else:
            try:
                if await usual.other_layout() is not None:
                    return
            finally:
                await usual.close()
        hint = "leave it out, or name another layout with layout="
        if option == "owner":
            hint += "; for the target of a copy, write owner= at the source"
        raise UsageError(f"layout={_USUAL} has no option {option}=", hint)

    async def settle_layout(self) -> bool:
        usual = self._store
        try:
            await usual.open(OpenMode.READ)
        except (NotFound, Uninitialised):  # there is no data yet
            return False
        try:
            layout = await usual.other_layout()
        finally:
            await usual.close()
        found = None if layout is None else self._choose(layout)
        if layout is None or found is None:
            return False
        if found.dialect.name != AGENTSCOPE2.name and not found.features.parts:
            return False  # the found layout holds no more than the usual layout
        self._take(layout)
        self._is_settled = True
        return True

    def _take(self, layout: str) -> None:
        self._store = self._choose(layout)
        self.kind = self._store.kind
        self.location = self._store.location
        self.left_out = self._store.left_out
        self._store.resolve_names(self._names)
        if self.skips_damage:
            self._store.skip_damage()

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        keys = list(keys)
        self._names += keys
        super().resolve_names(keys)
