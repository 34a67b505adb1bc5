"""An application with vector stores behind functions, as aliases of memctl name them.

``FOLDER`` in the environment is where the stores keep their files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

EMBEDDING = DeterministicFakeEmbedding(size=4)
DOCUMENTS = [
    Document("Ada likes tea.", id="a", metadata={"source": "chat", "page": 3}),
    Document("Bob lives in 京都.", id="b", metadata={"source": "mail"}),
    Document("Cleo is a cat: 😀", id="c", metadata={"source": "chat"}),
]


def folder() -> Path:
    return Path(os.environ["FOLDER"])


def in_memory() -> VectorStore:
    store = InMemoryVectorStore(EMBEDDING)
    store.add_documents(DOCUMENTS)
    return store


def many() -> VectorStore:
    store = InMemoryVectorStore(EMBEDDING)
    store.add_documents([Document(f"fact {n}", id=f"d{n:04}") for n in range(1200)])
    return store


async def later() -> VectorStore:
    return in_memory()


class Service:
    """A service with a vector store, as LangChainRAGService of agentscope-runtime 0.2 is."""

    def __init__(self) -> None:
        self.vectorstore = in_memory()


def chroma() -> VectorStore:
    from langchain_chroma import Chroma

    store = Chroma("docs", EMBEDDING, persist_directory=str(folder() / "chroma"))
    if not store.get()["ids"]:
        store.add_documents(DOCUMENTS)
    return store


def faiss() -> VectorStore:
    from langchain_community.vectorstores import FAISS

    return FAISS.from_documents(DOCUMENTS, EMBEDDING, ids=[one.id for one in DOCUMENTS])


class Searching(VectorStore):
    """A vector store that can search and fetch, but not list."""

    def __init__(self, *, broken: bool = False) -> None:
        self.inner = in_memory()
        self.broken = broken

    @classmethod
    def from_texts(cls, *_: Any, **__: Any) -> Searching:
        return cls()

    def similarity_search(self, query: str, k: int = 4, **_: Any) -> list[Document]:
        if self.broken:
            raise ConnectionError("no route to milvus://root:hidden@10.0.0.1:19530")
        return self.inner.similarity_search(query, k)

    def get_by_ids(self, ids: Any, /) -> list[Document]:
        return self.inner.get_by_ids(ids)


def searching() -> VectorStore:
    return Searching()


def named() -> tuple[VectorStore, list[str]]:
    return Searching(), ["a", "b", "gone"]


def broken() -> VectorStore:
    return Searching(broken=True)


def failing() -> VectorStore:
    raise RuntimeError("the key of the service is not set")


def nothing() -> object:
    return object()
