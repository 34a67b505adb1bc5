"""A temporary file of messages to summarize, so that no transaction is open during requests.

The file has no name.  When the process ends or is killed, the file disappears.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self, cast

from msgspec.structs import replace

from memctl.journal.files import refusals
from memctl.machine import zstd
from memctl.machine.spool import ItemSpool
from memctl.machine.temporary import temporary_file
from memctl.ops.compress.plan import CompressionPlan, PlannedMessage

_LEVEL = 1
_HELD_BYTES = 256 * 1024
"""The bytes of a memory to collect in RAM before a write: most memories will not be compressed."""


class Spool:
    """A temporary file of messages to summarize, memory by memory, with a file of their plans.

    One writer adds the messages of a memory, then keeps or drops the memory.  Several readers may
    read kept memories meanwhile.

    Raises (all methods):
        Unavailable: the operating system refuses, for instance because the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self.messages = 0
        self.tokens = 0
        self.cases = 0
        self._folder = folder
        self._open = ExitStack()
        self._lock = threading.Lock()
        with refusals(folder):
            self._lines = self._file(folder)
            self._cases: ItemSpool[CompressionPlan] = ItemSpool(folder)
            self._open.callback(self._cases.close)
        self._end = 0
        self.taken = 0
        self._held: list[PlannedMessage] = []
        self._held_bytes = 0
        self._frame: zstd.ZstdCompressor | None = None

    def _file(self, folder: Path) -> IO[bytes]:
        return self._open.enter_context(temporary_file(folder))

    def add(self, line: PlannedMessage) -> None:
        """Add the next message of the current memory."""
        self._held.append(line)
        self._held_bytes += len(line.message) + (len(line.turn.text) if line.turn else 0) + 100
        if self._held_bytes > _HELD_BYTES:
            self._flush()

    def keep(self, case: CompressionPlan) -> None:
        """Keep the messages that were added since the last memory, with the plan ``case``."""
        self._flush()
        assert self._frame is not None
        with refusals(self._folder):
            with self._lock:
                self._lines.seek(0, io.SEEK_END)
                self._lines.write(self._frame.flush())
                start, self._end = self._end, self._lines.tell()
            self._cases.add(replace(case, start=start, end=self._end))
        self._frame = None
        self.cases += 1
        self.messages += case.messages
        self.tokens += case.tokens

    def drop(self) -> None:
        """Drop the messages that were added since the last memory: it will not be compressed."""
        self._held, self._held_bytes = [], 0
        if self._frame is not None:
            self._frame = None
            with refusals(self._folder), self._lock:
                self._lines.truncate(self._end)

    def _flush(self) -> None:
        with refusals(self._folder):
            if self._frame is None:
                self._frame = zstd.ZstdCompressor(level=_LEVEL)
            # In a batch, pickling takes a third of the time.
            held = pickle.dumps(self._held)
            with self._lock:
                self._lines.seek(0, io.SEEK_END)
                self._lines.write(self._frame.compress(held))
        self._held, self._held_bytes = [], 0

    def take(self) -> CompressionPlan | None:
        """Return the next kept plan; None if there is no further plan yet.

        Each plan is returned once.
        """
        if self.taken == self.cases:
            return None
        with refusals(self._folder):
            case = self._cases[self.taken]
        self.taken += 1
        return case

    def lines(self, case: CompressionPlan) -> Iterator[PlannedMessage]:
        """Yield the messages of the memory of a plan, in order."""
        part = cast("IO[bytes]", _FileSlice(self._lines, self._lock, case.start, case.end))
        with refusals(self._folder), zstd.ZstdFile(part) as stream:
            while stream.peek(1):
                yield from pickle.load(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


class _FileSlice(io.RawIOBase):
    """A reader of the bytes from ``start`` to ``end`` of a file that several readers share."""

    def __init__(self, file: IO[bytes], lock: threading.Lock, start: int, end: int) -> None:
        self._file = file
        self._lock = lock
        self._at = start
        self._end = end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._at
        with self._lock:
            self._file.seek(self._at)
            found = self._file.read(left if size < 0 else min(size, left))
        self._at += len(found)
        return found
