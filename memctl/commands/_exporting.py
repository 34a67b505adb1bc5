"""A run of ``export``: to a file, to a series of files, to a folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import datetime
from pathlib import Path

from memctl.commands import _markdown
from memctl.commands._context import Run
from memctl.commands._destination import (
    STDOUT,
    Shape,
    ending_of,
    locked,
    nowhere,
    published,
)
from memctl.commands._exported import ExportOutcome
from memctl.commands._rotation import Rotation, Series
from memctl.commands._run import opened, refuse_absent, wait_for
from memctl.commands._stores import make_target
from memctl.errors import NotFound, UsageError
from memctl.location import Location
from memctl.model import Memory, OnConflict
from memctl.ops.copy import CopyOptions, copy
from memctl.ops.losses import refuse_losses
from memctl.output.markdown_folder import MarkdownFolder
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.stores.locks import lock_owner


class Exporting:
    """One such run."""

    def __init__(
        self,
        run: Run,
        location: Location,
        where: Selection,
        shape: Shape,
        path: str | None,
        *,
        dry_run: bool,
        lossy: bool,
    ) -> None:
        self._run = run
        self._output = run.output
        self._location = location
        self._where = where
        self._shape = shape
        self._path = path
        self._lossy = lossy
        self._outcome = ExportOutcome(location.label, STDOUT, shape, dry_run=dry_run)

    def to_file(self, output: str) -> None:
        """Writes one file, a folder of sessions, a device or stdout.

        Raises:
            MemctlError: see ``copy``; the output cannot be written.
        """
        self._begin(output)
        with self._locked(output):
            self._publish(output)
        self._end()

    def to_series(self, output: str, rotation: Rotation) -> None:
        """Writes a file with the time in its name, then removes those that are no longer kept.

        Raises:
            MemctlError: as ``to_file``; nothing is removed then.
        """
        with self._locked(output):
            series = Series(output, ending_of(output, self._shape))
            new = series.new(datetime.now())
            self._begin(str(new))
            self._publish(str(new))
            self._rotate(series, rotation, new)
        self._end()

    def _rotate(self, series: Series, rotation: Rotation, new: Path) -> None:
        outcome = self._outcome
        if outcome.error() is not None:
            return
        if not outcome.copied.memories.written:
            self._output.warn("no memory was found, so no older file is removed")
            return
        expired = series.expired(rotation, new)
        for path in expired if outcome.dry_run else series.remove(expired):
            outcome.removed.append(str(path))

    def to_folder(self, output: str, *, force: bool, prune: bool) -> None:
        """Brings a folder of Markdown up to date.

        Raises:
            MemctlError: as ``to_file``; UsageError: the folder holds something else.
        """
        self._begin(output)
        folder = MarkdownFolder(Path(output))
        if not force:
            folder.refuse_foreign()
        if not self._outcome.dry_run:
            folder.create()
        with self._locked(output):
            wait_for(
                _markdown.write_folder(
                    *(self._output, self._outcome, self._location, self._where, folder),
                    prune=prune,
                )
            )
        self._end()

    def _begin(self, file: str) -> None:
        self._outcome.file = self._outcome.target = file
        self._output.report = self._outcome.report()

    def _end(self) -> None:
        self._outcome.ended = True
        if error := self._outcome.error():
            raise error
        self._outcome.tell(self._output)
        self._output.emit()

    def _locked(self, output: str) -> AbstractContextManager[None]:
        if self._outcome.dry_run:
            return nullcontext()
        return locked(self._output, output, self._shape)

    def _publish(self, output: str) -> None:
        into = nowhere if self._outcome.dry_run else published
        with into(output, self._shape) as place:
            if self._shape is Shape.MARKDOWN:
                wait_for(
                    _markdown.write_file(
                        self._output, self._outcome, self._location, self._where, place
                    )
                )
            else:
                wait_for(self._copy(_target(self._shape, place, self._path)))
            if place.is_file():
                self._outcome.bytes = place.stat().st_size

    async def _copy(self, target: Location) -> None:
        outcome, where = self._outcome, self._where
        async with opened(make_store(self._location), self._output) as source:
            if target.kind == "state":
                await _refuse_several(source.headers(where))
            await source.check_integrity(where)
            file = make_target(target, dry_run=outcome.dry_run)
            outcome.copied.warnings += await refuse_losses(source, file, where, lossy=self._lossy)
            async with opened(file, self._output):
                await file.lock(lock_owner())
                with self._output.progress("exporting") as progress:
                    # In a folder that is there already, --force was given.
                    options = CopyOptions(OnConflict.REPLACE, lossy=self._lossy)
                    await copy(source, file, where, options, outcome.copied, progress)
        for text in outcome.copied.warnings:
            self._output.warn(text)
        refuse_absent(
            *(where, outcome.copied.memories.selected, self._location.label),
            self._location.options.get("path"),
        )


def _target(shape: Shape, place: Path, path: str | None) -> Location:
    options = {} if path is None else {"path": path}
    match shape:
        case Shape.STATE_DICT:
            return Location("state", "the state_dict", path=place)
        case Shape.SESSION_DIR:
            return Location("sessions", str(place), path=place, options=options)
        case _:
            return Location("archive", "the archive", path=place)


async def _refuse_several(headers: AsyncGenerator[Memory]) -> None:
    """A state_dict holds one memory.

    Raises:
        UsageError: several are selected.
        NotFound: none is.
    """
    found = []
    async with aclosing(headers) as memories:
        async for memory in memories:
            found.append(memory.key)
            if len(found) > 1:
                raise UsageError(
                    f"a state_dict holds one memory; selected are {found[0]}, {found[1]} at least",
                    "choose one with --user and --session, or write --as archive",
                )
    if not found:
        raise NotFound("no memory is selected", "memctl inspect lists what there is")
