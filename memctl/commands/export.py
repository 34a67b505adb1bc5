"""``memctl export``: memories into a file that appears when it is whole."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import RenderableType

from memctl.commands._context import Run
from memctl.commands._options import (
    DryRunOption,
    LossyOption,
    PathOption,
    StoreArgument,
    takes_options,
)
from memctl.commands._reports import CopyOutcome, flat_row
from memctl.commands._run import (
    pour,
    readable,
    wait_for,
)
from memctl.errors import BadData, NotFound, Unavailable, UsageError
from memctl.location import Location, same_file, visible
from memctl.model import Memory, MemoryKey, OnConflict
from memctl.numbers import count
from memctl.ops.compare import Comparability, fingerprints
from memctl.ops.copy import CopyOptions
from memctl.ops.migration import CopyRun, make_target
from memctl.ops.names import refuse_absent_in
from memctl.ops.observer import opened, warn_of_other_contents
from memctl.ops.report import Counts, Progress, Total, count_all
from memctl.ops.retry import leaving_damaged
from memctl.ops.select import select_with_places
from memctl.output.markdown import FORM, MarkdownFile, MarkdownFolder
from memctl.output.rows import CsvFile
from memctl.output.terminal import Format, Output
from memctl.output.trajectories import TrajectoryFile
from memctl.output.writer import PageWriter
from memctl.registry import make_store, spec_of
from memctl.selection import Selection
from memctl.store import LeftOut, Store, refuse_facts
from memctl.storekit.files import (
    TEMPORARY_PREFIX,
    put_in_place,
    sync_folder,
    system_errors,
    temporary_folder,
)
from memctl.storekit.locks import FileLock, lock_owner
from memctl.stores.archive.rotation import Rotation, Series, parse_rotation
from memctl.system import EXHAUSTED


class Shape(StrEnum):
    """The form of an export."""

    STATE_DICT = "state-dict"
    JSON = "json"
    """The same: the JSON of a memory is its state_dict."""
    ARCHIVE = "archive"
    SESSION_DIR = "session-dir"
    MARKDOWN = "markdown"
    CSV = "csv"
    PARQUET = "parquet"
    ATIF = "atif"
    OPENAI = "openai"


WRITTEN = frozenset({Shape.MARKDOWN, Shape.CSV, Shape.PARQUET, Shape.ATIF})
"""The shapes for readers: written page by page, and no store."""

_EXTENSIONS: dict[Shape, tuple[str, ...]] = {
    Shape.STATE_DICT: (".json",),
    Shape.ARCHIVE: spec_of("archive").suffixes,
    Shape.SESSION_DIR: (),
    Shape.MARKDOWN: (".md",),
    Shape.CSV: (".csv",),
    Shape.PARQUET: (".parquet",),
    Shape.ATIF: (".jsonl", ".json"),
    Shape.OPENAI: spec_of("openai").suffixes,
}

STDOUT = "-"


@takes_options
def export(
    run: Run,
    store: StoreArgument,
    where: Selection,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write to this file or folder.",
            show_default="stdout",
        ),
    ] = "-",
    shape: Annotated[
        Shape | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="Kind of the output",
            show_default="from the file extension",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing file, or the same sessions in a folder."),
    ] = False,
    rotate: Annotated[
        str | None,
        typer.Option(
            "--rotate",
            metavar="KEEP",
            help="Add the time to the name, and delete older files except these, such as "
            "daily:7,weekly:4; also last, hourly, monthly and yearly.",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Delete Markdown files whose memories are gone."),
    ] = False,
    lossy: LossyOption = False,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write memories to a file: an archive, Markdown, OpenAI messages, CSV and others.

    The file appears under its name only when it is complete. A new one gets mode 0600. An archive
    can hold any memory. A state_dict is for InMemoryMemory.load_state_dict, a folder for
    JSONSession. A Markdown folder gets a file for each memory; the next export rewrites those that
    changed.
    A .jsonl file has a conversation of OpenAI chat messages on each line.
    CSV and Parquet have a row for each message, atif has a trajectory for each memory.

    Examples:
      memctl export agents.db -o backup.ndjson.zst
      memctl export agents.db -o nightly.ndjson.zst --rotate daily:7,weekly:4
      memctl export agents.db --user ada --session kyoto -o kyoto.json
    """
    if output == STDOUT and run.output.format is not Format.TABLE and not dry_run:
        raise UsageError(
            "stdout cannot hold both the export and its report", "name a file: -o FILE"
        )
    keep = None if rotate is None else parse_rotation(rotate)
    with readable(run.locate(store), where, path) as location:
        if shape is Shape.JSON:
            shape = Shape.STATE_DICT
        shape = shape or _of_extension(output) or wait_for(_by_count(location, where))
        refuse_output(output, shape, location)
        _writer_of(shape)
        _refuse_options(output, shape, where, rotate=keep is not None, prune=prune)
        exporting = Exporting(run, location, where, shape, path, dry_run=dry_run, lossy=lossy)
        if shape is Shape.MARKDOWN and is_folder(output, shape):
            exporting.to_folder(output, force=force, prune=prune)
        elif keep is not None:
            exporting.to_series(output, keep)
        else:
            refuse_taken(output, shape, force=force)
            exporting.to_file(output)


