"""Find out whether a change is stored whose answer was lost.

A connection may end after the server stored a change and before its answer arrives.  A store
changes each memory completely or not at all, so the messages tell whether a memory was changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import TypeVar

from memctl.errors import Lost
from memctl.machine.concurrency import backoff
from memctl.model import Edit, MemoryKey
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count

T = TypeVar("T")

ATTEMPTS = 4
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 4.0
"""The first and the longest pause between two attempts to reach the store, in seconds."""

_States = dict[MemoryKey, Counter[tuple[str, tuple[str, ...]]]]
"""The number of messages in each memory, by id and sorted marks."""


async def look_again(store: Store, edits: Iterable[Edit]) -> dict[MemoryKey, bool]:
    """Return for each memory of ``edits`` whether it is changed, after a lost answer of the store.

    A memory is missing from the result if the store shows neither the old nor the new state.

    Raises:
        Lost: the store cannot be reached; it was tried several times.
        MemctlError: as ``Store.outline``.
    """
    before: _States = defaultdict(Counter)
    after: _States = defaultdict(Counter)
    for edit in edits:
        key = edit.memory.key
        for change in edit.changes:
            if change.old is not None:
                before[key][change.id, tuple(sorted(change.old))] += 1
            if change.new is not None:
                after[key][change.id, tuple(sorted(change.new))] += 1
    keys = frozenset(before) | frozenset(after)
    ids = {key: {id for id, _ in (*before[key], *after[key])} for key in keys}
    found = await ask_again(lambda: _held(store, ids))
    return {
        key: found[key] == after[key]
        for key in keys
        if before[key] != after[key] and found[key] in (before[key], after[key])
    }


async def ask_again(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``ask``, which is called again while the store cannot be reached.

    Raises:
        Lost: the store could not be reached in several attempts.
        MemctlError: as ``ask``.
    """
    for failures in range(1, ATTEMPTS):
        with suppress(Lost):
            return await ask()
        await asyncio.sleep(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE))
    return await ask()


def unclear(error: Lost, memories: int) -> Lost:
    """Return the error that it is unknown whether a number of memories were changed."""
    return Lost(
        f"{error.message}; not known whether {count(memories, 'memory')} changed",
        "run memctl again when the store can be reached: it changes only what is left",
    )


async def _held(store: Store, ids: dict[MemoryKey, set[str]]) -> _States:
    found: _States = defaultdict(Counter)
    async with aclosing(store.outline(Selection(keys=frozenset(ids)))) as pages:
        async for page in pages:
            key = page.memory.key
            found[key].update(
                (entry.id, tuple(sorted(entry.marks)))
                for entry in page.messages
                if entry.id in ids[key]
            )
    return found
