"""The file of an index: a SQLite database with the words of a store's messages.

A memory is divided into blocks of consecutive messages.  A block is one row of the full-text
table, and one compressed row with the messages.  A search therefore ranks and shows messages
without the store.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from memctl.errors import MemctlError, Unavailable
from memctl.index.text import END_OF_PIECE, plain, prepare
from memctl.json import jsonio
from memctl.machine import system, zstd
from memctl.model import MemoryKey

FORMAT = 3
"""The version of the file; to be raised when its rows or the result of ``block_text`` change."""
TOKENIZER = "porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc So'"

_HASH_BYTES = 32 * 1024 * 1024
"""The size of the words that FTS5 collects in memory before it writes a segment."""
_CACHE_KIB = 16 * 1024
_BUSY_SECONDS = 60.0
_COMPRESSION: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")

_SCHEMA = f"""
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE memory (number INTEGER PRIMARY KEY, user BLOB, session BLOB, part BLOB,
    messages INTEGER, digest BLOB, UNIQUE (user, session, part));
CREATE TABLE block (number INTEGER PRIMARY KEY, memory INTEGER, place INTEGER, messages INTEGER,
    digest BLOB, content BLOB);
CREATE INDEX block_of_memory ON block (memory, place);
CREATE TABLE sender (name TEXT PRIMARY KEY, messages INTEGER) WITHOUT ROWID;
CREATE TABLE vector (block INTEGER PRIMARY KEY, vectors BLOB);
CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize="{TOKENIZER}");
INSERT INTO words (words, rank) VALUES ('hashsize', {_HASH_BYTES});
INSERT INTO words (words, rank) VALUES ('crisismerge', 1999);
"""


class DamagedIndex(Exception):
    """The file of a search index cannot be read.  The index is then created again."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class IndexedMessage(NamedTuple):
    """A message in the index; ``pieces`` are the pieces of its prepared text.

    ``is_output`` is true if the message is the output of tools and nothing else.
    """

    id: str
    role: str | None
    name: str | None
    time: str | None
    marks: tuple[str, ...]
    is_output: bool
    pieces: list[str]


class Block(Struct, frozen=True):
    """Consecutive messages of a memory; ``place`` is the position of the first in the memory."""

    number: int
    memory: int
    place: int
    entries: list[IndexedMessage]


class BlockMark(NamedTuple):
    """A block of messages without their content: their count, and a digest of them."""

    number: int
    place: int
    messages: int
    digest: bytes


class MemoryRow(NamedTuple):
    """A memory in the index; ``digest`` is the digest of its outline."""

    number: int
    key: MemoryKey
    messages: int
    digest: bytes


class SourceText(NamedTuple):
    """A message to be indexed, with its text not yet prepared."""

    id: str
    role: str | None
    name: str | None
    time: str | None
    marks: tuple[str, ...]
    is_output: bool
    text: str


class NewBlock(NamedTuple):
    """A block of messages to be written."""

    mark: BlockMark
    memory: int
    messages: list[SourceText]


class PackedBlock(NamedTuple):
    """A block ready to be written: compressed messages, words, and message counts by sender."""

    mark: BlockMark
    memory: int
    content: bytes
    text: str
    senders: Counter[str]


class Batch(Struct):
    """Changes of a search index to be written together."""

    memories: list[MemoryRow] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    """Numbers of blocks to be removed."""
    added: list[NewBlock] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    """Numbers of memories to be removed with their blocks."""
    size: int = 0


def heading(entry: IndexedMessage) -> str:
    """Return the sender and the day of a message, prepared for the full-text search."""
    return f"{_sender(entry.name)} {_day((entry.time or '')[:10])}"


def block_text(entries: Sequence[IndexedMessage]) -> str:
    """Return the text of a block of messages for the full-text table: days, senders and texts."""
    return f"{_block_heading(entries)}\n{_body(entries)}"


def _block_heading(entries: Sequence[IndexedMessage]) -> str:
    days = {(entry.time or "")[:10]: None for entry in entries}
    return "\n".join([*map(_day, days), *[_sender(entry.name) for entry in entries]])


def _body(entries: Sequence[IndexedMessage]) -> str:
    return END_OF_PIECE.join([piece for entry in entries for piece in entry.pieces])


@lru_cache(1024)
def _sender(name: str | None) -> str:
    return prepare(name) if name else ""


