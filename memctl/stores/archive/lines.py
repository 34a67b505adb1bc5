"""The lines of a file, however long, decompressed if need be."""

from __future__ import annotations

import io
import os

from memctl.stores.archive.compression import decompressed

_BLOCK = 1024 * 1024
_SNIFFED = 8


class FileAt(io.RawIOBase):
    """An open file, read from its beginning whoever else reads it, or closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = os.preadv(self._descriptor, [buffer], self._offset)
        self._offset += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class Lines:
    """The lines of an open file, plain or compressed.  A long one is not held twice."""

    def __init__(self, descriptor: int) -> None:
        start = os.pread(descriptor, _SNIFFED, 0)
        self._stream = decompressed(FileAt(descriptor), start)
        self._block = b""
        self._at = 0

    def next(self, most: int | None = None) -> bytes | bytearray:
        """The next line and its end; nothing behind the last.

        Where no line ends within about ``most`` bytes, these.

        Raises:
            DAMAGE: compressed data is cut off or damaged.
        """
        end = self._block.find(b"\n", self._at) + 1
        if end:
            line = self._block[self._at : end]
            self._at = end
            return line
        return self._long(most)

    def _long(self, most: int | None) -> bytes | bytearray:
        """A line that reaches into the next block."""
        line = bytearray(self._block[self._at :])
        while True:
            self._block = self._stream.read(_BLOCK) or b""
            self._at = self._block.find(b"\n") + 1
            if self._at or not self._block:
                line += self._block[: self._at]
                return bytes(line) if len(line) < _BLOCK else line
            line += self._block
            if most is not None and len(line) > most:
                return line
