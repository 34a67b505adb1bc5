"""The subject of an erase, a user or a session: its possible names, and data out of reach."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from memctl.location import Location
from memctl.model import MemoryKey
from memctl.selection import Selection

_JOINTS = {
    "redis": ":session:",
    "redis-session": ":session:",
    "redis-runtime-state": ":",
    "sessions": "_",
    "agentscope2-files": "_",
}
"""By kind of store, the text between user and session in a name.

User and session may contain this text, too.
"""


class Subject(Struct, frozen=True):
    """The subject of an erase: a user, or one session of a user."""

    user: str
    session: str | None = None

    @property
    def where(self) -> Selection:
        """The selection of all memories of the user or session."""
        sessions = frozenset() if self.session is None else frozenset({self.session})
        return Selection(users=frozenset({self.user}), sessions=sessions)

    def concerns(self, kind: str, key: MemoryKey) -> bool:
        """Return whether a memory may belong to the user or session.

        ``kind`` is the kind of its store.  A state file names no user: its memories may belong to
        any user, so the result is True.
        """
        return kind == "state" or any(map(self.where.has_key, readings(kind, key)))


def readings(kind: str, key: MemoryKey) -> Iterator[MemoryKey]:
    """Yield ``key``, and all other keys that a store of the kind writes under the same name."""
    yield key
    joint = _JOINTS.get(kind)
    if joint is None:
        return
    text = f"{key.user}{joint}{key.session}"
    at = text.find(joint)
    while at >= 0:
        found = MemoryKey(text[:at], text[at + len(joint) :], key.part)
        if found != key:
            yield found
        at = text.find(joint, at + 1)


ALWAYS = (
    "running processes, which may write what they hold in memory",
    "backups, replicas and snapshots of the database or the disk",
    "archives and exports that were not named, and logs",
    "undo runs and search indexes of other users, services (XDG_STATE_HOME) and machines",
    "data sent to model providers",
)
"""The places of data about a user that no erase reaches."""
_WORKSPACES = (
    "files of AgentScope Java's workspaces that users share, and those outside of the table "
    "agentscope_store"
)
_OF_KINDS = {
    "sqlite": "pages that were free before (VACUUM clears them) and blocks of the disk",
    "postgresql": "dead rows until VACUUM, and the write-ahead log",
    "mysql": "the undo log until it is purged, and the binary log",
    "redis": "RDB and AOF files until they are rewritten",
    "agentscope2": "the turns that QwenPaw keeps in history.db",
    "java": _WORKSPACES,
    "claude": (
        "forks of the session, the memory of its project, plans, pasted texts and images, and what "
        "Claude Code has changed on the disk"
    ),
    "codex": "forks of the session, memories made of it, and what Codex has changed on the disk",
    "hermes": (
        "pages that were free before (VACUUM clears them), memories made of the session, and what "
        "Hermes has changed on the disk"
    ),
    "opencode": (
        "pages that were free before (VACUUM clears them), forks of the session, its share on the "
        "web, snapshots, stored outputs of tools, and what OpenCode has changed on the disk"
    ),
}
_OF_LAYOUTS = {
    "agentscope2": (
        "the user's credentials, schedules, channels, skills and knowledge bases in AgentScope 2.x"
    ),
    "java": _WORKSPACES,
    "agno": "what Agno remembers about the user (agno_memories), its traces and other tables",
}


def not_reached(location: Location) -> list[str]:
    """Return the kinds of data about a user that an erase leaves in a store."""
    engine, _, layout = location.kind.partition("-")
    found = [_OF_KINDS[engine]] if engine in _OF_KINDS else []
    if engine == "archive" and location.url:
        found.append("earlier versions of the object, if its bucket keeps versions")
    return [*found, _OF_LAYOUTS[layout]] if layout in _OF_LAYOUTS else found