def _refuse_options(
    output: str, shape: Shape, where: Selection, *, rotate: bool, prune: bool
) -> None:
    """Refuse options that do not fit what is written.

    Raises:
        UsageError: see there.
    """
    folder = is_folder(output, shape)
    if rotate and (output == STDOUT or is_device(Path(output)) or folder):
        raise UsageError("--rotate needs a file", "name one: -o backup.ndjson.zst")
    if prune and not (folder and shape is Shape.MARKDOWN):
        raise UsageError("--prune needs a Markdown folder", "use --as markdown -o FOLDER")
    if prune and not where.whole:
        raise UsageError(
            "--prune cannot be combined with a selection of messages",
            "select by --user and --session only",
        )


def _of_extension(output: str) -> Shape | None:
    name = output.lower()
    if name.endswith(spec_of("archive").suffixes):
        return Shape.ARCHIVE
    if name.endswith(".json"):
        return Shape.STATE_DICT
    for shape in (Shape.MARKDOWN, Shape.CSV, Shape.PARQUET, Shape.OPENAI):
        if name.endswith(_EXTENSIONS[shape]):
            return shape
    return Shape.SESSION_DIR if output.endswith(os.sep) else None


async def _by_count(location: Location, where: Selection) -> Shape:
    """Return the shape by the number of memories: one a state_dict, several or facts an archive."""
    found = 0
    async with make_store(location) as store, aclosing(store.headers(where)) as memories:
        if store.dialect.facts:
            return Shape.ARCHIVE
        async for _ in memories:
            found += 1
            if found > 1:
                break
    return Shape.STATE_DICT if found == 1 else Shape.ARCHIVE


class Exporting:
    """One run of export."""

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
        """Write one file, a folder of sessions, a device or stdout.

        Raises:
            MemctlError: see ``copy``; the output cannot be written.
        """
        self._begin(output)
        with self._locked(output):
            self._publish(output)
        self._end()

    def to_series(self, output: str, rotation: Rotation) -> None:
        """Write a file with the time in its name, then remove those that are no longer kept.

        Raises:
            MemctlError: as ``to_file``; nothing is removed then.
        """
        with self._locked(output):
            series = Series(Path(output))
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
            self._output.warn("no memory found: older files are kept")
            return
        expired = series.expired(rotation, new)
        for path in expired if outcome.dry_run else series.remove(expired):
            outcome.removed.append(str(path))

    def to_folder(self, output: str, *, force: bool, prune: bool) -> None:
        """Bring a folder of Markdown up to date.

        Raises:
            MemctlError: as ``to_file``; UsageError: the folder holds something else.
        """
        self._begin(output)
        folder = MarkdownFolder(Path(output))
        if not force:
            folder.refuse_foreign()
        work = (self._output, self._outcome, self._location, self._where, folder)
        made = nullcontext() if self._outcome.dry_run else folder.made()
        with made, self._locked(output):
            wait_for(write_folder(*work, prune=prune))
            self._end()

    def _begin(self, file: str) -> None:
        self._outcome.file = self._outcome.target = file
        self._output.report = self._outcome.report()

    def _end(self) -> None:
        self._outcome.ended = True
        if error := self._outcome.error():
            raise error
        self._outcome.tell(self._output)
        self._output.finish()

    def _locked(self, output: str) -> AbstractContextManager[None]:
        if self._outcome.dry_run:
            return nullcontext()
        return locked_output(self._output, output, self._shape)

    def _publish(self, output: str) -> None:
        into = nowhere if self._outcome.dry_run else published
        with into(output, self._shape) as place:
            if self._shape in WRITTEN:
                wait_for(
                    write_file(self._output, self._outcome, self._location, self._where, place)
                )
                self._output.refuse_damage_alone()
            else:
                wait_for(self._copy(_target(self._shape, place, self._path)))
            if place.is_file():
                self._outcome.bytes = place.stat().st_size

    async def _copy(self, target: Location) -> None:
        outcome, where = self._outcome, self._where
        async with opened(make_store(self._location), self._output) as source:
            if target.kind == "state":
                await _refuse_several(source.headers(where), "state_dict", "use --as archive")
            file = make_target(target, dry_run=outcome.dry_run)
            # In a folder that is there already, --force was given.
            options = CopyOptions(OnConflict.REPLACE, lossy=self._lossy)
            copying = CopyRun(where, options, observer=self._output, report=outcome.copied)
            await copying.examine(source, file)
            async with opened(file, self._output):
                await copying.begin(source, file)
                await copying.copy(source, file, "exporting")
            if not outcome.copied.memories.selected:
                await warn_of_other_contents(source, self._output)
                if not isinstance(outcome.error(), BadData):
                    await refuse_absent_in(where, 0, source)
        for text in outcome.copied.warnings:
            self._output.warn(text)
        if isinstance(error := outcome.error(), BadData):
            raise error  # nothing was written