@lru_cache(1024)
def _day(date: str) -> str:
    """Return ``8 May 2023`` for ``2023-05-08``; "" if ``date`` is not a date."""
    found = _DATE.fullmatch(date)
    if found is None or not 1 <= int(found[2]) <= len(_MONTHS):
        return ""
    return f"{int(found[3])} {_MONTHS[int(found[2]) - 1]} {found[1]}"


def packed(new: NewBlock, entries: Sequence[IndexedMessage]) -> PackedBlock:
    """Compress a new block of messages; ``entries`` are the messages with prepared texts."""
    body = _body(entries)
    text = f"{_block_heading(entries)}\n{body}"
    senders = Counter(_sender(entry.name) for entry in entries)
    return PackedBlock(new.mark, new.memory, _pack(entries, body), text, senders)


def _pack(entries: Sequence[IndexedMessage], body: str) -> bytes:
    """Return messages compressed: JSON without the texts, then ``body``, the texts."""
    rows = [[*entry[:-1], len(entry.pieces)] for entry in entries]
    compressor = zstd.ZstdCompressor(options=_COMPRESSION)
    head = compressor.compress(jsonio.compact(rows) + b"\n")
    return head + compressor.compress(body.encode(), compressor.FLUSH_FRAME)


def _unpack(content: bytes) -> list[IndexedMessage]:
    try:
        head, _, body = zstd.decompress(content).partition(b"\n")
        pieces = body.decode().split(END_OF_PIECE)
        entries, start = [], 0
        for id, role, name, at, marks, is_output, count in jsonio.loads(head):
            texts = pieces[start : start + count]
            entries.append(IndexedMessage(id, role, name, at, tuple(marks), is_output, texts))
            start += count
    except (ValueError, TypeError, zstd.ZstdError) as error:
        raise _Unreadable from error
    return entries


class _Unreadable(Exception):
    """The compressed messages of a block cannot be read."""


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _key(user: bytes, session: bytes, part: bytes) -> MemoryKey:
    return MemoryKey(*(one.decode("utf-8", "surrogatepass") for one in (user, session, part)))


