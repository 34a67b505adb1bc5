"""The common base of actions on messages: it counts the selection and writes the archive."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import replace
from typing import TypeVar

from memctl.errors import Loss, NotFound, Unavailable
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.change.change import ChangeRun, RunOptions
from memctl.ops.observer import opened
from memctl.ops.report import Progress
from memctl.ops.retain.actions import Acted, ArchivingAction, Found, RetentionAction
from memctl.ops.retry import leaving_damaged
from memctl.ops.select import most_deletions, whole_memories
from memctl.registry import make_store
from memctl.store import OpenMode, Store
from memctl.text.numbers import count

T = TypeVar("T")


class RunAction(RetentionAction):
    """An action that is carried out by a ``ChangeRun``."""

    def opened(self, mode: OpenMode) -> AbstractAsyncContextManager[Store]:
        """Return a context manager that opens the store of the policy."""
        return opened(make_store(self.location, mode), self.around.observer)

    def record(self, archive: Location | None = None) -> Run:
        """Return the record of a new run, which may act on an archive, for the history."""
        record = self.around.record()
        record.policy = self.policy.name
        record.archive = "" if archive is None else archive.label
        return record

    async def execute(self, run: ChangeRun, acted: Acted, left: Collection[MemoryKey] = ()) -> None:
        """Carry out a run that acts on an archive; add what was done to ``acted``.

        ``left`` are the memories that the run leaves alone, filled in meanwhile.  Memories that
        agents changed again and again are left for the next run, too.

        Raises:
            MemctlError: as ``ChangeRun.execute``.
        """
        run.stop = self.around.stop
        try:
            with run.recorded():
                async with self.opened(run.mode) as store:
                    await run.execute(store)
        finally:
            done, failures = run.report.done, run.report.failures
            changed = {key for key, failure in failures if failure.code == "changed"}
            acted.memories += done.memories
            acted.messages += done.deleted
            acted.left += len(changed.union(left))
            acted.failures += [item for item in failures if item[0] not in changed]
            acted.runs += [run.id] if run.id is not None else []

    def options(self, *, dry_run: bool = False) -> RunOptions:
        """Return the options of the run."""
        around = self.around
        return RunOptions(
            *(self.policy.backup, dry_run),
            keep=around.keep,
            observer=around.observer,
            holds=around.holds,
        )


class MessageAction(RunAction, ArchivingAction):
    """An action on the messages of a store."""

    @abstractmethod
    def pages(self, store: Store, found: Found) -> AsyncGenerator[Page]:
        """Yield what the policy selects as pages for the archive, without held memories.

        The held memories are added to ``found.held``.  A memory without a selected message has no
        page.

        Raises:
            DamagedMemory: a memory is damaged; the next call leaves the memory out.
            MemctlError: as ``Store.read``.
        """

    async def plan(self) -> Found:
        async with self.opened(OpenMode.READ) as store:
            store.refuse_changes()
            return await self._counted(store, None)

    async def export(self, archive: Location) -> Found:
        if not archive.url and not archive.path.parent.is_dir():
            raise Unavailable(f"the folder of {archive.label} does not exist", "create it first")
        async with self.opened(OpenMode.READ) as store:
            return await self._counted(store, archive)

    async def _counted(self, store: Store, archive: Location | None) -> Found:
        """Count what the policy selects, and write it to the archive, if there is one."""
        await store.check_integrity(whole_memories(self.policy.where), complete=True)
        limit = self.policy.limit
        most = None if limit is None else await most_deletions(store, self.policy.where, limit)
        description = "planning" if archive is None else "archiving"

        async def attempt() -> Found:
            found = Found(store.dialect.noun)
            with self.around.observer.progress(description) as progress:
                pages = self._watched(store, found, most, progress)
                if archive is None:
                    async with aclosing(pages):
                        async for _ in pages:
                            pass
                else:
                    await write_archive(store, archive, pages)
            return found

        found = await leaving_damaged(attempt)
        found.damaged = dict(store.left_out.failures)
        return found

    async def _watched(
        self, store: Store, found: Found, most: float | None, progress: Progress
    ) -> AsyncGenerator[Page]:
        """Yield the selected pages, counted.

        Raises:
            Loss: more than ``most`` messages are selected.
        """
        async with aclosing(self.pages(store, found)) as pages:
            async for page in pages:
                for entry in page.messages:
                    time: str | None = None
                    with suppress(ValueError):  # a message that is not JSON
                        time = store.dialect.role_and_time(entry.message)[1]
                    found.add(len(entry.message), store.dialect.moment(time))
                found.memories += page.last
                if most is not None and found.messages > most:
                    raise Loss(
                        f"more than max_delete {self.policy.limit_text} of {store.label} would be "
                        f"removed: at least {count(found.messages, found.noun)}",
                        "nothing was removed; preview with --dry-run",
                    )
                progress.advance(memories=int(page.last), messages=len(page.messages))
                yield page
                del page  # free a large page before the next read


def in_pages(memory: Memory, messages: Iterable[StoredMessage]) -> Iterable[Page]:
    """Yield messages of a memory as pages; no page if there are no messages."""
    held: list[StoredMessage] = []
    offset = size = 0
    for message in messages:
        if held and (len(held) >= PAGE_ENTRIES or size + len(message.message) > PAGE_BYTES):
            yield Page(memory, held, offset, last=False)
            offset += len(held)
            held, size = [], 0
        held.append(message)
        size += len(message.message)
    if held:
        yield Page(memory, held, offset)


async def write_archive(source: Store, archive: Location, pages: AsyncGenerator[Page]) -> None:
    """Write pages of an open store to a new archive; without a page, there is no archive.

    Raises:
        Unavailable: the archive cannot be written.
        MemctlError: as the generator ``pages``.
    """
    async with aclosing(pages):
        first = await anext(pages, None)
        if first is None:
            return
        target = make_store(archive, OpenMode.CREATE)
        target.adopt(source.dialect, source.embedding)
        target.origin = source.label
        try:
            async with target, aclosing(target.write(_followed(first, pages))) as results:
                async for result in results:
                    if result.failure is not None:
                        raise Unavailable(
                            f"{archive.label} cannot be written: {result.failure.message}"
                        )
        except NotFound as error:
            raise Unavailable(error.message, error.hint) from error


async def _followed(first: Page, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    yield _archived(first)
    del first
    async for page in pages:
        yield _archived(page)
        del page


def _archived(page: Page) -> Page:
    if page.memory.version is None:
        return page
    return replace(page, memory=replace(page.memory, version=None))
