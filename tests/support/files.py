"""The contents of files, to compare before and after."""

from __future__ import annotations

from pathlib import Path


def files(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return the content, the mode and the time of change of each file in a folder."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes(),
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def texts(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in a folder."""
    return {name: found[0] for name, found in files(folder).items()}


def last_change(path: Path) -> tuple[int, int, int]:
    """Return what differs after a file was written or replaced, but not after it was read."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
