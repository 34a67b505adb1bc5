"""Reading memctl's archive: first the proof that it is whole, then its memories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from memctl.errors import BadData
from memctl.model import PAGE_ENTRIES, Memory, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.stores.archive.bulk import check_messages, entries, pieces
from memctl.stores.archive.compression import DAMAGE
from memctl.stores.archive.format import (
    VERSION,
    Kind,
    Line,
    digest_text,
    read_end,
    read_header,
    read_memory,
)
from memctl.stores.archive.lines import Lines, cut, uncut
from memctl.stores.batching import PageBuilder

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
        check.header(lines.first(_HEADER_BYTES))
        while not check.ended:
            check.block(lines.block())
        check.nothing_more(bool(lines.block()))
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

    def header(self, line: Line) -> None:
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
        self._hash.update(line)
        self._lines = 1

    def block(self, block: bytes | bytearray) -> None:
        """The next lines.  Light: that messages are JSON follows from the digest."""
        if not block:
            raise self.cut_off("its last line is missing")
        lines = cut(block)
        before = self._lines
        try:
            for kind, some in pieces(lines):
                if self.ended:
                    break
                if kind is Kind.END:
                    size = sum(map(len, lines[: self._lines - before])) + self._lines - before
                    self._hash.update(memoryview(block)[:size])
                    self._end(some[0])
                elif kind is Kind.MEMORY:
                    self._memory(read_memory(some[0]))
                else:
                    self._messages_in(some)
                    continue
                self._lines += 1
        except ValueError as error:
            if self._lines - before == len(lines) - 1 and not block.endswith(b"\n"):
                raise self.cut_off("its last line is not whole") from error
            raise BadData(
                f"{self._label}: line {self._lines + 1} is no record of an archive ({error})",
                "get a whole and unchanged copy of it",
            ) from error
        if self.ended:
            self.nothing_more(self._lines - before < len(lines))
        else:
            self._hash.update(block)

    def _memory(self, memory: Memory) -> None:
        if memory.key in self.contents.memories:
            raise ValueError(f"the memory {memory.key} comes twice")
        self.contents.memories[memory.key] = 0
        self._key = memory.key

    def _messages_in(self, lines: list[Line]) -> None:
        if self._key is None:
            raise ValueError("a message without a memory")
        for count in check_messages(lines):
            self.contents.memories[self._key] += count
            self._messages += count
            self._lines += count

    def _end(self, line: Line) -> None:
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

    def nothing_more(self, more: bool) -> None:
        """Nothing may follow the last line."""
        if more:
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
        self._lines.first(_HEADER_BYTES)
        self._pieces: Iterator[tuple[Kind, list[Line]]] = iter(())
        self._kind: Kind | None = None
        self._piece: list[Line] = []
        self.line = b""
        """The line of the memory that came last, with its end."""

    def __iter__(self) -> Iterator[Memory]:
        """Each memory; what was not read of its messages is passed over."""
        self._advance()
        while self._kind is Kind.MEMORY:
            memory = read_memory(self._piece[0])
            self.line = bytes(uncut(self._piece))
            self._advance()
            yield memory
            for _ in self.runs():
                continue

    def runs(self) -> Iterator[list[Line]]:
        """The lines of the messages of the memory that came last, some at a time.

        A long one comes alone, and is the only one with its end.
        """
        while self._kind is Kind.MESSAGE:
            piece, self._piece = [self._piece], []
            yield piece.pop()  # not kept here while it is used: it may be large
            self._advance()

    def entries(
        self, read: Callable[[list[Line]], list[StoredMessage]]
    ) -> Iterator[list[StoredMessage]]:
        """The messages of the memory that came last, some at a time.

        Raises:
            BadData: one is not a JSON object with an id.
        """
        for run in self.runs():
            try:
                found = [read(run)]
            except ValueError as error:
                raise BadData(f"{self._label} holds a message that is not one: {error}") from error
            yield found.pop()

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


def headers(descriptor: int, label: str, where: Selection) -> Iterator[list[Memory]]:
    """The memories whose keys are selected, many at a time, without their messages."""
    selected = (memory for memory in Sections(descriptor, label) if where.has_key(memory.key))
    while some := list(islice(selected, PAGE_ENTRIES)):
        yield some


def read_pages(
    descriptor: int,
    label: str,
    where: Selection,
    read: Callable[[list[Line]], list[StoredMessage]] = entries,
) -> Iterator[Page]:
    """The memories whose keys are selected, whole; ``read`` makes messages of lines."""
    sections = Sections(descriptor, label)
    for memory in sections:
        if where.has_key(memory.key):
            filling = PageBuilder(memory)
            for some in sections.entries(read):
                yield from filling.take(some)
            yield filling.page(last=True)
