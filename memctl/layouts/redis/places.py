"""The places of memories in Redis, for layouts that read and write each memory whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from msgspec import Struct

from memctl.engines.redis.pipeline import Command, Pipeline
from memctl.layouts.redis.store import RedisStore
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected


class MemoryPlace(Struct, frozen=True):
    """The place of a memory in Redis: the first of its keys, and the name of the memory."""

    key: bytes
    memory: MemoryKey
    field: bytes | None = None
    """The field that holds the memory if the key is a hash; None for any other key."""
    asked: bool = False
    """True if the caller named the memory; False if its name was parsed from the key."""

    @property
    def order(self) -> tuple[bytes, bytes]:
        """A key by which to sort places; the order is the same in each run."""
        return self.key, self.field or b""


class Held(Snapshot, frozen=True):
    """A memory as read from Redis.

    ``kept`` is further data that a layout needs in order to write the memory again.
    """

    kept: object = None


class MessageArray(Struct, frozen=True):
    """An array in Redis that holds messages of a memory: a list, or an array in a JSON text."""

    key: bytes
    field: bytes | None = None
    """The field that holds the JSON text if the key is a hash."""
    path: tuple[str, ...] | None = None
    """The path of the array in the JSON text; None for a Redis list."""
    newest_first: bool = False
    """True if new messages are at the front of the list."""


class MemoryPlaces(RedisStore):
    """A store in Redis whose memories are read as a whole.

    A layout overrides the methods, which are called in a thread.
    """

    damage_code: ClassVar[str] = "damaged-state"

    @abstractmethod
    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        """Return the places of the selected memories, sorted.

        A place may be without a memory, for example if ``where.keys`` names a memory that does not
        exist.
        """

    @abstractmethod
    def place_of(self, key: MemoryKey) -> MemoryPlace:
        """Return the place of a memory; the memory need not exist.

        Raises:
            Rejected: the layout cannot hold a memory of this name.
        """

    @abstractmethod
    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        """Return all Redis keys of the memory at a place."""

    @abstractmethod
    def arrays(self, place: MemoryPlace) -> Sequence[MessageArray]:
        """Return the arrays with the messages of a memory; undamaged items are JSON objects."""

    def types(self, place: MemoryPlace) -> Mapping[bytes, bytes]:  # noqa: ARG002 - for subclasses
        """Return the Redis type that each key of a memory must have.

        The result lacks keys that may belong to other sessions or programs.
        """
        return {}

    @abstractmethod
    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        """Return the memory at a place, with its ``Memory.version``; None if it does not exist.

        Raises:
            BadData: the memory is damaged.
            Rejected: the caller named the memory, but the key belongs to another memory.
        """

    @abstractmethod
    def erasing(
        self, pipeline: Pipeline, place: MemoryPlace, owner: MemoryKey, old: Held | None
    ) -> list[Command]:
        """Return the commands that erase a memory and everything that refers to it.

        ``owner`` is the memory, ``old`` its contents; None if the memory is damaged.
        """

    @abstractmethod
    def users(self, pipeline: Pipeline) -> Iterator[str]:
        """Yield users about whom the layout may keep data besides their memories."""

    @abstractmethod
    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:
        """Return the commands that erase the data about a user who has no memories."""

    def named(self, keys: Iterable[MemoryKey]) -> list[MemoryPlace]:
        """Return the places of memories; leave out names that the layout cannot hold."""
        found = []
        for key in keys:
            with suppress(Rejected):
                found.append(self.place_of(key))
        return found
