"""Removes memories from the runs that are kept for undo.

Each file of a run is replaced by a complete and durable file without the memories.  A run without
other memories is removed.  A run that is still going on stays, and so does a run with damaged
files, because their content is unknown.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from memctl.errors import BadData, MemctlError
from memctl.journal import repairs
from memctl.journal.changes import (
    UNFINISHED,
    ChangesWriter,
    is_given_up,
    is_growing,
    read_changes,
    repeats,
)
from memctl.journal.files import refusals, replace_file, sync_folder
from memctl.journal.lines import sealed, unsealed
from memctl.journal.renames import read_moves, read_project, write_moves, write_project
from memctl.journal.runs import BEFORE, Run, Runs, archives_in
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.archive.store import ArchiveStore

Concerns = Callable[[MemoryKey], bool]
"""A function that returns whether a memory is to be erased."""

_NEW = "erase.ndjson.zst"
"""The temporary name of a rewritten file of changes."""
_PARTS = 40
"""The maximum number of parts of a row's id that are tried as user and session."""


class ErasedRuns(Struct):
    """The result of an erase in runs: the ids of removed, rewritten and failed runs.

    ``memories`` is the number of erased memories.  ``failures`` maps the id of a run to the reason.
    """

    removed: list[str] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    memories: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def found(self) -> int:
        """The number of runs with memories to erase."""
        return len(self.removed) + len(self.rewritten)