class IndexFile:
    """An open search index, to be used by one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def create(cls, path: Path) -> IndexFile:
        """Create an empty search index, which other users of the machine cannot read.

        The database has no journal until ``finish`` is called.

        Raises:
            Unavailable: the file cannot be written.
        """
        try:
            system.create_private(path)
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}", _HINT) from error
        index = cls(path, _connect(path))
        with index._errors():
            index._connection.execute("PRAGMA page_size = 8192")
            index._connection.executescript(_SCHEMA)
            index._connection.execute("INSERT INTO words (words, rank) VALUES ('automerge', 0)")
        index._begin_new()
        return index

    def _begin_new(self) -> None:
        with self._errors():
            self._connection.execute("PRAGMA journal_mode = OFF")
            self._connection.execute("PRAGMA secure_delete = OFF")  # nothing is deleted yet
            self._connection.execute("BEGIN")

    @classmethod
    def open(cls, path: Path) -> IndexFile | None:
        """Open a search index; None if the file does not exist or has a different format.

        Raises:
            DamagedIndex: the file is not a search index.
            Unavailable: the file cannot be opened.
        """
        if not path.exists():
            return None
        index = cls(path, _connect(path))
        try:
            with index._errors():
                index._connection.execute("PRAGMA secure_delete = ON")
                found = index.about("format")
        except BaseException:
            index.close()
            raise
        if found == FORMAT:
            return index
        index.close()
        return None

    def finish(self) -> None:
        """Finish a new search index; several processes can then change it in transactions."""
        with self._errors():
            self._connection.execute("COMMIT")
            self._connection.execute("INSERT INTO words (words, rank) VALUES ('automerge', 4)")
            self._connection.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        """Close the file of the index."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def interrupt(self) -> None:
        """Make the statement that another thread executes on this index fail."""
        self._connection.interrupt()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translated(self.path, error) from error
        except _Unreadable as error:
            raise DamagedIndex(self.path, error.__cause__) from error

    # Reading

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Within the block, all reads show the same state, even if other processes write."""
        with self._errors():
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def about(self, name: str) -> Any:
        """Return the property ``name`` of the index, such as ``model``; None if it is not set.

        Raises:
            DamagedIndex: the file is damaged.
        """
        with self._errors():
            found = self._connection.execute("SELECT value FROM about WHERE name = ?", (name,))
            row = found.fetchone()
        return row[0] if row else None

    def totals(self) -> tuple[int, int]:
        """Return the number of memories and the number of messages in the index."""
        with self._errors():
            query = "SELECT count(*), coalesce(sum(messages), 0) FROM memory"
            row: tuple[int, int] = self._connection.execute(query).fetchone()
        return row

    def senders(self) -> list[str]:
        """Return the names of all senders of indexed messages."""
        with self._errors():
            return [plain(row[0]) for row in self._connection.execute("SELECT name FROM sender")]

    def blocks(self) -> int:
        """Return the number of blocks of messages."""
        return self._number("SELECT count(*) FROM block")

    def last_number(self, table: str) -> int:
        """Return the highest row number in the table ``memory`` or ``block``; 0 if it is empty."""
        return self._number(f"SELECT coalesce(max(number), 0) FROM {table}")

    def _number(self, query: str, *values: Any) -> int:
        with self._errors():
            return int(self._connection.execute(query, values).fetchone()[0])

    def memory(self, key: MemoryKey) -> MemoryRow | None:
        """Return the row of a memory; None if the memory is not in the index."""
        query = (
            "SELECT number, messages, digest FROM memory"
            " WHERE user = ? AND session = ? AND part = ?"
        )
        with self._errors():
            row = self._connection.execute(query, tuple(map(_name, key))).fetchone()
        return MemoryRow(row[0], key, *row[1:]) if row else None

    def memories(self, users: Iterable[str] = ()) -> Iterator[MemoryRow]:
        """Yield the indexed memories of ``users``; without ``users``, all indexed memories."""
        query = "SELECT number, user, session, part, messages, digest FROM memory"
        names = [_name(user) for user in users]
        if names:
            query += f" WHERE user IN ({', '.join('?' * len(names))})"
        with self._errors():
            for row in self._connection.execute(query, names):
                yield MemoryRow(row[0], _key(*row[1:4]), *row[4:])

    def memory_of(self, number: int) -> MemoryRow:
        """Return the memory with this row number."""
        query = "SELECT user, session, part, messages, digest FROM memory WHERE number = ?"
        with self._errors():
            row = self._connection.execute(query, (number,)).fetchone()
            if row is None:
                raise DamagedIndex(self.path, f"no memory {number}")
        return MemoryRow(number, _key(*row[:3]), *row[3:])

    def marks_of(self, memory: int) -> list[BlockMark]:
        """Return all blocks of the memory with the number ``memory``, in order.

        A block is a group of consecutive messages.  The result has no messages.
        """
        query = "SELECT number, place, messages, digest FROM block WHERE memory = ? ORDER BY place"
        with self._errors():
            return [BlockMark(*row) for row in self._connection.execute(query, (memory,))]

    def block(self, number: int) -> Block:
        """Return the block of messages with this number, with the messages.

        Raises:
            DamagedIndex: the block is missing or cannot be read.
        """
        query = "SELECT memory, place, content FROM block WHERE number = ?"
        with self._errors():
            row = self._connection.execute(query, (number,)).fetchone()
            if row is None:
                raise DamagedIndex(self.path, f"no block {number}")
            return Block(number, row[0], row[1], _unpack(row[2]))

    def blocks_between(self, memory: int, first: int, last: int) -> list[Block]:
        """Return the blocks with the messages from ``first`` to ``last`` of a memory, in order.

        ``memory`` is the row number of the memory; ``first`` and ``last`` are positions in it.  A
        block is a group of consecutive messages.

        Raises:
            DamagedIndex: a block cannot be read.
        """
        query = (
            "SELECT number, place, content FROM block"
            " WHERE memory = ? AND place <= ? AND place + messages > ? ORDER BY place"
        )
        with self._errors():
            rows = self._connection.execute(query, (memory, last, first)).fetchall()
            return [Block(row[0], memory, row[1], _unpack(row[2])) for row in rows]

    def find(self, match: str, limit: int, allowed: Iterable[int] | None = None) -> list[int]:
        """Return the numbers of the ``limit`` best blocks of messages, the best by BM25 first.

        ``match`` is an expression of FTS5.  ``allowed`` are the numbers of the memories to
        search; None searches all memories.
        """
        query = "SELECT words.rowid FROM words"
        if allowed is not None:
            self._allow(allowed)
            query += (
                " JOIN block ON block.number = words.rowid JOIN allowed ON memory = allowed.number"
            )
        with self._errors():
            rows = self._connection.execute(
                f"{query} WHERE words MATCH ? ORDER BY rank LIMIT ?", (match, limit)
            )
            return [row[0] for row in rows]

    def stems(self, first: str, shortest: int, longest: int) -> list[str]:
        """Return the stems of indexed words that begin with ``first``, by their length."""
        with self._errors():
            self._connection.execute(
                "CREATE VIRTUAL TABLE IF NOT EXISTS temp.term USING fts5vocab (main, words, row)"
            )
            rows = self._connection.execute(
                "SELECT term FROM temp.term WHERE term >= ?1 AND term < ?1 || char(0x10ffff)"
                " AND length(term) BETWEEN ?2 AND ?3",
                (first, shortest, longest),
            )
            return [row[0] for row in rows]

    def frequency(self, match: str) -> int:
        """Return the number of blocks of messages that match an expression of FTS5."""
        return self._number("SELECT count(*) FROM words WHERE words MATCH ?", match)

    # Vectors

    def blocks_without_vectors(self, limit: int) -> list[Block]:
        """Return at most ``limit`` blocks of messages that have no vectors yet.

        Raises:
            DamagedIndex: a block cannot be read.
        """
        query = (
            "SELECT number, memory, place, content FROM block"
            " WHERE number NOT IN (SELECT block FROM vector) LIMIT ?"
        )
        with self._errors():
            rows = self._connection.execute(query, (limit,)).fetchall()
            return [Block(row[0], row[1], row[2], _unpack(row[3])) for row in rows]

    def add_vectors(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Store vectors; each row is the number of a block of messages and the block's matrix.

        Rows of blocks that no longer exist are skipped.
        """
        with self._errors():
            self._connection.executemany(
                "INSERT OR REPLACE INTO vector"
                " SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM block WHERE number = ?1)",
                rows,
            )

    def remove_vectors(self) -> None:
        """Remove the vectors of all blocks of messages, as needed for a new model."""
        with self._errors():
            self._connection.execute("DELETE FROM vector")

    def vectors(self, allowed: Iterable[int] | None = None) -> Generator[tuple[int, bytes]]:
        """Yield, for each block of messages with vectors, its number and the matrix of its vectors.

        ``allowed`` are the numbers of the memories whose blocks to yield; None yields all blocks.
        """
        query = "SELECT vector.block, vectors FROM vector"
        if allowed is not None:
            self._allow(allowed)
            query += (
                " JOIN block ON block.number = vector.block"
                " JOIN allowed ON block.memory = allowed.number"
            )
        with self._errors():
            yield from self._connection.execute(query)

    def vectors_of(self, number: int) -> bytes:
        """Return the matrix of vectors of the block of messages with this number.

        Raises:
            DamagedIndex: the block has no vectors.
        """
        query = "SELECT vectors FROM vector WHERE block = ?"
        with self._errors():
            row = self._connection.execute(query, (number,)).fetchone()
            if row is None:
                raise DamagedIndex(self.path, f"no vectors of block {number}")
        return bytes(row[0])

    def _allow(self, memories: Iterable[int]) -> None:
        with self._errors():
            self._connection.executescript(
                "CREATE TEMP TABLE IF NOT EXISTS allowed (number INTEGER PRIMARY KEY);"
                "DELETE FROM allowed"
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO allowed VALUES (?)", ((one,) for one in memories)
            )

    # Writing

    def begin(self) -> None:
        """Begin a transaction; wait while another process changes the index.

        Raises:
            Unavailable: the other process still changes the index after a minute.
        """
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction."""
        with self._errors():
            self._connection.execute("COMMIT")

    def describe(self, **values: Any) -> None:
        """Set properties of the index, by name; ``about`` returns them."""
        with self._errors():
            self._connection.executemany(
                "INSERT OR REPLACE INTO about VALUES (?, ?)", values.items()
            )

    def apply(self, batch: Batch, packed: Sequence[PackedBlock]) -> None:
        """Write the changes of a batch; ``packed`` are its new blocks of messages, compressed.

        The blocks are collected in a temporary table.  Then one statement indexes all words; other
        threads of Python run meanwhile.

        Raises:
            DamagedIndex: a block to be removed cannot be read.
            Unavailable: the disk is full.
        """
        with self._errors():
            execute = self._connection.execute
            for memory in batch.gone:
                batch.removed += [mark.number for mark in self.marks_of(memory)]
                execute("DELETE FROM memory WHERE number = ?", (memory,))
            senders: Counter[str] = Counter()
            for number in batch.removed:
                block = self.block(number)
                senders.subtract(_sender(entry.name) for entry in block.entries)
                execute(
                    "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)",
                    (number, block_text(block.entries)),
                )
                execute("DELETE FROM block WHERE number = ?", (number,))
                execute("DELETE FROM vector WHERE block = ?", (number,))
            self._connection.executemany(
                "INSERT INTO temp.staged VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (one.mark.number, one.memory, *one.mark[1:], one.content, one.text)
                    for one in packed
                ),
            )
            execute(
                "INSERT INTO block"
                " SELECT number, memory, place, messages, digest, content FROM temp.staged"
            )
            execute("INSERT INTO words (rowid, text) SELECT number, text FROM temp.staged")
            execute("DELETE FROM temp.staged")
            for one in packed:
                senders.update(one.senders)
            self._connection.executemany(
                "INSERT INTO sender VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET messages = messages + excluded.messages",
                senders.items(),
            )
            if batch.removed:
                execute("DELETE FROM sender WHERE messages <= 0")
            self._connection.executemany(
                "INSERT OR REPLACE INTO memory VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (row.number, *map(_name, row.key), row.messages, row.digest)
                    for row in batch.memories
                ),
            )

    def forget_removed(self) -> None:
        """Rewrite the full-text table, so that the file keeps no words of removed messages."""
        with self._errors():
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def checkpoint(self) -> None:
        """Move the content of SQLite's journal into the file of the index."""
        with self._errors():
            self._connection.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchall()


