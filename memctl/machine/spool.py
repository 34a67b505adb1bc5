"""A list in a temporary file, for lists larger than memory."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from memctl.errors import Unavailable
from memctl.machine.temporary import ROOM, end, scratch

T = TypeVar("T")


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot write a temporary file: {error.strerror}"
        raise Unavailable(text, ROOM) from error


class ItemSpool(Generic[T]):
    """A list of items, pickled into an unnamed temporary file that exists until ``close``.

    Several iterations may run at once, also while items are added.  Each iteration yields the items
    present at its start.

    ``refusals`` turns the errors of the operating system into those of memctl.

    Raises:
        Unavailable: the disk has no room for the file.
    """

    def __init__(
        self,
        folder: Path | None = None,
        refusals: Callable[[], AbstractContextManager[None]] = _refusals,
    ) -> None:
        self._refusals = refusals
        self._file = tempfile.TemporaryFile(dir=folder or scratch())  # noqa: SIM115 - closed by close()
        self._starts: list[int] = []
        self._end = 0

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, item: T) -> None:
        """Append an item to the list."""
        with self._refusals():
            self._file.seek(self._end)
            pickle.dump(item, self._file)
            self._file.flush()
        self._starts.append(self._end)
        self._end = self._file.tell()

    def cut(self, length: int) -> None:
        """Remove all items but the first ``length``."""
        if length < len(self._starts):
            self._end = self._starts[length]
            del self._starts[length:]
            with self._refusals():
                self._file.truncate(self._end)

    def __getitem__(self, index: int) -> T:
        self._file.seek(self._starts[index])
        item: T = pickle.load(self._file)
        return item

    def __iter__(self) -> Iterator[T]:
        for index in range(len(self._starts)):
            yield self[index]

    def close(self) -> None:
        """Close and remove the temporary file."""
        end(self._file)
