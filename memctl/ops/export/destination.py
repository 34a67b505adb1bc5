"""The destination of an export: its shape, checks, lock, and the move into place at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from memctl.encryption import EXTENSION, Encryption, is_encrypted, plain_name, read_recipients
from memctl.errors import UsageError
from memctl.location import Location, is_one_file, redact
from memctl.ops.export.output import Output, Stream
from memctl.ops.observer import Observer
from memctl.registry import file_of, is_object, spec_of
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.storekit.files import (
    TEMPORARY_PREFIX,
    sync_folder,
    system_errors,
    temporary_folder,
)
from memctl.storekit.locks import FileLock, lock_owner, stand_in
from memctl.storekit.named_file import File, LocalFile, NamedFile

STDOUT = "-"
"""The name of the standard output."""
PLACE = "{shard}"
"""The placeholder of the shard in the name of a file."""


class Shape(StrEnum):
    """The format of an export."""

    STATE_DICT = "state-dict"
    JSON = "json"
    """The same as STATE_DICT: the JSON of a memory is its state_dict."""
    ARCHIVE = "archive"
    SESSION_DIR = "session-dir"
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    PARQUET = "parquet"
    ATIF = "atif"
    OPENAI = "openai"
    HERMES = "hermes"
    """A list of sessions that Hermes imports."""
    OPENCODE = "opencode"
    """A session that OpenCode imports."""
    ZIP = "zip"
    """A page of HTML, and an archive of each store."""


WRITTEN = frozenset({Shape.MARKDOWN, Shape.HTML, Shape.CSV, Shape.PARQUET, Shape.ATIF})
"""The shapes for readers.

