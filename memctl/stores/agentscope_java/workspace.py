"""The files of a workspace of AgentScope Java in a database: which of them are of whom.  No I/O.

A row of ``agentscope_store`` is a file.  ``namespace_path`` says whose it is: parts that end with
U+001F, such as ``agents``, the agent, ``users``, the user, and a folder.  ``item_key`` is the path
in the folder.  Transcripts are in the folder ``sessions``, with ``sessions.json`` as their index.

Sources in agentscope-java of 22 August 2026: ``RemoteFilesystemSpec.java`` and
``WorkspaceManager.java`` of agentscope-harness.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from memctl.dialects.agentscope import decoded
from memctl.dialects.view import others
from memctl.json import jsonio
from memctl.json.located import KEYS, LocatedText, literals, located, spliced
from memctl.model import MemoryKey

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


class Renamed:
    """The names that users and sessions get, and the files of workspaces with these names.

    A user without a session of the name "" in ``moves`` has become another one, who has files.
    """

    def __init__(self, moves: Mapping[MemoryKey, MemoryKey]) -> None:
        self._moves = moves
        self._users = {old.user: new.user for old, new in moves.items() if not old.session}
        self._joined = {old.user for old, new in moves.items() if old.user != new.user}

    def joins(self, path: str) -> bool:
        """Return whether the files of a ``namespace_path`` are of a user who becomes another."""
        return Scope.of(path).user in self._joined - self._users.keys()

    def sessions(self, path: str) -> dict[str, str]:
        """Return the new names of the sessions that have files in a ``namespace_path``."""
        user = Scope.of(path).user
        return {
            old.session: new.session
            for old, new in self._moves.items()
            if user in (None, old.user) and old.session != new.session
        }

    def place(self, path: str, file: str) -> tuple[str, str]:
        """Return the ``namespace_path`` and the ``item_key`` of a file after the rename."""
        scope, parts, sessions = Scope.of(path), path.split(_SEPARATOR), self.sessions(path)
        if scope.user in self._users:
            parts[3] = self._users[scope.user]
        elif scope.session in sessions:
            parts[3] = sessions[scope.session]
        for end in _ENDS.get(scope.folder, ()):
            session = file.removesuffix(end).removeprefix("/")
            if file == f"/{session}{end}" and session in sessions:
                file = f"/{sessions[session]}{end}"
                break
        return _SEPARATOR.join(parts), file

    def index(self, path: str, value: str) -> str:
        """Return the ``value_json`` of an index after the rename; a damaged one stays."""
        sessions, text = self.sessions(path), value.encode("utf-8", "surrogatepass")
        try:
            content = located(text)["content"]
            inner = str(content).encode("utf-8", "surrogatepass")
            keys = [one for one in literals(inner, [("sessions", KEYS)]) if one[1] in sessions]
        except (ValueError, TypeError, KeyError):
            return value
        new = spliced(inner, [(span, jsonio.dumps(sessions[name])) for span, name, _ in keys])
        if new == inner or not isinstance(content, LocatedText):
            return value
        literal = json.dumps(new.decode("utf-8", "surrogatepass"), ensure_ascii=text.isascii())
        return spliced(text, [(content.span, literal.encode("utf-8", "surrogatepass"))]).decode()


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
