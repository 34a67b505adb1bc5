"""What a target cannot hold: found before anything is written."""

from __future__ import annotations

from collections.abc import AsyncIterator

from memctl.errors import Loss, UsageError
from memctl.model import Memory, MemoryKey
from memctl.selection import Selection
from memctl.store import Capability, Store
from memctl.streams import closing

_LOSSES = {
    Capability.SUMMARIES: (
        "a summary",
        "give summaries a place with ?state=FOLDER (or ?state=redis), or let them go with --lossy",
    ),
    Capability.TTL: ("an expiry", "let it go with --lossy"),
    Capability.REPEATED_IDS: ("a message id that occurs twice", "keep the first with --lossy"),
}


async def refuse_losses(
    source: Store, target: Store, where: Selection, *, lossy: bool
) -> list[str]:
    """What the copy would lose, as warnings.

    Raises:
        Loss: it would lose something, and ``lossy`` is not set.
        UsageError: several memories of one session have no names in the target.
    """
    if target.single:
        await _refuse_several(source, target, where)
    lacking = source.capabilities & ~target.capabilities
    if not lacking & (
        Capability.PARTS | Capability.REPEATED_IDS | Capability.SUMMARIES | Capability.TTL
    ):
        return []
    first: dict[Capability, MemoryKey] = {}
    counts: dict[Capability, int] = {}
    async with closing(_headers(source, where, lacking)) as found:
        async for memory, repeated in found:
            if memory.key.part and Capability.PARTS in lacking:
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
    async with closing(source.headers(where)) as memories:
        async for memory in memories:
            sessions.add(memory.key[:2])
            if len(sessions) > 1:
                raise UsageError(
                    f"{target.label} holds one session, and several are selected",
                    "choose one with --user and --session, or name an archive or a folder",
                )


async def _headers(
    source: Store, where: Selection, lacking: Capability
) -> AsyncIterator[tuple[Memory, int]]:
    if Capability.REPEATED_IDS in lacking:
        async with closing(source.repeats(where)) as found:
            async for memory, repeated in found:
                yield memory, repeated
        return
    async with closing(source.headers(where)) as memories:
        async for memory in memories:
            yield memory, 0


def _of(memory: Memory, repeated: int) -> list[Capability]:
    losses = []
    if memory.summary:
        losses.append(Capability.SUMMARIES)
    if memory.ttl is not None:
        losses.append(Capability.TTL)
    if repeated:
        losses.append(Capability.REPEATED_IDS)
    return losses
