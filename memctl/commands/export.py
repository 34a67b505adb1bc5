"""``memctl export``: memories into a file that appears when it is whole."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._context import Run, this_run
from memctl.commands._options import STORE_HELP, LossyOption, PathOption, build, selecting
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import opened, refuse_absent, wait_for
from memctl.commands._stores import pour, readable
from memctl.errors import NotFound, Unavailable, UsageError
from memctl.holder import holder
from memctl.location import ARCHIVE_SUFFIXES, Location, same_file
from memctl.model import Memory, OnConflict
from memctl.ops.copy import CopyOptions, copy
from memctl.ops.losses import refuse_losses
from memctl.output import markdown
from memctl.output.numbers import count
from memctl.output.terminal import Output
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.stores._locks import FileLock
from memctl.streams import closing


class Shape(StrEnum):
    """What an export becomes."""

    STATE_DICT = "state-dict"
    ARCHIVE = "archive"
    SESSION_DIR = "session-dir"
    MARKDOWN = "markdown"


_ENDINGS: dict[Shape, tuple[str, ...]] = {
    Shape.STATE_DICT: (".json",),
    Shape.ARCHIVE: ARCHIVE_SUFFIXES,
    Shape.SESSION_DIR: (),
    Shape.MARKDOWN: (".md",),
}


@selecting
def export(
    context: typer.Context,
    store: Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)],
    where: Selection,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The file or folder to write; - is stdout."
        ),
    ] = "-",
    shape: Annotated[
        Shape | None,
        typer.Option(
            "--as",
            help="What to write.",
            show_default="as the ending of the file says, else state-dict for one memory "
            "and archive for several",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file, or in a folder the sessions.")
    ] = False,
    lossy: LossyOption = False,
    path: PathOption = None,
) -> None:
    """Write memories to a file: state_dict, archive, folder, Markdown.

    A state_dict is what InMemoryMemory.load_state_dict takes, a folder what JSONSession loads. The
    file has mode 0600 and appears under its name only when it is whole.
    """
    run = this_run(context)
    with readable(run.locate(store), where, path) as location:
        shape = shape or _of_ending(output) or wait_for(_by_count(location, where))
        _refuse_output(output, shape, location, force=force)
        outcome = CopyOutcome("export", location.label, output, dry_run=False)
        with _locked(run.output, output, shape), _published(output, shape) as place:
            if shape is Shape.MARKDOWN:
                wait_for(_write_markdown(run.output, outcome, location, where, place))
            else:
                target = _target(shape, place, path)
                wait_for(_write(run, outcome, location, target, where, lossy=lossy))
    if error := outcome.error():
        raise error
    if output != "-":
        run.output.note(f"{count(outcome.copied.memories.written, 'memory')} written to {output}")


def _of_ending(output: str) -> Shape | None:
    name = output.lower()
    if name.endswith(ARCHIVE_SUFFIXES):
        return Shape.ARCHIVE
    if name.endswith(".json"):
        return Shape.STATE_DICT
    if name.endswith(".md"):
        return Shape.MARKDOWN
    return Shape.SESSION_DIR if output.endswith(os.sep) else None


async def _by_count(location: Location, where: Selection) -> Shape:
    """One memory makes a state_dict, several an archive."""
    found = 0
    async with make_store(location) as store, closing(store.headers(where)) as memories:
        async for _ in memories:
            found += 1
            if found > 1:
                break
    return Shape.STATE_DICT if found == 1 else Shape.ARCHIVE


def _refuse_output(output: str, shape: Shape, source: Location, *, force: bool) -> None:
    """Objects to an output that is taken, or that nobody could read back.

    Raises:
        UsageError: see there.
    """
    if output == "-":
        if shape is Shape.SESSION_DIR:
            raise UsageError("a folder cannot be written to stdout", "name it: -o FOLDER")
        return
    path = Path(output)
    if _is_device(path):
        return
    if source.path != Path() and same_file(source.path) == same_file(path):
        raise UsageError(f"{output!r} is the store that is exported", "name another file")
    endings = _ENDINGS[shape]
    if endings and path.is_dir():
        raise UsageError(f"{output!r} is a folder", "--as session-dir writes a folder")
    if endings and not output.lower().endswith(endings):
        raise UsageError(
            f"{output!r} does not end as {shape.value} does",
            f"name it {' or '.join('NAME' + ending for ending in endings)}; "
            "'memctl migrate' writes databases",
        )
    if not path.parent.is_dir():
        raise UsageError(f"the folder of {output!r} does not exist", "create it first")
    if shape is Shape.SESSION_DIR:
        taken = path.is_file() or (path.is_dir() and any(path.iterdir()))
    else:
        taken = path.exists()
    if taken and not force:
        raise UsageError(f"{output!r} exists", "--force replaces it")


def _is_device(path: Path) -> bool:
    """Whether it is a pipe or a device such as /dev/stdout: written to, never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _locked(messages: Output, output: str, shape: Shape) -> Iterator[None]:
    """Keeps other runs from the file that is to be replaced; a folder is locked by its store.

    Raises:
        Busy: another run writes to it.
        Unavailable: its folder cannot be written.
    """
    path = Path(output)
    if output == "-" or shape is Shape.SESSION_DIR or _is_device(path):
        yield
        return
    with FileLock(path, output).held(holder()) as warnings:
        for text in warnings:
            messages.warn(text)
        yield


