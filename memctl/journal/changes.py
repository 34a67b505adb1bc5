"""The file of changes: the change of each message, with everything that an undo needs.

The file is NDJSON, compressed by zstd, and complete before the store is changed::

    {"memctl":"changes","version":2}
    {"memory":{"user":"u","session":"s","ttl":60.0,"summary":["old","new"]}}
    {"change":{"id":"a","old":["hint"],"new":null,"after":"b","index":3,"message":true}}
    {...the message as it was stored...}
    {"added":{"ids":["c","d"],"marks":[["hint"],[]],"indexes":[4,5]}}
    {"end":{"memories":1,"changes":3}}

If ``message`` is true, the next line holds the message without line breaks (see
``jsonio.in_one_line``): the removed or the inserted message.  ``at`` and ``to`` are present if ids
may repeat.  ``was`` and ``shape`` are present if the store has its own form of the message (see
``Change``).  A memory may have ``part``, ``extra`` and ``place``.  ``before`` and ``shared_ids``
belong to the edits of an undo (see ``Edit``).

``added`` are messages that a copy adds to the end of the memory.  ``marks`` is absent if no message
has marks, ``indexes`` if none has a position.  Version 1 has no such lines.

A file without the last line is incomplete.

A run that changes memories one after the other, and records each just before, has
``"growing":true`` in the first line.  If the run is killed, its unfinished file (NAME.part) can be
read up to its end.

The file of a run that changes memories again and again has ``"repeats":true``, too.  In it, a
memory may come several times, and all its changes count.  With ``"whole":true``, they are the whole
memory, and the earlier ones no longer count.  With ``"void":true``, the store did not make those
that came last.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import IO, Any, Self

from memctl.errors import BadData
from memctl.journal.files import new_file, refusals, sync_folder
from memctl.json import jsonio
from memctl.machine import zstd
from memctl.model import LARGEST_MESSAGE, Change, Edit, Memory, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.storekit.texts import Rewriter, TextResult

VERSION = 2
_READABLE = (1, VERSION)
UNFINISHED = ".part"
"""The suffix of a file of changes that is not complete."""
_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
_GROWING, _REPEATS = "growing", "repeats"
"""Keys of the first line; see above."""
_WHOLE, _VOID = "whole", "void"
"""Keys of a memory; see above."""
_TEXTS = frozenset({"summary", "extra", "before", "was", "shape"})
"""The fields of a memory and of a change that hold texts, not names."""
_BLOCK = 1024 * 1024
_PAGE_CHANGES = 1000
_PAGE_BYTES = 2 * 1024 * 1024

_Make = Callable[[dict[str, Any], bytes], Change]
"""A function that makes a change from a record and a message."""


class ChangesWriter:
    """Writes a file of changes, under a temporary name until the file is complete.

    As a context manager, it removes an unfinished file on exit, unless ``sync`` was called.

    Raises:
        Unavailable: the operating system refuses the write, for instance because the disk is full.
    """

    def __init__(self, path: Path, *, growing: bool = False, repeats: bool = False) -> None:
        """Create the file under its temporary name; ``path`` is the final name.

        ``growing`` is True if changes are carried out before the file is complete.  ``repeats`` is
        True if the changes of a memory may be in several places.
        """
        self.memories = 0
        self.changes = 0
        self._path = path
        self._part = path.with_name(path.name + UNFINISHED)
        self._synced = False
        header: dict[str, Any] = {"memctl": "changes", "version": VERSION}
        header |= {name: True for name, on in ((_GROWING, growing), (_REPEATS, repeats)) if on}
        with refusals(self._part):
            self._file = new_file(self._part)
            self._frame = zstd.ZstdCompressor(options=_OPTIONS)
            self._write([jsonio.dumps(header)])

    def add(self, edit: Edit, added: Sequence[StoredMessage] = (), *, whole: bool = False) -> None:
        """Append the changes of an edit, and the messages ``added`` to the end of the memory.

        ``whole`` is True if these replace all earlier changes of the memory.
        """
        lines: list[bytes] = []
        if edit.offset == 0:
            record = _memory_record(edit) | ({_WHOLE: True} if whole else {})
            lines.append(jsonio.dumps({"memory": record}))
            self.memories += 1
        for change in edit.changes:
            lines.append(jsonio.compact({"change": _change_record(change)}))
            if len(change.message) > LARGEST_MESSAGE:
                raise BadData(
                    f"the message {change.id[:100]!r} is too large to be kept for undo",
                    f"use --no-backup: the limit is {LARGEST_MESSAGE >> 20} MiB",
                )
            if change.message:
                lines.append(jsonio.in_one_line(change.message))
        if added:
            lines.append(jsonio.dumps({"added": _added_record(added)}))
        self.changes += len(edit.changes) + len(added)
        with refusals(self._part):
            self._write(lines)

    def void(self, key: MemoryKey) -> None:
        """Append that the store did not make the last changes of a memory."""
        self.memories += 1
        record = _memory_record(Edit(Memory(key), [])) | {_VOID: True}
        with refusals(self._part):
            self._write([jsonio.dumps({"memory": record})])

    def flush(self) -> None:
        """Pass all appended edits to the operating system.

        They then survive a kill of the process.
        """
        with refusals(self._part):
            self._file.write(self._frame.flush(zstd.ZstdCompressor.FLUSH_BLOCK))
            self._file.flush()

    def sync(self) -> None:
        """Write all appended changes to disk, and keep the file even if it is not finished."""
        self.flush()
        with refusals(self._part):
            os.fsync(self._file.fileno())
        self._synced = True

    def finish(self) -> None:
        """Complete the file, make it durable, and rename it to its final name."""
        end = {"memories": self.memories, "changes": self.changes}
        with refusals(self._part):
            self._write([jsonio.dumps({"end": end})])
            self._file.write(self._frame.flush())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._path)
            sync_folder(self._path.parent)

    def _write(self, lines: list[bytes]) -> None:
        whole: list[bytes] = []
        for line in lines:
            if len(line) < _BLOCK:
                whole.append(line)
                continue
            self._write(whole)
            whole = []
            view = memoryview(line)
            for start in range(0, len(line), _BLOCK):  # the output takes as much RAM as the input
                self._compress(view[start : start + _BLOCK])
            self._compress(b"\n")
        if whole:
            self._compress(b"\n".join([*whole, b""]))

    def _compress(self, data: bytes | memoryview) -> None:
        self._file.write(self._frame.compress(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.closed:
            if not self._synced:
                self._part.unlink(missing_ok=True)
            with suppress(OSError):  # the disk may be full, and a removed file need not be written
                self._file.close()


def read_changes(path: Path, *, messages: bool = True, leaving: bool = True) -> Iterator[Edit]:
    """Yield the edits recorded in a file of changes that count, each at most a page.

    Without ``messages``, all messages are empty.  Without ``leaving``, deletions have neither the
    deleted message nor the id ``after``, which a store with unique ids does not need.

    Raises:
        BadData: the file is incomplete, or not a file of changes.
        Unavailable: the operating system refuses to read the file.
    """
    unfinished = path.name.endswith(UNFINISHED)
    with refusals(path), path.open("rb") as file:
        try:
            make = _change if messages and leaving else _stored if messages else _bare
            lines = _lines(file, unfinished=unfinished)
            outdated = _outdated(path) if repeats(path) else frozenset[int]()
            yield from _edits(lines, make, outdated, unfinished=unfinished)
        except (ValueError, KeyError, TypeError, EOFError, zstd.ZstdError) as error:
            raise BadData(
                f"{path} is cut off or damaged: {error}", "the run cannot be undone"
            ) from error


def check_whole(path: Path) -> None:
    """Read a file of changes to its end, to find damage.

    Raises:
        BadData, Unavailable: as ``read_changes``.
    """
    for _ in read_changes(path, messages=False):
        pass


def is_growing(path: Path) -> bool:
    """Return whether a file was written while the run carried out the changes in it.

    Such a file may be cut off anywhere, even within a line, if the run was interrupted.  If the
    first line is not readable, the result is False.

    Raises:
        Unavailable: the operating system refuses to read the file.
    """
    return _says(path, _GROWING)


def is_given_up(path: Path) -> bool:
    """Return whether a file holds an incomplete plan, of which the run made no change.

    Raises:
        Unavailable: as ``is_growing``.
    """
    return path.name.endswith(UNFINISHED) and not is_growing(path)


def repeats(path: Path) -> bool:
    """Return whether the changes of a memory may be in several places of a file, and all count.

    Raises:
        Unavailable: as ``is_growing``.
    """
    return _says(path, _REPEATS)


def rewrite_changes(
    path: Path, new: Path | None, rewriter: Rewriter, where: Selection
) -> list[TextResult]:
    """Return what a rewriter finds in a file of changes; copy it to ``new``, if given.

    Only the selected memories are searched.  Names and ids stay.  The copy of an unfinished file is
    unfinished, too.

    Raises:
        BadData: the file is damaged.
        Unavailable: the operating system refuses to read or to write a file.
    """
    found: list[TextResult] = []
    place = f"undo run {path.parent.name}"
    frame = zstd.ZstdCompressor(options=_OPTIONS)
    unfinished = path.name.endswith(UNFINISHED)
    with ExitStack() as stack, refusals(path):
        file = stack.enter_context(path.open("rb"))
        copy = None if new is None else stack.enter_context(new_file(new))
        is_message, is_selected = False, True
        try:
            for line in _lines(file, unfinished=unfinished):
                text, record = line, {} if is_message else jsonio.outline(line)
                if memory := record.get("memory"):
                    is_selected = where.has_key(_key(memory))
                if is_selected and rewriter.is_suspect(line):
                    text = _rewritten(line, rewriter, place, found, is_message=is_message)
                is_message = bool(record.get("change", {}).get("message"))
                if copy is not None:
                    copy.write(frame.compress(text) + frame.compress(b"\n"))
        except (ValueError, KeyError, TypeError, EOFError, zstd.ZstdError) as error:
            raise BadData(f"{path} is cut off or damaged: {error}") from error
        if copy is not None:
            copy.write(frame.flush())
            copy.flush()
            os.fsync(copy.fileno())
    return found


def _rewritten(
    line: bytes, rewriter: Rewriter, place: str, found: list[TextResult], *, is_message: bool
) -> bytes:
    """Return a line with other texts, and add what was found to ``found``."""

    def rewritten(text: bytes) -> bytes:
        new = rewriter.rewrite(text)
        found.append(new.at(place))
        return new.text

    if is_message:
        return rewritten(line)
    document = jsonio.loads(line)
    kind = next(iter(document))
    record = document[kind]
    for name in _TEXTS.intersection(record) if isinstance(record, dict) else ():
        record[name] = jsonio.loads(rewritten(jsonio.dumps(record[name])))
    return jsonio.dumps(document)


def _says(path: Path, name: str) -> bool:
    with refusals(path), path.open("rb") as file:
        try:
            header = jsonio.loads(next(_lines(file, unfinished=True), b"null"))
        except (ValueError, zstd.ZstdError):
            return False
    return isinstance(header, dict) and bool(header.get(name))


def _outdated(path: Path) -> frozenset[int]:
    """Return the numbers of the memories in a file whose changes do not count, from 0."""
    outdated: set[int] = set()
    counting: dict[MemoryKey, list[int]] = {}
    before: dict[MemoryKey, tuple[list[int], int]] = {}
    """The number of first entries that count again if the last changes of a memory become void."""
    with path.open("rb") as file:
        for number, record in enumerate(_memories(_lines(file, unfinished=True))):
            key = _key(record)
            there = counting.setdefault(key, [])
            if _VOID in record:
                outdated |= {number, *there}
                there, kept = before.pop(key, ([], 0))
                counting[key] = there[:kept]
                outdated -= {*there[:kept]}
                continue
            before[key] = there, len(there)
            if _WHOLE in record:
                outdated |= {*there}
                counting[key] = [number]
            else:
                there.append(number)
    return frozenset(outdated)


def _memories(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        record = jsonio.outline(line)
        if "memory" in record:
            yield record["memory"]
        elif record.get("change", {}).get("message"):
            next(lines, None)


def _edits(
    lines: Iterator[bytes], make: _Make, outdated: frozenset[int], *, unfinished: bool
) -> Iterator[Edit]:
    header = jsonio.loads(next(lines, b"null"))
    if not isinstance(header, dict) or header.get("memctl") != "changes":
        raise ValueError("it is not a file of changes")
    if header.get("version") not in _READABLE:
        raise ValueError(f"unknown version {header.get('version')}")
    page: _Page | None = None
    counts = True
    memories = changes = 0
    for line in lines:
        record = jsonio.outline(line)
        change = record.get("change")
        if change is not None and page is not None:
            text = next(lines, None) if change.get("message") else b""
            if text is None:
                break
            changes += 1
            if not counts:
                continue
            if page.full:
                yield page.take(last=False)
            page.add(make(change, text))
            del text  # the page alone holds a large message
            continue
        if "added" in record and page is not None:
            for change in _added(record["added"]):
                changes += 1
                if counts and page.full:
                    yield page.take(last=False)
                if counts:
                    page.add(change)
            continue
        if page is not None and counts:
            yield page.take(last=True)
        page = None
        if "memory" in record:
            counts = memories not in outdated
            memories += 1
            page = _Page(record["memory"])
        elif record.get("end") == {"memories": memories, "changes": changes}:
            # Read to the end of the frame, which has the checksum.
            if next(lines, None) is not None:
                raise ValueError("data follows its last line")
            return
        else:
            raise ValueError("a line is not a record")
    if not unfinished:
        raise ValueError("its last line is missing")
    if page is not None and counts:
        yield page.take(last=True)


class _Page:
    """Changes of one memory, collected for an ``Edit``; ``record`` describes the memory."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._summary, new = record.get("summary", (None, None))
        self._before = record.get("before", "")
        self._shared_ids = frozenset(record.get("shared_ids", ()))
        self._memory = Memory(
            *(_key(record), new, record.get("ttl"), record.get("extra", "")),
            *(record.get("place"), record.get("owner")),
        )
        self._changes: list[Change] = []
        self._offset = 0
        self._size = 0

    @property
    def full(self) -> bool:
        """Return whether the collected changes fill a page."""
        return len(self._changes) >= _PAGE_CHANGES or self._size >= _PAGE_BYTES

    def add(self, change: Change) -> None:
        """Add a change."""
        self._changes.append(change)
        self._size += len(change.message)

    def take(self, *, last: bool) -> Edit:
        """Return the collected changes as an edit, and start the next page.

        ``last`` is True for the last edit of the memory.
        """
        edit = Edit(
            *(self._memory, self._changes, self._offset, last, self._summary),
            *(self._before, self._shared_ids),
        )
        self._offset += len(self._changes)
        self._changes, self._size = [], 0
        return edit


