"""The folder of the indexes: a file a store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from memctl.errors import Unavailable
from memctl.index.database import DamagedIndex, IndexFile, remove_file
from memctl.location import Location, same_file

SUFFIX = ".index"
HINT = "set XDG_CACHE_HOME to another folder, or search with --no-index"
"""The hint where the folder cannot be written."""

_SINGLE_FILES = frozenset({"sqlite", "archive", "state"})
"""The kinds of store of which all is in one file, whose times tell whether it was changed."""
_SETTLED = 2.0
"""Seconds after which a change would show in the times of a file."""


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index: its file, its store, its contents, and when it was brought up to date.

    ``model`` is the name of the model of its vectors; empty without vectors.  Of a damaged index
    there is no more than the file.
    """

    path: Path
    label: str
    kind: str
    memories: int
    messages: int
    bytes: int
    updated: datetime
    model: str = ""
    identity: str = ""
    """The digest of ``Store.identity``."""


def folder() -> Path:
    """Return the folder of the indexes; it need not exist."""
    from platformdirs import user_cache_path  # only a search needs it

    return user_cache_path("memctl") / "index"


def make_folder() -> Path:
    """Make the folder of the indexes, for this user alone.

    Raises:
        Unavailable: the system refuses.
    """
    path = folder()
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make {path}: {error.strerror}",
            HINT,
        ) from error
    return path


def place_of(location: Location, identity: str) -> Path:
    """Return the file of the index of a store, whose ``Store.identity`` it takes."""
    options = [f"{name}={value}" for name, value in sorted(location.options.items())]
    text = "\0".join((location.kind, identity, *options))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return folder() / f"{digest[:32]}{SUFFIX}"


def digest(identity: str) -> str:
    """Return what an index keeps of the identity of its store."""
    return sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def file_identity(location: Location) -> str | None:
    """Return ``Store.identity`` of a store that is one file, without opening it."""
    if location.kind not in _SINGLE_FILES or not location.path.is_file():
        return None
    return f"file:{same_file(location.path)}"


def stamp(location: Location) -> str | None:
    """Return a text that changes whenever the store does, where that is one file.

    None where it may change without the text: other stores, and a file that was just written.
    """
    if file_identity(location) is None:
        return None
    parts = []
    for suffix in ("", "-wal", "-journal"):
        try:
            found = os.stat(f"{location.path}{suffix}")
        except OSError:
            continue
        if abs(time.time() - found.st_mtime) < _SETTLED:
            return None
        parts.append(f"{suffix}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}")
    return " ".join(parts)


def indexes() -> list[IndexInfo]:
    """Return the indexes of this user, by the labels of their stores."""
    return sorted(map(_info, _files()), key=lambda info: (info.label, info.path))


def _files() -> Iterator[Path]:
    path = folder()
    if path.is_dir():
        yield from path.glob(f"*{SUFFIX}")


def _info(path: Path) -> IndexInfo:
    size, updated = 0, 0.0
    for suffix in ("", "-wal"):
        try:
            found = path.with_name(path.name + suffix).stat()
        except FileNotFoundError:
            continue
        size += found.st_size
        updated = max(updated, found.st_mtime)
    label, kind, model, identity, totals = "", "", "", "", (0, 0)
    try:
        if index := IndexFile.open(path):
            try:
                label, kind = index.about("label"), index.about("kind")
                model, totals = index.about("model") or "", index.totals()
                identity, updated = index.about("identity"), index.about("updated")
            finally:
                index.close()
    except DamagedIndex:
        label = ""
    at = datetime.fromtimestamp(updated)
    return IndexInfo(path, label, kind, *totals, size, at, model, identity)


def remove(info: IndexInfo) -> None:
    """Remove an index.

    Raises:
        Unavailable: it cannot be removed.
    """
    remove_file(info.path)


def sweep() -> None:
    """Remove the indexes of files that are gone, such as old exports.

    Raises:
        Unavailable: one cannot be removed.
    """
    for path in _files():
        try:
            index = IndexFile.open(path)
            if index is None:
                continue
            try:
                store = index.about("path")
            finally:
                index.close()
        except DamagedIndex:
            continue  # made anew by the search that needs it
        if store and not os.path.lexists(store):
            remove_file(path)


def remove_of(identity: str) -> int:
    """Remove the indexes of a place, in whatever way it was named; return how many.

    Damaged ones go, too: they may be of the place.

    Raises:
        Unavailable: one cannot be removed.
    """
    removed = 0
    for path in _files():
        try:
            index = IndexFile.open(path)
            other = index is not None and index.about("identity") != digest(identity)
            if index is not None:
                index.close()
        except DamagedIndex:
            other = False
        if not other:
            remove_file(path)
            removed += 1
    return removed
