"""``memctl inspect``: shows the content of a store."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET

from memctl.commands._context import Run
from memctl.commands._options import PagerOption, PathOption, StoreArgument, divisible
from memctl.commands._parameters import option
from memctl.commands._run import readable, rotation, wait_for
from memctl.dialects.view import CallNames
from memctl.errors import UsageError
from memctl.location import Location
from memctl.model import MemoryInfo, Page, StoredMessage
from memctl.ops import inspect as operation
from memctl.ops.inspect import Catalogue, GroupBy, Sort
from memctl.ops.names import tell_absent
from memctl.ops.observer import opened
from memctl.ops.retry import undamaged_pages
from memctl.ops.select import select_with_places
from memctl.output.pager import paged
from memctl.output.printout import Listing, Printout, message_json
from memctl.output.terminal import Format, Output
from memctl.registry import make_store, read_pruned, title_of
from memctl.reports.inspect import (
    Checkpoints,
    EmbeddingRow,
    GroupRow,
    InspectByReport,
    InspectCheckpointsReport,
    InspectedMemory,
    InspectedStore,
    InspectReport,
    InspectRotationReport,
    RotatedRow,
    Rotation,
    ThreadRow,
)
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.prunable import PrunedArchive, folder_of
from memctl.stores.archive.rotation import LATEST, RotatedFile, with_choice

if TYPE_CHECKING:
    from rich.console import RenderableType


@divisible
def inspect(
    run: Run,
    store: StoreArgument,
    where: Selection,
    messages: Annotated[bool, option("--messages", "Show the messages themselves.")] = False,
    ids: Annotated[bool, option("--ids", "Show the ids of messages.")] = False,
    by: Annotated[GroupBy | None, option("--by FIELD", "Count messages by")] = None,
    sort: Annotated[
        Sort | None, option("--sort FIELD", "Sort memories by", show_default="messages")
    ] = None,
    limit: Annotated[
        int | None,
        option(
            "--limit N", "Show at most N rows, 0 for all.", min=0, show_default="50 on a terminal"
        ),
    ] = None,
    path: PathOption = None,
    pager: PagerOption = True,
) -> None:
    """Show what is in a store: totals, memories or messages.

    Examples:
      memctl inspect agents.db
      memctl inspect agents.db --user ada --messages --last 20
      memctl inspect agents.db --by day --newer-than 30d
    """
    output = run.output
    if messages and by:
        raise UsageError("--messages and --by cannot be combined", "choose one of them")
    if ids and not messages:
        raise UsageError("--ids needs --messages", "add --messages")
    limit = output.row_limit(limit)
    place = run.locate(store)
    lists = not (messages or by) and where == Selection()
    if lists and (files := rotation(place)):
        named = store if store in run.configuration().stores else place.label
        newest = with_choice(named, LATEST)
        output.printout = _rotation(place.label, files, newest, limit or None)
        output.finish()
        return
    with paged(output, wanted=pager), readable(place, where, path) as location:
        try:
            wait_for(_inspect(output, location, where, messages, ids, by, sort, limit or None))
        except PrunedArchive:
            if not lists:
                raise
            output.printout = _pruned(location, limit or None)
        output.finish()


async def _inspect(
    output: Output,
    location: Location,
    where: Selection,
    messages: bool,
    ids: bool,
    by: GroupBy | None,
    sort: Sort | None,
    limit: int | None,
) -> None:
    async with opened(make_store(location), output) as store:
        if messages:
            pages = undamaged_pages(partial(select_with_places, store), where)
            number = await print_messages(output, store, pages, ids)
        elif by:
            groups = await operation.group(store, where, by)
            number = len(groups)
            output.printout = _groups(by, groups, facts=store.dialect.facts)
        else:
            found = await operation.inspect(store, where, sort)
            number = len(found.memories)
            output.printout = _catalogue(store, found, limit)
        await tell_absent(where, number, store, output)


def _catalogue(store: Store, found: Catalogue, limit: int | None) -> Printout:
    what = title_of(store.location)

    def report() -> InspectReport:
        return InspectReport(
            store=InspectedStore(
                url=store.label,
                kind=store.kind,
                what=what,
                capabilities=store.features.capabilities(),
                embedding=UNSET if store.embedding is None else EmbeddingRow(*store.embedding),
            ),
            totals=found.totals,
            memories=[_memory(info) for info in found.memories[:limit]],
        )

    def table() -> RenderableType:
        from memctl.output import tables  # only needed to draw

        facts, embedding = store.dialect.facts, store.embedding
        return tables.catalogue(store.label, what, found, limit, facts=facts, embedding=embedding)

    return Printout(report, table)


def _memory(info: MemoryInfo) -> InspectedMemory:
    messages = info.messages if info.is_counted else None
    return InspectedMemory(
        *(info.key.user, info.key.session, messages, info.bytes, info.marks, info.unread),
        *(info.first, info.last, info.summary, info.ttl, info.key.part or UNSET),
        *(info.title or UNSET, info.project or UNSET),
    )


def _rotation(name: str, files: list[RotatedFile], newest: str, limit: int | None) -> Printout:
    def report() -> InspectRotationReport:
        rows = [RotatedRow(one.file.text, one.time.isoformat(), one.bytes) for one in files[:limit]]
        return InspectRotationReport(Rotation(name, rows))

    def table() -> RenderableType:
        from memctl.output import tables  # only needed to draw

        return tables.rotation(name, files, newest, limit)

    return Printout(report, table)


def _pruned(archive: Location, limit: int | None) -> Printout:
    """Return the report of an archive of pruned rows, which is read and checked whole.

    Raises:
        BadData: the archive is damaged.
    """
    with read_pruned(archive) as reader:
        found = reader.check()
    groups = {folder_of(name): number for name, number in found.groups.items()}

    def report() -> InspectCheckpointsReport:
        threads = [ThreadRow(*one) for one in [*groups.items()][:limit]]
        about = found.created, found.source, found.engine, found.items, found.rows
        return InspectCheckpointsReport(Checkpoints(*about, threads))

    def table() -> RenderableType:
        from memctl.output import tables  # only needed to draw

        return tables.pruned(archive.label, found.source, found.engine, groups, limit)

    return Printout(report, table)


def _groups(by: GroupBy, groups: list[GroupRow], *, facts: bool) -> Printout:
    def table() -> RenderableType:
        from memctl.output import tables  # only needed to draw

        return tables.groups(by, groups, facts=facts)

    return Printout(lambda: InspectByReport(by=by.value, groups=groups), table)


async def print_messages(
    output: Output, store: Store, pages: AsyncGenerator[Page], ids: bool
) -> int:
    """Print the messages of ``pages``, with their ids if ``ids``; return the number of memories.

    Raises:
        UsageError: the format is CSV.
    """
    async with aclosing(pages):
        match output.format:
            case Format.TABLE:
                return await _conversations(output, store, pages, ids)
            case Format.NDJSON:
                return await _lines(pages)
            case Format.JSON:
                return await _message_object(output, pages)
            case Format.CSV:
                raise UsageError("messages cannot be written as CSV", "use --format ndjson")


async def _conversations(
    output: Output, store: Store, pages: AsyncGenerator[Page], ids: bool
) -> int:
    from memctl.output import conversation  # only needed to draw

    console = output.console()
    piped = not sys.stdout.isatty()  # long lines are not wrapped in a pipe
    memories, calls = 0, CallNames()
    async for page in pages:
        if page.offset == 0:
            if memories:
                console.print()
            console.print(conversation.heading(page.memory), soft_wrap=piped)
            memories += 1
            calls = CallNames()
        for entry, place in zip(page.messages, page.places, strict=True):
            if store.dialect.facts:
                drawn = conversation.fact(entry, place + 1, ids=ids)
            else:
                drawn = conversation.message(
                    entry,
                    place + 1,
                    ids=ids,
                    unread=page.unread.get(place, ""),
                    dialect=store.dialect,
                    calls=calls,
                )
            console.print(drawn, soft_wrap=piped)
    return memories


async def _lines(pages: AsyncGenerator[Page]) -> int:
    memories = 0
    async for page in pages:
        memories += page.offset == 0
        for entry, place in zip(page.messages, page.places, strict=True):
            sys.stdout.writelines(_row(page, entry, place))
            sys.stdout.write("\n")
        sys.stdout.flush()
    return memories


async def _message_object(output: Output, pages: AsyncGenerator[Page]) -> int:
    """Write the messages of ``pages`` as one JSON object; return the number of memories."""
    memories = 0
    output.listing = listing = Listing("inspect", {}, "messages")
    async for page in pages:
        memories += page.offset == 0
        for entry, place in zip(page.messages, page.places, strict=True):
            listing.add(_row(page, entry, place))
    return memories


def _row(page: Page, entry: StoredMessage, place: int) -> Iterator[str]:
    key = page.memory.key
    head: dict[str, Any] = {"user": key.user, "session": key.session}
    if key.part:
        head["path"] = key.part
    head |= {"position": place + 1, "id": entry.id, "marks": list(entry.marks)}
    head["unread"] = page.unread.get(place)
    yield f'{json.dumps(head)[:-1]}, "message": '
    yield from message_json(entry.message)
    yield "}"
