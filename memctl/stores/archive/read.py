"""Reading the lines of an archive: lines of any length, plain or compressed."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct, field

from memctl import encryption
from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import Dialect
from memctl.encryption import Encryption, is_ciphertext, is_encrypted
from memctl.errors import BadData
from memctl.json.scan import BYTE_ORDER_MARK
from memctl.layouts import foreign
from memctl.model import (
    LARGEST_MESSAGE,
    PAGE_ENTRIES,
    Embedding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
)
from memctl.selection import Selection
from memctl.storekit.batching import PageBuilder
from memctl.storekit.encrypted import decrypted
from memctl.storekit.prunable import PrunedArchive
from memctl.stores.archive.compression import DAMAGE, SNIFFED, decompressed, extension_of
from memctl.stores.archive.format import (
    LARGEST_RECORD,
    LARGEST_REST,
    LATEST_VERSION,
    MESSAGE,
    Line,
    LineKind,
    check_messages,
    digest_text,
    entries,
    pieces,
    read_embedding,
    read_end,
    read_header,
    read_memory,
)

_BLOCK = 256 * 1024
"""The bytes to read at once; larger blocks would go back to the operating system after use."""


class SharedFile(io.RawIOBase):
    """A file that is read from its beginning, by a descriptor of its own.

    Other readers of the file, which may close their descriptors, do not affect it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._offset = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = os.pread(self._descriptor, size, self._offset)
        self._offset += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = os.preadv(self._descriptor, [buffer], self._offset)
        self._offset += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class OpenArchive(NamedTuple):
    """An archive file that is open for reading; ``label`` names the file in errors."""

    descriptor: int
    label: str
    encryption: Encryption = Encryption()
    """The source of identities, if the file is encrypted."""


class Lines:
    """The lines of an open archive, plain, compressed or encrypted.

    A long line is in RAM only once.  All methods raise the errors in ``DAMAGE`` if compressed data
    is truncated or damaged, and ValueError if a line is larger than any line of an archive.  They
    raise MemctlError if encrypted data is truncated or damaged, or for other keys.
    """

    def __init__(
        self, archive: OpenArchive, skim: Callable[[memoryview], object] | None = None
    ) -> None:
        """Open the stream of lines of an archive.

        With ``skim``, a message line over ``LARGEST_RECORD`` is never in RAM as a whole.  ``skim``
        gets the inner part of its message in pieces, and the returned line lacks this part.
        """
        self.skimmed = 0
        """The number of bytes at the beginning of the last block that ``skim`` has received."""
        self.extension = ""
        """The extension that the content shows, such as ``.zst.age``; empty for plain lines."""
        shared = SharedFile(archive.descriptor)
        start = os.pread(archive.descriptor, encryption.SNIFFED, 0)
        if is_ciphertext(start):
            plain = decrypted(shared, start, archive.encryption, archive.label)
            start = plain.peek(SNIFFED)
            self.extension = extension_of(start) + encryption.EXTENSION
            self._stream = decompressed(plain, start)
        else:
            self.extension = extension_of(start)
            self._stream = decompressed(shared, start)
        self._skim = skim
        self._block = b""
        self._at = 0

    def first(self, most: int) -> bytes | bytearray:
        """Return the first line with its line end.

        If no line ends within about ``most`` bytes, returns the bytes read so far.
        """
        self._read()
        self._block = self._block.removeprefix(BYTE_ORDER_MARK)
        return self._line(b"", most)

    def block(self) -> bytes | bytearray:
        """Return the next lines with their line ends, about ``_BLOCK`` bytes; empty at the end.

        A line longer than ``_BLOCK`` is returned alone, as a ``bytearray``.
        """
        self.skimmed = 0
        end = self._block.rfind(b"\n", self._at) + 1
        if end:
            lines = self._block[self._at : end]
            self._at = end
            return lines
        begun = self._block[self._at :]
        self._read()
        end = self._block.rfind(b"\n") + 1
        if end and len(begun) + end <= 2 * _BLOCK:
            self._at = end
            return b"".join((begun, memoryview(self._block)[:end]))
        return self._line(begun)

    def _read(self) -> None:
        self._block = self._stream.read(_BLOCK) or b""
        self._at = 0

    def _line(self, begun: bytes, most: int | None = None) -> bytes | bytearray:
        """Return the line that begins with ``begun`` and continues in the block just read.

        If the line is longer than ``most`` bytes, returns the bytes read so far.
        """
        line = bytearray(begun)
        size = 0
        while True:
            self._at = self._block.find(b"\n") + 1
            if self._at or not self._block:
                line += self._block[: self._at]
                return bytes(line) if len(line) < _BLOCK else line
            line += self._block
            size += len(self._block)
            if most is not None and len(line) > most:
                return line
            if len(line) > LARGEST_RECORD:
                self._bound(line, size)
            self._read()

    def _bound(self, line: bytearray, size: int) -> None:
        """Move the inner part of a large line to ``skim``; ``size`` is the size read so far.

        Raises:
            ValueError: the line is too large.
        """
        if not line.startswith(MESSAGE):
            raise ValueError(f"it is larger than {LARGEST_RECORD >> 20} MiB")
        if size > LARGEST_MESSAGE + LARGEST_REST:
            raise ValueError(f"its message is larger than {LARGEST_MESSAGE >> 20} MiB")
        if self._skim is not None:
            end = len(line) - LARGEST_REST
            with memoryview(line)[self.skimmed : end] as inside:
                self._skim(inside)
            self.skimmed = len(MESSAGE)
            del line[self.skimmed : end]