class RunEraser:
    """Removes memories from the records of runs, which are kept for undo.

    ``concerns`` returns whether a memory is to be erased.
    """

    def __init__(self, runs: Runs, concerns: Concerns) -> None:
        self._runs = runs
        self._concerns = concerns
        self._held: set[MemoryKey] = set()
        """The memories to erase that the files of runs name."""

    async def erase(self, some: list[Run], *, dry_run: bool = False) -> ErasedRuns:
        """Remove the memories from the runs ``some``; with ``dry_run``, only report what to remove.

        A run that cannot be read is not changed, and becomes a failure.  A run that is still going
        on and has such memories does, too.
        """
        found = ErasedRuns()
        for run in some:
            if not (self._runs.folder / run.id).is_dir():
                continue  # pruned by another process
            try:
                await self._erase(run, found, dry_run=dry_run)
            except MemctlError as error:
                found.failures[run.id] = error.message
        for id in self._runs.damaged():
            where = self._runs.folder / id
            found.failures[id] = f"the record of the run {id} is damaged; remove {where}"
        if not dry_run:
            self._sweep()
        return found

    async def _erase(self, run: Run, found: ErasedRuns, *, dry_run: bool) -> None:
        folder = self._runs.folder / run.id
        goes_on = self._runs.goes_on(run)
        if not (dry_run or goes_on):
            _unlink(*filter(is_given_up, _changes(folder)))
        witnesses = [one for one in run.witnesses if not self._concerns(MemoryKey(*one[:-1]))]
        if len(witnesses) < len(run.witnesses) and not (dry_run or goes_on):
            run.witnesses = witnesses
            self._runs.update(run)
        gone, kept = await self._look(folder)
        if not gone:
            return
        found.memories += gone
        if dry_run:
            (found.rewritten if kept else found.removed).append(run.id)
            return
        if goes_on:
            raise BadData(f"the run {run.id} is still running: run erase again when it has ended")
        if not kept:
            _remove(folder)
            found.removed.append(run.id)
            return
        await self._rewrite(folder)
        run.erased += gone
        self._runs.update(run)
        found.rewritten.append(run.id)

    async def _look(self, folder: Path) -> tuple[int, int]:
        """Return how many memories and repairs to erase, and how many to keep."""
        keys = await in_thread(partial(_keys, folder))
        for archive in archives_in(folder):
            async with ArchiveStore(_archive(archive), OpenMode.READ) as store:
                keys.update([key async for key in store.names(Selection())])
        gone = {key for key in keys if self._concerns(key)}
        self._held |= gone
        of_repairs = [
            self._count(record)
            for name in repairs.FILES
            for record in repairs.read_records(folder / name)
        ]
        moves = [self._is_of(pair) for pair in read_moves(folder).items()]
        if (project := read_project(folder)) is not None:
            moves += map(self._concerns, project.sessions or ())
        found = len(gone) + sum(concerned for concerned, _ in of_repairs) + sum(moves)
        kept = len(keys - gone) + sum(others for _, others in of_repairs)
        return found, kept + len(moves) - sum(moves)

    def _is_of(self, pair: tuple[MemoryKey, MemoryKey]) -> bool:
        """Return whether the old or the new name of a renamed session is to be erased."""
        return any(map(self._concerns, pair))

    async def _rewrite(self, folder: Path) -> None:
        await in_thread(partial(self._rewrite_files, folder))
        for archive in archives_in(folder):
            async with ArchiveStore(_archive(archive), OpenMode.CHANGE) as store:
                names = {key async for key in store.names(Selection()) if self._concerns(key)}
                async for _ in store.erase(Selection(keys=frozenset(names))):
                    pass

    def _rewrite_files(self, folder: Path) -> None:
        for path in _changes(folder):
            _unlink(folder / _NEW, folder / (_NEW + UNFINISHED))
            kind = {"growing": is_growing(path), "repeats": repeats(path)}
            with ChangesWriter(folder / _NEW, **kind) as writer:
                for edit in read_changes(path):
                    if not self._concerns(edit.memory.key):
                        writer.add(edit)
                writer.finish()
            with refusals(path):
                os.replace(folder / _NEW, path)
                sync_folder(folder)
        lines = [line for key, line in _notes(folder) if not self._concerns(key)]
        _replace(folder / BEFORE, lines)
        if moves := read_moves(folder):
            write_moves(folder, dict(pair for pair in moves.items() if not self._is_of(pair)))
        if (project := read_project(folder)) is not None:
            write_project(
                folder, project.without([*filter(self._concerns, project.sessions or ())])
            )
        for name in repairs.FILES:
            records = [self._without(record) for record in repairs.read_records(folder / name)]
            kept = [sealed(record) for record in reversed(records) if record is not None]
            _replace(folder / name, kept)

    # Repairs of the store: a record of Redis names a memory, a record of SQL has rows

    def _count(self, record: dict[str, Any]) -> tuple[int, int]:
        """Return two numbers for the record of a repair.

        The first is 1 if the record has data of memories to erase, the second 1 if the record has
        other data; else they are 0.
        """
        without = self._without(record)
        return int(without != record), int(without is not None)

    def _without(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Return the record of a repair without the memories to erase; None if it is then empty."""
        if "user" in record and "session" in record:
            concerned = self._concerns(MemoryKey(record["user"], record["session"]))
            return None if concerned else record
        rows = record.get("rows")
        if not isinstance(rows, list):
            return record
        kept = [row for row in rows if not self._has_row(row)]
        return record if kept == rows else {**record, "rows": kept} if kept else None

    def _has_row(self, row: list[Any]) -> bool:
        texts = [text for text in map(_text, row) if text is not None]
        named = any(self._concerns(key) for text in texts for key in _readings(text))
        return named or any(key.session in texts for key in self._held)

    def _sweep(self) -> None:
        """Remove the folders of runs whose removal was interrupted."""
        if self._runs.folder.is_dir():
            for folder in self._runs.folder.glob(".[0-9]*"):
                shutil.rmtree(folder, ignore_errors=True)


def _changes(folder: Path) -> list[Path]:
    """Return the paths of the files of changes of a run, finished or not."""
    with refusals(folder):
        return sorted(folder.glob("changes-*.ndjson.zst*"))


def _keys(folder: Path) -> set[MemoryKey]:
    """Return the keys of the memories in the changes and the notes of a run."""
    keys = {key for key, _ in _notes(folder)}
    for path in _changes(folder):
        try:
            keys.update(edit.memory.key for edit in read_changes(path, messages=False))
        except BadData:
            if not is_given_up(path):
                raise
    return keys


def _readings(text: str) -> Iterator[MemoryKey]:
    """Yield all memories that a text may name.

    The text may be the name of a user, or an id of the form ``{user}-{session}-{id}``, which can be
    split in several ways.
    """
    yield MemoryKey(text, "")
    parts = text.split("-", _PARTS)
    for end in range(2, len(parts)):
        for middle in range(1, end):
            yield MemoryKey("-".join(parts[:middle]), "-".join(parts[middle:end]))


def _notes(folder: Path) -> Iterator[tuple[MemoryKey, bytes]]:
    """Yield each note of the store in a run: its memory, and its line of ``before.ndjson``."""
    path = folder / BEFORE
    with refusals(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    try:
                        user, session, part, *_ = unsealed(line)
                    except (ValueError, TypeError) as error:
                        raise BadData(f"{path} is damaged: {error}") from error
                    yield MemoryKey(user, session, part), line


def _replace(path: Path, lines: list[bytes]) -> None:
    with refusals(path):
        if path.exists():
            replace_file(path, b"".join(lines))


def _unlink(*paths: Path) -> None:
    for path in paths:
        with refusals(path):
            path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove the folder of a run, and in it ``run.json`` last."""
    with refusals(folder):
        names = sorted(folder.iterdir(), key=lambda path: path.name == "run.json")
    _unlink(*names)
    with refusals(folder):
        folder.rmdir()


def _archive(path: Path) -> Location:
    return Location("archive", str(path), path=path)


def _text(cell: Any) -> str | None:
    """Return the text in a cell of a row, or None.

    A cell is a text, or a pair of kind and value.  The value of a blob is hexadecimal.
    """
    match cell:
        case str(text) | ["text", str(text)]:
            return text
        case ["blob", str(value)]:
            return bytes.fromhex(value).decode("utf-8", "replace")
    return None
