"""The interface of mem0's vector stores: a collection of facts and a collection of entities."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from memctl.errors import BadData, NotFound, UsageError
from memctl.location import visible
from memctl.machine.concurrency import in_thread
from memctl.machine.installation import install_command
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.simple import Rejected
from memctl.stores.mem0.config import Mem0Config

T = TypeVar("T")

BM25 = "memctl_bm25"
"""The payload field for the words of a fact, which qdrant's client stores as a sparse vector."""


class Record(NamedTuple):
    """A record of a vector store, a fact or an entity: id, payload and vector.

    ``damage`` says why the record is unreadable; empty for a readable record.  ``bare`` is True if
    the original record had no vector: then the store accepts the record without a vector.
    """

    id: str
    payload: dict[str, Any]
    vector: array[float] | None = None
    damage: str = ""
    bare: bool = False


class VectorStore(ABC):
    """A vector store with two collections of mem0, facts and entities.

    The client library of the vector store or its file format gives access.  A missing collection of
    entities counts as empty; ``put`` creates it.
    """

    writes_whole_files = False
    """True if ``flush`` rewrites whole collections, so that the caller must flush rarely."""

    def __init__(self, config: Mem0Config, label: str) -> None:
        self.config = config
        self.label = label

    def refuse_rewrite(self) -> None:  # noqa: B027 - most stores can
        """Check that the vector store removes replaced texts and vectors.

        Raises:
            UsageError: the vector store keeps replaced texts in files that memctl cannot change.
        """

    @property
    @abstractmethod
    def place(self) -> Path | None:
        """The folder with both collections; None for a server."""

    @abstractmethod
    async def identity(self) -> str:
        """Return a text that is equal for two configurations of the same collections."""

    @abstractmethod
    async def open(self, mode: OpenMode) -> None:
        """Connect to the vector store.

        Raises:
            NotFound: the collection of facts does not exist, and the mode does not create it.
            Busy: another process uses the vector store, and the mode writes.
            BadData: the collection is damaged or not a collection of mem0.
            Unavailable: the folder or server cannot be opened.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release the resources of ``open``, also if ``open`` failed."""

    @abstractmethod
    async def dimensions(self, collection: str) -> int | None:
        """Return the number of dimensions of the vectors in a collection; None if unknown."""

    @abstractmethod
    def scan(self, collection: str) -> AsyncGenerator[list[Record]]:
        """Yield all records of a collection in lists, without vectors and in any order."""

    @abstractmethod
    async def get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        """Return the records with these ids, with vectors.  Leaves out ids without a record."""

    @abstractmethod
    def refuse(self, collection: str, records: Sequence[Record]) -> None:
        """Check that the vector store can hold the records.

        Raises:
            Rejected: the vector store does not accept an id, a value or a vector.
        """

    @abstractmethod
    async def put(self, collection: str, records: Sequence[Record]) -> None:
        """Add records; replace records with the same ids.  Changes are durable after ``flush``."""

    @abstractmethod
    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        """Delete the records with these ids.  The changes are durable after ``flush``."""

    async def lock(self, owner: str) -> bool:  # noqa: ARG002
        """Take the vector store's own lock, if it has one, until ``close``.

        Returns True if this lock also excludes other runs of memctl, False if they need a further
        lock.  ``owner`` is the owner text of ``Store.lock``.

        Raises:
            Busy: another program holds the lock.
        """
        return False

    async def replace(self, collection: str, old: Record, new: Record) -> bool:  # noqa: ARG002
        """Replace a record; return False if another program has changed ``old`` meanwhile.

        The change is durable after ``flush``.
        """
        await self.put(collection, [new])
        return True

    async def flush(self) -> None:  # noqa: B027 - most stores are durable at once
        """Make all earlier changes durable."""

    async def clear_free_space(self) -> None:  # noqa: B027 - most stores keep none
        """Overwrite what files keep of records that were replaced."""

    async def missing_right(self) -> str:
        """Return a right that the login lacks to restore facts; see ``Store.missing_right``."""
        return ""

    async def side_effects(self, where: Selection) -> list[str]:  # noqa: ARG002 - files have none
        """Describe what a deletion of selected facts changes besides, as ``Store.side_effects``."""
        return []

    async def check_structure(  # noqa: B027 - only SQLite files have indexes
        self, warnings: list[str]
    ) -> None:
        """Compare the indexes of SQLite files with their tables; see ``check_structure`` there.

        Raises:
            DamagedFile: a row is missing from an index, or a file is damaged.
        """

    async def stray_vectors(self, collection: str) -> int:  # noqa: ARG002
        """Return the number of vectors in a collection that belong to no record."""
        return 0


def library(name: str, label: str) -> Any:
    """Import and return a module of a library that mem0 uses; ``label`` names the store in errors.

    Raises:
        UsageError: the library is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{label} needs the library {error.name!r}, which is not installed",
            install_command("mem0"),
        ) from error


class Turns:
    """Run calls of a client in threads, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in a thread after all earlier calls of this object; return its result."""
        async with self._turn:
            return await in_thread(partial(call, *args))


def check_vectors(records: Sequence[Record], size: int | None, name: str) -> None:
    """Check that each record has a vector with ``size`` dimensions; None allows any size.

    A ``bare`` record may lack a vector.  ``name`` names the vector store in the error.

    Raises:
        Rejected: a vector is missing or has a different size.
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
    """Check that all ids are UUIDs in mem0's spelling.

    ``name`` names the vector store in the error.

    Raises:
        Rejected: an id is not a valid UUID.
    """
    for record in records:
        if not is_uuid(record.id):
            text = f"{name} takes UUIDs as ids, not {record.id!r}; faiss and chroma take any text"
            raise Rejected("refused", text)


def is_uuid(id: str) -> bool:
    """Return whether an id is a UUID in lower case with hyphens."""
    try:
        return str(UUID(id)) == id
    except ValueError:
        return False


def values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each text, number, boolean and null in a payload, at any depth.

    The names of fields are yielded as values, too.  ``name`` is the path of ``value``.
    """
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
    """Return the error for a missing collection of facts; ``where`` is the searched place."""
    return NotFound(
        f"{label}: there is no collection {config.collection!r} in {visible(where)}",
        "check collection_name and path; mem0 takes a path from the working directory",
    )


def check_dimensions(config: Mem0Config, label: str, collection: str, found: int | None) -> None:
    """Check that the vectors of a collection fit the configuration.

    ``found`` is the number of dimensions in the collection; None if unknown.

    Raises:
        BadData: the configuration has a number of dimensions that is not ``found``.
    """
    expected = config.embedding.dimensions
    if found and expected and found != expected:
        raise BadData(
            f"{label}: the vectors of {collection!r} have {found} dimensions, and the "
            f"configuration says {expected}",
            "correct embedding_model_dims (chroma: the embedder's embedding_dims), or name "
            "another collection_name",
        )