def cut(block: bytes | bytearray) -> list[bytes | bytearray]:
    """Return the lines of a block without line ends.

    A single long line, which is a ``bytearray``, keeps its line end.
    """
    if isinstance(block, bytearray):
        return [block]
    lines: list[bytes | bytearray] = [*block.split(b"\n")]
    if not lines[-1]:
        lines.pop()
    return lines


def uncut(lines: list[bytes | bytearray]) -> bytes | memoryview:
    """Reverse ``cut``: return the bytes of lines, with line ends.  ``lines`` must not be empty."""
    if isinstance(lines[0], bytearray):
        return memoryview(lines[0])
    return b"\n".join([*lines, b""])


_HEADER_BYTES = 64 * 1024


class ArchiveContents(Struct):
    """The contents of an archive: the header, and the number of messages of each memory."""

    header: dict[str, Any] = field(default_factory=dict)
    """The fields of the first line; empty without a file, or if the line is too large to keep."""
    memories: dict[MemoryKey, int] = field(default_factory=dict)
    marks: frozenset[str] | None = None
    """The marks of messages; None if unknown."""
    dialect: Dialect = AGENTSCOPE1
    embedding: Embedding | None = None
    extension: str = ""
    """The extension that the content of the file shows, such as ``.zst.age``."""


def verify(archive: OpenArchive) -> ArchiveContents:
    """Read and check a whole archive; return its contents.

    Raises:
        BadData: the file is not an archive, is truncated or changed, or is of a later memctl.
        Unavailable: the file is encrypted, and no identity is of a recipient.
    """
    check = _Check(archive.label)
    try:
        lines = Lines(archive, check.skim)
        check.contents.extension = lines.extension
        check.header(lines.first(_HEADER_BYTES))
        while not check.ended:
            block = lines.block()
            check.block(block, lines.skimmed)
        check.nothing_more(bool(lines.block()))
    except EOFError as error:
        raise check.cut_off(str(error)) from error
    except DAMAGE as error:
        raise check.damaged(str(error)) from error
    except ValueError as error:
        raise check.no_record(error) from error
    return check.contents