They are written page by page, and memctl does not read them as stores.
"""

FOLDERS = frozenset({Shape.MARKDOWN, Shape.HTML})
"""The shapes of which a folder has a file for each memory."""

_EXTENSIONS: dict[Shape, tuple[str, ...]] = {
    Shape.STATE_DICT: (".json",),
    Shape.ARCHIVE: spec_of("archive").suffixes,
    Shape.SESSION_DIR: (),
    Shape.MARKDOWN: (".md",),
    Shape.HTML: (".html", ".htm"),
    Shape.CSV: (".csv",),
    Shape.PARQUET: (".parquet",),
    Shape.ATIF: (".jsonl", ".json"),
    Shape.OPENAI: spec_of("openai").suffixes,
    Shape.HERMES: (".json",),
    Shape.OPENCODE: (".json",),
    Shape.ZIP: (".zip",),
}


_NAMED = (Shape.MARKDOWN, Shape.HTML, Shape.CSV, Shape.PARQUET, Shape.OPENAI, Shape.ZIP)
"""The shapes besides archives and JSON that an extension shows."""


def shape_of(output: str) -> Shape | None:
    """Return the shape that the name of an output shows; None if it shows none.

    Raises:
        UsageError: the output is a URL that is not valid.
    """
    name = plain_name(file_name(output)).lower()
    if name.endswith(spec_of("archive").suffixes):
        return Shape.ARCHIVE
    if name.endswith(".json"):
        return Shape.STATE_DICT
    for shape in _NAMED:
        if name.endswith(_EXTENSIONS[shape]):
            return shape
    return Shape.SESSION_DIR if output.endswith(os.sep) else None


def file_name(output: str) -> str:
    """Return the name of the object, or the whole path.

    Raises:
        UsageError: the output is a URL that is not valid.
    """
    return file_of(output).name if is_object(output) else output


def shown(output: str) -> str:
    """Return the output as errors quote it: without secrets, in quotation marks."""
    return repr(redact(output) if is_object(output) else output)


def is_folder(output: str, shape: Shape) -> bool:
    """Return whether an export to ``output`` writes a folder instead of a file.

    An export with the shape SESSION_DIR always writes a folder.  A shape of ``FOLDERS``
    writes a folder if ``output`` is a folder or has no extension.
    """
    if shape not in FOLDERS:
        return shape is Shape.SESSION_DIR
    return _names_folder(output)


def output_of(output: str, shape: Shape | None, shard: Shard | None) -> str:
    """Return the file or folder that a part of a run writes: ``{shard}`` stands for its shard.

    All parts write into the same folder of sessions, Markdown or HTML.  In a folder of Parquet,
    each writes a file.

    Raises:
        UsageError: all parts would write the same file, or ``{shard}`` is named without a shard.
    """
    if shard is None:
        if PLACE in output:
            raise UsageError(
                f"{shown(output)} names a file for each part",
                f"add --shard K/N or --shards N, or omit {PLACE}",
            )
        return output
    if PLACE in output:
        return output.replace(PLACE, shard.file_name)
    shape = shape or shape_of(output)
    if is_object(output):
        raise UsageError(
            f"all parts of the run would write {shown(output)}",
            f"name an object for each part: -o s3://BUCKET/NAME-{PLACE}.ndjson.zst",
        )
    if shape is Shape.PARQUET and _names_folder(output):
        return str(Path(output) / f"part-{shard.file_name}.parquet")
    if is_stream(output) or (shape and is_folder(output, shape)):
        return output
    path = Path(output)
    stem, dot, extensions = path.name.partition(".")
    raise UsageError(
        f"all parts of the run would write {output!r}",
        f"name a file for each part: -o {path.with_name(f'{stem}-{PLACE}{dot}{extensions}')}",
    )


def _names_folder(output: str) -> bool:
    """Return whether an output names a folder, or has no extension."""
    path = Path(plain_name(file_name(output)))
    if is_object(output):
        return not path.suffix
    named = output.endswith(os.sep) or path.is_dir()
    return not is_stream(output) and (named or not path.suffix)


def extension_of(output: str, shape: Shape) -> str:
    """Return the extension of ``output`` in lower case, if it belongs to the shape.

    If it does not, return the usual extension of the shape.
    """
    extensions = sorted(_EXTENSIONS[shape], key=len, reverse=True)
    name = file_name(output).lower()
    secured = EXTENSION if is_encrypted(name) else ""
    name = plain_name(name)
    found = next((one for one in extensions if name.endswith(one)), _EXTENSIONS[shape][0])
    return found + secured


def refuse_output(
    output: str, shape: Shape, source: Location, *, in_new_folder: bool = False
) -> None:
    """Refuse an output that does not fit its shape, or that is the exported store itself.

    With ``in_new_folder``, the folder of the output need not exist, only the one around it.

    Raises:
        UsageError: the name and the shape of the output do not fit, the output is the store
            ``source``, or its folder does not exist.
    """
    if output == STDOUT:
        if shape is Shape.SESSION_DIR:
            raise UsageError("a folder cannot be written to stdout", "name it: -o FOLDER")
        if shape is Shape.PARQUET:
            raise UsageError("Parquet cannot be written to stdout", "name it: -o NAME.parquet")
        return
    if is_object(output):
        _refuse_object(output, shape, source)
        return
    path = Path(output)
    if is_device(path):
        return
    if source.path != Path() and is_one_file(source.path, path):
        raise UsageError(f"{output!r} is the store being exported", "name another file")
    if is_folder(output, shape):
        if path.is_file():
            raise UsageError(f"{output!r} is a file", "name a folder")
    elif path.is_dir():
        raise UsageError(f"{output!r} is a folder", "--as session-dir writes a folder")
    else:
        _refuse_extension(output, shape)
    if not (path.parent.parent if in_new_folder else path.parent).is_dir():
        raise UsageError(f"the folder of {output!r} does not exist", "create it first")


def _refuse_extension(output: str, shape: Shape) -> None:
    name = plain_name(file_name(output)).lower()
    if not name.endswith(_EXTENSIONS[shape]):
        names = " or ".join(f"NAME{extension}" for extension in _EXTENSIONS[shape])
        if name.endswith(".pdf"):
            hint = "name it NAME.html, and print the page from a browser"
        elif shape is Shape.ARCHIVE and shape_of(output) is None:
            hint = (
                "name it .html, .md, .csv, .parquet, .jsonl or .json, or .ndjson.zst for an archive"
            )
        else:
            hint = f"name it {names}"
        raise UsageError(
            f"unrecognised file extension for {shape.value}: {shown(output)}",
            f"{hint}; write a database with memctl migrate",
        )


def _refuse_object(output: str, shape: Shape, source: Location) -> None:
    """Refuse an object that does not fit its shape, or that is the exported store itself.

    Raises:
        UsageError: always in such a case.
    """
    if is_folder(output, shape) or (shape is Shape.PARQUET and _names_folder(output)):
        raise UsageError(
            f"{shown(output)}: a folder of files cannot be written to object storage",
            "name one object with an extension, such as s3://BUCKET/NAME.ndjson.zst",
        )
    _refuse_extension(output, shape)
    if source.kind == "archive" and file_of(source).identity == file_of(output).identity:
        raise UsageError(f"{shown(output)} is the store being exported", "name another object")


def refuse_keys(output: str, encryption: Encryption, *, asked: bool) -> None:
    """Refuse an encrypted output without valid recipients.

    ``asked`` is True if the user named the recipients for this output.

    Raises:
        UsageError: there is no recipient, or one is not valid; or the output would not be
            encrypted, and the user asked for that.
    """
    if is_encrypted(file_name(output)) or (asked and output == STDOUT):
        read_recipients(encryption, output if output == STDOUT else shown(output)[1:-1])
    elif asked:
        raise UsageError(
            f"{shown(output)} would not be encrypted",
            f"name it with {EXTENSION}: -o NAME.ndjson.age",
        )


def refuse_taken(output: str, shape: Shape, shard: Shard | None, *, force: bool) -> None:
    """Refuse an output that exists, unless ``force`` is set.

    An empty folder is accepted for SESSION_DIR; with a shard, so is one with sessions, which other
    parts of the run may have written.

    Raises:
        UsageError: the output exists, and ``force`` is not set.
    """
    if is_stream(output):
        return
    if is_object(output):
        if not force and file_of(output).exists():
            raise UsageError(f"{shown(output)} exists", "use --force to replace it")
        return
    path = Path(output)
    folder = shape is Shape.SESSION_DIR and path.is_dir()
    taken = shard is None and _holds_something(path) if folder else path.exists()
    if taken and not force:
        raise UsageError(f"{output!r} exists", "use --force to replace it")


def refuse_other_parts(output: str, shard: Shard) -> None:
    """Refuse a file in a folder with the files of a run that was divided otherwise.

    Raises:
        UsageError: the folder of the output has such files: they would be one data set.
    """
    for path in sorted(Path(output).parent.glob("part-*-of-*.parquet")):
        if not path.stem.endswith(f"-of-{shard.of:04}"):
            raise UsageError(
                f"{str(path)!r} is of a run with another number of parts",
                "name a new folder, or remove its files first",
            )


def refuse_as_rotation(output: str) -> None:
    """Refuse the name of an existing file for a rotation, which the file would hide.

    Raises:
        UsageError: the file exists.
    """
    if file_of(output).exists() if is_object(output) else Path(output).exists():
        what = "an object" if is_object(output) else "a file"
        raise UsageError(
            f"{shown(output)} is {what}, so a rotation cannot have this name",
            f"rename the {what.split()[-1]}, or choose another name",
        )


def is_stream(output: str) -> bool:
    """Return whether an output is the standard output, a pipe or a device."""
    return output == STDOUT or (not is_object(output) and is_device(Path(output)))


def is_device(path: Path) -> bool:
    """Return whether a path is a pipe or device, such as /dev/stdout, and so cannot be replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def refuse_options(
    output: str, shape: Shape, where: Selection, *, rotate: bool, prune: bool, limited: bool
) -> None:
    """Refuse options for an output or a selection that they do not fit.

    ``limited`` is True if the export has a least number of memories or messages.

    Raises:
        UsageError: ``rotate`` is set, and the output is not a file.  Or ``prune`` is set, and the
            output is not a folder of Markdown or HTML, or only some messages are selected.  Or the
            selection has a shard, and the output cannot be divided, or the export is ``limited``.
    """
    if where.shard is not None and shape is Shape.STATE_DICT:
        raise UsageError(
            "a state_dict holds one memory, which cannot be divided", "use --as archive"
        )
    if where.shard is not None and shape is Shape.ZIP:
        raise UsageError("a ZIP file cannot be divided", "use --as archive, or leave --shard out")
    if where.shard is not None and limited:
        raise UsageError(
            "--min-memories and --min-messages are about all parts, and --shard does one",
            "leave them out, and add up the numbers in the reports of all parts",
        )
    folder = is_folder(output, shape)
    if rotate and (is_stream(output) or folder):
        raise UsageError("--rotate needs a file", "name one: -o backup.ndjson.zst")
    if prune and not (folder and shape in FOLDERS):
        raise UsageError(
            "--prune needs a folder of Markdown or HTML",
            "use --as markdown -o FOLDER, or --as html -o FOLDER",
        )
    if prune and not where.whole:
        raise UsageError(
            "--prune cannot be combined with a selection of messages",
            "select by --user and --session only",
        )


