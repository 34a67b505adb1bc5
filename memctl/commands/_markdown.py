"""Exports for reading: one Markdown file, or a folder that is kept up to date."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

from memctl.commands._exported import ExportOutcome
from memctl.commands._run import opened, refuse_absent
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.fingerprint import fingerprints
from memctl.output import markdown
from memctl.output.markdown_folder import FORM, MarkdownFolder
from memctl.output.terminal import Output
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Store


async def write_file(
    output: Output, outcome: ExportOutcome, location: Location, where: Selection, place: Path
) -> None:
    """Writes all memories into one file; a dry run only counts them.

    Raises:
        MemctlError: as ``Store.read``; NotFound where a named memory is not there.
        OSError: the system refuses.
    """
    name = os.devnull if outcome.dry_run else place
    handle = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        async with opened(make_store(location), output) as store:
            await store.check_integrity(where)
            with output.progress("exporting") as progress:
                async with aclosing(store.read(where)) as pages:
                    async for page in pages:
                        if page.offset == 0:
                            file.write("\n" if outcome.copied.memories.written else "")
                            file.writelines(markdown.heading(page.memory))
                        for entry in page.messages:
                            file.writelines(markdown.message(entry))
                        _count(outcome, int(page.last), len(page.messages))
                        progress.advance(memories=int(page.last), messages=len(page.messages))
        if not outcome.dry_run:
            file.flush()
            os.fsync(file.fileno())
    refuse_absent(where, outcome.copied.memories.written, location.label, _path(location))


def _count(outcome: ExportOutcome, memories: int, messages: int) -> None:
    outcome.copied.memories.selected += memories
    outcome.copied.memories.written += memories
    outcome.copied.messages.selected += messages
    outcome.copied.messages.written += messages


def _path(location: Location) -> str | None:
    return location.options.get("path")


async def write_folder(
    output: Output,
    outcome: ExportOutcome,
    location: Location,
    where: Selection,
    folder: MarkdownFolder,
    *,
    prune: bool,
) -> None:
    """Brings a folder up to date: what changed is written, and with ``prune`` what is gone goes.

    Raises:
        MemctlError: as ``Store.read``, or the system refuses; NotFound where a named memory is not
            there.
    """
    async with opened(make_store(location), output) as store:
        await store.check_integrity(where)
        found = await _changed(output, outcome, store, where, folder)
        if not outcome.dry_run:
            await _write(output, outcome, store, where.only(found.changed), folder)
    refuse_absent(where, len(found.all), location.label, _path(location))
    if prune and found.all:
        _prune(outcome, where, folder, found.all)
    elif prune:
        output.warn("no memory was found, so no file is removed")
    if not outcome.dry_run:
        folder.write_index()


class _Found:
    """The memories of the store, and those of which the folder has no file that shows them."""

    def __init__(self) -> None:
        self.all: set[MemoryKey] = set()
        self.changed: frozenset[MemoryKey] = frozenset()


async def _changed(
    output: Output,
    outcome: ExportOutcome,
    store: Store,
    where: Selection,
    folder: MarkdownFolder,
) -> _Found:
    found, copied = _Found(), outcome.copied
    with output.progress("comparing"):
        prints = await fingerprints(store.read(where), FORM, mark_order=True)
    found.all = set(prints)
    found.changed = frozenset(key for key, one in prints.items() if not folder.holds(key, one))
    copied.memories.selected = len(prints)
    copied.memories.unchanged = len(prints) - len(found.changed)
    copied.messages.selected = sum(one.messages for one in prints.values())
    new = sum(prints[key].messages for key in found.changed)
    copied.messages.skipped = copied.messages.selected - new
    if outcome.dry_run:
        copied.memories.written, copied.messages.written = len(found.changed), new
    return found


async def _write(
    output: Output, outcome: ExportOutcome, store: Store, where: Selection, folder: MarkdownFolder
) -> None:
    if not where.keys:
        return
    with output.progress("exporting") as progress:
        async with aclosing(store.read(where)) as pages:
            file = None
            try:
                async for page in pages:
                    if page.offset == 0:
                        file = folder.file(page.memory)
                    assert file is not None
                    file.add(page)
                    outcome.copied.memories.written += page.last
                    outcome.copied.messages.written += len(page.messages)
                    progress.advance(memories=int(page.last), messages=len(page.messages))
            finally:
                if file is not None:
                    file.discard()


def _prune(
    outcome: ExportOutcome, where: Selection, folder: MarkdownFolder, there: set[MemoryKey]
) -> None:
    for path, stamp in folder.files():
        if where.has_key(stamp.key) and stamp.key not in there:
            if not outcome.dry_run:
                folder.remove(path)
            outcome.removed.append(str(path))
