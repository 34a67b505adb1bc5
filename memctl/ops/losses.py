"""What a target cannot hold: found before anything is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from memctl.errors import Loss, UsageError
from memctl.model import Memory, MemoryKey
from memctl.selection import Selection
from memctl.store import Store

_LOSSES = {
    "summaries": (
        "a summary",
        "give summaries a place with ?state=FOLDER (or ?state=redis), or let them go with --lossy",
    ),
    "ttl": ("an expiry", "let it go with --lossy"),
    "duplicate_ids": ("a message id that occurs twice", "keep the first with --lossy"),
}


async def refuse_losses(
    source: Store, target: Store, where: Selection, *, lossy: bool
) -> list[str]:
    """What the copy would lose, as warnings.

    Raises:
        Loss: it would lose something, and ``lossy`` is not set.
        UsageError: several memories of one session have no names in the target.
    """
    if target.features.single_session:
        await _refuse_several(source, target, where)
    lacking = {
        name
        for name in ("parts", *_LOSSES)
        if getattr(source.features, name) and not getattr(target.features, name)
    }
    if not lacking:
        return []
    first: dict[str, MemoryKey] = {}
    counts: dict[str, int] = {}
    async with aclosing(_headers(source, where, lacking)) as found:
        async for memory, repeated in found:
            if memory.key.part and "parts" in lacking:
                raise UsageError(
                    f"the session {memory.key.session!r} holds several memories, such as "
                    f"{memory.key.part!r}, and {target.label} has a place for one",
                    f"choose one with --path {memory.key.part}",
                )
            for loss in _of(memory, repeated):
                if loss in lacking:
                    first.setdefault(loss, memory.key)
                    counts[loss] = counts.get(loss, 0) + 1
    losses = [
        f"{target.label} has no place for {_LOSSES[loss][0]}, and {first[loss]} has one "
        f"(such memories: {counts[loss]})"
        for loss in first
    ]
    if losses and not lossy:
        raise Loss("; ".join(losses), _LOSSES[next(iter(first))][1])
    return [f"{text}: left behind" for text in losses]


async def _refuse_several(source: Store, target: Store, where: Selection) -> None:
    sessions = set()
    async with aclosing(source.headers(where)) as memories:
        async for memory in memories:
            sessions.add(memory.key[:2])
            if len(sessions) > 1:
                raise UsageError(
                    f"{target.label} holds one session, and several are selected",
                    "choose one with --user and --session, or name an archive or a folder",
                )


async def _headers(
    source: Store, where: Selection, lacking: set[str]
) -> AsyncGenerator[tuple[Memory, int]]:
    if "duplicate_ids" in lacking:
        async with aclosing(source.duplicates(where)) as found:
            async for memory, repeated in found:
                yield memory, repeated
        return
    async with aclosing(source.headers(where)) as memories:
        async for memory in memories:
            yield memory, 0


def _of(memory: Memory, repeated: int) -> list[str]:
    losses = []
    if memory.summary:
        losses.append("summaries")
    if memory.ttl is not None:
        losses.append("ttl")
    if repeated:
        losses.append("duplicate_ids")
    return losses
