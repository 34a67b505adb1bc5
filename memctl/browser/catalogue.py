"""The names of the memories of a store, and their counts as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memctl.errors import Failure
from memctl.model import MemoryInfo, MemoryKey


class Counts(NamedTuple):
    """The counts of a memory: a part of ``MemoryInfo``, in little room."""

    messages: int
    bytes: int
    last: str | None
    marks: tuple[tuple[str, int], ...] = ()


class User:
    """A user with memories: ``memories`` maps their keys to their counts, None while unknown."""

    __slots__ = ("bytes", "last", "memories", "messages", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.memories: dict[MemoryKey, Counts | None] = {}
        self.messages = 0
        self.bytes = 0
        self.last = ""


class Catalogue:
    """The memories of a store by user; ``listed`` and ``counted`` tell what is complete.

    ``renewed`` is True while it is read again.  ``facts`` is True for a store of facts.
    """

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.damaged: dict[MemoryKey, Failure] = {}
        self.listed = False
        self.counted = False
        self.renewed = False
        self.memories = 0
        self.facts = False

    @property
    def messages(self) -> int:
        """The number of counted messages."""
        return sum(user.messages for user in self.users.values())

    @property
    def bytes(self) -> int:
        """The size of the counted messages."""
        return sum(user.bytes for user in self.users.values())

    def counts(self, key: MemoryKey) -> Counts | None:
        """Return the counts of a memory; None if they are unknown."""
        user = self.users.get(key.user)
        return None if user is None else user.memories.get(key)

    def add_keys(self, keys: Iterable[MemoryKey]) -> None:
        """Add memories whose counts are unknown."""
        for key in keys:
            memories = self._user(key).memories
            if key not in memories:
                memories[key] = None
                self.memories += 1

    def add_counts(self, infos: Iterable[MemoryInfo]) -> None:
        """Add memories with their counts, or replace their counts."""
        for info in infos:
            user = self._user(info.key)
            before = user.memories.get(info.key)
            if before is None:
                self.memories += info.key not in user.memories
                before = Counts(0, 0, None)
            marks = tuple(info.marks.items())
            user.memories[info.key] = Counts(info.messages, info.bytes, info.last, marks)
            user.messages += info.messages - before.messages
            user.bytes += info.bytes - before.bytes
            user.last = max(user.last, info.last or "")

    def finish(self, damaged: dict[MemoryKey, Failure]) -> None:
        """End the counting: ``damaged`` are the memories that could not be read.

        Other memories without counts were deleted after they were listed, and are removed.
        """
        self.damaged = damaged
        for name, user in list(self.users.items()):
            for key in [key for key, counts in user.memories.items() if counts is None]:
                if not self.is_damaged(key):
                    del user.memories[key]
                    self.memories -= 1
            if not user.memories:
                del self.users[name]
        self.add_keys(damaged)
        self.counted = True

    def is_damaged(self, key: MemoryKey) -> bool:
        """Return whether a memory, or its whole session, is damaged."""
        return key in self.damaged or key._replace(part="") in self.damaged

    def _user(self, key: MemoryKey) -> User:
        user = self.users.get(key.user)
        if user is None:
            user = self.users[key.user] = User(key.user)
        return user

    def become(self, other: Catalogue) -> None:
        """Replace the memories and counts by those of another catalogue."""
        self.users = other.users
        self.damaged = other.damaged
        self.listed = other.listed
        self.counted = other.counted
        self.memories = other.memories
