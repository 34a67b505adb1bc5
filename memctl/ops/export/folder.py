"""A folder with a file for each memory, for readers: only changed memories are written again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import quote

from msgspec import Struct

from memctl.dialects.view import Dialect
from memctl.errors import Busy, MemctlError, Partial, UsageError
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.ops.copy.compare import Fingerprint, Hasher, Precision, summary_digest
from memctl.shard import Shard
from memctl.storekit.files import AtomicFile, sync_folder, system_errors
from memctl.storekit.locks import FileLock, lock_owner

INDEX_SECONDS = 300.0
"""The seconds that a part of a run waits while another part writes the index file."""
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}(?<![.])")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])([.].*)?")  # of Windows
_UNFIT = re.compile(r"[^\w.-]+")
_READABLE_BYTES = 80
_DIGITS = 12


def file_name(key: MemoryKey, ending: str) -> str:
    """Return the relative path of the file of a memory, such as ``ada/kyoto+agent.memory.md``."""
    user, session, part = (_file_name_of(text, ending) for text in key)
    return f"{user}/{session}{f'+{part}' if key.part else ''}{ending}"


def _file_name_of(text: str, ending: str) -> str:
    if not text:
        return "_"
    if _PLAIN_NAME.fullmatch(text) and not _DEVICES.fullmatch(text) and not text.endswith(ending):
        return text
    readable = _UNFIT.sub("_", unicodedata.normalize("NFC", text)).strip("._-")
    readable = readable.encode()[:_READABLE_BYTES].decode(errors="ignore")
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{readable or '_'}~{digest}"


FORM = Precision.TEXT
"""The precision with which a memory is compared with its file."""

_STAMP = "<!-- memctl: "
_STAMP_END = " -->\n"
_STAMP_BYTES = 64 * 1024


class Stamp(Struct, frozen=True):
    """The last line of a file: which memory the file shows, and in which state.

    ``digest`` is a digest of the messages and the summary.  ``first`` and ``last`` are the times of
    the first and the last message, empty if unknown.
    """

    key: MemoryKey
    layout: int
    digest: str
    messages: int
    first: str
    last: str
    size: int
    """The number of bytes of the file before this line."""

    def line(self) -> str:
        """Return the stamp as an HTML comment."""
        fields = {
            **{"user": self.key.user, "session": self.key.session, "path": self.key.part},
            **{"layout": self.layout, "digest": self.digest, "messages": self.messages},
            **{"first": self.first, "last": self.last, "size": self.size},
        }
        # Two hyphens could end the comment.
        return _STAMP + json.dumps(fields).replace("--", "-\\u002d") + _STAMP_END


def _read_stamp(path: Path) -> Stamp | None:
    """Return the stamp in the last line of a file; None if it is missing or its size is wrong."""
    with system_errors(path, "read"), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _STAMP_BYTES))
        end = file.read()
    at = end.rfind(b"\n" + _STAMP.encode()) + 1
    if not at or not end.endswith(_STAMP_END.encode()):
        return None
    try:
        found = json.loads(end[at + len(_STAMP) : -len(_STAMP_END)])
        stamp = Stamp(
            MemoryKey(found["user"], found["session"], found["path"]),
            *(found[name] for name in ("layout", "digest", "messages", "first", "last", "size")),
        )
    except (ValueError, TypeError, KeyError):
        return None
    return stamp if stamp.size == size - len(end) + at else None


def _digest(fingerprint: Fingerprint) -> str:
    summary = fingerprint.summary or b""
    return f"{fingerprint.digest.hex()}.{summary.hex()}"


class IndexedFile(NamedTuple):
    """The file of a memory in the index: its address relative to the index, and its stamp."""

    link: str
    stamp: Stamp


Renderer = Callable[[Page], Iterator[str]]
"""A function that yields the text of a page of one memory; called with one page after another."""


class FolderFormat(ABC):
    """The format of the files in a folder."""

    name: ClassVar[str]
    """The value of the option ``--as``."""
    ending: ClassVar[str]
    """The extension of the files."""
    index: ClassVar[str]
    """The name of the index file."""
    layout: ClassVar[int]
    """The version of the layout of the files; files of another version are rewritten."""

    @abstractmethod
    def renderer(self, dialect: Dialect) -> Renderer:
        """Return a function that turns the pages of one memory into the text of its file.

        ``dialect`` is the dialect of the messages.
        """

    @abstractmethod
    def contents(self, files: Iterator[IndexedFile], noun: str) -> Iterator[str]:
        """Yield the text of the index file.

        ``noun`` is the word for a message in this store.
        """


class MemoryFolder:
    """A folder with a file for each memory, and an index file."""

    def __init__(self, path: Path, form: FolderFormat) -> None:
        self.path = path
        self._format = form
        self._index = path / form.index
        self._head = f"<!-- memctl: export --as {form.name} -->\n".encode()
        """The first line of the index file."""
        self.fresh = not self._index.exists()
        """True if the folder had no index file at the beginning."""
        self._written: list[Path] = []
        """The new files, if the folder is fresh."""

    def refuse_foreign(self) -> None:
        """Refuse a folder that other programs have written to.

        Raises:
            UsageError: the folder contains files, but no index file of an export in this format.
        """
        # Another part of the run may begin at this moment: it writes the index first.
        others = self._names(self.path) if self.path.is_dir() else []
        with system_errors(self._index, "read"):
            taken = bool(others) and not self._has_head()
        if taken:
            raise UsageError(
                f"{str(self.path)!r} contains files that export --as {self._format.name} "
                "did not write",
                "name a new folder, or use --force to write into this one",
            )

    def _has_head(self) -> bool:
        if not self._index.exists():
            return False
        with self._index.open("rb") as file:
            return file.read(len(self._head)) == self._head

    @contextmanager
    def made(self) -> Iterator[None]:
        """Create the folder and its index file, if missing, before the block.

        If the block fails, the new files in a fresh folder are removed, unless the error is
        ``Partial``.

        Raises:
            MemctlError: the operating system refuses to create them.
        """
        new = not self.path.is_dir()
        with system_errors(self.path, "write"):
            self.path.mkdir(mode=0o700, exist_ok=True)
        try:
            if self.fresh:
                self.write_index()
            yield
        except Partial:  # written files stay
            raise
        except BaseException:
            if self.fresh:
                self._withdraw(folder=new)
            raise

    def _withdraw(self, *, folder: bool) -> None:
        """Remove the new files, and with ``folder`` the folder; ignore errors.

        The index stays if other parts of the run have written files.
        """
        for path in self._written:
            with suppress(MemctlError):
                self.remove(path)
        with suppress(OSError, MemctlError):
            if any(self.files()):
                return
            self._index.unlink(missing_ok=True)
            if folder:
                self.path.rmdir()

    def holds(self, key: MemoryKey, fingerprint: Fingerprint) -> bool:
        """Return whether the folder has a file of the memory with the state of ``fingerprint``."""
        path = self.path / file_name(key, self._format.ending)
        stamp = _read_stamp(path) if path.is_file() else None
        return stamp is not None and (stamp.key, stamp.layout, stamp.digest) == (
            *(key, self._format.layout),
            _digest(fingerprint),
        )

    def file(self, memory: Memory, dialect: Dialect) -> MemoryFile:
        """Return a writer of a new file for a memory; ``dialect`` is the dialect of its messages.

        Raises:
            MemctlError: the operating system refuses to create the file.
        """
        path = self.path / file_name(memory.key, self._format.ending)
        if self.fresh and not path.exists():
            self._written.append(path)
        with system_errors(path, "write"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        return MemoryFile(path, memory, dialect, self._format)

    def files(self) -> Iterator[tuple[Path, Stamp]]:
        """Yield the path and the stamp of each file of a memory, ordered by name.

        Raises:
            MemctlError: the operating system refuses the read.
        """
        for name in self._names(self.path):
            folder = self.path / name
            if folder.is_symlink() or not folder.is_dir():
                continue
            for inner in self._names(folder):
                path = folder / inner
                stamp = (
                    _read_stamp(path)
                    if inner.endswith(self._format.ending) and path.is_file()
                    else None
                )
                if stamp is not None:
                    yield path, stamp

    def _names(self, folder: Path) -> list[str]:
        with system_errors(folder, "read"):
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))

    def remove(self, path: Path) -> None:
        """Remove the file of a memory, and the folder of the user if it is empty then.

        Raises:
            MemctlError: the operating system refuses the removal.
        """
        with system_errors(path, "remove"):
            path.unlink(missing_ok=True)
            if not os.listdir(path.parent):
                path.parent.rmdir()

    def complete_index(self, noun: str, shard: Shard | None) -> None:
        """Write the index file at the end of an export; see ``write_index``.

        The parts of a run write the index file one after another, each after its other files.  So
        the last part lists all files.

        Raises:
            MemctlError: the operating system refuses the write.
            Busy: another part has not finished the index within minutes.
        """
        if shard is None:
            self.write_index(noun)
            return
        end = time.monotonic() + INDEX_SECONDS
        while True:
            try:
                with FileLock(self._index, str(self._index)).held(lock_owner()):
                    self.write_index(noun)
                return
            except Busy:
                if time.monotonic() > end:
                    raise

    def write_index(self, noun: str = "message") -> None:
        """Write the index file, the list of the exported memories, if its contents change.

        ``noun`` is the word for a message in the exported store.

        Raises:
            MemctlError: the operating system refuses the write.
        """
        digest = hashlib.sha256(self._head)
        with AtomicFile(self._index) as file:
            file.write(self._head)
            for piece in self._format.contents(self._links(), noun):
                data = piece.encode()
                digest.update(data)
                file.write(data)
            if not self._index.exists() or _file_digest(self._index) != digest.digest():
                file.commit()

    def _links(self) -> Iterator[IndexedFile]:
        for path, stamp in self.files():
            yield IndexedFile(quote(path.relative_to(self.path).as_posix()), stamp)


def _file_digest(path: Path) -> bytes:
    with system_errors(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class MemoryFile:
    """A writer of the file of one memory, which replaces the old file at the end."""

    def __init__(self, path: Path, memory: Memory, dialect: Dialect, form: FolderFormat) -> None:
        self._dialect = dialect
        self._layout = form.layout
        self._render = form.renderer(dialect)
        self._path = path
        self._memory = memory
        self._file = AtomicFile(path)
        self._hasher = Hasher(FORM, mark_order=True)
        self._first = self._last = ""
        self._size = 0

    def add(self, page: Page) -> None:
        """Write the messages of the next page; the last page puts the file into its place.

        Raises:
            MemctlError: the operating system refuses the write.
        """
        for piece in self._render(page):
            self._write(piece)
        if page.messages:
            self._first = self._first or _time(page.messages[0], self._dialect)
            self._last = _time(page.messages[-1], self._dialect)
        self._hasher.add(page.messages)
        if page.last:
            self._finish()

    def discard(self) -> None:
        """Discard the new file, unless its last page was written."""
        self._file.discard()

    def _write(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        self._file.write(data)

    def _finish(self) -> None:
        self._write("\n")
        fingerprint = Fingerprint(
            self._hasher.messages, self._hasher.digest(), summary_digest(self._memory)
        )
        stamp = Stamp(
            *(self._memory.key, self._layout, _digest(fingerprint), fingerprint.messages),
            *(self._first, self._last, self._size),
        )
        self._file.write(stamp.line().encode())
        self._file.sync()
        self._file.replace()
        sync_folder(self._path.parent)


def _time(message: StoredMessage, dialect: Dialect) -> str:
    return dialect.outline(message.message).time or ""
