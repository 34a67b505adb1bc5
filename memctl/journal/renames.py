"""The file of a rename: the old and the new names of sessions, so that an undo can reverse them.

``renames.ndjson`` has a line for each session, with its old key and its new key.  It is complete
before the first session is renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from memctl.errors import BadData
from memctl.journal.files import refusals, replace_file
from memctl.journal.lines import sealed, unsealed
from memctl.model import MemoryKey

RENAMES = "renames.ndjson"

Moves = Mapping[MemoryKey, MemoryKey]
"""The new key of each session by its old key; keys without a part."""


def write_moves(folder: Path, moves: Moves) -> None:
    """Write the file in the folder of a run, durably; without moves, remove it.

    Raises:
        Unavailable: the operating system refuses the write.
    """
    path = folder / RENAMES
    lines = [sealed([*old[:2], *new[:2]]) for old, new in moves.items()]
    with refusals(path):
        if lines:
            replace_file(path, b"".join(lines))
        else:
            path.unlink(missing_ok=True)


def read_moves(folder: Path) -> dict[MemoryKey, MemoryKey]:
    """Return what a run renamed; empty if it was no rename.

    Raises:
        BadData: the file is damaged.
        Unavailable: the operating system refuses to read the file.
    """
    path = folder / RENAMES
    found: dict[MemoryKey, MemoryKey] = {}
    with refusals(path):
        if not path.exists():
            return found
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                user, session, *new = unsealed(line)
                found[MemoryKey(user, session)] = MemoryKey(*new)
            except (ValueError, TypeError) as error:
                raise BadData(f"{path} is damaged: {error}", "the run cannot be undone") from error
    return found