@contextmanager
def locked_output(
    observer: Observer, output: str, shape: Shape, shard: Shard | None
) -> Iterator[None]:
    """Lock the output of an export against other runs within the block.

    A stream is not locked.  A session folder with contents, or for a shard, is not locked here,
    because its store locks it.

    Raises:
        Busy: another run writes to the output.
        Unavailable: the folder of the output cannot be written.
    """
    path = Path(output)
    by_store = shape is Shape.SESSION_DIR and (shard is not None or _holds_something(path))
    if by_store or is_stream(output):
        yield
        return
    label = output
    if is_object(output):
        file = file_of(output)
        path, label = stand_in(file.identity), file.label
    with FileLock(path, label, shard).held(lock_owner()) as warnings:
        for text in warnings:
            observer.warn(text)
        yield


def new_output(
    file: File | None,
    output: str,
    shape: Shape,
    stream: BinaryIO | None,
    encryption: Encryption,
    *,
    replace: bool,
    encrypts: bool = False,
    dry_run: bool = False,
) -> Output:
    """Return the new file of an export.

    ``file`` is the file of the output, or of a rotation; None for a stream.  If the output is the
    standard output, the contents go to ``stream``; ``encrypts`` says that they are encrypted.
    Without ``replace``, a file that exists at the end of the export is refused.
    """
    extension = extension_of(output, shape)
    if encrypts and not is_encrypted(extension):
        extension += EXTENSION
    if file is None:
        opened = (lambda: stream or sys.stdout.buffer) if output == STDOUT else _device(output)
        file = Stream(f"export{extension}", output, opened)
    keys = None if shape is Shape.ARCHIVE else encryption  # an archive encrypts itself
    return Output(file, replace=replace, encryption=keys, dry_run=dry_run)


def file_at(output: str) -> NamedFile | None:
    """Return the file that an output names; None for a stream."""
    if is_stream(output):
        return None
    return file_of(output) if is_object(output) else LocalFile(Path(output))


def _device(output: str) -> Callable[[], BinaryIO]:
    return lambda: open(output, "wb")


@contextmanager
def published_folder(target: Path, shard: Shard | None) -> Iterator[Path]:
    """Yield a path for the files of sessions, which move into ``target`` if the block succeeds.

    For a folder with contents, or for a shard, the path is the folder itself.

    Raises:
        MemctlError: the folder cannot be written.
    """
    direct = shard is not None or _holds_something(target)
    with nullcontext(target) if direct else _published_folder(target) as place:
        yield place


@contextmanager
def _published_folder(target: Path) -> Iterator[Path]:
    """Yield a path for files, which move into ``target`` if the block succeeds.

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
            with suppress(OSError):  # another program may have put files there
                target.rmdir()
        raise


def _holds_something(folder: Path) -> bool:
    """Return whether a folder has contents, besides leftovers of killed runs."""
    if not folder.is_dir():
        return False
    return any(not name.startswith(TEMPORARY_PREFIX) for name in os.listdir(folder))
