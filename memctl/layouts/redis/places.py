"""The places of memories in Redis, for layouts that read and write each memory whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from memctl.engines.redis.pipeline import Command, Pipeline
from memctl.layouts.redis.store import RedisStore
from memctl.model import Edit, Memory, MemoryKey
from memctl.selection import Selection
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import MADE, Rejected


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The place of a memory: its first key, and its name."""

    key: bytes
    memory: MemoryKey
    field: bytes | None = None
    """The field of the memory, if the key is a hash."""
    asked: bool = False
    """True if the caller named the memory; False if its name was parsed from the key."""

    @property
    def order(self) -> tuple[bytes, bytes]:
        """Return a sort key that gives places a stable order."""
        return self.key, self.field or b""


@dataclass(frozen=True, slots=True)
class Held(Snapshot):
    """A memory as read, and the data that its store keeps for writing the memory again."""

    kept: object = None


@dataclass(frozen=True, slots=True)
class MessageArray:
    """The messages of a memory in one value: a list, or an array at a path of a JSON text."""

    key: bytes
    field: bytes | None = None
    """The field of a hash that holds the text."""
    path: tuple[str, ...] | None = None
    """None for a list."""
    newest_first: bool = False
    """True if new messages are at the front of the list."""


class MemoryPlaces(RedisStore):
    """A store that names the keys of each memory, takes their values apart and puts them together.

    The methods of a layout are called in a thread.
    """

    damage_code: ClassVar[str] = "damaged-state"

    @abstractmethod
    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        """Return the places of selected memories, sorted; a place may hold no memory.

        Memories of ``where.keys`` need not exist.
        """

    @abstractmethod
    def place_of(self, key: MemoryKey) -> MemoryPlace:
        """Return the place of a memory, which need not exist.

        Raises:
            Rejected: the layout cannot hold a memory of this name.
        """

    @abstractmethod
    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        """Return the keys that hold the memory of a place."""

    @abstractmethod
    def arrays(self, place: MemoryPlace) -> Sequence[MessageArray]:
        """Return the arrays with the messages of a place; each message is an object."""

    def types(self, place: MemoryPlace) -> Mapping[bytes, bytes]:  # noqa: ARG002 - for subclasses
        """Return the type of each key of a place, for keys whose names nothing else uses."""
        return {}

    @abstractmethod
    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        """Return the memory of a place, with its ``Memory.version``; None if there is no memory.

        Raises:
            BadData: the memory is damaged.
            Rejected: the caller named the memory, but the key belongs to another memory.
        """

    @abstractmethod
    def replacing(
        self,
        pipeline: Pipeline,
        place: MemoryPlace,
        old: Held | None,
        new: Snapshot,
        before: str = "",
    ) -> list[Command]:
        """Return the commands that replace the memory of a place.

        ``before`` is ``Edit.before``.

        Raises:
            Rejected: the layout cannot hold the new memory.
        """

    @abstractmethod
    def removing(
        self, pipeline: Pipeline, place: MemoryPlace, old: Held, before: str
    ) -> list[Command]:
        """Return the commands that remove an empty memory, and what was created with the memory."""

    @abstractmethod
    def erasing(
        self, pipeline: Pipeline, place: MemoryPlace, owner: MemoryKey, old: Held | None
    ) -> list[Command]:
        """Return the commands that remove a memory, even a damaged one, and its references."""

    @abstractmethod
    def users(self, pipeline: Pipeline) -> Iterator[str]:
        """Yield the users that may have data for ``forgetting`` to remove."""

    @abstractmethod
    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:
        """Return the commands that remove the remaining data of a user without memories."""

    def before(self, pipeline: Pipeline, memory: Memory) -> str:  # noqa: ARG002 - for subclasses
        """Return the ``WriteResult.before`` of a memory to be created."""
        return MADE

    def fitted(self, edit: Edit, there: Snapshot) -> Edit:  # noqa: ARG002 - for subclasses
        """Return an edit, fitted to the memory to be changed."""
        return edit

    def lost(self, old: Held, new: Memory) -> str:  # noqa: ARG002 - for subclasses
        """Return the ``WriteResult.before`` of a memory to be changed."""
        return ""

    def named(self, keys: Iterable[MemoryKey]) -> list[MemoryPlace]:
        """Return the places of named memories; names that the layout cannot hold are left out."""
        found = []
        for key in keys:
            with suppress(Rejected):
                found.append(self.place_of(key))
        return found
