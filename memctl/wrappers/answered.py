"""Memories up to the calls that wait, for a target that would hold these as open calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

from memctl.dialects.live import WaitingCalls
from memctl.dialects.view import Dialect, ToolCallBlock
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.batching import paginate
from memctl.wrappers.converted import inside
from memctl.wrappers.wrapper import StoreWrapper


def answered(source: Store, target: Store) -> Store:
    """Return the source of a copy without calls that the target would hold as open calls.

    In another dialect, a conversion puts words in their places: then return the source itself.
    """
    target = inside(target)
    same = source.dialect.name == target.dialect.name
    if same and source.features.waits and not target.features.waits:
        return Answered(source)
    return source


def before_waiting(
    dialect: Dialect, memory: Memory, entries: list[StoredMessage]
) -> list[StoredMessage]:
    """Return the messages of a memory up to the first call that waits."""
    calls = WaitingCalls(dialect, memory)
    places: dict[str, int] = {}
    for at, entry in enumerate(entries):
        with suppress(ValueError, RecursionError):  # the copy reports it
            blocks = dialect.outline(entry.message).blocks
            calls.add(blocks)
            places |= {one.id: at for one in blocks if isinstance(one, ToolCallBlock)}
    return entries[: min((places[id] for id in calls.certain), default=None)]


class Answered(StoreWrapper):
    """A source whose memories end before the first call that waits.

    A later copy, after the answer, has the calls and their results.
    """

    count_marks = Store.count_marks

    async def outline(self, where: Selection) -> AsyncGenerator[Page]:
        waiting: set[MemoryKey] = set()
        async with aclosing(self._store.outline(where)) as pages:
            async for page in pages:
                if page.memory.waits:
                    waiting.add(page.memory.key)
                else:
                    yield page
        if waiting:
            async with aclosing(self.read(where.only(frozenset(waiting)))) as pages:
                async for page in pages:
                    yield page

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        held: list[StoredMessage] = []
        async with aclosing(self._store.read(where)) as pages:
            async for page in pages:
                if not page.memory.waits:
                    yield page
                    continue
                held += page.messages
                if page.last:
                    memory = replace(page.memory, waits=False)
                    kept = before_waiting(self.dialect, page.memory, held)
                    for cut in paginate(memory, kept, empty=False):
                        yield cut
                    held = []
                del page
