"""The place of an export: its form by its name, refused, locked, published when it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from memctl.errors import Unavailable, UsageError
from memctl.location import Location, same_file
from memctl.ops.observer import Observer
from memctl.registry import spec_of
from memctl.selection import Selection
from memctl.storekit.files import (
    TEMPORARY_PREFIX,
    put_in_place,
    sync_folder,
    system_errors,
    temporary_folder,
)
from memctl.storekit.locks import FileLock, lock_owner
from memctl.system import EXHAUSTED

STDOUT = "-"
"""The name of the stream."""


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


def shape_of(output: str) -> Shape | None:
    name = output.lower()
    if name.endswith(spec_of("archive").suffixes):
        return Shape.ARCHIVE
    if name.endswith(".json"):
        return Shape.STATE_DICT
    for shape in (Shape.MARKDOWN, Shape.CSV, Shape.PARQUET, Shape.OPENAI):
        if name.endswith(_EXTENSIONS[shape]):
            return shape
    return Shape.SESSION_DIR if output.endswith(os.sep) else None


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


def refuse_options(
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


@contextmanager
def locked_output(observer: Observer, output: str, shape: Shape) -> Iterator[None]:
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
            observer.warn(text)
        yield


@contextmanager
def published(output: str, shape: Shape, stream: BinaryIO | None) -> Iterator[Path]:
    """A place to write to, that becomes the output when the work ends well.

    What is meant for the ``stream`` goes there then.

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
                assert stream is not None
                pour(place, stream)
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


def pour(path: Path, stream: BinaryIO) -> None:
    """Copy a file into a stream."""
    with path.open("rb") as whole:
        shutil.copyfileobj(whole, stream)
    stream.flush()
