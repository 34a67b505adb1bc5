"""Folders and servers of Chroma, in which mem0 stores facts, through Chroma's client."""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncGenerator, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from memctl.errors import BadData, MemctlError, Unavailable, UsageError
from memctl.json import jsonio
from memctl.location import same_file, visible
from memctl.store import OpenMode
from memctl.storekit.simple import Rejected
from memctl.stores.mem0.config import Mem0Config
from memctl.stores.mem0.vectors import (
    Record,
    Turns,
    VectorStore,
    check_dimensions,
    check_vectors,
    library,
    not_there,
)

_SOME = 500
_OPENING = Lock()
"""Chroma's client caches one system per folder and process; the cache is not thread-safe."""
_INT64 = range(-(2**63), 2**63)
_RESERVED = ("chroma:", "#")
REST = "memctl_rest"
"""The payload field for values that Chroma cannot hold: nulls, objects, mixed lists."""


class ChromaPlace(VectorStore):
    """The collections of mem0 in a folder of Chroma, or on a server without an API key."""

    def __init__(self, config: Mem0Config, label: str) -> None:
        super().__init__(config, label)
        self._host = config.text("host")
        self._turns = Turns()
        self._client: Any = None
        self._errors: Any = None
        self._collections: dict[str, Any] = {}

    @property
    def place(self) -> Path | None:
        return None if self._host else self.config.folder

    def refuse_rewrite(self) -> None:
        raise UsageError(
            f"{self.label}: Chroma keeps replaced texts and vectors in its log and its indexes",
            "export the facts, redact the archive, and import it into a new Chroma",
        )

    async def identity(self) -> str:
        if self._host:
            return (
                f"chroma://{self._host}:{self.config.options.get('port')}#{self.config.collection}"
            )
        return f"file:{same_file(self.config.folder)}#{self.config.collection}"

    async def open(self, mode: OpenMode) -> None:
        if self.config.text("api_key") or self.config.text("tenant"):
            raise UsageError(
                f"{self.label}: memctl opens folders and servers of Chroma, not Chroma Cloud",
                "write a path, or host and port",
            )
        folder = self.place
        if folder is not None and not mode.creates and not (folder / "chroma.sqlite3").exists():
            raise not_there(self.config, self.label, str(folder))
        await self._run(self._open, mode)
        size = await self.dimensions(self.config.collection)
        check_dimensions(self.config, self.label, self.config.collection, size)

    def _open(self, mode: OpenMode) -> None:
        with _OPENING:
            self._connect(mode)

    def _connect(self, mode: OpenMode) -> None:
        chroma = library("chromadb", self.label)
        self._errors = import_module("chromadb.errors")
        settings = chroma.config.Settings(anonymized_telemetry=False)
        if self._host:
            port = self.config.options.get("port")
            self._client = chroma.HttpClient(self._host, port, settings=settings)
        else:
            settings.persist_directory = str(self.config.folder)
            settings.is_persistent = True
            self._client = chroma.Client(settings)
        for name in (self.config.collection, self.config.entities):
            try:
                self._collections[name] = self._client.get_collection(name, embedding_function=None)
            except self._errors.NotFoundError:
                continue
        if self.config.collection not in self._collections:
            if not mode.creates:
                raise not_there(self.config, self.label, self._host or str(self.config.folder))
            self._create(self.config.collection)

    def _create(self, name: str) -> None:
        self._collections[name] = self._client.get_or_create_collection(
            name, embedding_function=None
        )

    async def close(self) -> None:
        self._collections.clear()
        client, self._client = self._client, None
        if client is not None and hasattr(client, "close"):  # older clients have no ``close``
            await self._turns.run(client.close)

    async def _run(self, call: Any, *args: Any) -> Any:
        try:
            return await self._turns.run(call, *args)
        except (MemctlError, Rejected):
            raise
        except Exception as error:
            # The client raises its own errors, errors of httpx, and plain ValueErrors.
            text = f"{self.label}: {visible(str(error).strip().partition(chr(10))[0])}"
            if "not a database" in text or "malformed" in text:
                raise BadData(text, "restore the folder from a backup") from error
            raise Unavailable(text, "check the folder or server, and who uses it") from error

    # Reading

    async def dimensions(self, collection: str) -> int | None:
        return await self._run(self._dimensions, collection)  # type: ignore[no-any-return]

    def _dimensions(self, collection: str) -> int | None:
        found = self._collections.get(collection)
        if found is None:
            return None
        vectors = found.get(limit=1, include=["embeddings"])["embeddings"]
        return len(vectors[0]) if vectors is not None and len(vectors) else None

    async def scan(self, collection: str) -> AsyncGenerator[list[Record]]:
        offset = 0
        while True:
            found = await self._run(self._some, collection, offset)
            if not found:
                return
            offset += len(found)
            yield found

    def _some(self, collection: str, offset: int) -> list[Record]:
        if collection not in self._collections:
            return []
        found = self._collections[collection].get(limit=_SOME, offset=offset, include=["metadatas"])
        return [
            Record(id, _whole(payload))
            for id, payload in zip(found["ids"], found["metadatas"], strict=True)
        ]

    async def get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        return await self._run(self._get, collection, ids)  # type: ignore[no-any-return]

    def _get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        if collection not in self._collections or not ids:
            return []
        found = self._collections[collection].get(
            ids=list(ids), include=["metadatas", "embeddings"]
        )
        vectors = found["embeddings"]
        return [
            Record(id, _whole(payload), array("f", vectors[at].tolist()))
            for at, (id, payload) in enumerate(zip(found["ids"], found["metadatas"], strict=True))
        ]

    # Writing

    def refuse(
        self,
        collection: str,  # noqa: ARG002 - all are alike
        records: Sequence[Record],
    ) -> None:
        check_vectors(records, self.config.embedding.dimensions, "chroma")

    async def put(self, collection: str, records: Sequence[Record]) -> None:
        for start in range(0, len(records), _SOME):
            await self._run(self._put, collection, records[start : start + _SOME])

    def _put(self, collection: str, records: Sequence[Record]) -> None:
        if collection not in self._collections:
            self._create(collection)
        target = self._collections[collection]
        ids = [one.id for one in records]
        found = target.get(ids=ids, include=["metadatas"])
        before = dict(zip(found["ids"], found["metadatas"], strict=True))
        target.upsert(
            ids=ids,
            embeddings=[list(one.vector or ()) for one in records],
            # Fields not named here stay; None removes a field.
            metadatas=[
                dict.fromkeys(before.get(one.id) or ()) | _flat(one.payload) for one in records
            ],
        )

    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        if ids:
            await self._run(self._delete, collection, ids)

    def _delete(self, collection: str, ids: Sequence[str]) -> None:
        if collection in self._collections:
            self._collections[collection].delete(ids=list(ids))


def _flat(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a payload as metadata for Chroma.

    Values that Chroma does not support are moved into the field ``REST``, as JSON.
    """
    rest = {name: value for name, value in payload.items() if not _holds(value)}
    rest |= {name: value for name, value in payload.items() if name.startswith(_RESERVED)}
    if not rest and payload:
        return payload
    flat = {name: value for name, value in payload.items() if name not in rest}
    return flat | {REST: jsonio.dumps(rest).decode()}


def _whole(metadata: dict[str, Any] | None) -> dict[str, Any]:
    found = dict(metadata or {})
    rest = found.pop(REST, None)
    return found | jsonio.loads(rest.encode()) if isinstance(rest, str) else found


def _holds(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and len({type(one) for one in value}) == 1 and all(map(_is_plain, value))
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    match value:
        case bool():
            return True
        case str():
            return not jsonio.has_surrogate(value)
        case int():
            return value in _INT64
        case float():
            return math.isfinite(value)
    return False
