"""The folder of the indexes: a file for each store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from memctl.errors import Unavailable
from memctl.index.database import DamagedIndex, IndexFile, remove_file
from memctl.location import Location

SUFFIX = ".index"
HINT = "set XDG_CACHE_HOME to another folder, or search with --no-index"
"""The hint if the folder cannot be written."""


class IndexInfo(Struct, frozen=True):
    """A search index: its file, the label and kind of its store, its counts and its last update.

    ``model`` is the model that made the vectors; empty without vectors.  If the index is damaged,
    only ``path``, ``bytes`` and ``updated`` have values.
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
    """Return the folder of the search indexes, which may not exist yet."""
    from platformdirs import user_cache_path  # only needed for a search

    return user_cache_path("memctl") / "index"


def make_folder() -> Path:
    """Create the folder of the search indexes, which other users cannot read; return its path.

    Raises:
        Unavailable: the operating system refuses to create the folder.
    """
    path = folder()
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot make {path}: {error.strerror}", HINT) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write to {path}", HINT)
    return path


def place_of(location: Location, identity: str) -> Path:
    """Return the file of a store's search index; ``identity`` is ``Store.identity``."""
    options = [f"{name}={value}" for name, value in sorted(location.options.items())]
    text = "\0".join((location.kind, identity, *options))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return folder() / f"{digest[:32]}{SUFFIX}"


def digest(identity: str) -> str:
    """Return the digest of ``Store.identity``; a search index keeps this digest of its store."""
    return sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def read_about(path: Path, name: str) -> Any:
    """Return the value ``name`` in a search index; None if no index can be read at the path."""
    with suppress(DamagedIndex):
        if (index := IndexFile.open(path)) is not None:
            with closing(index):
                return index.about(name)
    return None


def indexes() -> list[IndexInfo]:
    """Return the search indexes of this user, sorted by the labels of their stores."""
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
            with closing(index):
                label, kind = index.about("label"), index.about("kind")
                model, totals = index.about("model") or "", index.totals()
                identity, updated = index.about("identity"), index.about("updated")
    except DamagedIndex:
        label = ""
    at = datetime.fromtimestamp(updated)
    return IndexInfo(path, label, kind, *totals, size, at, model, identity)


def remove(info: IndexInfo) -> None:
    """Remove a search index.

    Raises:
        Unavailable: the file cannot be removed.
    """
    remove_file(info.path)


def sweep() -> None:
    """Remove the search indexes of stores whose files no longer exist, such as old exports.

    Raises:
        Unavailable: the file of an index cannot be removed.
    """
    for path in _files():
        store = read_about(path, "path")  # a damaged one is created again by the next search
        if store and not os.path.lexists(store):
            remove_file(path)


def remove_of(identity: str) -> int:
    """Remove all search indexes of a store; return how many were removed.

    ``identity`` is ``Store.identity``.  Unreadable indexes of any store are removed, too, because
    they may belong to this store.

    Raises:
        Unavailable: the file of an index cannot be removed.
    """
    removed = 0
    for path in _files():
        if read_about(path, "identity") in (None, digest(identity)):
            remove_file(path)
            removed += 1
    return removed