class _Check:
    """A check of an archive, which is given the lines of the archive in order."""

    def __init__(self, label: str) -> None:
        self.contents = ArchiveContents()
        self.ended = False
        self._label = label
        self._hash = hashlib.sha256()
        self.skim = self._hash.update
        self._lines = 0
        self._messages = 0
        self._marks: set[str] = set()
        self._key: MemoryKey | None = None

    def header(self, line: Line) -> None:
        header = read_header(line)
        if header is None:
            if line.startswith(b'{"memctl":"checkpoints"'):
                raise PrunedArchive(
                    f"{self._label} is an archive of pruned rows, not of messages",
                    "memctl import puts them back; memctl inspect counts them",
                )
            if is_encrypted(self.contents.extension):
                raise BadData(
                    f"{self._label} is encrypted, and its content is not an archive of memctl",
                    "decrypt it with: age --decrypt -i KEY -o NAME FILE",
                )
            if found := foreign.of_first_line(bytes(line[: foreign.BEGINNING])):
                raise found.refusal(self._label)
            raise BadData(
                f"{self._label} is not an archive of memctl",
                'an archive begins with {"memctl":"archive", plain or compressed by gzip or zstd',
            )
        if header["version"] > LATEST_VERSION:
            raise BadData(
                f"{self._label} is an archive of version {header['version']}",
                f"upgrade memctl: this version reads archives up to version {LATEST_VERSION}",
            )
        dialect = header.get("dialect", AGENTSCOPE1.name)
        if dialect not in DIALECTS:
            raise BadData(
                f"{self._label} holds messages of another dialect, {dialect!r:.100}",
                f"upgrade memctl: this version reads {', '.join(DIALECTS)}",
            )
        self.contents.dialect = DIALECTS[dialect]
        self.contents.embedding = read_embedding(header)
        if len(line) <= _HEADER_BYTES // 6:  # a header in ASCII may take six times as many bytes
            self.contents.header = header
        self._hash.update(line)
        self._lines = 1

    def block(self, block: bytes | bytearray, skimmed: int = 0) -> None:
        """Check the next lines.  Messages are not parsed: the digest proves them unchanged.

        The digest already covers the first ``skimmed`` bytes of ``block``.

        Raises:
            BadData: the archive ends too early, has changed, or has a line that is not valid.
        """
        if not block:
            raise self.cut_off("its last line is missing")
        lines = cut(block)
        before = self._lines
        try:
            for kind, some in pieces(lines):
                if self.ended:
                    break
                if kind is LineKind.END:
                    size = sum(map(len, lines[: self._lines - before])) + self._lines - before
                    self._hash.update(memoryview(block)[:size])
                    self._end(some[0])
                elif kind is LineKind.MEMORY:
                    self._memory(read_memory(some[0]))
                else:
                    self._messages_in(some)
                    continue
                self._lines += 1
        except ValueError as error:
            if self._lines - before == len(lines) - 1 and not block.endswith(b"\n"):
                raise self.cut_off("its last line is incomplete") from error
            raise self.no_record(error) from error
        if self.ended:
            self.nothing_more(self._lines - before < len(lines))
        else:
            self._hash.update(memoryview(block)[skimmed:])

    def _memory(self, memory: Memory) -> None:
        if memory.key in self.contents.memories:
            raise ValueError(f"the memory {memory.key} occurs twice")
        self.contents.memories[memory.key] = 0
        self._key = memory.key

    def _messages_in(self, lines: list[Line]) -> None:
        if self._key is None:
            raise ValueError("a message without a memory")
        for count, marks in check_messages(lines):
            self._marks.update(marks)
            self.contents.memories[self._key] += count
            self._messages += count
            self._lines += count

    def _end(self, line: Line) -> None:
        end = read_end(line)
        if (end.memories, end.messages) != (len(self.contents.memories), self._messages):
            raise BadData(
                f"{self._label} holds {self._counts()} instead of {end.memories} memories, "
                f"{end.messages} messages",
                "get a complete and unchanged copy of it",
            )
        if end.digest != digest_text(self._hash.hexdigest()):
            raise BadData(
                f"{self._label} was changed after it was written: its digest differs",
                "get an unchanged copy of it",
            )
        self.contents.marks = frozenset(self._marks)
        self.ended = True

    def nothing_more(self, more: bool) -> None:
        """Refuse data after the last line of an archive; ``more`` is True if data follows.

        Raises:
            BadData: data follows.
        """
        if more:
            raise BadData(f"{self._label} has data after its end", "get an unchanged copy of it")

    def no_record(self, error: ValueError) -> BadData:
        """Return the error for the first unchecked line; ``error`` says how it is malformed."""
        return BadData(
            f"{self._label}: line {self._lines + 1} is not a record of an archive ({error})",
            "get a complete and unchanged copy of it",
        )

    def cut_off(self, why: str) -> BadData:
        """Return the error for an archive that ends too early; ``why`` is the reason."""
        return BadData(
            f"{self._label} is cut off after {self._counts()}: {why}",
            "get a complete copy of it; nothing was read from this one",
        )

    def damaged(self, why: str) -> BadData:
        """Return the error for compressed data that is not valid; ``why`` is the reason."""
        return BadData(
            f"{self._label} is damaged after {self._counts()}: {why}",
            "get an unchanged copy of it; nothing was read from this one",
        )

    def _counts(self) -> str:
        return f"{len(self.contents.memories)} memories, {self._messages} messages"


