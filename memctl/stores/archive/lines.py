"""The lines of a file, however long, decompressed if need be."""

from __future__ import annotations

import io
import os

from memctl import system
from memctl.stores.archive.compression import decompressed

_BLOCK = 256 * 1024
"""Larger ones go back to the system when they are done with, and cost more than they spare."""
_SNIFFED = 8


class FileAt(io.RawIOBase):
    """An open file, read from its beginning whoever else reads it, or closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._offset = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = system.read_at(self._descriptor, size, self._offset)
        self._offset += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = system.read_into(self._descriptor, buffer, self._offset)
        self._offset += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class Lines:
    """The lines of an open file, plain or compressed.  A long one is not held twice."""

    def __init__(self, descriptor: int) -> None:
        start = system.read_at(descriptor, _SNIFFED, 0)
        self._stream = decompressed(FileAt(descriptor), start)
        self._block = b""
        self._at = 0

    def first(self, most: int) -> bytes | bytearray:
        """The first line and its end.

        Where no line ends within about ``most`` bytes, these.

        Raises:
            DAMAGE: compressed data is cut off or damaged.
        """
        self._read()
        return self._line(b"", most)

    def block(self) -> bytes | bytearray:
        """The next lines and their ends, about a block; nothing behind the last.

        A line that is longer than a block comes alone, as a ``bytearray``.

        Raises:
            DAMAGE: as ``first``.
        """
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
        """The line that has begun, and goes on in the block that was read."""
        line = bytearray(begun)
        while True:
            self._at = self._block.find(b"\n") + 1
            if self._at or not self._block:
                line += self._block[: self._at]
                return bytes(line) if len(line) < _BLOCK else line
            line += self._block
            if most is not None and len(line) > most:
                return line
            self._read()


def cut(block: bytes | bytearray) -> list[bytes | bytearray]:
    """The lines of a block, without their ends; a long line keeps its own."""
    if isinstance(block, bytearray):
        return [block]
    lines: list[bytes | bytearray] = [*block.split(b"\n")]
    if not lines[-1]:
        lines.pop()
    return lines


def uncut(lines: list[bytes | bytearray]) -> bytes | memoryview:
    """Lines with their ends, as ``cut`` gave them; there is one at least."""
    if isinstance(lines[0], bytearray):
        return memoryview(lines[0])
    return b"\n".join([*lines, b""])
