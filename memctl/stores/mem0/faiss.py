"""Folders of mem0's faiss store: an index and a JSON file for each collection.

``NAME.faiss`` is a flat index from ``faiss.write_index``: a header, then the vectors.
``NAME.json`` is ``{"docstore": {ID: PAYLOAD}, "index_to_id": {POSITION: ID}}``.

memctl reads both files without a client library, into a temporary database.  mem0 rewrites both
files for each change.  On ``flush``, memctl replaces the index and then the JSON file.  If a run is
killed between the two replacements, the next run completes the write.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import struct
import sys
from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from memctl.errors import BadData, Busy, Lost
from memctl.json import jsonio
from memctl.json.document import Cursor
from memctl.location import same_file, visible
from memctl.machine import system
from memctl.store import OpenMode
from memctl.storekit.facts import decoded, encoded
from memctl.storekit.files import TEMPORARY_PREFIX, AtomicFile, sync_folder, system_errors
from memctl.stores.mem0.config import Mem0Config
from memctl.stores.mem0.vectors import (
    Record,
    Turns,
    VectorStore,
    check_dimensions,
    check_vectors,
    not_there,
)

_HEADER = struct.Struct("<4siqqqBi")
"""Type of index, dimensions, number of vectors, two unused numbers, trained, metric."""
_COUNT = struct.Struct("<Q")
_START = _HEADER.size + _COUNT.size
_L2, _INNER_PRODUCT = b"IxF2", b"IxFI"
_METRICS = {_INNER_PRODUCT: 0, _L2: 1}
_UNUSED = 1 << 20
_FLOAT_BYTES = 4
_MOST_PLACES = 1 << 62
_SOME = 500
_ATTEMPTS = 20
_EVEN = 1e-4
"""The tolerance within which a vector counts as normalized and stays unchanged."""
_PAUSE = 0.1
_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE fact (
    number INTEGER PRIMARY KEY, id BLOB UNIQUE, payload BLOB, place INTEGER, vector BLOB
);
CREATE INDEX place ON fact (place);
"""
_Stamp = tuple[int, int, int]


class FaissFolder(VectorStore):
    """The collections of mem0's faiss store in a folder."""

    writes_whole_files = True

    def __init__(self, config: Mem0Config, label: str) -> None:
        super().__init__(config, label)
        self._folder = config.folder
        self._turns = Turns()
        self._collections: dict[str, _Collection] = {}

    @property
    def place(self) -> Path:
        return self._folder

    async def identity(self) -> str:
        return f"file:{same_file(self._folder)}#{self.config.collection}"

    async def open(self, mode: OpenMode) -> None:
        for name in (self.config.collection, self.config.entities):
            collection = _Collection(self._folder, name, self.label, self.config)
            self._collections[name] = collection
            if mode.writes:
                await self._turns.run(collection.recover)
            await collection.read()
            if mode.writes:
                collection.require_facts()
            if name == self.config.collection:
                if not collection.exists and not mode.creates:
                    raise not_there(self.config, self.label, str(self._folder))
                check_dimensions(self.config, self.label, name, collection.size)
        if mode.creates and not self._collections[self.config.collection].exists:
            await self._create(self._collections[self.config.collection])

    async def _create(self, collection: _Collection) -> None:
        with system_errors(self._folder, "write"):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder, os.O_RDONLY)
            try:
                while True:  # the other run needs only a moment
                    if system.lock(handle):
                        break
                    await asyncio.sleep(_PAUSE)
                await collection.read()
                if not collection.exists:
                    await self._turns.run(collection.save)
            finally:
                os.close(handle)

    async def close(self) -> None:
        for collection in self._collections.values():
            collection.close()
        self._collections.clear()

    async def dimensions(self, collection: str) -> int | None:
        return self._collections[collection].size

    async def scan(self, collection: str) -> AsyncGenerator[list[Record]]:
        after = -1
        while True:
            rows = await self._turns.run(self._collections[collection].rows_after, after)
            if not rows:
                return
            after = rows[-1][0]
            yield [_record(decoded(id), payload) for _, id, payload in rows]

    async def get(self, collection: str, ids: Sequence[str]) -> list[Record]:
        return await self._turns.run(self._collections[collection].get, ids)

    def refuse(self, collection: str, records: Sequence[Record]) -> None:
        size = self._collections[collection].size or self.config.embedding.dimensions
        check_vectors(records, size, "faiss")

    async def put(self, collection: str, records: Sequence[Record]) -> None:
        await self._turns.run(self._collections[collection].put, records)

    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        await self._turns.run(self._collections[collection].delete, ids)

    async def flush(self) -> None:
        for name in (self.config.collection, self.config.entities):
            if self._collections[name].changed:
                await self._turns.run(self._collections[name].save)

    async def stray_vectors(self, collection: str) -> int:
        return self._collections[collection].stray


