"""Folders of qdrant's client in local mode, in which mem0 stores facts.

The format is from qdrant-client 1.1.7 and newer.  ``meta.json`` describes the collections.
``collection/NAME/storage.sqlite`` has one row for each point, with two pickled columns.  The client
loads the whole folder into RAM and returns normalized vectors.  memctl therefore reads the rows
itself, and unpickles only the classes of points.  memctl respects the client's lock.
"""

from __future__ import annotations

import base64
import io
import os
import pickle
import sqlite3
import time
from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from memctl.engines.sql.sqlite_files import check_structure
from memctl.errors import BadData, Busy, UsageError
from memctl.json import jsonio
from memctl.location import same_file, visible
from memctl.machine import system
from memctl.store import OpenMode
from memctl.storekit.files import AtomicFile, system_errors
from memctl.stores.mem0.config import Mem0Config
from memctl.stores.mem0.history import sqlite_errors, transaction
from memctl.stores.mem0.vectors import (
    BM25,
    Record,
    Turns,
    VectorStore,
    check_dimensions,
    check_uuids,
    check_vectors,
    library,
    not_there,
)

_SOME = 500
_BUSY_SECONDS = 30.0
_PAUSES = (0.01, 0.05, 0.1, 0.2)
"""The pauses between attempts to take the lock in seconds, as another run may hold it briefly."""
_KEY_PROTOCOL = 4
"""The pickle protocol that the client uses for the ids in keys."""
_SLOT = "bm25"
"""mem0's name for the sparse vector."""
_ENTRIES = ("indices", "values")


