"""Blobs that nothing refers to: neither a message of a store, nor an undo of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from memctl.errors import BadData, MemctlError, NotFound, Unavailable
from memctl.journal.changes import read_changes
from memctl.journal.runs import Runs
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import Page
from memctl.ops.change.change import RunOptions
from memctl.ops.lock import lock
from memctl.ops.observer import opened
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.references import names_in
from memctl.ops.report import DOCTOR
from memctl.ops.same_store import Locate, runs_at
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store


async def referred(store: Store, where: Selection | None = None) -> set[str]:
    """Return the names of all blobs to which the selected messages of a store may refer.

    ``where`` is the selection; None selects all messages.

    Raises:
        BadData: a memory is damaged, so it may refer to blobs that nobody sees.
        MemctlError: as ``Store.read``.
    """
    found: set[str] = set()
    async with aclosing(store.read(where or Selection())) as pages:
        async for page in pages:
            found |= await asyncio.to_thread(_names, page)
            del page  # free a large page before the next read
    if store.left_out.failures:
        key, failure = next(iter(store.left_out.failures.items()))
        raise BadData(f"{store.label}: {key} is damaged: {failure.message}", DOCTOR)
    return found


def _names(page: Page) -> set[str]:
    texts = [one.message for one in page.messages]
    others = [page.memory.extra, page.memory.summary or "", *(one.shape for one in page.messages)]
    return names_in(*texts, *map(_encoded, others))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def kept_by_undo(parts: Iterable[Path]) -> set[str]:
    """Return the names of all blobs to which messages refer after an undo of a run.

    ``parts`` are the files with the changes of the run.

    Raises:
        BadData: a file is damaged.
    """
    return {
        name
        for part in parts
        for edit in read_changes(part)
        for change in edit.changes
        if change.new is None
        for name in names_in(change.message, _encoded(change.was))
    }


@dataclass(eq=False)
class Referrers:
    """The stores that may need blobs besides those of a run, and which of them were asked.

    Of ``options``, the observer applies, and what names the stores of runs.  ``names`` returns the
    names of the stores, such as those of the configuration.  ``locate`` returns the location of a
    name.
    """

    options: RunOptions
    names: Callable[[], Iterable[str]] = tuple
    locate: Locate = parse
    asked: list[str] = field(default_factory=list)
    """The labels of the stores that were asked."""
    failed: dict[str, str] = field(default_factory=dict)
    """The reason why a store could not be asked, by its label."""

    async def find_unreferred(
        self, locations: Sequence[Location], blobs: Blobs, before: float, found: dict[str, int]
    ) -> None:
        """Add the sizes in bytes of the blobs that nothing refers to, by name, to ``found``.

        ``before`` is as for ``Blobs.sizes``.

        Raises:
            Unavailable: a further store cannot be asked.
            MemctlError: one of the stores at ``locations``, or the record of a run on it, cannot be
                read as a whole.
        """
        kept: set[str] = set()
        for location in locations:
            async with opened(make_store(location), self.options.observer) as store:
                kept |= await self._referred_on(store)
        kept |= await self._referred_elsewhere(locations)
        sizes = blobs.sizes(before).items()
        found |= {name: number for name, number in sizes if name not in kept}
        self._refuse_unasked()

    async def remove_unreferred(
        self,
        locations: Sequence[Location],
        blobs: Blobs,
        some: Mapping[str, int],
        removed: dict[str, int],
    ) -> None:
        """Remove those of ``some`` blobs that no store and no undo run needs.

        The stores at ``locations`` are locked meanwhile: a run of ``offload`` writes a blob before
        its message refers to the blob.  Each removed blob is added to ``removed``, with its size in
        bytes.  If a further store cannot be asked, all blobs stay.

        Raises:
            Busy: another run writes to a store.
            MemctlError: as ``find_unreferred``; or a blob cannot be removed.
        """
        kept: set[str] = set()
        async with AsyncExitStack() as stack:
            for location in {str(one.label): one for one in locations}.values():
                store = make_store(location, OpenMode.CHANGE)
                await stack.enter_async_context(opened(store, self.options.observer))
                await lock(store)
                kept |= await self._referred_on(store)
            kept |= await self._referred_elsewhere(locations)
            self._refuse_unasked()
            for name, number in some.items():
                if name not in kept:
                    await in_thread(partial(blobs.remove, name))
                    removed[name] = number

    def _refuse_unasked(self) -> None:
        if self.failed:
            label, why = next(iter(self.failed.items()))
            raise Unavailable(f"{label} could not be asked, and may need them: {why}")

    async def _referred_on(self, store: Store) -> set[str]:
        found = await referred(store)
        for kept in runs_at(store.location, self.options.locate):
            found |= kept_by_undo(Runs().parts(kept))
        return found

    async def _referred_elsewhere(self, locations: Sequence[Location]) -> set[str]:
        """Return the names of the blobs that further stores need.  A missing store needs none."""
        self.asked, self.failed = [one.label for one in locations], {}
        found: set[str] = set()
        for name in dict.fromkeys(self.names()):
            label = visible(name)
            try:
                location = self.locate(name)
                label = location.label
                if label in self.asked:
                    continue
                async with opened(make_store(location), self.options.observer) as store:
                    if not store.dialect.facts:
                        found |= await self._referred_on(store)
            except NotFound:
                continue
            except MemctlError as error:
                self.failed[label] = error.message
            else:
                self.asked.append(label)
        return found
