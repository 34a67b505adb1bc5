"""Temporary files, and the folder for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from memctl.errors import Unavailable

ROOM = "free some space, or set TMPDIR to a folder with more"
"""The hint if a temporary file has no room."""


def scratch() -> Path:
    """Return the folder of the system for temporary files.

    Raises:
        Unavailable: no folder can be written; the disk may be full.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise Unavailable("cannot write a temporary file in any folder", ROOM) from error


def end(file: IO[Any]) -> None:
    """Close a temporary file, which is gone then, with all that it could not write."""
    with suppress(OSError):
        file.close()


@contextmanager
def temporary_file(folder: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a new file without a name in ``folder``, or in the folder of ``scratch``.

    Raises:
        OSError: the system refuses; an end of the context raises none.
        Unavailable: as ``scratch``.
    """
    file = tempfile.TemporaryFile(dir=folder or scratch())  # noqa: SIM115 - see end
    try:
        yield file
    finally:
        end(file)
