"""Find messages marked ``compressed`` whose summaries are not in the store.

AgentScope keeps the summary of compressed messages in the session state of the agent, apart from
SQL, Redis and Tablestore memories (``memory/_working_memory`` of 1.0.21).
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import aclosing, suppress
from functools import partial
from typing import NamedTuple

from memctl.dialects.view import COMPRESSED, SUMMARY
from memctl.layouts.files import SUFFIX, stem_of, unfit
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.ops.copy.compare import share_names
from memctl.ops.retry import leaving_damaged
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count

KEEP_STATES = "keep the session states, or export the store again together with them"
"""The remedy for copies of memories without their summaries.

The store can hold summaries, so it takes no session states besides.
"""
_SUMMARY = re.compile(rb'"_compressed_summary"\s*:\s*"[^"]')


class MissingSummaries(NamedTuple):
    """The selected messages marked ``compressed`` in memories whose summaries are missing."""

    messages: int
    memories: int
    example: MemoryKey

    def text(self, store: Store) -> str:
        """Return a sentence about the messages of the store."""
        return (
            f"{store.label} has {count(self.messages, 'message')} marked {COMPRESSED!r}, and not "
            f"their summary ({count(self.memories, 'memory')}, such as {self.example})"
        )

    def warning(self, store: Store) -> str:
        """Return the warning for a run that reads these messages from the store."""
        return (
            f"{self.text(store)}: without it, an agent has forgotten them; "
            f"{remedy(store, self.example)}"
        )


async def missing_summaries(
    store: Store, where: Selection, target: Store | None = None
) -> MissingSummaries | None:
    """Return the messages whose summaries are missing; None without such messages.

    A summary in ``target``, the open target of a copy, is not missing: the target keeps it.

    A store without messages marked ``compressed`` is not read whole, if it finds marks quickly.

    Raises:
        MemctlError: as ``Store.read``.
    """
    features = store.features
    marks = features.marks
    if (
        not store.dialect.holds_marks
        or store.dialect.has_logs  # the summary is in the session, with its log
        or (marks is not None and COMPRESSED not in marks)
        or (features.summaries and not features.summaries_elsewhere)
        or COMPRESSED in where.exclude_marks
    ):
        return None
    return await leaving_damaged(partial(_found, store, where, target))


async def _found(store: Store, where: Selection, target: Store | None) -> MissingSummaries | None:
    compressed: Counter[MemoryKey] = Counter()
    present: set[MemoryKey] = set()
    counted = store.count_marks(where, frozenset({COMPRESSED, SUMMARY}))
    async with aclosing(counted) as memories:
        async for memory, marks in memories:
            key = memory.key
            if memory.summary or marks[SUMMARY]:
                present.add(key)
            compressed[key] += marks[COMPRESSED]
            if memory.summary == "" and await store.keeps_summary(key):
                present.add(key)  # doctor reports an empty summary
    for key in present:
        del compressed[key]
    compressed = +compressed
    if compressed and target is not None and target.features.summaries:
        await share_names(store, target, where)
        async with aclosing(target.headers(Selection(keys=frozenset(compressed)))) as memories:
            for key in [memory.key async for memory in memories if memory.summary]:
                del compressed[key]
    if not compressed:
        return None
    return MissingSummaries(compressed.total(), len(compressed), min(compressed))


def remedy(store: Store, key: MemoryKey) -> str:
    """Return how to find the summary of a memory whose messages are marked ``compressed``."""
    if store.features.summaries and "state" not in store.location.options:  # a copy without them
        return KEEP_STATES
    beside = f" (or ?state={store.kind})" if store.kind in ("redis", "tablestore") else ""
    place = _states_of(store, key) or f"FOLDER{beside}"
    return f"name the session states that have it: ?state={place}"


def _states_of(store: Store, key: MemoryKey) -> str:
    """Return the folder with the session state that has the summary of a memory.

    Only folders next to the file of the store are searched, as deep as AgentScope's examples save
    their states.
    """
    path = store.location.path
    with suppress(OSError):
        for folder in (path.parent, *sorted(path.parent.iterdir())) if path.name else ():
            for stem in (stem_of(user, key.session) for user in (key.user, "")):
                with suppress(OSError):
                    if not unfit(path.parent, stem) and _SUMMARY.search(
                        (folder / (stem + SUFFIX)).read_bytes()
                    ):
                        return visible(str(folder))
    return ""
