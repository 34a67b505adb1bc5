"""Where the memories of a layout in Redis are, for layouts that read and write each as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from memctl.engines.redis.pipeline import Command, Pipeline
from memctl.engines.redis.server import RedisServer
from memctl.location import Location
from memctl.model import Edit, Memory, MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import MADE, Rejected


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """Where a memory is: its first key, and its name."""

    key: bytes
    memory: MemoryKey
    field: bytes | None = None
    """The field with the memory if the key is a hash."""
    asked: bool = False
    """True if the caller named the memory; False if its name was parsed from the key."""

    @property
    def order(self) -> tuple[bytes, bytes]:
        """Return what puts places into a stable order."""
        return self.key, self.field or b""


@dataclass(frozen=True, slots=True)
class Held(Snapshot):
    """A memory that was read, and what its store keeps to write it again."""

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
    """New messages come before the others of the list."""


class MemoryPlaces(Store):
    """A store that names the keys of each memory, takes their values apart and puts them together.

    The methods of a layout are called in a thread.
    """

    lock_name: ClassVar[str]
    damage_code: ClassVar[str] = "damaged-state"

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.server = RedisServer(location)

    @abstractmethod
    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        """Return where the memories may be that are selected, sorted; some may turn out not to be.

        Those of ``where.keys`` need not exist.
        """

    @abstractmethod
    def place_of(self, key: MemoryKey) -> MemoryPlace:
        """Return where a memory is or will be.

        Raises:
            Rejected: it cannot have that name.
        """

    @abstractmethod
    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        """Return the keys that make up the memory of a place."""

    @abstractmethod
    def arrays(self, place: MemoryPlace) -> Sequence[MessageArray]:
        """Return where the messages of a place are, each an object in an array."""

    def types(self, place: MemoryPlace) -> Mapping[bytes, bytes]:  # noqa: ARG002 - of most alone
        """Return the types of the keys of a place that nothing else has such names for."""
        return {}

    @abstractmethod
    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        """Return the memory of a place, with its ``Memory.version``; None where there is none.

        Raises:
            BadData: it is damaged.
            Rejected: it was asked for, and another memory is there.
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
        """Return the commands that put a memory in the place of another one.

        ``before`` is that of the edit.

        Raises:
            Rejected: the layout does not take it.
        """

    @abstractmethod
    def removing(
        self, pipeline: Pipeline, place: MemoryPlace, old: Held, before: str
    ) -> list[Command]:
        """Return the commands that remove a memory that is empty, and what was made with it."""

    @abstractmethod
    def erasing(
        self, pipeline: Pipeline, place: MemoryPlace, owner: MemoryKey, old: Held | None
    ) -> list[Command]:
        """Return the commands that remove a memory and what names it, also one that is damaged."""

    @abstractmethod
    def users(self, pipeline: Pipeline) -> Iterator[str]:
        """Yield the users of whom there may be what ``forgetting`` removes."""

    @abstractmethod
    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:
        """Return the commands that remove what else there is of a user without memories."""

    def before(self, pipeline: Pipeline, memory: Memory) -> str:  # noqa: ARG002 - most need neither
        """Return ``WriteResult.before`` of a memory that is about to be made."""
        return MADE

    def fitted(self, edit: Edit, there: Snapshot) -> Edit:  # noqa: ARG002 - most fit as they are
        """Return an edit as it fits a memory that is about to be changed."""
        return edit

    def lost(self, old: Held, new: Memory) -> str:  # noqa: ARG002 - most lose nothing
        """Return ``WriteResult.before`` of a memory that is about to be changed."""
        return ""

    def named(self, keys: Iterable[MemoryKey]) -> list[MemoryPlace]:
        """Return the places of memories that are named, but for names that no memory can have."""
        found = []
        for key in keys:
            with suppress(Rejected):
                found.append(self.place_of(key))
        return found
