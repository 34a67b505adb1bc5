"""Where an export goes: a file that appears when it is whole, a folder, a device, or stdout."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from memctl.commands._stores import pour
from memctl.errors import Unavailable, UsageError
from memctl.location import Location, same_file
from memctl.output.terminal import Output
from memctl.registry import spec_of
from memctl.stores.locks import FileLock, lock_owner


class Shape(StrEnum):
    """What an export becomes."""

    STATE_DICT = "state-dict"
    ARCHIVE = "archive"
    SESSION_DIR = "session-dir"
    MARKDOWN = "markdown"


_ENDINGS: dict[Shape, tuple[str, ...]] = {
    Shape.STATE_DICT: (".json",),
    Shape.ARCHIVE: spec_of("archive").suffixes,
    Shape.SESSION_DIR: (),
    Shape.MARKDOWN: (".md",),
}


STDOUT = "-"


def is_folder(output: str, shape: Shape) -> bool:
    """Whether a folder is to be written: sessions, or Markdown that is not told to be one file."""
    if shape is not Shape.MARKDOWN:
        return shape is Shape.SESSION_DIR
    path = Path(output)
    named = output.endswith(os.sep) or path.is_dir()
    return output != STDOUT and not is_device(path) and (named or not path.suffix)


def ending_of(output: str, shape: Shape) -> str:
    """The ending of a file of this shape, in small letters; of a stream, the usual one."""
    endings = sorted(_ENDINGS[shape], key=len, reverse=True)
    name = output.lower()
    return next((one for one in endings if name.endswith(one)), _ENDINGS[shape][0])


def refuse_output(output: str, shape: Shape, source: Location) -> None:
    """Objects to an output that cannot be, or that nobody could read back.

    Raises:
        UsageError: see there.
    """
    if output == STDOUT:
        if shape is Shape.SESSION_DIR:
            raise UsageError("a folder cannot be written to stdout", "name it: -o FOLDER")
        return
    path = Path(output)
    if is_device(path):
        return
    if source.path != Path() and same_file(source.path) == same_file(path):
        raise UsageError(f"{output!r} is the store that is exported", "name another file")
    if is_folder(output, shape):
        if path.is_file():
            raise UsageError(f"{output!r} is a file", "name a folder")
    elif path.is_dir():
        raise UsageError(f"{output!r} is a folder", "--as session-dir writes a folder")
    elif not output.lower().endswith(_ENDINGS[shape]):
        raise UsageError(
            f"{output!r} does not end as {shape.value} does",
            f"name it {' or '.join('NAME' + ending for ending in _ENDINGS[shape])}; "
            "'memctl migrate' writes databases",
        )
    if not path.parent.is_dir():
        raise UsageError(f"the folder of {output!r} does not exist", "create it first")


def refuse_taken(output: str, shape: Shape, *, force: bool) -> None:
    """Objects to an output that holds something, unless that is to be replaced.

    Raises:
        UsageError: it does.
    """
    path = Path(output)
    if output == STDOUT or is_device(path):
        return
    folder = shape is Shape.SESSION_DIR and path.is_dir()
    if not force and (any(path.iterdir()) if folder else path.exists()):
        raise UsageError(f"{output!r} exists", "--force replaces it")


def is_device(path: Path) -> bool:
    """Whether it is a pipe or a device such as /dev/stdout: written to, never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def locked(messages: Output, output: str, shape: Shape) -> Iterator[None]:
    """Keeps other runs from what is to be written; a folder of sessions is locked by its store.

    Raises:
        Busy: another run writes to it.
        Unavailable: its folder cannot be written.
    """
    path = Path(output)
    if output == STDOUT or shape is Shape.SESSION_DIR or is_device(path):
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
        yield target
        return
    try:
        with tempfile.TemporaryDirectory(
            prefix=".memctl-", dir=target.parent if target else None
        ) as folder:
            place = Path(folder) / f"export{ending_of(output, shape)}"
            yield place
            if target is not None:
                place.replace(target)
            elif output == STDOUT:
                pour(place, sys.stdout.buffer)
            else:
                with open(output, "wb") as device:
                    pour(place, device)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(f"{output} cannot be written: {error.strerror}") from error


@contextmanager
def nowhere(output: str, shape: Shape) -> Iterator[Path]:
    """A place that a dry run may look at, and finds as empty as the run itself would."""
    if shape is Shape.SESSION_DIR:
        yield Path(output)
        return
    with tempfile.TemporaryDirectory(prefix="memctl-") as folder:
        yield Path(folder) / f"export{ending_of(output, shape)}"