def _target(shape: Shape, place: Path, path: str | None) -> Location:
    options = {} if path is None else {"path": path}
    match shape:
        case Shape.STATE_DICT:
            return Location("state", "the state_dict", path=place)
        case Shape.SESSION_DIR:
            return Location("sessions", "the folder", path=place, options=options)
        case Shape.OPENAI:
            return Location("openai", "the file", path=place)
        case _:
            return Location("archive", "the archive", path=place)


async def _refuse_several(headers: AsyncGenerator[Memory], what: str, instead: str) -> None:
    """A JSON file holds one memory, as ``what``; ``instead`` says what to do for all.

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
                    f"a JSON file ({what}) holds one memory; selected are at least {found[0]} "
                    f"and {found[1]}",
                    f"choose one with --user and --session, or {instead} for all",
                )
    if not found:
        raise NotFound("no memory is selected", "list the memories with: memctl inspect")


class ExportOutcome(CopyOutcome):
    """The report of export: the memories, the file or folder, and the files removed."""

    def __init__(self, source: str, file: str, shape: Shape, *, dry_run: bool) -> None:
        super().__init__("export", source, file, dry_run=dry_run)
        self.file = file
        self.shape = shape
        self.bytes: int | None = None
        """The size of the file that was written; None for a folder and for a dry run."""
        self.removed: list[str] = []
        """Files that were removed, or would be."""

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        del data["target"]
        return data | {
            "file": self.file,
            "as": self.shape.value,
            "bytes": self.bytes,
            "removed": self.removed,
        }

    def _rows(self) -> list[dict[str, Any]]:
        flat = flat_row(self._data(), "dry_run", "source", "file", "as", "bytes")
        return [flat | {"removed": len(self.removed)}]

    def _table(self) -> RenderableType | None:
        if not (self.dry_run and self.ended):
            return None  # stdout may be what is exported: what was done is a note
        from rich.text import Text  # needs Rich, which helping does not

        return Text("\n".join(self._facts("would be ")))

    def tell(self, output: Output) -> None:
        """Print on stderr what was done, where no report on stdout does."""
        if self.file != STDOUT and not self.dry_run:
            for line in self._facts(""):
                output.note(line)

    def _facts(self, would: str) -> list[str]:
        memories = self.copied.memories
        said = f"{count(memories.written, 'memory')} {would}written to {visible(self.file)}"
        if memories.unchanged:
            said += f", {memories.unchanged:,} unchanged"
        return [said, *(f"{visible(path)} {would}removed" for path in self.removed)]


def is_folder(output: str, shape: Shape) -> bool:
    """Return whether a folder is to be written: sessions, or Markdown not named as one file."""
    if shape is not Shape.MARKDOWN:
        return shape is Shape.SESSION_DIR
    path = Path(output)
    named = output.endswith(os.sep) or path.is_dir()
    return output != STDOUT and not is_device(path) and (named or not path.suffix)


def extension_of(output: str, shape: Shape) -> str:
    """Return the extension of a file of this shape, in lower case; of a stream, the usual one."""
    extensions = sorted(_EXTENSIONS[shape], key=len, reverse=True)
    name = output.lower()
    return next((one for one in extensions if name.endswith(one)), _EXTENSIONS[shape][0])


def refuse_output(output: str, shape: Shape, source: Location) -> None:
    """Refuse an output that cannot be written, or that could not be read again.

    Raises:
        UsageError: see there.
    """
    if output == STDOUT:
        if shape is Shape.SESSION_DIR:
            raise UsageError("a folder cannot be written to stdout", "name it: -o FOLDER")
        if shape is Shape.PARQUET:
            raise UsageError("Parquet cannot be written to stdout", "name it: -o NAME.parquet")
        return
    path = Path(output)
    if is_device(path):
        return
    if source.path != Path() and same_file(source.path) == same_file(path):
        raise UsageError(f"{output!r} is the store being exported", "name another file")
    if is_folder(output, shape):
        if path.is_file():
            raise UsageError(f"{output!r} is a file", "name a folder")
    elif path.is_dir():
        raise UsageError(f"{output!r} is a folder", "--as session-dir writes a folder")
    elif not output.lower().endswith(_EXTENSIONS[shape]):
        raise UsageError(
            f"unrecognised file extension for {shape.value}: {output!r}",
            f"name it {' or '.join('NAME' + extension for extension in _EXTENSIONS[shape])}; "
            "write a database with memctl migrate",
        )
    if not path.parent.is_dir():
        raise UsageError(f"the folder of {output!r} does not exist", "create it first")


def refuse_taken(output: str, shape: Shape, *, force: bool) -> None:
    """Refuse an output that holds something, unless that is to be replaced.

    Raises:
        UsageError: it does.
    """
    path = Path(output)
    if output == STDOUT or is_device(path):
        return
    folder = shape is Shape.SESSION_DIR and path.is_dir()
    if not force and (_holds_something(path) if folder else path.exists()):
        raise UsageError(f"{output!r} exists", "use --force to replace it")


def is_device(path: Path) -> bool:
    """Return whether it is a pipe or a device such as /dev/stdout: written to, never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def locked_output(messages: Output, output: str, shape: Shape) -> Iterator[None]:
    """Lock the output against other runs; sessions that are replaced are locked by their store.

    Raises:
        Busy: another run writes to it.
        Unavailable: its folder cannot be written.
    """
    path = Path(output)
    by_store = shape is Shape.SESSION_DIR and _holds_something(path)
    if output == STDOUT or by_store or is_device(path):
        yield
        return
    with FileLock(path, output).held(lock_owner()) as warnings:
        for text in warnings:
            messages.warn(text)
        yield


