"""The files of repairs: the changes of ``Maintenance.repair`` besides messages.

``repairs.ndjson`` holds the repairs that an undo reverts.  ``quarantine.ndjson`` holds damaged data
that a repair moved out of the store.  An undo does not put these data back; they are kept for
people.

Both files are NDJSON.  Each record is on the disk before its repair is done, so the repair of an
incomplete last line was not done.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from memctl.errors import BadData
from memctl.journal.files import new_file, refusals, sync_folder
from memctl.journal.lines import sealed, unsealed

REPAIRS = "repairs.ndjson"
QUARANTINE = "quarantine.ndjson"
FILES = (REPAIRS, QUARANTINE)

Record = dict[str, Any]


class RecordWriter:
    """A writer of a file of repairs, used as a context manager.

    The first record creates the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def add(self, record: Record) -> None:
        """Append a record of a repair and make it durable.

        Raises:
            Unavailable: the operating system refuses the write, for instance because the disk
                is full.
        """
        with refusals(self._path):
            if self._file is None:
                self._file = new_file(self._path)
                sync_folder(self._path.parent)
            self._file.write(sealed(record))
            self._file.flush()
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def quarantine_of(folder: Path) -> Path | None:
    """Return the path of the quarantine file in the folder of a run.

    None if the run moved no damaged data out of the store.
    """
    path = folder / QUARANTINE
    return path if path.exists() else None


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file of repairs, the last record first.

    If the file does not exist, yield nothing.

    Raises:
        BadData: the file is damaged.
        Unavailable: the operating system refuses to read the file.
    """
    with refusals(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            starts = _starts(file)
            for start in reversed(starts):
                file.seek(start)
                yield _record(path, file.readline())


def _starts(file: BinaryIO) -> array[int]:
    """Return the positions at which the complete lines of a file begin."""
    starts = array("q")
    at = 0
    for line in file:
        if line.endswith(b"\n"):
            starts.append(at)
        at += len(line)
    return starts


def _record(path: Path, line: bytes) -> Record:
    try:
        record = unsealed(line)
    except ValueError as error:
        raise BadData(f"{path} is damaged: {error}", "the run cannot be undone") from error
    if not isinstance(record, dict) or "code" not in record:
        raise BadData(
            f"{path} is damaged: {line[:50]!r} is not a record", "the run cannot be undone"
        )
    return record
