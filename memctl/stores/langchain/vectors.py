"""The documents of LangChain vector stores, for example of LangChainRAGService.

A factory, a function of the application, makes the vector store.  The configuration of memctl names
the factory.  memctl imports and calls the factory, and only reads the documents.  The interface
``VectorStore`` of langchain-core 1.x can search but not list documents.  Therefore memctl lists
documents through the interface of each supported class.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from memctl.dialects.fact import build, dimensions, encode_vector
from memctl.errors import MemctlError, Unavailable, UsageError
from memctl.location import Location, redact_text, visible
from memctl.machine.concurrency import in_thread
from memctl.model import Embedding, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact

T = TypeVar("T")

_SOME = 500
_PROBE = "memctl"
"""The text of the search that tests a vector store without a list of documents."""


class Documents(ABC):
    """The documents of a LangChain vector store; a subclass reads each class of vector store."""

    def __init__(self, store: Any) -> None:
        self.store = store

    @abstractmethod
    def ids(self) -> Iterator[str]:
        """Yield the ids of all documents."""

    @abstractmethod
    def load(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the documents with these ids as fields of facts; leave out missing documents.

        The fields are ``id``, ``text``, ``metadata`` and ``vector``.
        """


class InMemoryDocuments(Documents):
    """The documents in the ``store`` of ``InMemoryVectorStore`` of langchain-core."""

    def ids(self) -> Iterator[str]:
        yield from list(self.store.store)

    def load(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for id in ids:
            found = self.store.store.get(id)
            if found is not None:
                yield _fact(id, found["text"], found.get("metadata"), found.get("vector"))


class ChromaDocuments(Documents):
    """The documents of ``Chroma`` of langchain-chroma or langchain-community, read by ``get``."""

    def ids(self) -> Iterator[str]:
        start = 0
        while some := self.store.get(limit=_SOME, offset=start, include=[])["ids"]:
            yield from some
            start += len(some)

    def load(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        found = self.store.get(ids=list(ids), include=["documents", "metadatas", "embeddings"])
        columns = (found["ids"], found["documents"], found["metadatas"], found["embeddings"])
        for id, text, metadata, vector in zip(*columns, strict=True):
            yield _fact(id, text, metadata, vector)


class FaissDocuments(Documents):
    """The documents in the document store and the index of ``FAISS`` of langchain-community."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._places = {id: place for place, id in store.index_to_docstore_id.items()}

    def ids(self) -> Iterator[str]:
        yield from self._places

    def load(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for id in ids:
            document = self.store.docstore.search(id)
            if id in self._places and hasattr(document, "page_content"):
                vector = self.store.index.reconstruct(self._places[id])
                yield _fact(id, document.page_content, document.metadata, vector)


class NamedDocuments(Documents):
    """The documents of any vector store, read by ``get_by_ids``, without vectors.

    The application's factory gives the ids with the vector store.
    """

    def __init__(self, store: Any, ids: Iterable[str] | Callable[[], Iterable[str]]) -> None:
        super().__init__(store)
        self._ids = ids

    def ids(self) -> Iterator[str]:
        yield from self._ids() if callable(self._ids) else self._ids

    def load(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for document in self.store.get_by_ids(list(ids)):
            yield _fact(document.id, document.page_content, document.metadata, None)


def documents_of(made: Any) -> Documents | None:
    """Return a reader of all documents of a LangChain vector store.

    Returns None if memctl cannot list the documents of this class of vector store.  ``made`` is the
    result of the application's factory: a vector store, a service with the attribute
    ``vectorstore``, or a tuple of such an object and the ids of all documents.
    """
    if isinstance(made, tuple) and len(made) == 2:
        store, ids = made
        return NamedDocuments(_vector_store(store), ids)
    store = _vector_store(made)
    if isinstance(getattr(store, "store", None), dict):
        return InMemoryDocuments(store)
    if hasattr(store, "index_to_docstore_id") and hasattr(store, "docstore"):
        return FaissDocuments(store)
    if hasattr(store, "_collection") and hasattr(store, "get"):
        return ChromaDocuments(store)
    return None


def _vector_store(made: Any) -> Any:
    """Return the ``vectorstore`` of a service; any other object is returned unchanged."""
    return getattr(made, "vectorstore", made)


def _fact(id: str, text: Any, metadata: Any, vector: Any) -> dict[str, Any]:
    return {
        "id": str(id),
        "text": text if isinstance(text, str) else "",
        # Metadata may hold any Python value; a date, for example, becomes a text.
        "metadata": json.loads(json.dumps(metadata, default=str)) if metadata else None,
        "vector": None if vector is None else encode_vector(map(float, vector)),
    }


class LangChainStore(FactStore):
    """The documents of a LangChain vector store, read as facts.

    An alias in the configuration names the factory, a function of the application that returns the
    vector store.  LangChain has no users and sessions: all facts belong to one memory with empty
    names.
    """

    kind = "langchain"
    texts_stay = ": the application makes it, and memctl only reads it"

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._factory = location.options["factory"]
        self._store: Any = None
        self._documents: Documents | None = None

    async def connect(self, mode: OpenMode) -> None:
        if mode.writes:
            self.refuse_changes()
        made = await in_thread(self._made)
        if inspect.isawaitable(made):
            made = await self._guarded_await(made)
        self._store = _vector_store(made[0] if isinstance(made, tuple) else made)
        self._documents = await in_thread(partial(self._guarded, partial(documents_of, made)))
        await in_thread(partial(self._guarded, self._probe))

    async def disconnect(self) -> None:
        self._store = self._documents = None

    def _made(self) -> Any:
        """Import and call the factory; return its result.

        Raises:
            UsageError: the factory cannot be imported, or is not a function.
            Unavailable: the factory or its module raises an error.
        """
        module, _, name = self._factory.partition(":")
        hint = "memctl must run in the environment of the application: install both into one"
        try:
            found = import_module(module)
        except ImportError as error:
            text = visible(str(error))
            raise UsageError(f"{self.label} cannot be imported: {text}", hint) from error
        except Exception as error:
            raise self._failed("cannot be imported", error) from error
        function = getattr(found, name, None)
        if not callable(function):
            raise UsageError(f"{module} has no function {name!r}", "check the alias")
        return self._guarded(function)

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except MemctlError:
            raise
        except Exception as error:
            raise self._failed("fails", error) from error

    async def _guarded_await(self, made: Any) -> Any:
        try:
            return await made
        except Exception as error:
            raise self._failed("fails", error) from error

    def _failed(self, what: str, error: Exception) -> Unavailable:
        text = redact_text(visible(str(error).strip().partition("\n")[0])).rstrip(".")
        return Unavailable(
            f"{self.label} {what}: {type(error).__name__}: {text}",
            "check the vector store, and what its function needs",
        )

    def _probe(self) -> None:
        """Test the vector store with a small request; set ``self.embedding`` from a document.

        Raises:
            UsageError: the factory returned an object that is not a vector store.
        """
        if self._documents is None:
            if not hasattr(self._store, "similarity_search"):
                raise UsageError(
                    f"{self.label} gives a {type(self._store).__name__}, not a vector store",
                    "return a LangChain vector store, or the service that has one",
                )
            self._store.similarity_search(_PROBE, k=1)
            return
        ids = list(islice(self._documents.ids(), 1))
        first = list(self._documents.load(ids))
        vector = first[0]["vector"] if first else None
        if vector is not None:
            self.embedding = Embedding(_model_of(self._store), dimensions(vector))

    async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        key = MemoryKey("", "")
        if not where.has_key(key):
            return
        ids = self._listed().ids()
        while some := await in_thread(partial(self._guarded, lambda: list(islice(ids, _SOME)))):
            for id in some:
                yield FactEntry(key, id)

    def refuse_changes(self) -> None:
        raise UsageError(
            f"{self.label} is only read", "change it with the application that it belongs to"
        )

    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        documents = self._listed()
        found = await in_thread(partial(self._guarded, lambda: list(documents.load(list(ids)))))
        return [LoadedFact(key, StoredMessage(one["id"], build(one))) for one in found]

    def _listed(self) -> Documents:
        """Return the reader of the documents.

        Raises:
            UsageError: memctl cannot list the documents of this class of vector store.
        """
        if self._documents is None:
            name = type(self._store).__name__
            raise UsageError(
                f"{self.label} gives a {name}, which can search, but not list what is in it",
                "let the function return the vector store and all ids: (store, ids)",
            )
        return self._documents

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:  # noqa: ARG002
        raise UsageError(f"{self.label} is only read")

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:  # noqa: ARG002
        raise UsageError(f"{self.label} is only read")


def _model_of(store: Any) -> str:
    embeddings = getattr(store, "embeddings", None)
    for name in ("model", "model_name", "deployment"):
        found = getattr(embeddings, name, None)
        if isinstance(found, str) and found:
            return found
    return ""
