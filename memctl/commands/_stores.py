"""Opening the stores that a command names."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from memctl.errors import BadData, Unavailable
from memctl.location import Location
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.wrappers.dry_run import DryRun

SNIFFED = 64


def narrowed(location: Location, where: Selection, path: str | None) -> Location:
    """The location with what only a state needs to be told: which memory, and whose it is.

    A state_dict does not say whose memory it is; one ``--user`` and one ``--session`` do.
    """
    options = dict(location.options)
    if path is not None and location.kind in ("state", "sessions", "redis-session"):
        options["path"] = path
    if location.kind == "state":
        for name, values in (("user", where.users), ("session", where.sessions)):
            if len(values) == 1:
                options[name] = next(iter(values))
    return replace(location, options=options)


@contextmanager
def readable(location: Location, where: Selection, path: str | None) -> Iterator[Location]:
    """A location to read from, more than once: stdin is spooled to a temporary file.

    Raises:
        BadData: stdin holds neither an archive nor a state_dict.
        Unavailable: there is no room for it.
    """
    if location.kind != "stdio":
        yield narrowed(location, where, path)
        return
    with tempfile.TemporaryDirectory(prefix="memctl-") as folder:
        spooled = Path(folder) / "stdin"
        try:
            with spooled.open("wb") as spool:
                shutil.copyfileobj(sys.stdin.buffer, spool)
        except OSError as error:
            raise Unavailable(
                f"stdin cannot be kept in {folder}: {error.strerror}", "point TMPDIR to more room"
            ) from error
        kind, suffix = _sniff(spooled)
        found = replace(location, kind=kind, path=spooled.rename(spooled.with_suffix(suffix)))
        yield narrowed(found, where, path)


def _sniff(path: Path) -> tuple[str, str]:
    with path.open("rb") as spool:
        start = spool.read(SNIFFED)
    if start.startswith(b"\x1f\x8b"):
        return "archive", ".ndjson.gz"
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return "archive", ".ndjson.zst"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b'{"memctl"'):
        return "archive", ".ndjson"
    if text.startswith(b"{"):
        return "state", ".json"
    raise BadData(
        "stdin holds neither an archive nor a state_dict", "is the command before it right?"
    )


@contextmanager
def writable(location: Location) -> Iterator[Location]:
    """A location that can be written: what is meant for stdout is an archive first.

    Raises:
        Unavailable: there is no room for it.
    """
    if location.kind != "stdio":
        yield location
        return
    with tempfile.TemporaryDirectory(prefix="memctl-") as folder:
        path = Path(folder) / "stdout.ndjson"
        yield replace(location, kind="archive", path=path)
        if path.exists():
            pour(path, sys.stdout.buffer)


def pour(path: Path, stream: BinaryIO) -> None:
    """Copies a file into a stream."""
    with path.open("rb") as whole:
        shutil.copyfileobj(whole, stream)
    stream.flush()


def make_target(location: Location, *, dry_run: bool) -> Store:
    """The store that is written to; with ``dry_run`` it only counts."""
    from memctl.registry import make_store  # loads the contract of stores, not needed for --help

    if dry_run:
        return DryRun(make_store(location))
    return make_store(location, OpenMode.CREATE)
