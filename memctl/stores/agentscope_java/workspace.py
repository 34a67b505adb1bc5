"""The files of a workspace of AgentScope Java in a database: which of them are of whom.  No I/O.

A row of ``agentscope_store`` is a file.  ``namespace_path`` says whose it is: parts that end with
U+001F, such as ``agents``, the agent, ``users``, the user, and a folder.  ``item_key`` is the path
in the folder.  Transcripts are in the folder ``sessions``, with ``sessions.json`` as their index.

Sources in agentscope-java of 22 August 2026: ``RemoteFilesystemSpec.java`` and
``WorkspaceManager.java`` of agentscope-harness.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from memctl.dialects.agentscope import decoded
from memctl.dialects.view import others
from memctl.json import jsonio

INDEX = "/sessions.json"
_SEPARATOR = "\x1f"
_NO_USER = "_default"
_ENDS = {"sessions": (".jsonl", ".log.jsonl"), "tasks": (".json",)}


class Scope(NamedTuple):
    """Whose files a namespace has: of a user, of a session, or of all if both are None."""

    user: str | None
    session: str | None
    folder: str

    @classmethod
    def of(cls, path: str) -> Scope:
        """Return the scope of a ``namespace_path``."""
        match path.split(_SEPARATOR):
            case ["agents", _, "users", user, *folder, ""]:
                return cls("" if user == _NO_USER else user, None, "/".join(folder))
            case ["agents", _, "sessions", session, *folder, ""]:
                return cls(None, session, "/".join(folder))
            case [*_, folder, ""]:
                return cls(None, None, folder)
        return cls(None, None, "")

    def files(self, sessions: Collection[str]) -> list[str]:
        """Return the paths of the files that are of these sessions alone."""
        ends = _ENDS.get(self.folder, ())
        return [f"/{session}{end}" for session in sorted(sessions) for end in ends]

    def session_of(self, file: str) -> str | None:
        """Return the session to which a file belongs; None for files of several sessions."""
        for end in reversed(_ENDS.get(self.folder, ())):  # the longest end first
            if file.endswith(end) and file != INDEX:
                return file.removesuffix(end).removeprefix("/")
        return self.session


def without_sessions(value: str, sessions: Collection[str]) -> str | None:
    """Return the ``value_json`` of an index without some sessions.

    None if the index is damaged: the framework makes a new one.
    """
    file = decoded(value)
    content = file.get("content") if isinstance(file, dict) else None
    index = decoded("\n".join(map(str, content)) if isinstance(content, list) else content)
    match index:
        case {"sessions": dict(entries)}:
            text = jsonio.dumps(index | {"sessions": others(entries, sessions)}).decode()
            return jsonio.dumps(file | {"content": text}).decode()
    return None