@contextmanager
def _published(output: str, shape: Shape) -> Iterator[Path]:
    """A place to write to, that becomes the output when the work ends well.

    Raises:
        Unavailable: the output cannot be written.
    """
    target = None if output == "-" or _is_device(Path(output)) else Path(output)
    if target and shape is Shape.SESSION_DIR:
        yield target
        return
    suffix = _ENDINGS[shape][0]
    if target and shape is Shape.ARCHIVE and target.name.lower().endswith(ARCHIVE_SUFFIXES):
        suffix = target.name[target.name.lower().rindex(".ndjson") :]
    try:
        with tempfile.TemporaryDirectory(
            prefix=".memctl-", dir=target.parent if target else None
        ) as folder:
            place = Path(folder) / f"export{suffix}"
            yield place
            if target is not None:
                place.replace(target)
            elif output == "-":
                pour(place, sys.stdout.buffer)
            else:
                with open(output, "wb") as device:
                    pour(place, device)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(f"{output} cannot be written: {error.strerror}") from error


def _target(shape: Shape, place: Path, path: str | None) -> Location:
    options = {} if path is None else {"path": path}
    match shape:
        case Shape.STATE_DICT:
            return Location("state", "the state_dict", path=place)
        case Shape.SESSION_DIR:
            return Location("sessions", str(place), path=place, options=options)
        case _:
            return Location("archive", "the archive", path=place)


async def _write(
    run: Run,
    outcome: CopyOutcome,
    location: Location,
    target: Location,
    where: Selection,
    *,
    lossy: bool,
) -> None:
    async with opened(make_store(location), run.output) as source:
        if target.kind == "state":
            await _refuse_several(source.headers(where))
        await source.prove(where)
        file = make_store(target, create=True)
        outcome.copied.warnings += await refuse_losses(source, file, where, lossy=lossy)
        async with opened(file, run.output):
            await file.lock(holder())
            with run.output.progress("exporting") as progress:
                # In a folder that is there already, --force was given.
                options = CopyOptions(OnConflict.REPLACE, lossy=lossy)
                await copy(source, file, where, options, outcome.copied, progress)
    for text in outcome.copied.warnings:
        run.output.warn(text)
    refuse_absent(
        where, outcome.copied.memories.selected, location.label, location.options.get("path")
    )


async def _refuse_several(headers: AsyncIterator[Memory]) -> None:
    """A state_dict holds one memory.

    Raises:
        UsageError: several are selected.
        NotFound: none is.
    """
    found = []
    async with closing(headers) as memories:
        async for memory in memories:
            found.append(memory.key)
            if len(found) > 1:
                raise UsageError(
                    f"a state_dict holds one memory; selected are {found[0]}, {found[1]} at least",
                    "choose one with --user and --session, or write --as archive",
                )
    if not found:
        raise NotFound("no memory is selected", "memctl inspect lists what there is")


async def _write_markdown(
    output: Output, outcome: CopyOutcome, location: Location, where: Selection, place: Path
) -> None:
    memories = 0
    async with opened(make_store(location), output) as store:
        with (
            output.progress("exporting") as progress,
            os.fdopen(
                os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "w", errors="backslashreplace"
            ) as file,
        ):
            async with closing(store.read(where)) as pages:
                async for page in pages:
                    if page.offset == 0:
                        file.write(("\n" if memories else "") + markdown.heading(page.memory))
                        memories += 1
                    for entry in page.entries:
                        file.write(markdown.message(entry))
                    progress.advance(memories=int(page.last), messages=len(page.entries))
    outcome.copied.memories.written = memories
    refuse_absent(where, memories, location.label, location.options.get("path"))


def command() -> TyperCommand:
    """The parser of this command."""
    return build(export, "export")