class QdrantFolder(VectorStore):
    """The collections of mem0 in a folder of qdrant's client in local mode."""

    def __init__(self, config: Mem0Config, label: str) -> None:
        super().__init__(config, label)
        self._folder = config.folder
        self._turns = Turns()
        self._lock: int | None = None
        self._databases: dict[str, sqlite3.Connection] = {}
        self._collections: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, str] = {}
        """The key of each point by id, for keys that differ from ``encoded_key``."""

    @property
    def place(self) -> Path:
        return self._folder

    async def identity(self) -> str:
        return f"file:{same_file(self._folder)}#{self.config.collection}"

    # Opening

    async def open(self, mode: OpenMode) -> None:
        for option in ("url", "host", "api_key"):
            if self.config.text(option):
                raise UsageError(
                    f"{self.label}: memctl opens qdrant as a local folder, not as a server",
                    "copy what a server holds with mem0 itself, or use pgvector",
                )
        await self._turns.run(self._open, mode)

    def _open(self, mode: OpenMode) -> None:
        self._read_meta()
        if self.config.collection not in self._collections:
            if not mode.creates:
                raise not_there(self.config, self.label, str(self._folder))
            with system_errors(self._folder, "write"):
                self._folder.mkdir(parents=True, exist_ok=True)
        for name in (self.config.collection, self.config.entities):
            if name in self._collections:
                self._attach(name, mode)
        if mode.creates and self.config.collection not in self._collections:
            with self._locked():
                self._create(self.config.collection)

    def _read_meta(self) -> None:
        file = self._folder / "meta.json"
        if not file.exists():
            self._collections = {}
            return
        with system_errors(file, "read"):
            content = system.read_file(file)
        try:
            found = jsonio.loads(content)["collections"]
            self._collections = {name: dict(about) for name, about in found.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadData(
                f"{self.label}: {visible(str(file))} is damaged", "restore it from a backup"
            ) from error

    async def lock(self, owner: str) -> bool:  # noqa: ARG002 - qdrant's lock stores no owner
        await self._turns.run(self._take_lock)
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock is not None:
            yield
            return
        self._take_lock()
        try:
            yield
        finally:
            self._release_lock()

    def _take_lock(self) -> None:
        """Lock the folder as qdrant's client does.

        Raises:
            Busy: another process has the folder open.
        """
        for pause in (*_PAUSES, None):
            try:
                self._try_lock()
            except Busy:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                return

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _try_lock(self) -> None:
        file = self._folder / ".lock"
        with system_errors(file, "write"):
            handle = os.open(file, system.WRITE_FLAGS | os.O_CREAT, 0o644)
            try:
                ours = system.lock(handle)
            except OSError:
                os.close(handle)
                raise
        if ours:
            self._lock = handle
            return
        inode = os.fstat(handle).st_ino
        os.close(handle)
        owner = system.lock_holder(inode)
        raise Busy(
            f"{self.label}: {owner or 'another process'} has the qdrant folder "
            f"{visible(str(self._folder))} open",
            "stop the program that uses it; reading (inspect, export, verify) needs no lock",
        )

    def _attach(self, name: str, mode: OpenMode) -> None:
        about = self._collections[name].get("vectors")
        if not isinstance(about, dict) or not isinstance(about.get("size"), int):
            raise BadData(
                f"{self.label}: the collection {name!r} is not one of mem0, which has one unnamed "
                "vector a point",
                "name another collection_name",
            )
        if name == self.config.collection:
            check_dimensions(self.config, self.label, name, about["size"])
        file = self._file(name)
        if not file.exists():
            if (file.parent / "storage.dbm").exists():
                raise BadData(
                    f"{self.label}: the collection {name!r} has the format of qdrant-client before "
                    "1.1.7",
                    "open it once with an older client, which converts it",
                )
            if mode in (OpenMode.READ, OpenMode.CHANGE):
                return  # a collection that has never had a point
        with system_errors(file, "write"):
            file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # SQLite opens an existing file, and reports errors
            system.create_private(file)
        with sqlite_errors(self.label, file):
            database = sqlite3.connect(
                file, _BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._databases[name] = database
            if mode.writes:
                database.execute("PRAGMA secure_delete = ON")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS points (id TEXT PRIMARY KEY, point BLOB)"
                )
            else:
                database.execute("PRAGMA query_only = 1")
            database.execute("SELECT id, point FROM points LIMIT 1").fetchall()

    def _file(self, name: str) -> Path:
        return self._folder / "collection" / name / "storage.sqlite"

    def _create(self, name: str) -> None:
        self._read_meta()
        if name in self._collections:
            self._attach(name, OpenMode.CREATE)
            return
        size = self.config.embedding.dimensions
        on_disk = bool(self.config.options.get("on_disk") or False)
        self._collections[name] = {
            "vectors": {"size": size, "distance": "Cosine", "on_disk": on_disk},
            "sparse_vectors": {_SLOT: {"modifier": "idf"}},
        }
        file = self._folder / "meta.json"
        meta: dict[str, Any] = {"aliases": {}}
        if file.exists():
            meta = jsonio.loads(system.read_file(file))
        meta["collections"] = self._collections
        self._attach(name, OpenMode.CREATE)
        with AtomicFile(file) as new:
            new.write(jsonio.dumps(meta))
            new.commit()

    async def close(self) -> None:
        for database in self._databases.values():
            database.close()
        self._databases.clear()
        self._release_lock()

    # Reading

    async def dimensions(self, collection: str) -> int | None:
        about = self._collections.get(collection)
        return about["vectors"]["size"] if about else None

    async def scan(self, collection: str) -> AsyncGenerator[list[Record]]:
        after = -1
        while True:
            rows = await self._turns.run(self._rows_after, collection, after)
            if not rows:
                return
            after = rows[-1][0]
            records = []
            for _, key, point in rows:
                record = self._record(key, point, with_vector=False)
                if key == encoded_key(record.id):
                    self._keys.pop(record.id, None)
                else:
                    self._keys[record.id] = key
                records.append(record)
            yield records

    def _rows_after(self, collection: str, after: int) -> list[tuple[int, str, bytes]]:
        # Fetch a few rows at a time: a long read keeps the agent from committing.
        sql = f"SELECT rowid, id, point FROM points WHERE rowid > ? ORDER BY rowid LIMIT {_SOME}"
        return self._fetch(collection, sql, (after,))

    async def check_structure(self, warnings: list[str]) -> None:
        for collection, database in self._databases.items():
            file = self._file(collection)
            with sqlite_errors(self.label, file):
                label = f"{self.label}: {visible(str(file))}"
                await self._turns.run(check_structure, database, label, warnings)

    async def get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        keys = [self._key(id) for id in ids]
        sql = f"SELECT 0, id, point FROM points WHERE id IN ({','.join('?' * len(keys))})"
        rows = await self._turns.run(self._fetch, collection, sql, keys)
        return [self._record(key, point, with_vector=True) for _, key, point in rows]

    def _fetch(self, collection: str, sql: str, values: Sequence[Any]) -> list[Any]:
        database = self._databases.get(collection)
        if database is None:
            return []
        with sqlite_errors(self.label, self._file(collection)):
            return database.execute(sql, values).fetchall()

    def _key(self, id: str) -> str:
        return self._keys.get(id) or encoded_key(id)

    def _record(self, key: str, point: bytes, *, with_vector: bool) -> Record:
        try:
            fields = _PointReader(io.BytesIO(point)).load().fields
            id = str(fields["id"])
            payload = fields.get("payload")
            payload = {} if payload is None else payload
            if not isinstance(payload, dict):
                raise TypeError("its payload is not an object")
            vectors = fields.get("vector")
            named = vectors if isinstance(vectors, dict) else {"": vectors}
            words = named.get(_SLOT)
            if words is not None:
                about = {name: words.fields[name] for name in _ENTRIES}
                payload = payload | {BM25: jsonio.dumps(about).decode()}
            vector = array("f", named.get("") or ()) if with_vector else None
        except Exception as error:  # noqa: BLE001 - damaged pickles raise anything
            return Record(_id_of(key), {}, damage=f"{type(error).__name__}: {error}")
        return Record(id, payload, vector or None)

    # Writing

    def refuse(self, collection: str, records: Sequence[Record]) -> None:
        check_uuids([one for one in records if not one.id.isdecimal()], "qdrant")
        about = self._collections.get(collection)
        size = about["vectors"]["size"] if about else self.config.embedding.dimensions
        check_vectors(records, size, "qdrant")

    async def put(self, collection: str, records: Sequence[Record]) -> None:
        await self._turns.run(self._put, collection, records)

    def _put(self, collection: str, records: Sequence[Record]) -> None:
        if collection not in self._databases:
            with self._locked():
                self._create(collection)
        models = library("qdrant_client.http.models", f"writing to {self.label}")
        sparse = _SLOT in (self._collections[collection].get("sparse_vectors") or {})
        rows = []
        for record in records:
            payload = dict(record.payload)
            vectors: dict[str, Any] = {"": list(record.vector)} if record.vector else {}
            if sparse and isinstance(payload.get(BM25), str):
                vectors[_SLOT] = models.SparseVector(**jsonio.loads(payload.pop(BM25).encode()))
            id = int(record.id) if record.id.isdecimal() else record.id
            point = models.PointStruct.model_construct(id=id, vector=vectors, payload=payload)
            rows.append((self._key(record.id), pickle.dumps(point)))
        self._change(collection, "INSERT OR REPLACE INTO points VALUES (?, ?)", rows)

    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        keys = [(self._key(id),) for id in ids]
        await self._turns.run(self._change, collection, "DELETE FROM points WHERE id = ?", keys)

    def _change(self, collection: str, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        database = self._databases.get(collection)
        if database is None:
            return
        errors = sqlite_errors(self.label, self._file(collection))
        with errors, self._locked(), transaction(database):
            database.executemany(sql, rows)

    async def clear_free_space(self) -> None:
        for name, database in self._databases.items():
            with sqlite_errors(self.label, self._file(name)), self._locked():
                await self._turns.run(database.execute, "VACUUM")


def encoded_key(id: str) -> str:
    """Return the database key of the point with this id.

    The encoding is from ``qdrant_client/local/persistence.py``.
    """
    point: str | int = int(id) if id.isdecimal() else id
    return base64.b64encode(pickle.dumps(point, protocol=_KEY_PROTOCOL)).decode()


def _id_of(key: str) -> str:
    with suppress(Exception):
        return str(_PointReader(io.BytesIO(base64.b64decode(key))).load())
    return key


class _Model:
    """An object of qdrant's client, unpickled as plain fields."""

    fields: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fields = state["__dict__"]


class _PointReader(pickle.Unpickler):
    """An unpickler for points.  It rejects all other classes, because a pickle can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("qdrant_client.") and name in ("PointStruct", "SparseVector"):
            return _Model
        if (module, name) == ("uuid", "UUID"):
            return UUID
        if (module, name) == ("copyreg", "_reconstructor"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a point does not contain {module}.{name}")
