"""Reading memctl's archive: first the proof that it is whole, then its memories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from memctl.errors import BadData
from memctl.model import Entry, Memory, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import PAGE_ENTRIES
from memctl.stores._pages import paged
from memctl.stores.archive.compression import DAMAGE
from memctl.stores.archive.format import (
    VERSION,
    Kind,
    check_message,
    digest_text,
    entry,
    kind_of,
    read_end,
    read_header,
    read_memory,
    split,
)
from memctl.stores.archive.lines import Lines

_HEADER_BYTES = 64 * 1024


@dataclass(slots=True)
class Contents:
    """What an archive that is whole holds: the number of messages of each memory."""

    source: str | None = None
    memories: dict[MemoryKey, int] = field(default_factory=dict)


def verify(descriptor: int, label: str) -> Contents:
    """Reads a whole archive.

    Raises:
        BadData: it is not one, or it is cut off, changed or made by a later memctl.
    """
    check = _Check(label)
    try:
        lines = Lines(descriptor)
        check.header(lines.next(_HEADER_BYTES))
        while not check.ended:
            check.line(lines.next())
        check.nothing_more(lines.next(1))
    except DAMAGE as error:
        raise check.cut_off(str(error)) from error
    return check.contents


class _Check:
    """The proof, line by line."""

    def __init__(self, label: str) -> None:
        self.contents = Contents()
        self.ended = False
        self._label = label
        self._hash = hashlib.sha256()
        self._lines = 0
        self._messages = 0
        self._key: MemoryKey | None = None

    def header(self, line: bytes | bytearray) -> None:
        header = read_header(line)
        if header is None:
            raise BadData(
                f"{self._label} is not an archive of memctl",
                'an archive begins with {"memctl":"archive", plain or compressed by gzip or zstd',
            )
        if header["version"] > VERSION:
            raise BadData(
                f"{self._label} is an archive of version {header['version']}",
                f"this memctl reads version {VERSION}: install a later one",
            )
        source = header.get("source")
        self.contents.source = source if isinstance(source, str) else None
        self._take(line)

    def line(self, line: bytes | bytearray) -> None:
        """The next line.  Light: that messages are JSON follows from the digest."""
        if not line:
            raise self.cut_off("its last line is missing")
        try:
            kind = kind_of(line)
            if kind is Kind.MEMORY:
                self._memory(read_memory(line).key)
            elif kind is Kind.MESSAGE:
                check_message(line)
                self._message()
            else:
                self._end(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                raise self.cut_off("its last line is not whole") from error
            raise BadData(
                f"{self._label}: line {self._lines + 1} is no record of an archive ({error})",
                "get a whole and unchanged copy of it",
            ) from error
        self._take(line)

    def _take(self, line: bytes | bytearray) -> None:
        self._hash.update(line)
        self._lines += 1

    def _memory(self, key: MemoryKey) -> None:
        if key in self.contents.memories:
            raise ValueError(f"the memory {key} comes twice")
        self.contents.memories[key] = 0
        self._key = key

    def _message(self) -> None:
        if self._key is None:
            raise ValueError("a message without a memory")
        self.contents.memories[self._key] += 1
        self._messages += 1

    def _end(self, line: bytes | bytearray) -> None:
        end = read_end(line)
        if (end.memories, end.messages) != (len(self.contents.memories), self._messages):
            raise BadData(
                f"{self._label} holds {self._counts()}, but says that it has {end.memories} "
                f"memories, {end.messages} messages",
                "get a whole and unchanged copy of it",
            )
        if end.digest != digest_text(self._hash.hexdigest()):
            raise BadData(
                f"{self._label} was changed after it was written: its digest is another",
                "get an unchanged copy of it",
            )
        self.ended = True

    def nothing_more(self, rest: bytes | bytearray) -> None:
        """Nothing may follow the last line."""
        if rest:
            raise BadData(f"{self._label}: there is more behind its end", "get a clean copy of it")

    def cut_off(self, why: str) -> BadData:
        """The error of an archive that ends too early."""
        return BadData(
            f"{self._label} is cut off after {self._counts()}: {why}",
            "get a whole copy of it; nothing was taken from this one",
        )

    def _counts(self) -> str:
        return f"{len(self.contents.memories)} memories, {self._messages} messages"


class Sections:
    """The memories of a whole archive, one after the other."""

    def __init__(self, descriptor: int, label: str) -> None:
        self._label = label
        self._lines = Lines(descriptor)
        self._lines.next()  # the header
        self._next: bytes | bytearray = b""
        self._kind: Kind | None = None

    def __iter__(self) -> Iterator[Memory]:
        """Each memory; what was not read of its messages is passed over."""
        self._advance()
        while self._kind is Kind.MEMORY:
            memory = read_memory(self._next)
            self._advance()
            yield memory
            for _ in self.lines():
                continue

    def lines(self) -> Iterator[bytes | bytearray]:
        """The lines of the messages of the memory that came last."""
        while self._kind is Kind.MESSAGE:
            yield self._next
            self._advance()

    def entries(self) -> Iterator[Entry]:
        """The messages of the memory that came last.

        Raises:
            BadData: one is not a JSON object with an id.
        """
        while self._kind is Kind.MESSAGE:
            message, fields = split(self._next)
            self._next = b""  # a large line goes before its message is looked into
            try:
                found = entry(message, fields)
            except ValueError as error:
                raise BadData(f"{self._label} holds a message that is not one: {error}") from error
            del message
            yield found
            del found
            self._advance()

    def _advance(self) -> None:
        self._next = b""
        try:
            self._next = self._lines.next()
            self._kind = kind_of(self._next)
        except (ValueError, *DAMAGE) as error:
            raise BadData(
                f"{self._label} changed while it was read: {error}", "run the same command again"
            ) from error


def headers(descriptor: int, label: str, where: Selection) -> Iterator[list[Memory]]:
    """The memories whose keys are selected, many at a time, without their messages."""
    selected = (memory for memory in Sections(descriptor, label) if where.has_key(memory.key))
    while some := list(islice(selected, PAGE_ENTRIES)):
        yield some


def read_pages(descriptor: int, label: str, where: Selection) -> Iterator[Page]:
    """The memories whose keys are selected, whole."""
    sections = Sections(descriptor, label)
    for memory in sections:
        if where.has_key(memory.key):
            yield from paged(memory, sections.entries(), empty=True)
