"""The vector stores of mem0: two collections each, of facts and of entities."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from memctl.concurrency import in_thread
from memctl.errors import BadData, NotFound
from memctl.location import visible
from memctl.store import OpenMode
from memctl.storekit.simple import Rejected
from memctl.stores.mem0.config import Mem0Config

T = TypeVar("T")


class Record(NamedTuple):
    """A record of a collection: its id, what is stored with it, and its vector, if it has one.

    Where it cannot be read, ``damage`` says why.  ``bare`` says that it is to be stored without a
    vector, because that is how it was.  ``at`` says how many records and vectors stand before it,
    where the vector store has an order.
    """

    id: str
    payload: dict[str, Any]
    vector: array[float] | None = None
    damage: str = ""
    bare: bool = False
    at: tuple[int, int | None] | None = None


class VectorStore(ABC):
    """The collections of a mem0 store, through the vector store's own client or format.

    ``collection`` is the name of one of them everywhere.  That of the entities need not be there:
    it then has no records, and ``put`` makes it.
    """

    writes_whole_files = False
    """True where ``flush`` writes all of a collection, so that it is done seldom."""

    def __init__(self, config: Mem0Config, label: str) -> None:
        self.config = config
        self.label = label

    @property
    @abstractmethod
    def place(self) -> Path | None:
        """The folder that holds both collections; None where that is a server."""

    @abstractmethod
    async def identity(self) -> str:
        """Return a text that two configurations share when their facts are in one place."""

    @abstractmethod
    async def open(self, mode: OpenMode) -> None:
        """Connect.

        Raises:
            NotFound: there is no collection of facts, and the mode does not create it.
            Busy: another process holds the place, and the mode writes.
            BadData: what is there is not a collection of mem0.
            Unavailable: the place cannot be reached.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release what ``open`` holds, whatever happened before."""

    @abstractmethod
    async def dimensions(self, collection: str) -> int | None:
        """Return the dimensions of the vectors of a collection; None where nothing tells."""

    @abstractmethod
    def scan(self, collection: str) -> AsyncGenerator[list[Record]]:
        """Yield all records, in any order, without their vectors."""

    @abstractmethod
    async def get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        """Return those records of these ids that there are, with their vectors."""

    @abstractmethod
    def refuse(self, collection: str, records: Sequence[Record]) -> None:
        """Raise what forbids to store the records.

        Raises:
            Rejected: the vector store does not take an id or a value.
        """

    @abstractmethod
    async def put(self, collection: str, records: Sequence[Record]) -> None:
        """Store records, each in the place of the one with its id; durable after ``flush``."""

    @abstractmethod
    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        """Remove records; their going is durable after ``flush``."""

    async def lock(self, owner: str) -> bool:  # noqa: ARG002
        """Lock the place until ``close``, as the vector store itself does, if it does.

        Returns whether that keeps other memctl runs out, too; ``owner`` is as in ``Store.lock``.

        Raises:
            Busy: another program has it.
        """
        return False

    async def flush(self) -> None:  # noqa: B027 - most stores are durable at once
        """Make all changes durable."""

    async def stray_vectors(self, collection: str) -> int:  # noqa: ARG002
        """Return the number of vectors that belong to no record."""
        return 0


class Turns:
    """Calls of a client in threads, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in a thread, when those before have ended."""
        async with self._turn:
            return await in_thread(partial(call, *args))


def check_vectors(records: Sequence[Record], size: int | None, name: str) -> None:
    """Raise where a record lacks a vector, or has one of other dimensions than ``size``.

    Raises:
        Rejected: as said; ``name`` is what the vector store is called.
    """
    for record in records:
        if record.vector is None:
            if record.bare:
                continue
            text = f"{record.id!r} has no vector, and mem0 in {name} finds nothing without one"
            raise Rejected("refused", text)
        if size and len(record.vector) != size:
            text = f"the vector of {record.id!r} has {len(record.vector)} dimensions, not {size}"
            raise Rejected("refused", text)


def check_uuids(records: Sequence[Record], name: str) -> None:
    """Raise where an id is not a UUID as mem0 writes it.

    Raises:
        Rejected: as said; ``name`` is what the vector store is called.
    """
    for record in records:
        if not is_uuid(record.id):
            text = f"{name} takes UUIDs as ids, not {record.id!r}; faiss and chroma take any text"
            raise Rejected("refused", text)


def is_uuid(id: str) -> bool:
    """Return whether an id is a UUID in the form in which servers return it."""
    try:
        return str(UUID(id)) == id
    except ValueError:
        return False


def values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the texts, numbers and nulls of a payload, however deep, each with its name."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from values(key, f"the name {key!r}")
            yield from values(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for one in value:
            yield from values(one, name)
    else:
        yield name, value


def not_there(config: Mem0Config, label: str, where: str) -> NotFound:
    """Return the error of a collection that is not there."""
    return NotFound(
        f"{label}: there is no collection {config.collection!r} in {visible(where)}",
        "check collection_name and path; mem0 takes a path from the working directory",
    )


def check_dimensions(config: Mem0Config, label: str, collection: str, found: int | None) -> None:
    """Raise where a collection has other dimensions than the configuration says.

    Raises:
        BadData: as said.
    """
    expected = config.embedding.dimensions
    if found and expected and found != expected:
        raise BadData(
            f"{label}: the vectors of {collection!r} have {found} dimensions, and the "
            f"configuration says {expected}",
            "correct embedding_model_dims (chroma: the embedder's embedding_dims), or name "
            "another collection_name",
        )
