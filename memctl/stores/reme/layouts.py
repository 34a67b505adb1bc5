"""The layouts of ReMe's versions, detected from the files in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from memctl.errors import UsageError
from memctl.location import visible
from memctl.machine import system
from memctl.storekit.files import system_errors

VAULT, FILES, LINES = "vault", "0.3", "0.2"
"""The values of ``?layout=``: ReMe 0.4's vault, and the vector stores of 0.3 and 0.2."""
VECTORS = "vector_store"
"""The folder in which ReMe 0.3 has a folder for each collection."""
VAULT_FOLDERS = ("daily", "digest")
_LOOKED_AT = 20
_BEGINNING = 4096


def layout_of(folder: Path) -> str:
    """Return the layout of a folder: VAULT, FILES or LINES.

    A missing folder, or a folder without files of ReMe, counts as VAULT.

    Raises:
        UsageError: the folder has several layouts, as after an upgrade of ReMe.
        Unavailable: the folder cannot be read.
    """
    if not folder.is_dir():
        return VAULT
    with system_errors(folder, "read"):
        found = list(_layouts(folder))
    if len(found) > 1:
        raise UsageError(
            f"{visible(str(folder))} holds the memory of several versions of ReMe",
            f"name one: {' or '.join(f'?layout={layout}' for layout in found)}",
        )
    return found[0] if found else VAULT


def _layouts(folder: Path) -> Iterator[str]:
    if any((folder / name).is_dir() for name in VAULT_FOLDERS):
        yield VAULT
    if collections(folder):
        yield FILES
    # ReMe leaves an empty file where it has deleted all of a workspace.
    lines = map(_beginning, _some(folder, ".jsonl"))
    if any(b'"unique_id"' in line or not line.strip() for line in lines):
        yield LINES


def vectors_folder(folder: Path) -> Path:
    """Return the folder in which ReMe 0.3 has its collections, for a store at ``folder``.

    This is the subfolder ``vector_store``, or ``folder`` itself if the collections are in it.
    """
    below = folder / VECTORS
    if below.is_dir() or not (folder.name == VECTORS or _collections(folder)):
        return below
    return folder


def collections(folder: Path) -> list[str]:
    """Return the sorted names of ReMe 0.3's collections in the store at ``folder``.

    Raises:
        OSError: the operating system refuses to read the folder.
    """
    return _collections(vectors_folder(folder))


def _collections(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [one.name for one in entries if one.is_dir() and not one.name.startswith(".")]
    return sorted(
        name
        for name in names
        if any(b'"vector_id"' in _beginning(path) for path in _some(folder / name, ".json"))
    )


def _some(folder: Path, suffix: str) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        names = (one.path for one in entries if one.name.endswith(suffix) and one.is_file())
        yield from map(Path, islice(names, _LOOKED_AT))


def _beginning(path: Path) -> bytes:
    handle = os.open(path, system.READ_FLAGS)
    try:
        return os.pread(handle, _BEGINNING, 0)
    finally:
        os.close(handle)