@contextmanager
def published(output: str, shape: Shape) -> Iterator[Path]:
    """A place to write to, that becomes the output when the work ends well.

    Raises:
        Unavailable: the output cannot be written.
    """
    target = None if output == STDOUT or is_device(Path(output)) else Path(output)
    if target and shape is Shape.SESSION_DIR:
        direct = _holds_something(target)
        with nullcontext(target) if direct else _published_folder(target) as place:
            yield place
        return
    try:
        # Next to the file itself, where the target is a symbolic link.
        parent = Path(os.path.realpath(target)).parent if target else None
        with temporary_folder(parent) as folder:
            place = folder / f"export{extension_of(output, shape)}"
            yield place
            if target is not None:
                put_in_place(place, target)
            elif output == STDOUT:
                pour(place, sys.stdout.buffer)
            else:
                with open(output, "wb") as device:
                    pour(place, device)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        raise Unavailable(f"{output} cannot be written: {error.strerror}") from error


@contextmanager
def _published_folder(target: Path) -> Iterator[Path]:
    """A place inside of an empty folder, whose files go there when the work ends well.

    Raises:
        MemctlError: the folder cannot be written.
    """
    new = not target.exists()
    try:
        with system_errors(target, "write"):
            target.mkdir(mode=0o700, exist_ok=True)
        with temporary_folder(target) as folder:
            place = folder / "sessions"
            yield place
            with system_errors(target, "write"):
                for name in os.listdir(place):
                    (place / name).rename(target / name)
            sync_folder(target)
    except BaseException:
        if new:
            with suppress(OSError):  # somebody else has put something there
                target.rmdir()
        raise


def _holds_something(folder: Path) -> bool:
    """Return whether a folder is there with more in it than what killed runs have left."""
    if not folder.is_dir():
        return False
    return any(not name.startswith(TEMPORARY_PREFIX) for name in os.listdir(folder))


@contextmanager
def nowhere(output: str, shape: Shape) -> Iterator[Path]:
    """A place that a dry run may look at, and finds as empty as the run itself would."""
    if shape is Shape.SESSION_DIR:
        yield Path(output)
        return
    with temporary_folder() as folder:
        yield folder / f"export{extension_of(output, shape)}"


