"""A temporary file of messages to summarize, so that no transaction is open during requests.

The file has no name.  When the process ends or is killed, the file disappears.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from memctl.journal.files import refusals
from memctl.machine import zstd
from memctl.machine.spool import ItemSpool
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
        self.cases = 0
        self.taken = 0
        self._lock = threading.Lock()
        self._refusals = partial(refusals, folder)
        with self._refusals():
            self._pieces: ItemSpool[bytes] = ItemSpool(folder, self._refusals)
            self._cases: ItemSpool[CompressionPlan] = ItemSpool(folder, self._refusals)
        self._kept = 0
        """The number of pieces of kept memories."""
        self._held: list[PlannedMessage] = []
        self._held_bytes = 0

    def add(self, line: PlannedMessage) -> None:
        """Add the next message of the current memory."""
        self._held.append(line)
        self._held_bytes += len(line.message) + (len(line.turn.text) if line.turn else 0) + 100
        if self._held_bytes > _HELD_BYTES:
            self._flush()

    def keep(self, case: CompressionPlan) -> None:
        """Keep the messages that were added since the last memory, with the plan ``case``."""
        self._flush()
        start, self._kept = self._kept, len(self._pieces)
        self._cases.add(replace(case, start=start, end=self._kept))
        self.cases += 1

    def drop(self) -> None:
        """Drop the messages that were added since the last memory: it will not be compressed."""
        self._held, self._held_bytes = [], 0
        with self._lock:
            self._pieces.cut(self._kept)

    def _flush(self) -> None:
        # In a batch, pickling takes a third of the time.
        piece = zstd.compress(pickle.dumps(self._held), _LEVEL)
        with self._lock:
            self._pieces.add(piece)
        self._held, self._held_bytes = [], 0

    def take(self) -> CompressionPlan | None:
        """Return the next kept plan; None if there is no further plan yet.

        Each plan is returned once.
        """
        if self.taken == self.cases:
            return None
        with self._refusals():
            case = self._cases[self.taken]
        self.taken += 1
        return case

    def lines(self, case: CompressionPlan) -> Iterator[PlannedMessage]:
        """Yield the messages of the memory of a plan, in order."""
        for number in range(case.start, case.end):
            with self._refusals(), self._lock:
                piece = self._pieces[number]
            yield from pickle.loads(zstd.decompress(piece))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cases.close()
        self._pieces.close()
