"""Replace the paths of a folder that was moved, in the sessions of the agents that worked there.

Only values that name a folder change, at the borders of a path: if ``/a/b`` moved to ``/x/y``,
``/a/b/c`` is now ``/x/y/c``, and ``/a/bc`` stays.  What users and agents have said stays, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from msgspec import Struct, field

from memctl.errors import Failure
from memctl.json.located import Steps, literals, spliced
from memctl.model import MemoryKey


class MovedFile(NamedTuple):
    """A file or a folder of the agent that gets another place, both in the folder of the store.

    ``session`` is the id of the session that it belongs to; empty if it belongs to the project.
    """

    session: str
    old: str
    new: str


class ProjectMove(Struct, frozen=True):
    """The move of a folder from the absolute path ``old`` to the absolute path ``new``.

    A recorded move also has its effects: ``sessions`` are the changed sessions, ``files`` the moved
    files, and ``kept`` the spots that had the new path before the move.
    """

    old: str
    new: str
    sessions: frozenset[MemoryKey] | None = None
    """The sessions to change; None stands for all."""
    files: tuple[MovedFile, ...] = ()
    kept: frozenset[str] = frozenset()

    @property
    def back(self) -> ProjectMove:
        """The move back."""
        files = (MovedFile(file.session, file.new, file.old) for file in reversed(self.files))
        return ProjectMove(self.new, self.old, self.sessions, tuple(files), self.kept)

    def without(self, sessions: Collection[MemoryKey]) -> ProjectMove:
        """Return what the move has done besides to some sessions, named as their ids are."""
        ids = {key.session for key in sessions}
        return ProjectMove(
            self.old,
            self.new,
            (self.sessions or frozenset()).difference(sessions),
            tuple(file for file in self.files if file.session not in ids),
            frozenset(spot for spot in self.kept if not any(id in spot for id in ids)),
        )

    def path(self, path: str) -> str:
        """Return a path after the move; one elsewhere stays."""
        return self.new + path[len(self.old) :] if _is_in(path, self.old) else path

    def has_moved(self, path: str) -> bool:
        """Return whether a path is in the new folder."""
        return _is_in(path, self.new)

    def takes(self, key: MemoryKey) -> bool:
        """Return whether a session may change."""
        return self.sessions is None or key in self.sessions


class FoundProject(Struct):
    """The data of a store that name a folder that has moved."""

    sessions: list[MemoryKey] = field(default_factory=list)
    """The sessions that name the folder."""
    failures: dict[MemoryKey, Failure] = field(default_factory=dict)
    """Sessions that stay: an agent is at work on them, or they cannot be read."""
    kept: list[str] = field(default_factory=list)
    """The spots that have the new path already, so that the way back leaves them alone."""
    files: list[MovedFile] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Names of what is in both folders."""
    left: list[str] = field(default_factory=list)
    """Names of what keeps the old path, because there is one with the new path."""
    further: bool = False
    """True if the folder is named outside of sessions."""

    @property
    def is_at_work(self) -> bool:
        """True if an agent is at work on one of the sessions."""
        return any(failure.code == "locked" for failure in self.failures.values())


class MovedText(NamedTuple):
    """A text after a move, with its old paths that changed, and as in ``FoundProject``."""

    text: bytes
    paths: list[str]
    kept: list[str]
    left: list[str]


def move_paths(text: bytes, places: Collection[Steps], move: ProjectMove, spot: str) -> MovedText:
    """Return a JSON text after a move, of which the strings at ``places`` are paths.

    ``spot`` is a name of the text, by which ``ProjectMove.kept`` knows it.  A key stays if there is
    another one with the new path.  A text that is not JSON stays.
    """
    found = MovedText(text, [], [], [])
    if not any(_is_in_bytes(text, path) for path in (move.old, move.new)):
        return found
    try:
        strings = list(literals(text, places))
    except ValueError:  # a line that is cut, which agents pass over
        return found
    keys = {value for _, value, is_key in strings if is_key}
    splices = []
    for number, (span, value, is_key) in enumerate(strings):
        name = f"{spot}:{value if is_key else number}"
        new = move.path(value)
        if new == value:
            found.kept.extend([name] if move.has_moved(value) else [])
        elif is_key and new in keys:
            found.left.append(value)
        elif name not in move.kept:
            escapes = b"\\u" in text[span.start : span.stop]
            literal = json.dumps(new, ensure_ascii=escapes)
            splices.append((span, literal.encode("utf-8", "surrogatepass")))
            found.paths.append(value)
    return found._replace(text=spliced(text, splices)) if splices else found


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _is_in_bytes(text: bytes, path: str) -> bool:
    """Return whether a JSON text may have a path, in either way to write letters."""
    return any(
        json.dumps(path, ensure_ascii=escapes)[1:-1].encode("utf-8", "surrogatepass") in text
        for escapes in {False, not path.isascii()}
    )
