"""``memctl export``: memories into a file that appears when it is whole."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._destination import (
    STDOUT,
    Shape,
    is_device,
    is_folder,
    refuse_output,
    refuse_taken,
)
from memctl.commands._exporting import Exporting
from memctl.commands._options import (
    STORE_HELP,
    DryRunOption,
    FormatOption,
    JsonOption,
    LossyOption,
    PathOption,
    build,
    selecting,
)
from memctl.commands._rotation import rotation
from memctl.commands._run import wait_for
from memctl.commands._stores import readable
from memctl.errors import UsageError
from memctl.location import Location
from memctl.output.terminal import Format
from memctl.registry import make_store, spec_of
from memctl.selection import Selection


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
    rotate: Annotated[
        str | None,
        typer.Option(
            "--rotate",
            metavar="KEEP",
            help="Put the time into the name and remove older files but so many: daily:7,weekly:4; "
            "also last, hourly, monthly, yearly.",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="From a Markdown folder, remove memories that are gone."),
    ] = False,
    lossy: LossyOption = False,
    path: PathOption = None,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Write memories to a file: state_dict, archive, folder, Markdown.

    A state_dict is what InMemoryMemory.load_state_dict takes, a folder what JSONSession loads. The
    file has mode 0600 and appears under its name only when it is whole. --as markdown -o FOLDER
    writes a file a memory, and again only those that changed.
    """
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    if output == STDOUT and run.output.format is not Format.TABLE and not dry_run:
        raise UsageError("stdout is what is exported, not the report", "name a file: -o FILE")
    keep = None if rotate is None else rotation(rotate)
    with readable(run.locate(store), where, path) as location:
        shape = shape or _of_ending(output) or wait_for(_by_count(location, where))
        refuse_output(output, shape, location)
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
    """Objects to options that do not go with what is written.

    Raises:
        UsageError: see there.
    """
    folder = is_folder(output, shape)
    if rotate and (output == STDOUT or is_device(Path(output)) or folder):
        raise UsageError("--rotate is for files", "name one: -o backup.ndjson.zst")
    if prune and not (folder and shape is Shape.MARKDOWN):
        raise UsageError("--prune is for Markdown folders", "write --as markdown -o FOLDER")
    if prune and not where.whole:
        raise UsageError(
            "--prune does not go with a selection of messages",
            "a memory without such messages is not gone; --user and --session go with it",
        )


def _of_ending(output: str) -> Shape | None:
    name = output.lower()
    if name.endswith(spec_of("archive").suffixes):
        return Shape.ARCHIVE
    if name.endswith(".json"):
        return Shape.STATE_DICT
    if name.endswith(".md"):
        return Shape.MARKDOWN
    return Shape.SESSION_DIR if output.endswith(os.sep) else None


async def _by_count(location: Location, where: Selection) -> Shape:
    """One memory makes a state_dict, several an archive."""
    found = 0
    async with make_store(location) as store, aclosing(store.headers(where)) as memories:
        async for _ in memories:
            found += 1
            if found > 1:
                break
    return Shape.STATE_DICT if found == 1 else Shape.ARCHIVE


def command() -> TyperCommand:
    """The parser of this command."""
    return build(export, "export")