def _key(record: dict[str, Any]) -> MemoryKey:
    return MemoryKey(record["user"], record["session"], record.get("part", ""))


def _memory_record(edit: Edit) -> dict[str, Any]:
    memory = edit.memory
    user, session, part = memory.key
    record: dict[str, Any] = {"user": user, "session": session}
    if memory.summary is not None:
        record["summary"] = [edit.summary, memory.summary]
    more = {
        "part": part or None,
        "ttl": memory.ttl,
        "extra": memory.extra or None,
        "place": memory.place,
        "owner": memory.owner,
        "before": edit.before or None,
        "shared_ids": sorted(edit.shared_ids) or None,
    }
    return record | {name: value for name, value in more.items() if value is not None}


def _change_record(change: Change) -> dict[str, Any]:
    record: dict[str, Any] = {"id": change.id, "old": change.old, "new": change.new}
    if change.after is not None:
        record["after"] = change.after
    if change.position is not None:
        record["index"] = change.position
    if change.was:
        record["was"] = change.was
    if change.shape:
        record["shape"] = change.shape
    if change.at is not None:
        record["at"] = change.at
    if change.to is not None:
        record["to"] = change.to
    if change.message:
        record["message"] = True
    return record


def _added_record(messages: Sequence[StoredMessage]) -> dict[str, Any]:
    ids, _, marks, indexes, _ = zip(*messages, strict=True)
    record: dict[str, Any] = {"ids": ids}
    if any(marks):
        record["marks"] = marks
    if indexes.count(None) < len(indexes):
        record["indexes"] = indexes
    return record


