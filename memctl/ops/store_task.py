"""The work on one of several stores: an error of it does not stop the work on the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from memctl.errors import Interrupted, MemctlError
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.ops.change.change import RunOptions
from memctl.ops.observer import opened
from memctl.registry import make_store
from memctl.store import OpenMode, Store


@dataclass(eq=False)
class StoreTask:
    """The work on a store, which opens it as often as it is needed."""

    place: Location | Store
    """The location of the store, or the open store, which stays open."""
    record: Run
    """Names the store, for the receipt."""
    options: RunOptions
    error: MemctlError | None = field(init=False, default=None)
    """The error that stopped the work."""
    begun: bool = field(init=False, default=False)
    """True as soon as data of the store may have changed."""

    @property
    def location(self) -> Location:
        """The location of the store."""
        return self.place.location if isinstance(self.place, Store) else self.place

    def opened(self, mode: OpenMode) -> AbstractAsyncContextManager[Store]:
        """Return a context manager that opens the store, unless it is open already."""
        if isinstance(self.place, Store):
            return nullcontext(self.place)
        return opened(make_store(self.place, mode), self.options.observer)

    async def attempt(self, mode: OpenMode, work: Callable[[Store], Awaitable[None]]) -> None:
        """Open the store and do the work on it; keep an error in ``error`` instead of raising it.

        Do nothing if ``error`` is already set.

        Raises:
            Interrupted: a signal came.
        """
        if self.error is not None:
            return
        try:
            async with self.opened(mode) as store:
                await work(store)
        except Interrupted:
            raise
        except MemctlError as error:
            self.fail(error)

    def fail(self, error: MemctlError) -> None:
        """Note the error that stops the work."""
        self.error = error