class _Collection:
    """A collection in faiss format: its two files, and their content in a temporary database."""

    def __init__(self, folder: Path, name: str, label: str, config: Mem0Config) -> None:
        self.index = folder / f"{name}.faiss"
        self.store = folder / f"{name}.json"
        self._label = label
        self._config = config
        self._kind = _L2
        if config.text("distance_strategy", "euclidean").lower() != "euclidean":
            self._kind = _INNER_PRODUCT
        self.size: int | None = None
        self.exists = False
        self.changed = False
        self.stray = 0
        self._missing = 0
        """The number of vectors whose fact has no payload."""
        self._stamp: tuple[_Stamp, ...] = ()
        self._handle: int | None = None
        self._spool = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._spool.executescript(_SCHEMA)

    def close(self) -> None:
        """Remove the temporary database, and close the index file."""
        self._spool.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    # Reading

    async def read(self) -> None:
        """Read both files into the temporary database; retry while another program writes them.

        Raises:
            BadData: a file is missing, damaged, or of another type.
            Lost: another program keeps writing the files.
        """
        for attempt in range(_ATTEMPTS):
            before = self._stamps()
            if not before:
                if self.store.with_suffix(".pkl").exists():
                    raise BadData(
                        f"{self._label}: {visible(str(self.store.with_suffix('.pkl')))} is the "
                        "docstore of an older mem0",
                        "open it once with mem0, which writes it as JSON",
                    )
                killed = any(self.index.parent.glob(self._pending("*").name))
                if killed or self.index.exists() == self.store.exists():
                    return  # a new collection, or a write that the next run completes
                if attempt < 2:
                    await asyncio.sleep(_PAUSE)
                    continue
                kept, lost = sorted((self.index, self.store), key=Path.exists, reverse=True)
                raise BadData(
                    f"{self._label}: {visible(str(kept))} is there, but not {lost.name}",
                    "restore both files from a backup, or move this one away",
                )
            try:
                self._read()
            except BadData:
                if before == self._stamps() and attempt >= 2:
                    raise
            else:
                if before == self._stamps():
                    self._stamp = before
                    return
            await asyncio.sleep(_PAUSE)
        raise Lost(
            f"{self._label}: another program keeps writing to {visible(str(self.index))}",
            "wait for it to end, or stop it",
        )

    def _stamps(self) -> tuple[_Stamp, ...]:
        try:
            found = [os.stat(file) for file in (self.index, self.store)]
        except FileNotFoundError:
            return ()
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def require_facts(self) -> None:
        """Check that no vector belongs to a fact without a payload, because a write drops it.

        Raises:
            BadData: a vector belongs to a fact without a payload.
        """
        if self._missing:
            raise BadData(
                f"{self._label}: {visible(str(self.store))} is damaged: it has no payload of facts "
                f"that are in the index: {self._missing:,}",
                "restore it from a backup",
            )

    def _read(self) -> None:
        self._missing = 0
        self._spool.execute("DELETE FROM fact")
        if self._handle is not None:
            os.close(self._handle)
        with system_errors(self.index, "read"):
            self._handle = os.open(self.index, system.READ_FLAGS)
            header = os.pread(self._handle, _START, 0)
            length = os.fstat(self._handle).st_size
        vectors = self._read_header(header, length)
        with system_errors(self.store, "read"):
            text = system.read_file(self.store)
        self._read_store(Cursor(text, visible(str(self.store))))
        self._spool.execute("UPDATE fact SET place = NULL WHERE place >= ?", (vectors,))
        [placed] = self._spool.execute("SELECT count(place) FROM fact").fetchone()
        self.stray = vectors - placed
        self.exists = True

    def _read_header(self, header: bytes, length: int) -> int:
        """Read the type of the index and its dimensions; return the number of vectors.

        ``length`` is the length of the index file.

        Raises:
            BadData: the file is not a flat index of faiss, or is incomplete.
        """
        if len(header) == _START:
            kind, size, vectors, _, _, _, _ = _HEADER.unpack_from(header)
            [numbers] = _COUNT.unpack_from(header, _HEADER.size)
            whole = numbers == vectors * size and length == _START + numbers * _FLOAT_BYTES
            if kind in _METRICS and size > 0 and whole:
                self._kind, self.size = kind, size
                return int(vectors)
        raise BadData(
            f"{self._label}: {visible(str(self.index))} is not a flat index of faiss, "
            "or is cut off",
            "restore it from a backup",
        )

    def _read_store(self, cursor: Cursor) -> None:
        rows: list[tuple[Any, ...]] = []
        put = "INSERT OR REPLACE INTO fact (id, payload) VALUES (?, ?)"
        places = "UPDATE fact SET place = ? WHERE id = ?"
        for section in cursor.members():
            if section not in ("docstore", "index_to_id"):
                cursor.skip()
                continue
            statement = put if section == "docstore" else places
            for name in cursor.members():
                value = cursor.skip()
                if section == "docstore":
                    rows.append((encoded(name), value))
                else:
                    rows.append(_placed(cursor, name, value))
                if len(rows) >= _SOME:
                    self._take(statement, rows)
            self._take(statement, rows)

    def _take(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        done = self._spool.executemany(statement, rows).rowcount if rows else 0
        self._missing += len(rows) - done  # index entries without a fact in the docstore
        rows.clear()

    def rows_after(self, after: int) -> list[tuple[int, bytes, bytes]]:
        """Return up to 500 records after a row number, as row number, id and payload."""
        sql = f"SELECT number, id, payload FROM fact WHERE number > ? ORDER BY number LIMIT {_SOME}"
        return self._spool.execute(sql, (after,)).fetchall()

    def get(self, ids: Sequence[str]) -> list[Record]:
        """Return the records with these ids.  Leaves out ids without a record."""
        places = ",".join("?" * len(ids))
        sql = f"SELECT id, payload, place, vector FROM fact WHERE id IN ({places})"
        rows = self._spool.execute(sql, tuple(map(encoded, ids))).fetchall()
        return [
            _record(decoded(id), payload, vector or self._vector(place))
            for id, payload, place, vector in rows
        ]

    def _vector(self, place: int | None) -> bytes | None:
        if place is None or self._handle is None or self.size is None:
            return None
        size = self.size * _FLOAT_BYTES
        with system_errors(self.index, "read"):
            return os.pread(self._handle, size, _START + place * size)

    # Writing

    def put(self, records: Sequence[Record]) -> None:
        """Add records to the temporary database; replace records with the same ids."""
        self.changed = True
        self.size = self.size or self._config.embedding.dimensions
        rows = [
            (
                encoded(one.id),
                jsonio.dumps(one.payload),
                _bytes_of(self._fitting(one.vector)) if one.vector else None,
            )
            for one in records
        ]
        self._spool.execute("BEGIN")
        self._spool.executemany(
            "INSERT INTO fact (id, payload, vector) VALUES (?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET payload = excluded.payload, vector = excluded.vector",
            rows,
        )
        self._spool.execute("COMMIT")

    def _fitting(self, vector: array[float]) -> array[float]:
        strategy = self._config.text("distance_strategy", "euclidean").lower()
        normal = bool(self._config.options.get("normalize_L2")) and strategy == "euclidean"
        length = math.sqrt(sum(value * value for value in vector))
        if not (normal or strategy == "cosine") or not length or abs(length - 1) < _EVEN:
            return vector
        return array("f", (value / length for value in vector))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete records from the temporary database."""
        self.changed = True
        self._spool.executemany("DELETE FROM fact WHERE id = ?", [(encoded(id),) for id in ids])

    def save(self) -> None:
        """Write both files from the temporary database, durably.

        Raises:
            Busy: another program has written the files since ``read``.
        """
        if self.exists and self._stamps() != self._stamp:
            raise Busy(
                f"{self._label}: another program has written to {visible(str(self.index))} "
                "meanwhile; nothing was written",
                "stop the program that uses it, and run the same command again",
            )
        self.size = self.size or self._config.embedding.dimensions
        with AtomicFile(self.index) as index:
            digest = self._write_index(index)
            index.sync()
            pending = self._pending(digest)
            with AtomicFile(pending) as store:
                for piece in self._store_pieces():
                    store.write(piece)
                store.commit()
            if self.store.exists():
                with system_errors(self.store, "write"), open(pending, "rb") as file:
                    system.take_after(file.fileno(), os.stat(self.store))
            index.replace()
        self._finish(pending)
        self._renumber()
        self.changed = False
        self.exists = True
        self.stray = 0

    def _pending(self, digest: str) -> Path:
        return self.index.parent / f"{TEMPORARY_PREFIX}{self.index.stem}.{digest}.pending"

    def _write_index(self, index: AtomicFile) -> str:
        size = self.size or 0
        [count] = self._spool.execute(f"SELECT count(*) FROM fact WHERE {_HAS_VECTOR}").fetchone()
        header = _HEADER.pack(self._kind, size, count, _UNUSED, _UNUSED, 1, _METRICS[self._kind])
        header += _COUNT.pack(count * size)
        index.write(header)
        digest = blake2b(header, digest_size=16)
        for place, vector in self._in_index("place, vector"):
            data = vector or self._vector(place) or b""
            index.write(data)
            digest.update(data)
        return digest.hexdigest()

    def _store_pieces(self) -> Iterator[bytes]:
        yield b'{"docstore": {'
        comma = b"\n"
        for id, payload in self._spool.cursor().execute(
            "SELECT id, payload FROM fact ORDER BY number"
        ):
            yield comma + jsonio.dumps(decoded(id)) + b": " + payload
            comma = b",\n"
        yield b'\n}, "index_to_id": {'
        comma = b"\n"
        for place, (id,) in enumerate(self._in_index("id")):
            yield comma + b'"%d": ' % place + jsonio.dumps(decoded(id))
            comma = b",\n"
        yield b"\n}}\n"

    def _in_index(self, columns: str) -> Iterator[tuple[Any, ...]]:
        """Return the values of ``columns`` for each fact with a vector, in their new order."""
        order = "place IS NULL, place, number"
        sql = f"SELECT {columns} FROM fact WHERE {_HAS_VECTOR} ORDER BY {order}"
        return self._spool.cursor().execute(sql)

    def _finish(self, pending: Path) -> None:
        with system_errors(self.store, "write"):
            os.replace(pending, self.store)
        sync_folder(self.store.parent)

    def _renumber(self) -> None:
        numbers = array("q", (number for (number,) in self._in_index("number")))
        self._spool.execute("UPDATE fact SET place = NULL, vector = NULL")
        self._spool.executemany("UPDATE fact SET place = ? WHERE number = ?", enumerate(numbers))
        if self._handle is not None:
            os.close(self._handle)
        self._handle = os.open(self.index, system.READ_FLAGS)
        self._stamp = self._stamps()

    def recover(self) -> None:
        """Complete an interrupted write if its index file is in place; discard the write if not."""
        digest = ""
        for pending in self.index.parent.glob(self._pending("*").name):
            digest = digest or _digest_of(self.index)
            if pending == self._pending(digest):
                self._finish(pending)
            else:
                pending.unlink(missing_ok=True)


_HAS_VECTOR = "(place IS NOT NULL OR vector IS NOT NULL)"


def _placed(cursor: Cursor, name: str, value: bytes) -> tuple[int, bytes]:
    """Parse a member of ``index_to_id``; return the position in the index and the id of the fact.

    ``name`` and ``value`` are the member.  ``cursor`` locates errors.

    Raises:
        BadData: the position is not a valid number, or the id is not a text.
    """
    try:
        place, id = int(name), jsonio.loads(value)
    except ValueError as error:
        raise cursor.bad("a place is not a number with an id", cursor.at) from error
    if not isinstance(id, str) or not 0 <= place < _MOST_PLACES:
        raise cursor.bad("a place is not a number with an id", cursor.at)
    return place, encoded(id)


def _record(id: str, payload: bytes, vector: bytes | None = None) -> Record:
    try:
        value = jsonio.loads(payload)
    except ValueError as error:
        return Record(id, {}, damage=f"its payload is not JSON: {error}")
    if not isinstance(value, dict):
        return Record(id, {}, damage="its payload is not an object")
    if vector is None:
        return Record(id, value)
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return Record(id, value, numbers)


def _bytes_of(vector: array[float]) -> bytes:
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def _digest_of(path: Path) -> str:
    digest = blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except FileNotFoundError:
        return ""
    return digest.hexdigest()
