"""The files of a rename, so that an undo can reverse it; complete before the first change.

``renames.ndjson`` has a line for each session, with its old key and its new key.
``project.ndjson`` has what follows a folder: both paths, then the sessions, files and spots of
``ProjectMove``, each in a line that begins with the name of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from memctl.errors import BadData
from memctl.journal.files import refusals, replace_file
from memctl.journal.lines import sealed, unsealed
from memctl.model import MemoryKey
from memctl.storekit.projects import MovedFile, ProjectMove

RENAMES = "renames.ndjson"
PROJECT = "project.ndjson"

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


def write_project(folder: Path, move: ProjectMove) -> None:
    """Write what a move does in the folder of a run, durably.

    Raises:
        Unavailable: the operating system refuses the write.
    """
    lines = [
        ["folder", move.old, move.new],
        *(["session", *key[:2]] for key in sorted(move.sessions or ())),
        *(["file", *file] for file in move.files),
        *(["kept", spot] for spot in sorted(move.kept)),
    ]
    path = folder / PROJECT
    with refusals(path):
        replace_file(path, b"".join(map(sealed, lines)))


def read_project(folder: Path) -> ProjectMove | None:
    """Return the move of a folder that a run has made; None if it has made none.

    Raises:
        BadData: the file is damaged.
        Unavailable: the operating system refuses to read the file.
    """
    path = folder / PROJECT
    with refusals(path):
        if not path.exists():
            return None
        lines = path.read_bytes().splitlines(keepends=True)
    try:
        [_, old, new], *rest = map(unsealed, lines)
        return ProjectMove(
            old,
            new,
            frozenset(MemoryKey(*names) for kind, *names in rest if kind == "session"),
            tuple(MovedFile(*file) for kind, *file in rest if kind == "file"),
            frozenset(spot for kind, spot, *_ in rest if kind == "kept"),
        )
    except (ValueError, TypeError) as error:
        raise BadData(f"{path} is damaged: {error}", "the run cannot be undone") from error
