"""Archives of pruned rows: one JSON object per line.

    {"memctl":"checkpoints","version":1,"created":"...","source":"app.db","engine":"sqlite"}
    {"thread":"t"}
    {"table":"checkpoints","row":{...}}
    {"end":{"threads":1,"checkpoints":1,"rows":1,"digest":"sha256:..."}}

The rows of a group, such as a thread, follow the line of the group; ``memctl.storekit.prunable``
explains these lines.  ``checkpoints`` counts the items.  The digest covers all bytes before the
last line.  The file is plain, compressed or encrypted, as an archive of messages is.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from msgspec import Struct, field

from memctl.errors import BadData
from memctl.json import jsonio
from memctl.location import Location, visible
from memctl.storekit.encrypted import encrypted
from memctl.storekit.prunable import CHECKPOINTS, FILES
from memctl.stores.archive.compression import DAMAGE, compressed
from memctl.stores.archive.file import file_of
from memctl.stores.archive.format import LARGEST_RECORD, digest_text
from memctl.stores.archive.read import Lines, OpenArchive, cut

VERSION = 1
_NAME = "checkpoints"
_ROW, _GROUP, _END = b'{"table":', b'{"thread":', b'{"end":'
_ITEMS = tuple(b'{"table":"%b",' % table.encode() for table in (CHECKPOINTS, FILES))
_FIRST_BYTES = 64 * 1024


class Contents(Struct, frozen=True):
    """The contents of an archive of pruned rows."""

    created: str
    source: str
    engine: str
    items: int = 0
    rows: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    """The number of items of each group."""


class PrunedWriter:
    """A writer of a new archive, line by line, in constant memory.

    Leaving the context without ``commit`` leaves no file.
    """

    def __init__(self, location: Location, source: str, engine: str) -> None:
        """``source`` is the label of the store, ``engine`` the database whose rows follow.

        Raises:
            UsageError: there is no valid recipient for an encrypted archive.
            MemctlError: the place refuses a new file.
        """
        self.groups = self.items = self.rows = 0
        self._hash = hashlib.sha256()
        file = file_of(location)
        self._file = file.create(replace=False)
        self._outer = ExitStack()
        self._outer.enter_context(self._file)
        self._inner = ExitStack()
        self._outer.push(self._inner)
        outer = self._inner.enter_context(encrypted(file.name, self._file, location.encryption))
        self._sink = self._inner.enter_context(compressed(file.name, outer))
        created = datetime.now().astimezone().isoformat(timespec="seconds")
        header = {"memctl": _NAME, "version": VERSION, "created": created}
        self._write(jsonio.dumps({**header, "source": source, "engine": engine}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._outer.__exit__(kind, error, traceback)

    def group(self, name: str) -> None:
        """Begin a group."""
        self._write(jsonio.dumps({"thread": name}))
        self.groups += 1

    def row(self, line: bytes) -> bool:
        """Add a row of the group that was begun last; return False for a row that is too large."""
        if len(line) >= LARGEST_RECORD:
            return False
        self._write(line)
        self.rows += 1
        self.items += line.startswith(_ITEMS)
        return True

    def commit(self) -> None:
        """Write the last line, and give the file its name, durably.

        Raises:
            UsageError: a file of this name has come to be meanwhile.
            Unavailable: the place refuses.
        """
        counts = {"threads": self.groups, "checkpoints": self.items, "rows": self.rows}
        digest = digest_text(self._hash.hexdigest())
        self._sink.write(jsonio.dumps({"end": {**counts, "digest": digest}}) + b"\n")
        self._inner.close()
        self._file.commit()

    def _write(self, line: bytes) -> None:
        data = line + b"\n"
        self._hash.update(data)
        self._sink.write(data)


class PrunedReader:
    """A reader of an archive of pruned rows, which stays open between two passes.

    ::

        with PrunedReader(location) as reader:
            contents = reader.check()
            for group, line in reader.rows():
                ...
    """

    def __init__(self, location: Location) -> None:
        """Open the file.

        Raises:
            NotFound: there is no such file.
            MemctlError: the file cannot be read.
        """
        file = file_of(location)
        self._archive = OpenArchive(file.open(), file.label, location.encryption)
        self.label = file.label

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._archive.descriptor)

    def check(self) -> Contents:
        """Read the whole archive and check its digest; return what it holds.

        Raises:
            BadData: the file is no such archive, is truncated or changed, or of a later memctl.
            Unavailable: the file is encrypted, and no identity is of a recipient.
        """
        header: list[dict[str, Any]] = []
        groups: Counter[str] = Counter()
        rows = 0
        for group, line in self._rows(header):
            groups[group] += line.startswith(_ITEMS)
            rows += 1
        created, source, engine = (
            str(header[0].get(name, "")) for name in ("created", "source", "engine")
        )
        return Contents(created, source, engine, groups.total(), rows, dict(groups))

    def rows(self) -> Generator[tuple[str, bytes]]:
        """Yield the group and the line of each row.

        Raises:
            BadData: as ``check``, at the end.
        """
        return self._rows([])

    def _rows(self, header: list[dict[str, Any]]) -> Generator[tuple[str, bytes]]:
        group = ""
        for line in self._lines(header):
            if line.startswith(_GROUP):
                group = str(jsonio.loads(line)["thread"])
            else:
                yield group, line

    def _lines(self, header: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield the lines of groups and rows; put the fields of the first line into ``header``."""
        hashed = hashlib.sha256()
        counts = {"threads": 0, "checkpoints": 0, "rows": 0}
        try:
            lines = Lines(self._archive)
            first = bytes(lines.first(_FIRST_BYTES))
            found = _header(first)
            if found is None:
                raise self._error("is not an archive of pruned rows")
            if found["version"] > VERSION:
                raise self._error("is of a later memctl", "update memctl")
            header.append(found)
            hashed.update(first)
            while block := lines.block():
                for line in map(bytes, cut(block)):
                    line = line.rstrip(b"\n")
                    if line.startswith(_END):
                        end = {**counts, "digest": digest_text(hashed.hexdigest())}
                        if jsonio.loads(line).get("end") != end or lines.block():
                            raise self._error("was changed: its digest or its counts differ")
                        return
                    if not line.startswith((_ROW, _GROUP)):
                        raise self._error("is damaged: it has a line of another kind")
                    hashed.update(line + b"\n")
                    counts["threads"] += line.startswith(_GROUP)
                    counts["rows"] += line.startswith(_ROW)
                    counts["checkpoints"] += line.startswith(_ITEMS)
                    yield line
        except (ValueError, *DAMAGE) as error:
            raise self._error(f"is damaged: {visible(str(error))}") from error
        raise self._error("is cut off: its last line is missing")

    def _error(self, text: str, hint: str = "take another copy of the archive") -> BadData:
        return BadData(f"{self.label} {text}", hint)


def _header(line: bytes | bytearray) -> dict[str, Any] | None:
    """Return the fields of the first line of an archive of pruned rows; None for other lines."""
    try:
        record = jsonio.loads(bytes(line))
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("memctl") != _NAME:
        return None
    return record if type(record.get("version")) is int else None