_HINT = "set XDG_CACHE_HOME to a folder with space, or search with --no-index"


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(
            "CREATE TEMP TABLE staged"
            " (number INTEGER PRIMARY KEY, memory, place, messages, digest, content, text)"
        )
    except sqlite3.Error as error:
        raise _translated(path, error) from error
    return connection


def _translated(path: Path, error: sqlite3.Error) -> MemctlError | DamagedIndex:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _OUTSIDE:
        return Unavailable(f"cannot use the index {path}: {error}", _HINT)
    return DamagedIndex(path, error)


_OUTSIDE = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
        *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_INTERRUPT),
    )
)
"""The codes of SQLite's errors that are no sign of a damaged file."""


def remove_file(path: Path) -> None:
    """Remove the file of a search index, and SQLite's journal next to it.

    Raises:
        Unavailable: the file cannot be removed.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        try:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot remove {path}: {error.strerror}") from error


class Candidates:
    """A full-text table in RAM with texts of messages, which counts words as the index does.

    A text may have a heading.  The words of the heading match, too, but are not part of the text.
    """

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(
            f'CREATE VIRTUAL TABLE found USING fts5 (heading, text, tokenize="{TOKENIZER}")'
        )

    def __enter__(self) -> Candidates:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, rows: Iterable[tuple[int, str, str]]) -> None:
        """Add texts; each row is a number that identifies the text, its heading, and the text."""
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO found (rowid, heading, text) VALUES (?, ?, ?)",
            ((number, _unmarked(heading), _unmarked(text)) for number, heading, text in rows),
        )
        self._connection.execute("COMMIT")

    def counts(self, match: str) -> dict[int, tuple[int, int]]:
        """Map the number of each matching text to its matches in the heading and in the text.

        ``match`` is an expression of FTS5.  Texts that do not match are left out.
        """
        query = (
            "SELECT rowid, highlight(found, 0, ?1, ''), highlight(found, 1, ?1, '')"
            " FROM found WHERE found MATCH ?2"
        )
        with closing(self._connection.execute(query, (START, match))) as rows:
            return {
                number: (heading.count(START), text.count(START)) for number, heading, text in rows
            }

    def matching(self, match: str) -> set[int]:
        """Return the numbers of the texts that match, or whose headings match.

        ``match`` is an expression of FTS5.
        """
        query = "SELECT rowid FROM found WHERE found MATCH ?"
        return {row[0] for row in self._connection.execute(query, (match,))}

    def highlighted(self, number: int, match: str) -> str:
        """Return the text with this number, with ``START`` and ``END`` around each match.

        A text that does not match is returned unchanged.
        """
        query = "SELECT highlight(found, 1, ?, ?) FROM found WHERE found MATCH ? AND rowid = ?"
        row = self._connection.execute(query, (START, END, match, number)).fetchone()
        if row is None:
            query = "SELECT text FROM found WHERE rowid = ?"
            row = self._connection.execute(query, (number,)).fetchone()
        return str(row[0])


START, END = "\x01", "\x02"
"""The marks around a match."""


def _unmarked(text: str) -> str:
    return text.replace(START, " ").replace(END, " ")
