"""The losses of a copy: data of the source for which the target has no place."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from memctl.dialects.live import understood
from memctl.dialects.losses import Losses
from memctl.dialects.view import Dialect
from memctl.errors import Loss, UsageError
from memctl.location import visible
from memctl.model import Memory, MemoryKey
from memctl.ops.copy.copy import CopyOptions
from memctl.ops.copy.missing_summaries import missing_summaries, remedy
from memctl.ops.report import CopyReport, Lost
from memctl.ops.select import whole_memories
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count
from memctl.wrappers.converted import inside, losing, shown_as
from memctl.wrappers.timed import Timed, timed


class _LossKind(NamedTuple):
    """A kind of data that a target may have no place for.

    ``name`` is the name in reports, ``noun`` a plural for error texts.
    """

    name: str
    noun: str
    hint: str
    outcome: str = "not copied"


_LOSSES = {
    "summaries": _LossKind(
        "summary",
        "summaries",
        "add ?state=FOLDER (or ?state=redis) to the target, or drop them with --lossy",
    ),
    "ttl": _LossKind("expiry", "expiries", "drop them with --lossy"),
    "duplicate_ids": _LossKind(
        "repeated-id", "ids that occur twice in a memory", "keep the first of each with --lossy"
    ),
    "details": _LossKind(
        "details",
        "details of messages: ids, names, marks, or other fields that its format lacks",
        "drop them with --lossy",
    ),
    "times": _LossKind(
        "times",
        "times that are missing or earlier than the one before, since it orders messages by their "
        "times",
        "give each the time of the message before it with --lossy",
        "each message got the time of the one before it",
    ),
    "record": _LossKind(
        "record",
        "records of sessions, with their configuration",
        "copy the rest with --lossy",
    ),
    "encrypted": _LossKind(
        "encrypted",
        "encrypted messages",
        "copy the rest with --lossy, or everything to a store of the same framework, which reads "
        "them with the key",
    ),
    "calls": _LossKind(
        "calls",
        "calls of tools in columns that the mapping does not name",
        "name them as calls and call_id (memctl stores detect proposes those that fit), or drop "
        "them with --lossy",
    ),
    "waits": _LossKind(
        "waiting-calls",
        "calls that wait for a person or another program",
        "have them answered first, or leave them for a later copy with --lossy",
        "left for a copy after the answer",
    ),
    "waiting": _LossKind(
        "waiting-calls",
        "calls that wait for a person or another program",
        "have them answered first, or put a word in their places with --lossy",
        "a word takes their places",
    ),
    "content": _LossKind(
        "content-not-shown",
        "contents that its framework does not know",
        "put a word such as [file] in their places with --lossy; a copy back to the same framework "
        "has them again",
        "a word takes their places",
    ),
    "roles": _LossKind(
        "unknown-roles",
        "roles that memctl does not know",
        "take them for users with --lossy; a copy back to the same framework has them again",
        "taken for users",
    ),
    "extra": _LossKind(
        "session", "settings of sessions without messages", "drop them with --lossy"
    ),
}


async def refuse_losses(
    source: Store, target: Store, where: Selection, report: CopyReport, *, lossy: bool
) -> None:
    """Refuse a copy of data that the target has no place for; with ``lossy``, only report the data.

    ``report.losses`` gets each kind of such data; with ``lossy``, ``report.warnings`` does, too.

    Raises:
        Loss: the copy would lose data, and ``lossy`` is not set.  Also, whatever ``lossy`` is:
            the program of the target expects texts in an encoding that memctl does not know.
        UsageError: the target cannot hold several sessions, or several memories of one session; or
            memctl cannot convert the messages of the source to the dialect of the target.
    """
    converts = source.dialect.name != target.dialect.name
    target = shown_as(target, source.dialect)
    if target.features.asks_encoding:
        raise Loss(
            f"{target.label} is empty, so memctl cannot know how its program reads contents: as "
            "texts, or with json.loads",
            'add content_encoding = "text" or "json" to its alias, or &content_encoding=text to '
            "its URL",
        )
    if target.features.single_session:
        await _refuse_several(source, target, where)
    lacking = {
        name
        for name in ("parts", "summaries", "ttl", "duplicate_ids", "waits")
        if getattr(source.features, name) and not getattr(target.features, name)
        if name != "waits" or not converts  # else the calls are counted
    }
    found: dict[str, Lost] = {}
    if lacking:
        async with aclosing(_headers(source, where, lacking)) as memories:
            async for memory, repeated in memories:
                if memory.key.part and "parts" in lacking:
                    raise UsageError(
                        f"{target.label} can store one memory per session, and the session "
                        f"{memory.key.session!r} has several, such as {memory.key.part!r}",
                        f"choose one with --path {memory.key.part}",
                    )
                for loss in _of(memory, repeated):
                    if loss in lacking:
                        _add(found, loss, memory.key)
    if converts and not inside(target).dialect.holds_notes:
        async with aclosing(losing(source, inside(target).dialect, where)) as keys:
            async for key, moved in keys:
                _add(found, "details", key)
                if moved:
                    _add(found, "times", key)
    if isinstance(shown := timed(source, inside(target)), Timed):
        async with aclosing(shown.read(where)) as pages:
            async for page in pages:
                if page.last and page.memory.key in shown.moved:
                    _add(found, "times", page.memory.key)
    if converts and source.dialect.encrypts:
        for key in await _encrypted(source, where):
            _add(found, "encrypted", key)
    if converts and source.features.call_columns:
        async with aclosing(_with_columns(source, where)) as keys:
            async for key in keys:
                _add(found, "calls", key)
    details: dict[str, Counter[str]] = {}
    open_calls = 0
    if converts:
        async with aclosing(_not_held(source, inside(target).dialect, where)) as memories:
            async for key, lost in memories:
                open_calls += lost.open_calls
                if lost.unread:
                    report.unread.add(key)
                for loss, names in (
                    ("waiting", lost.waiting),
                    ("content", lost.contents),
                    ("roles", lost.roles),
                ):
                    if names:
                        _add(found, loss, key)
                        details.setdefault(loss, Counter()).update(names)
    if converts and source.dialect.keeps_extra:
        async with aclosing(_bare(source, where)) as keys:
            async for key in keys:
                _add(found, "extra", key)
    if not converts and target.features.state_only and not source.features.state_only:
        async with aclosing(source.headers(where)) as memories:
            async for memory in memories:
                if source.dialect.has_record(memory.extra, *memory.key[:2]):
                    _add(found, "record", memory.key)
    report.losses[:] = found.values()
    losses = {
        loss: f"{target.label} cannot store {_LOSSES[loss].noun}{_listed(details.get(loss))} "
        + (
            f"(1 memory affected: {one.example})"
            if one.memories == 1
            else f"({one.memories:,} memories affected, such as {one.example})"
        )
        for loss, one in found.items()
    }
    hint = _LOSSES[next(iter(found))].hint if found else ""
    warnings = [f"{text}; {_LOSSES[loss].outcome}" for loss, text in losses.items()]
    if open_calls:
        warnings.append(
            f"no result yet for {count(open_calls, 'call')} at the end of a memory: a word stands "
            "in the target until a later copy brings the result"
        )
    if losses and not lossy:
        raise Loss("; ".join(losses.values()), hint)
    report.warnings += [text for text in warnings if text not in report.warnings]


_WITHOUT_SUMMARY = {
    True: "copy them alone with --lossy",
    False: "copy them as messages with --all-messages, or only to notes with --lossy",
}
"""The ways out of missing summaries, by whether the target has marks."""


async def refuse_missing_summaries(
    source: Store, target: Store, where: Selection, report: CopyReport, options: CopyOptions
) -> None:
    """Refuse a copy of messages marked ``compressed`` if neither side has their summary.

    The target must be open.  With ``options.lossy``, and for a target that keeps marks and no
    summaries, only report the messages.

    Raises:
        Loss: an agent of the target would have forgotten the messages.
    """
    marked = target.dialect.holds_marks
    if not marked and source.dialect.all_messages:
        return
    keeps = not options.on_conflict.rewrites or not source.features.summaries
    missing = await missing_summaries(source, where, target if keeps else None)
    if missing is None:
        return
    if not marked or (target.features.summaries and not target.features.summaries_elsewhere):
        lost = Lost("compressed", missing.memories, missing.example)
        report.losses += [lost] if lost not in report.losses else []
        if not options.lossy:
            raise Loss(
                f"{missing.text(source)}: without it, an agent of {target.label} has forgotten "
                "them",
                f"{remedy(source, missing.example)}; or {_WITHOUT_SUMMARY[marked]}",
            )
    warning = missing.warning(source)
    report.warnings += [warning] if warning not in report.warnings else []


def _listed(kinds: Counter[str] | None) -> str:
    """Return the names of what is lost, each with its number, the most frequent first."""
    if not kinds:
        return ""
    names = [f"{visible(name)} {number:,}" for name, number in kinds.most_common(_NAMED_KINDS)]
    return ": " + ", ".join([*names, "..."] if len(kinds) > len(names) else names)


_NAMED_KINDS = 5


async def _not_held(
    source: Store, target: Dialect, where: Selection
) -> AsyncGenerator[tuple[MemoryKey, Losses]]:
    """Yield what memories with messages lose in the dialect of a target."""
    if source.dialect.shows_losses:

        def matches(texts: Sequence[bytes]) -> list[int]:
            return [at for at, text in enumerate(texts) if source.dialect.may_be_lost(text)]

        async with aclosing(source.find_messages(where, matches)) as found:
            keys = frozenset([key async for key, _ in found])
        if not keys:
            return
        where = where.only(keys)
    pages = source.read(where)
    if not ((target.holds_marks and source.dialect.holds_marks) or source.dialect.all_messages):
        pages = understood(pages, source.dialect)
    async with aclosing(pages):
        async for page in pages:
            if page.offset == 0:
                losses = Losses(source.dialect, target, page.memory)
            for entry, place in zip(page.messages, page.places, strict=True):
                with suppress(ValueError, RecursionError):  # the copy reports it
                    losses.add(entry.message, page.unread.get(place, ""))
            if page.last:
                yield page.memory.key, losses


def _add(found: dict[str, Lost], loss: str, key: MemoryKey) -> None:
    one = found.get(loss) or Lost(_LOSSES[loss].name, 0, key)
    found[loss] = one._replace(memories=one.memories + 1)


async def _encrypted(source: Store, where: Selection) -> list[MemoryKey]:
    def matches(texts: Sequence[bytes]) -> list[int]:
        return [at for at, text in enumerate(texts) if source.dialect.is_encrypted(text)]

    async with aclosing(source.find_messages(whole_memories(where), matches)) as found:
        return sorted({key async for key, _ in found})


async def _bare(source: Store, where: Selection) -> AsyncGenerator[MemoryKey]:
    async with aclosing(source.list_memories(where)) as infos:
        empty = frozenset([info.key async for info in infos if not info.messages])
    if empty:
        async with aclosing(source.headers(Selection(keys=empty))) as memories:
            async for memory in memories:
                if not source.dialect.is_default(memory.extra, *memory.key[:2]):
                    yield memory.key


async def _with_columns(source: Store, where: Selection) -> AsyncGenerator[MemoryKey]:
    known: MemoryKey | None = None
    async with aclosing(source.read(where)) as pages:
        async for page in pages:
            for entry in page.messages if page.memory.key != known else ():
                extra = source.dialect.parse(entry.message).unknown
                if not source.features.call_columns.isdisjoint(extra):
                    known = page.memory.key
                    yield known
                    break


async def _refuse_several(source: Store, target: Store, where: Selection) -> None:
    sessions = set()
    async with aclosing(source.headers(where)) as memories:
        async for memory in memories:
            sessions.add(memory.key[:2])
            if len(sessions) > 1:
                raise UsageError(
                    f"{target.label} can store one session, and several are selected",
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
    if memory.waits:
        losses.append("waits")
    return losses
