"""Read the selected messages with their places in the memory, to change or to show them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import repeat

from msgspec import structs

from memctl.dialects.live import understood
from memctl.dialects.view import COMPRESSED, Unread
from memctl.errors import UsageError
from memctl.model import PAGE_BYTES, MemoryInfo, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count, size

PageObserver = Callable[[Page], None]


def select_with_anchors(
    store: Store, where: Selection, see: PageObserver | None = None
) -> AsyncGenerator[Page]:
    """Yield the selected messages; if some messages are not selected, with ``Page.anchors``.

    ``see`` is called only if ``reads_all`` returns True: with every page of the memories, selected
    or not, before the selected messages of the page are yielded.

    Raises:
        MemctlError: as ``Store.read``.
    """
    if reads_all(store, where):
        pages = store.read(whole_memories(where))
        return where.apply(observed(pages, see) if see else pages, store.dialect)
    return store.read(where) if where.whole else store.read_with_anchors(where)


def reads_all(store: Store, where: Selection) -> bool:
    """Return whether ``select_with_anchors`` reads also messages that are not selected."""
    return not where.whole and (where.spare is not None or not store.features.cheap_positions)


def places(store: Store, page: Page) -> Iterable[int | None]:
    """Return a value of ``Change.at`` for each message of a page: its index in the memory.

    If message ids are unique in the store, each value is None.
    """
    return page.places if store.features.duplicate_ids else repeat(None, len(page.messages))


def whole_memories(where: Selection) -> Selection:
    """Return the selection with the same users, sessions and memories, but of all messages."""
    return replace(where.around, parts=where.parts, keys=where.keys, done=where.done)


async def in_whole_memories(store: Store, where: Selection) -> Selection:
    """Return the selection of what memctl deletes from a store.

    For a store with ``Features.whole_memories``, the result selects the memories of the selected
    size of which every message is in the selected period.  For other stores, ``where`` stays.

    Raises:
        UsageError: the store has ``Features.whole_memories``, and ``where`` selects messages by
            more than period and size; or another store, and by size.
        MemctlError: as ``Store.list_memories``.
    """
    if not store.features.whole_memories and where.larger is not None:
        raise UsageError(
            f"{store.label}: only whole sessions of coding agents are selected by size",
            "leave out --larger-than",
        )
    if where.whole or not store.features.whole_memories:
        return where
    if not where.takes_whole:
        store.refuse_edits()
    keys: set[MemoryKey] = set()
    async with aclosing(store.survey(whole_memories(where))) as infos:
        async for info in infos:
            if info.bytes > (where.larger or 0) and _is_in_period(store, where, info):
                keys.add(info.key)
    return whole_memories(where).only(frozenset(keys))


def _is_in_period(store: Store, where: Selection, info: MemoryInfo) -> bool:
    """Return whether every message of a memory is in the period; without times, it is in none."""
    if not where.has_period:
        return True
    first, last = map(store.dialect.moment, (info.first, info.last))
    if first is None or last is None:
        where.untimed.note(info.key, info.messages, store.dialect.noun)
        return False
    return (where.since is None or first >= where.since) and (
        where.until is None or last < where.until
    )


async def observed(pages: AsyncGenerator[Page], see: PageObserver) -> AsyncGenerator[Page]:
    """Yield pages; call ``see`` with each page before the page is yielded."""
    async with aclosing(pages):
        async for page in pages:
            see(page)
            yield page
            del page  # free a large page before the next read


async def select_with_places(store: Store, where: Selection) -> AsyncGenerator[Page]:
    """Yield the selected messages; ``Page.places`` are indexes in the memory, ``unread`` is set.

    If the store reads only selected messages, the indexes come from outlines, of several memories
    at a time.  A memory whose selected messages fill several pages is read whole instead.

    Raises:
        MemctlError: as ``Store.read``.
    """
    if where.whole or not store.features.cheap_positions or store.dialect.leaves_out:
        pages = store.read(whole_memories(where))
        pages = where.apply(understood(pages, store.dialect), store.dialect)
        async with aclosing(pages):
            async for page in pages:
                yield page
                del page  # free a large page before the next read
        return
    held: list[Page] = []
    size = 0
    async with aclosing(store.read(where)) as found:
        async for page in found:
            if page.last and not page.offset:
                held.append(page)
                size += sum(len(entry.message) for entry in page.messages)
                if len(held) < _HELD_MEMORIES and size < PAGE_BYTES:
                    continue
            async for one in _placed(store, held):
                yield one
            held, size = [], 0
            if not page.last and not page.offset:
                whole = where.only(frozenset({page.memory.key}))
                pages = understood(store.read(whole_memories(whole)), store.dialect)
                async with aclosing(where.apply(pages, store.dialect)) as large:
                    async for one in large:
                        yield one
    async for one in _placed(store, held):
        yield one


_HELD_MEMORIES = 100
"""The number of memories whose places are looked up together."""


async def _placed(store: Store, pages: list[Page]) -> AsyncGenerator[Page]:
    wanted = {page.memory.key: {entry.id for entry in page.messages} for page in pages}
    places: dict[tuple[MemoryKey, str], int] = {}
    if wanted:
        async with aclosing(store.outline(Selection(keys=frozenset(wanted)))) as outlines:
            async for outline in outlines:
                key = outline.memory.key
                for place, entry in enumerate(outline.messages, outline.offset):
                    if entry.id in wanted[key]:
                        places[key, entry.id] = place
    for page in pages:
        key = page.memory.key
        # A message that was deleted meanwhile gets its least possible place.
        indexes = [places.get((key, one.id), at) for at, one in enumerate(page.messages)]
        unread = {
            at: Unread.COMPACTED
            for at, one in zip(indexes, page.messages, strict=True)
            if COMPRESSED in one.marks
        }
        yield structs.replace(page, indexes=indexes, unread=unread)


async def most_deletions(store: Store, where: Selection, limit: tuple[float, bool]) -> float:
    """Return the largest number of messages to delete; ``limit`` is as for ``ChangeRun``.

    Raises:
        MemctlError: as ``Store.read``.
    """
    number, percentage = limit
    if not percentage:
        return number
    total = 0
    async with aclosing(store.list_memories(whole_memories(where))) as infos:
        async for info in infos:
            total += info.messages
    return total * number / 100


def selected_text(where: Selection, path: str | None = None, *, named: bool = True) -> str:
    """Return what is selected, for people: ``user ada; since 2026-11-01 00:00``.

    ``path`` is that of the memory in session states.  Without ``named``, the text has no names.
    """
    return "; ".join(_selected(where, path, named=named))


def _selected(where: Selection, path: str | None, *, named: bool) -> Iterator[str]:
    for noun, values in (
        ("user", where.users),
        ("session", where.sessions),
        ("path", () if path is None else (path,)),
        ("speaker", where.names),
        ("id", where.ids),
    ):
        if values:
            yield _listed(noun, values) if named else count(len(values), noun)
    for noun, values in (
        ("mark", where.marks),
        ("without the mark", where.exclude_marks),
        ("role", where.roles),
    ):
        if values:
            yield _listed(noun, values)
    if where.since is not None:
        yield f"since {where.since:%Y-%m-%d %H:%M}"
    if where.until is not None:
        yield f"before {where.until:%Y-%m-%d %H:%M}"
    if where.last is not None:
        yield f"the newest {where.last:,} of each memory"
    if where.larger is not None:
        yield f"larger than {size(where.larger)}"
    if where.live is not None:
        yield "messages that are read" if where.live else "messages that are not read"
    if where.match is not None:
        yield f"messages with {where.match!r}" if named else "messages with a text"


def _listed(noun: str, values: Iterable[str]) -> str:
    return f"{noun} {' or '.join(sorted(values))}"
