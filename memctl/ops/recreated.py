"""Evidence that a store is the one that a run changed, and was not recreated under its name.

A run that deletes messages records evidence: some of the messages that stayed, and in a database
server the generation of the database.  An undo that would insert messages looks for the evidence.
A restored backup has the messages, and a database whose messages were all deleted since has its
generation: one piece of evidence is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import islice

from memctl.errors import Conflict, MemctlError
from memctl.journal.runs import Run
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import Store

_WITNESSES = 3
"""The number of messages to record, each of a different memory."""
_LOOKS = 10
"""The maximum number of memories in which messages are looked for."""


async def record_evidence(store: Store, run: Run, changed: Iterable[MemoryKey]) -> None:
    """Add evidence of the store to the record of a run, right after the run changed the store.

    Evidence is the generation of the store and the ids of a few messages, by which an undo
    recognizes the store.  ``changed`` are memories that the run changed.  If these have no
    messages, messages of other memories are recorded; of a part of a run, only of its shard,
    because the other parts may delete theirs.  If the store does not answer, nothing is added.
    """
    run.generation = await _generation(store)
    with suppress(MemctlError):
        known = list(islice(changed, _LOOKS))
        for key in known:
            await _add_newest(store, run, key)
        if run.witnesses:
            return
        looks = _LOOKS
        async with aclosing(store.headers(Selection(shard=store.shard))) as memories:
            async for memory in memories:
                if memory.key in known:
                    continue
                await _add_newest(store, run, memory.key)
                looks -= 1
                if not looks or len(run.witnesses) == _WITNESSES:
                    return


async def _generation(store: Store) -> str:
    """Return ``Store.generation``; empty if the login may not see it."""
    with suppress(MemctlError):
        return await store.generation()
    return ""


async def _add_newest(store: Store, run: Run, key: MemoryKey) -> None:
    """Record the newest message of a memory, which the next deletions probably leave.

    A message that does not contain its id is left out: its id may depend on the time zone.
    """
    if len(run.witnesses) == _WITNESSES:
        return
    async with aclosing(store.read(Selection(keys=frozenset({key}), last=1))) as pages:
        async for page in pages:
            stored = [one.id for one in page.messages if one.id.encode() in one.message]
            run.witnesses += [[*key, id] for id in stored]


async def refuse_recreated(store: Store, undone: Run) -> None:
    """Refuse an undo in a store that was recreated since the run ``undone``.

    A run without recorded evidence is not refused.

    Raises:
        Conflict: the store has none of the recorded evidence.
        MemctlError: as ``Store.read``.
    """
    if not (undone.witnesses or undone.generation):
        return
    if undone.generation and await _generation(store) == undone.generation:
        return
    for *names, id in undone.witnesses:
        where = Selection(keys=frozenset({MemoryKey(*names)}), ids=frozenset({id}))
        async with aclosing(store.read(where)) as pages:
            async for page in pages:
                if page.messages:
                    return
    raise Conflict(
        f"{store.label} holds nothing that the run {undone.id} left there: it seems to have been "
        "recreated since",
        "undo later runs first; if it is the right store all the same, name it without a "
        "password: memctl undo RUN --store STORE",
    )