class MemorySections:
    """An iterator over the memories of an archive that was verified.

    All methods raise BadData if the archive changes while it is read.
    """

    def __init__(self, archive: OpenArchive) -> None:
        self._label = archive.label
        self._lines = Lines(archive)
        self._lines.first(_HEADER_BYTES)
        self._pieces: Iterator[tuple[LineKind, list[Line]]] = iter(())
        self._kind: LineKind | None = None
        self._piece: list[Line] = []
        self.line = b""
        """The line that opens the memory yielded last, with its line end."""

    def __iter__(self) -> Iterator[Memory]:
        """Yield each memory; a request for the next memory skips messages that were not read."""
        self._advance()
        while self._kind is LineKind.MEMORY:
            memory = read_memory(self._piece[0])
            self.line = bytes(uncut(self._piece))
            self._advance()
            yield memory
            for _ in self.runs():
                continue

    def runs(self) -> Iterator[list[Line]]:
        """Yield the message lines of the memory that was yielded last, in lists.

        A long line is alone in its list, and only such a line keeps its line end.
        """
        while self._kind is LineKind.MESSAGE:
            piece, self._piece = [self._piece], []
            yield piece.pop()  # keep no reference: the lines may be large
            self._advance()

    def entries(
        self, read: Callable[[list[Line]], list[StoredMessage]]
    ) -> Iterator[list[StoredMessage]]:
        """Yield the messages of the memory that was yielded last, in lists.

        ``read`` makes messages from lines: ``entries`` or ``outlines``.

        Raises:
            BadData: a line is malformed, or a message is not a JSON object with an id.
        """
        for run in self.runs():
            found = [self._messages(run, read)]
            yield found.pop()

    def proved(self) -> Iterator[list[Line]]:
        """Yield the message lines of the memory that was yielded last, in lists, after a check.

        Raises:
            BadData: a message is not a JSON object with an id.
        """
        for run in self.runs():
            self._messages([*run], entries)
            yield run

    def _messages(
        self, run: list[Line], read: Callable[[list[Line]], list[StoredMessage]]
    ) -> list[StoredMessage]:
        try:
            return read(run)
        except ValueError as error:
            raise BadData(f"{self._label} holds a message that is not valid: {error}") from error

    def _advance(self) -> None:
        self._piece = []
        try:
            while (piece := next(self._pieces, None)) is None:
                lines = cut(self._lines.block())
                if not lines:
                    raise ValueError("it ends too early")
                self._pieces = pieces(lines)
            self._kind, self._piece = piece
        except (ValueError, *DAMAGE) as error:
            raise BadData(
                f"{self._label} changed while it was read: {error}", "run the same command again"
            ) from error


def headers(archive: OpenArchive, where: Selection) -> Iterator[list[Memory]]:
    """Yield lists of the selected memories of an archive, without messages."""
    selected = (memory for memory in MemorySections(archive) if where.has_key(memory.key))
    while some := list(islice(selected, PAGE_ENTRIES)):
        yield some


def read_pages(
    archive: OpenArchive,
    where: Selection,
    read: Callable[[list[Line]], list[StoredMessage]] = entries,
) -> Iterator[Page]:
    """Yield the pages of the selected memories of an archive, with all messages of each memory.

    ``read`` makes messages from lines: ``entries`` or ``outlines``.
    """
    sections = MemorySections(archive)
    for memory in sections:
        if where.has_key(memory.key):
            filling = PageBuilder(memory)
            for some in sections.entries(read):
                yield from filling.take(some)
            yield filling.page(last=True)
