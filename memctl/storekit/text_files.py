"""The texts in files, given to a rewriter and replaced file by file."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO

from memctl.errors import BadData, NotFound
from memctl.location import visible
from memctl.machine.concurrency import in_thread
from memctl.machine.zstd import ZstdCompressor, ZstdError, ZstdFile
from memctl.model import PAGE_BYTES
from memctl.storekit.batching import grouped
from memctl.storekit.binary import rewrite_bytes
from memctl.storekit.files import AtomicFile, system_errors
from memctl.storekit.texts import CHANGED_MEANWHILE, IS_NAME, Rewriter, TextResult

_IN_LINES = (".jsonl", ".ndjson")
"""The ends of the names of files whose lines are texts of their own.

In other files, a value may have several lines, such as a private key.
"""
COMPRESSED = ".zst"
"""The end of the name of a compressed file."""

Refuse = Callable[[Path], str]
"""Returns why a file must stay as it is; an empty text if it may change."""


def files_below(folder: Path, names: Iterable[str] = ("",)) -> Iterator[Path]:
    """Yield the files in a folder, and in its subfolders, in order; or only those below ``names``.

    Links are not followed, and hidden folders, such as that of Git, are passed over.
    """
    for name in names:
        place = folder / name
        with system_errors(place, "read"):
            if place.is_symlink():
                continue
            if place.is_file():
                yield place
                continue
            for parent, folders, found in os.walk(place):
                folders[:] = sorted(one for one in folders if not one.startswith("."))
                for one in sorted(found):
                    path = Path(parent, one)
                    if path.is_file() and not path.is_symlink():
                        yield path


async def rewrite_files(
    paths: Iterable[Path],
    root: Path,
    rewriter: Rewriter,
    *,
    writes: bool,
    refuse: Refuse = lambda _: "",
) -> AsyncGenerator[TextResult]:
    """Rewrite files, each whole or not at all, and yield what was found in each place.

    ``root`` is the folder from which places are named.  ``refuse`` says which files must stay.

    Raises:
        Unavailable: the operating system refuses to read or to write a file.
        BadData: a compressed file is damaged.
    """
    files = iter(paths)
    while (path := await in_thread(partial(next, files, None))) is not None:
        file = _TextFile(path, root, rewriter)
        for result in await in_thread(partial(file.rewrite, writes=writes, refuse=refuse)):
            yield result


class _TextFile:
    """A file with texts."""

    def __init__(self, path: Path, root: Path, rewriter: Rewriter) -> None:
        self._path = path
        self._rewriter = rewriter
        self._place = visible(os.path.relpath(path, root) if path != root else path.name)
        self._name = path.name.removesuffix(COMPRESSED)
        self._results: list[TextResult] = []

    def rewrite(self, *, writes: bool, refuse: Refuse) -> list[TextResult]:
        """Rewrite the file; return the values in the file, and in the name of the file."""
        in_name = TextResult(self._place, [], self._rewriter.stays(self._path.name, IS_NAME))
        named = [in_name] if in_name.left else []
        try:
            with system_errors(self._path, "read"):
                before = signature(self._path)
                if not self._is_suspect():
                    return named
                if writes and not (why := refuse(self._path)):
                    return named + self._replace(before)
            found = self._found()
        except NotFound:  # its program has removed it
            return named
        except (EOFError, ZstdError) as error:
            raise BadData(f"{self._place} is damaged: {error}") from error
        return named + [one.failed(why) if writes else one for one in found]

    def _is_suspect(self) -> bool:
        with opened(self._path) as file:
            for some in grouped(self._texts(file), lambda text: (len(text), 1), PAGE_BYTES):
                if any(True for _ in self._rewriter.suspects(some)):
                    return True
        return False

    def _found(self) -> list[TextResult]:
        self._results.clear()
        with opened(self._path) as file:
            for _ in self._new_texts(file):
                pass
        return list(self._results)

    def _replace(self, before: tuple[int, ...]) -> list[TextResult]:
        self._results.clear()
        if replace_texts(self._path, before, self._new_texts, self._is_changed):
            return list(self._results)
        return [one.failed(CHANGED_MEANWHILE) for one in self._results]

    def _is_changed(self) -> bool:
        return any(one.hits for one in self._results)

    def _new_texts(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield the texts of the file after the rewrite."""
        for number, text in enumerate(self._texts(file), 1):
            place = f"{self._place}:{number}" if self._name.endswith(_IN_LINES) else self._place
            if self._rewriter.is_suspect(text):
                new = rewrite_bytes(text, self._rewriter)
                self._results += [new.at(place)] if new.hits or new.left else []
                yield new.text
            else:
                yield text

    def _texts(self, file: IO[bytes]) -> Iterator[bytes]:
        if self._name.endswith(_IN_LINES):
            yield from file
        else:
            yield file.read()


def opened(path: Path) -> IO[bytes]:
    """Open a file to read its texts, which may be compressed."""
    if path.name.endswith(COMPRESSED):
        return BufferedReader(ZstdFile(path))
    return path.open("rb")


def signature(path: Path) -> tuple[int, ...]:
    """Return numbers that differ after each change of a file."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ino


def replace_texts(
    path: Path,
    before: tuple[int, ...],
    new_texts: Callable[[IO[bytes]], Iterator[bytes]],
    is_changed: Callable[[], bool],
) -> bool:
    """Replace a file by a new one with its time, unless ``is_changed`` says that all is the same.

    Return False if another program has changed the file since it had the signature ``before``.

    Raises:
        Unavailable: the operating system refuses to read or to write the file.
    """
    with opened(path) as file, AtomicFile(path) as new:
        frame = ZstdCompressor() if path.name.endswith(COMPRESSED) else None
        for text in new_texts(file):
            new.write(text if frame is None else frame.compress(text))
        if frame is not None:
            new.write(frame.flush())
        if not is_changed():
            return True
        new.sync()
        new.set_time(before[1])
        if signature(path) != before:
            return False
        new.commit()
    return True
