"""Session files: names, and the version of AgentScope that wrote a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from memctl.errors import Failure
from memctl.layouts import foreign
from memctl.storekit.files import (
    system_errors,
)
from memctl.storekit.paths import Steps

CONTEXT, SUMMARY, SESSION = "context", "summary", "session_id"

SUFFIX = ".json"
_DEFAULT_USER = "default_user"
_DEPTH = 5
LAYOUT, JAVA = "agentscope2", "java"
JAVA_FILES = ("agent_state.json", "memory_messages.jsonl")
"""The files with the messages of a session of AgentScope Java, in ``USER/SESSION``."""
_LOOKED_AT = 200
"""The number of files that are read to recognize the layouts in a folder."""
_AGENTSCOPE1 = b'"_compressed_summary"'


def stem_of(user: str, session: str) -> str:
    """Return the name of a session's file, without its extension."""
    return f"{user}_{session}" if user else session


def split_stem(
    stem: str, users: frozenset[str] = frozenset(), sessions: frozenset[str] = frozenset()
) -> tuple[str, str]:
    """Split a file name without extension into the user and the session.

    ``users`` and ``sessions`` are known names, because both parts may contain ``_``.  A user in
    ``users`` owns every file whose name begins with this user.  If several users match, a user
    whose rest of the name is in ``sessions`` comes first, and then the longest user.  If no user
    matches, the user ends at the first ``_``; AgentScope's ``default_user`` is the only exception.
    """
    asked = [user for user in users if not user or stem.startswith(f"{user}_")]
    if asked:
        asked.sort(key=lambda user: (_session(stem, user) in sessions, len(user)))
        user = asked[-1]
    elif stem.startswith(f"{_DEFAULT_USER}_"):
        user = _DEFAULT_USER
    else:
        user = stem.partition("_")[0] if "_" in stem else ""
    return user, _session(stem, user)


def is_ambiguous(stem: str) -> bool:
    """Return whether the user in a file name could end at a later ``_`` than the first."""
    return stem.count("_") > 1 and not stem.startswith(f"{_DEFAULT_USER}_")


def stems(folder: Path) -> Iterator[str]:
    """Yield the names of all session files in a folder and its subfolders, sorted.

    The names are paths without extension, relative to the folder.  Links to folders are not
    followed, because links may form cycles.

    Raises:
        Unavailable: a folder cannot be read.
    """
    return _stems(folder, "")


def _stems(folder: Path, prefix: str) -> Iterator[str]:
    with system_errors(folder, "read"), os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in found:
        if is_folder:
            yield from _stems(folder / name, f"{prefix}{name}/")
        elif name.endswith(SUFFIX) and (folder / name).is_file():
            yield prefix + name.removesuffix(SUFFIX)


def unfit(folder: Path, stem: str) -> Failure | None:
    """Return why no session file in ``folder`` can be named ``stem``; None if one can.

    ``stem`` is the name without extension.
    """
    name = stem + SUFFIX
    try:
        parts = os.fsencode(name).split(b"/")
    except UnicodeEncodeError:
        return Failure("bad-name", f"{name!r} is not a valid file name")
    if "\0" in name:
        return Failure("bad-name", f"{name!r} is not a valid file name")
    if any(part in (b"", b".", b"..") for part in parts):
        return Failure("bad-name", f"{name!r} points outside the folder, or to another name in it")
    if max(map(len, parts)) > os.pathconf(folder, "PC_NAME_MAX"):
        return Failure("refused", "the name of the file would be too long for its file system")
    if len(os.fsencode(folder / name)) >= os.pathconf(folder, "PC_PATH_MAX"):
        return Failure("refused", "the path of the file would be too long for its file system")
    return None


def obstacle(folder: Path, stem: str) -> Failure | None:
    """Return what prevents the creation of a session file: a link, a folder, or a file.

    Returns None if nothing does.  ``stem`` is the name of the session file without extension.
    """
    name = stem + SUFFIX
    path = os.path.join(folder, name)
    inside = os.path.realpath(folder) + os.sep
    if ("/" in name or os.path.islink(path)) and not os.path.realpath(path).startswith(inside):
        return Failure("bad-name", f"{name!r} points outside the folder through a link")
    if os.path.isdir(path):
        return Failure("bad-name", f"{name!r} is a folder")
    for parent in Path(name).parents[:-1]:
        if (folder / parent).is_file():
            return Failure("bad-name", f"{str(parent)!r} is a file, not a folder")
    return None


def _session(stem: str, user: str) -> str:
    return stem[len(user) + 1 :] if user else stem


def is_state(value: Any) -> bool:
    """Return whether a JSON value is a state of AgentScope 2.x."""
    return (
        isinstance(value, dict)
        and isinstance(value.get(CONTEXT), list)
        and bool(value.keys() & {SESSION, SUMMARY, "reply_context"})
        and not foreign.is_java_state(value)
    )


def states_in(value: Any, steps: Steps = ()) -> Iterator[Steps]:
    """Yield the path of each state of AgentScope 2.x in the JSON value ``value``.

    ``steps`` is the path of ``value`` in its document, with which the yielded paths begin.
    """
    if is_state(value):
        yield steps
    elif isinstance(value, dict) and len(steps) < _DEPTH:
        for name, one in value.items():
            if name:
                yield from states_in(one, (*steps, name))


def begins_as_state(start: bytes) -> bool:
    """Return whether a document with this beginning is or contains a state of AgentScope 2.x."""
    return any(states_in(foreign.beginning(start)))


def layouts_in(folder: Path) -> set[str]:
    """Return the layouts of the session files in a folder.

    ``agentscope2`` stands for AgentScope 2.x, ``memory`` for AgentScope 1.x, ``java`` for
    AgentScope Java.  Empty if the folder has no session files.

    Raises:
        Unavailable: a folder cannot be read.
    """
    if any(next(folder.glob(f"*/*/{name}"), None) for name in JAVA_FILES):
        return {JAVA}
    found = set()
    for stem in islice(stems(folder), _LOOKED_AT):
        start = foreign.start_of(folder / (stem + SUFFIX))
        if begins_as_state(start):
            found.add(LAYOUT)
        elif _AGENTSCOPE1 in start:
            found.add("memory")
    return found
