"""Gives the texts in the runs that are kept for undo to a rewriter.

Each file of a run is replaced by a complete and durable file.  A run that is still going on stays.
Names of users and sessions stay, because an undo needs them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from memctl.errors import BadData
from memctl.journal import repairs
from memctl.journal.changes import is_given_up, rewrite_changes
from memctl.journal.files import refusals, replace_file, sync_folder
from memctl.journal.lines import sealed, unsealed
from memctl.journal.runs import BEFORE, Run, Runs, archives_in
from memctl.json import jsonio
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.texts import Rewriter, TextResult
from memctl.stores.archive.store import ArchiveStore

_NEW = "rewrite.ndjson.zst"
"""The temporary name of a rewritten file of changes."""
_NAMES = frozenset({"user", "session", "part", "key"})
"""The fields of a repair with the names of the changed memory or key."""
GOES_ON = "the run is still going on: run the same command again when it has ended"


async def rewrite_run(
    runs: Runs, run: Run, rewriter: Rewriter, where: Selection, *, writes: bool
) -> AsyncGenerator[TextResult]:
    """Rewrite what the files of a run say of selected memories; yield what was found in each.

    Raises:
        BadData: a file of the run is damaged.
        Unavailable: a file cannot be read or written.
    """
    folder = runs.folder / run.id
    if not folder.is_dir():  # pruned by another process
        return
    goes_on = writes and runs.goes_on(run)
    files = _Files(folder, rewriter, where, writes=writes and not goes_on)
    for result in await in_thread(files.rewrite):
        yield result.failed(GOES_ON) if goes_on else result
    for path in archives_in(folder):
        mode = OpenMode.CHANGE if files.writes else OpenMode.READ
        async with (
            ArchiveStore(Location("archive", str(path), path=path), mode) as store,
            aclosing(store.rewrite_texts(rewriter, where, writes=files.writes)) as results,
        ):
            async for result in results:
                yield result.failed(GOES_ON) if goes_on else result


class _Files:
    """The files of a run, besides archives."""

    def __init__(self, folder: Path, rewriter: Rewriter, where: Selection, *, writes: bool) -> None:
        self.writes = writes
        self._folder = folder
        self._rewriter = rewriter
        self._where = where

    def rewrite(self) -> list[TextResult]:
        """Rewrite the files; return what was found."""
        found: list[TextResult] = []
        with refusals(self._folder):
            changes = sorted(self._folder.glob("changes-*.ndjson.zst*"))
        for path in changes:
            if is_given_up(path):
                if self.writes:
                    with refusals(path):
                        path.unlink(missing_ok=True)
                continue
            found += self._changes(path)
        for name in (BEFORE, *repairs.FILES):
            found += self._lines(self._folder / name)
        return found

    def _changes(self, path: Path) -> list[TextResult]:
        found = rewrite_changes(path, None, self._rewriter, self._where)
        if self.writes and any(one.hits for one in found):
            new = self._folder / _NEW
            with refusals(new):
                new.unlink(missing_ok=True)
            found = rewrite_changes(path, new, self._rewriter, self._where)
            with refusals(path):
                os.replace(new, path)
                sync_folder(self._folder)
        return found

    def _lines(self, path: Path) -> list[TextResult]:
        found: list[TextResult] = []
        lines: list[bytes] = []
        with refusals(path):
            if not path.exists():
                return found
            stored = path.read_bytes().splitlines(keepends=True)
        for line in stored:
            if not line.endswith(b"\n"):  # what it was about to say was not done
                continue
            try:
                record = unsealed(line)
            except ValueError as error:
                raise BadData(f"{path} is damaged: {error}") from error
            is_suspect = self._is_selected(record) and self._rewriter.is_suspect(line)
            new = self._record(record, found) if is_suspect else record
            lines.append(line if new is record else sealed(new))
        if self.writes and any(one.hits for one in found):
            with refusals(path):
                replace_file(path, b"".join(lines))
        return found

    def _is_selected(self, record: Any) -> bool:
        """Return whether a record is of a selected memory; without a name, only if all are."""
        if isinstance(record, list):
            return self._where.has_key(MemoryKey(*record[:3]))
        names = [record.get(name, "") for name in MemoryKey._fields]
        return self._where.has_key(MemoryKey(*names))

    def _record(self, record: Any, found: list[TextResult]) -> Any:
        """Return a record with other texts, besides the names at its beginning."""
        if isinstance(record, list):
            return [*record[:3], *(self._value(one, found) for one in record[3:])]
        return {
            name: one if name in _NAMES else self._value(one, found) for name, one in record.items()
        }

    def _value(self, value: Any, found: list[TextResult]) -> Any:
        new = self._rewriter.rewrite(jsonio.dumps(value))
        found.append(new.at(f"undo run {self._folder.name}"))
        return jsonio.loads(new.text) if new.hits else value
