"""Coding agents on this machine: the folder of each, and how large its sessions are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memctl.storekit.files import system_errors

FLEET = "agents"
"""The name of the fleet of all coding agents that have sessions on this machine."""


class Agent(NamedTuple):
    """A coding agent: the kind of its store, and the folder with its sessions.

    The folder is named by the environment variable ``variable``; ``usual`` is the default.
    ``below`` is a subfolder, or empty.  ``sessions`` are the files and folders with sessions.
    """

    kind: str
    variable: str
    usual: str
    sessions: tuple[str, ...]
    below: str = ""

    @property
    def folder(self) -> Path:
        """The folder in which the agent keeps its data; it need not exist."""
        return Path(os.environ.get(self.variable) or self.usual).expanduser() / self.below

    @property
    def has_sessions(self) -> bool:
        """True if the agent has kept sessions on this machine."""
        return any(os.path.exists(self.folder / name) for name in self.sessions)

    def bytes(self) -> int:
        """Return the size of the files with sessions; no file is read.

        Raises:
            Unavailable: a folder cannot be read.
        """
        return sum(sum(sizes(self.folder / name)) for name in self.sessions)


AGENTS = {
    agent.kind: agent
    for agent in (
        Agent("claude-code", "CLAUDE_CONFIG_DIR", "~/.claude", ("projects", "file-history")),
        Agent("codex", "CODEX_HOME", "~/.codex", ("sessions", "archived_sessions")),
        Agent(
            *("opencode", "XDG_DATA_HOME", "~/.local/share"),
            *(("opencode.db", "opencode.db-wal"), "opencode"),
        ),
        Agent("hermes", "HERMES_HOME", "~/.hermes", ("state.db", "state.db-wal")),
    )
}
"""The coding agents whose sessions memctl keeps, by the kind of their stores."""


def installed() -> list[Agent]:
    """Return the agents that have kept sessions on this machine."""
    return [agent for agent in AGENTS.values() if agent.has_sessions]


def sizes(path: Path) -> Iterator[int]:
    """Yield the size in bytes of a file, or of each file in a folder and its subfolders.

    Links are not followed.

    Raises:
        Unavailable: a folder cannot be read.
    """
    with system_errors(path, "read"):
        if path.is_file():
            yield path.stat().st_size
        if not path.is_dir():
            return
        with os.scandir(path) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from sizes(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield entry.stat(follow_symlinks=False).st_size