def _added(record: dict[str, Any]) -> Iterator[Change]:
    ids = record["ids"]
    marks = record.get("marks", repeat((), len(ids)))
    indexes = record.get("indexes", repeat(None, len(ids)))
    for id, labels, index in zip(ids, marks, indexes, strict=True):
        yield Change(id, None, tuple(labels), b"", None, index)


def _change(record: dict[str, Any], message: bytes) -> Change:
    return Change(
        record["id"],
        _marks(record["old"]),
        _marks(record["new"]),
        jsonio.in_lines(message),
        record.get("after"),
        record.get("index"),
        record.get("was", ""),
        record.get("shape", ""),
        record.get("at"),
        record.get("to"),
    )


def _bare(record: dict[str, Any], message: bytes) -> Change:  # noqa: ARG001
    return _change(record, b"")


def _stored(record: dict[str, Any], message: bytes) -> Change:
    if record["new"] is not None:
        return _change(record, message)
    index, was = record.get("index"), record.get("was", "")
    return Change(record["id"], _marks(record["old"]), None, b"", None, index, was)


def _marks(marks: list[str] | None) -> tuple[str, ...] | None:
    return None if marks is None else tuple(marks)


def _lines(file: IO[bytes], *, unfinished: bool) -> Iterator[bytes]:
    """Yield the complete lines of a compressed file; drop an incomplete last line.

    ``unfinished`` is as in ``_blocks``.
    """
    rest = BytesIO()
    for block in _blocks(file, unfinished=unfinished):
        lines = deque(block.split(b"\n"))
        if len(lines) > 1:
            rest.write(lines[0])
            lines[0] = rest.getvalue()  # not a copy
            rest = BytesIO()
        while len(lines) > 1:
            yield lines.popleft()
        rest.write(lines[0])
        if rest.tell() > LARGEST_MESSAGE:
            raise ValueError(f"a line is larger than {LARGEST_MESSAGE >> 20} MiB")


def _blocks(file: IO[bytes], *, unfinished: bool) -> Iterator[bytes]:
    """Yield the decompressed content of a file.

    If ``unfinished``, the content may end anywhere.

    Raises:
        EOFError: the file is cut off, and ``unfinished`` is False.
    """
    with zstd.ZstdFile(file) as stream:
        while True:
            try:
                # Not ``read``, which drops the data already read if the file ends too early.
                block = stream.read1(_BLOCK)
            except EOFError:
                if unfinished:
                    return
                raise
            if not block:
                return
            yield block
