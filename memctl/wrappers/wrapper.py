"""The base class of wrappers: stores that modify the behaviour of a store inside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Any

from memctl.dialects.view import Dialect
from memctl.model import Edit, Embedding, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Features, OpenMode, Store


class StoreWrapper(Store):
    """A store that forwards every call to the store inside; subclasses override methods.

    A subclass that changes all answers overrides ``ask`` and ``stream``, through which they come.
    ``snapshot`` is not forwarded: the base class builds it from the wrapper's own ``read``.
    """

    kind = "wrapper"

    def __init__(self, store: Store) -> None:
        super().__init__(store.location, store.mode)
        self._store = store
        self.shard = store.shard
        self.kind = store.kind
        self.warnings = store.warnings
        self.details = store.details
        self.left_out = store.left_out

    async def ask(self, name: str, *args: Any, **named: Any) -> Any:
        """Return the answer of the coroutine ``name`` of the store inside."""
        return await getattr(self._store, name)(*args, **named)

    def stream(self, name: str, *args: Any, **named: Any) -> AsyncGenerator[Any]:
        """Return the items that the method ``name`` of the store inside yields."""
        found: AsyncGenerator[Any] = getattr(self._store, name)(*args, **named)
        return found

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the store inside."""
        return self._store.features

    @property
    def dialect(self) -> Dialect:  # type: ignore[override]
        """The dialect of the store inside."""
        return self._store.dialect

    @property
    def embeds(self) -> str:  # type: ignore[override]
        """The field of a fact's metadata that the store inside embeds."""
        return self._store.embeds

    @property
    def embedding(self) -> Embedding | None:  # type: ignore[override]
        """The origin and size of the vectors in the store inside."""
        return self._store.embedding

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        self._store.origin = self.origin
        self._store.shard = self.shard
        await self.ask("open", mode)
        self.kind = self._store.kind
        self.location = self._store.location
        self.warnings = self._store.warnings
        self.details = self._store.details
        self.left_out = self._store.left_out

    async def close(self) -> None:
        await self._store.close()

    async def lock(self, owner: str) -> None:
        self._store.shard = self.shard
        await self.ask("lock", owner)

    async def check_integrity(self, where: Selection, *, complete: bool = False) -> None:
        await self._store.check_integrity(where, complete=complete)

    def skip_damage(self) -> None:
        super().skip_damage()
        self._store.skip_damage()

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return self.stream("read", where)

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        self._store.origin = self.origin
        return self._store.write(pages, mode)

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return self._store.edit(edits)


def _asking(name: str) -> Callable[..., Any]:
    @wraps(getattr(Store, name))
    async def asking(self: StoreWrapper, *args: Any, **named: Any) -> Any:
        return await self.ask(name, *args, **named)

    return asking


def _streaming(name: str) -> Callable[..., Any]:
    @wraps(getattr(Store, name))
    def streaming(self: StoreWrapper, *args: Any, **named: Any) -> Any:
        return self.stream(name, *args, **named)

    return streaming


def _passing(name: str) -> Callable[..., Any]:
    @wraps(getattr(Store, name))
    def passing(self: StoreWrapper, *args: Any) -> Any:
        return getattr(self._store, name)(*args)

    return passing


for _make, _names in (
    (
        _asking,
        "waits_for identity generation unrestorable side_effects missing_right keeps_summary "
        "settle_layout other_layout is_empty count other_contents window search find_places "
        "find_project forget_replaced is_alone",
    ),
    (
        _streaming,
        "list_memories survey headers list_keys duplicates count_marks read_with_anchors "
        "find_messages outline names erase rename rename_project rewrite_texts",
    ),
    (
        _passing,
        "unlock adopt refuse_changes refuse_edits name_refusal resolve_names maintenance "
        "prunable refuse_erase refuse_rename foreseen about_to_commit "
        "text_files selected_files text_refusal",
    ),
):
    for _name in _names.split():
        setattr(StoreWrapper, _name, _make(_name))