async def write_file(
    output: Output, outcome: ExportOutcome, location: Location, where: Selection, place: Path
) -> None:
    """Write all memories into one file; a dry run only counts them.

    Raises:
        MemctlError: as ``Store.read``; NotFound where a named memory is not there.
        OSError: the system refuses.
    """
    name = os.devnull if outcome.dry_run else place
    handle = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        async with opened(make_store(location), output) as store:
            if outcome.shape is Shape.ATIF:
                refuse_facts(store, "trajectory")
            if place.suffix == ".json":
                await _refuse_several(store.headers(where), "trajectory", "name it NAME.jsonl")
            await store.check_integrity(where)
            total: Total | None = None
            with output.progress("exporting", lambda: total) as progress:
                total = await count_all(store, where, progress)
                remarks = await leaving_damaged(
                    lambda: _write_all(outcome, store, where, file, progress)
                )
            await refuse_absent_in(where, outcome.copied.memories.selected, store)
        if not outcome.dry_run:
            file.flush()
            os.fsync(file.fileno())
    for text in remarks:
        output.note(text)


async def _write_all(
    outcome: ExportOutcome, store: Store, where: Selection, file: TextIO, progress: Progress
) -> list[str]:
    """Write all memories, in the place of what an attempt before this one wrote.

    Return what there is to remark on them.
    """
    copied = outcome.copied
    copied.memories, copied.messages = Counts(), Counts()
    if not outcome.dry_run:
        file.seek(0)
        file.truncate()
    with _writer_of(outcome.shape)(file, store.dialect) as writer:
        async with aclosing(select_with_places(store, where)) as pages:
            async for page in pages:
                try:
                    writer.add(page)
                except RecursionError as error:
                    raise BadData(
                        f"{page.memory.key}: a message is nested too deep",
                        "write an archive, or leave the message out by a selection",
                    ) from error
                _count(outcome, int(page.last), len(page.messages))
                progress.advance(memories=int(page.last), messages=len(page.messages))
        writer.finish()
    copied.memories.written -= writer.left_out
    copied.memories.skipped += writer.left_out
    return writer.remarks()


_WRITERS: dict[Shape, type[PageWriter]] = {Shape.CSV: CsvFile, Shape.ATIF: TrajectoryFile}


def _writer_of(shape: Shape) -> type[PageWriter]:
    """Return what writes a file of one of ``WRITTEN``.

    Raises:
        UsageError: a library that it needs is not installed.
    """
    if shape is not Shape.PARQUET:
        return _WRITERS.get(shape, MarkdownFile)
    try:
        from memctl.output.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Parquet needs the library {error.name!r}, which is not installed",
            "pip install 'agentscope-memctl[parquet]'",
        ) from error
    return ParquetFile


def _count(outcome: ExportOutcome, memories: int, messages: int) -> None:
    outcome.copied.memories.selected += memories
    outcome.copied.memories.written += memories
    outcome.copied.messages.selected += messages
    outcome.copied.messages.written += messages


async def write_folder(
    output: Output,
    outcome: ExportOutcome,
    location: Location,
    where: Selection,
    folder: MarkdownFolder,
    *,
    prune: bool,
) -> None:
    """Bring a folder up to date: write what changed, and with ``prune`` remove what is gone.

    Raises:
        MemctlError: as ``Store.read``, or the system refuses; NotFound where a named memory is not
            there.
    """
    async with opened(make_store(location), output) as store:
        await store.check_integrity(where)
        found = await _changed(output, outcome, store, where, folder)
        if not outcome.dry_run:
            await _write(output, outcome, store, where.only(found.changed), folder)
        await refuse_absent_in(where, len(found.all), store)
    if prune and found.all:
        _prune(outcome, where, folder, found.all, store.left_out)
    elif prune:
        output.warn("no memory found: no file is removed")
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
        prints = await leaving_damaged(
            lambda: fingerprints(store.read(where), FORM, Comparability(mark_order=True))
        )
    found.all = {*prints, *store.left_out.failures}
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
                        file = folder.file(page.memory, store.dialect)
                    assert file is not None
                    file.add(page)
                    outcome.copied.memories.written += page.last
                    outcome.copied.messages.written += len(page.messages)
                    progress.advance(memories=int(page.last), messages=len(page.messages))
            finally:
                if file is not None:
                    file.discard()


def _prune(
    outcome: ExportOutcome,
    where: Selection,
    folder: MarkdownFolder,
    there: set[MemoryKey],
    damaged: LeftOut,
) -> None:
    for path, stamp in folder.files():
        gone = stamp.key not in there and not damaged.may_have(stamp.key)
        if gone and where.has_key(stamp.key):
            if not outcome.dry_run:
                folder.remove(path)
            outcome.removed.append(str(path))
