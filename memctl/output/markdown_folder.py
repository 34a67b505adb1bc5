"""A folder of memories as Markdown: a file a memory, written anew only when the memory changed.

What a file was made of stands in its own last line, a comment: nothing else has to be kept, and a
file that is cut short, or from another memory, is found out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from memctl import codec
from memctl.errors import UsageError
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.ops.fingerprint import Fingerprint, Form, Hasher, summary_digest
from memctl.output import markdown
from memctl.output.markdown_names import ENDING, file_name
from memctl.output.numbers import count
from memctl.stores.files import AtomicFile, sync_folder, system_errors

LAYOUT = 1
"""Of the files: those of another one are written anew."""

FORM = Form.TEXT
"""What a memory must keep for its file to be kept."""

INDEX = "README.md"
_INDEX_HEAD = "<!-- memctl: export --as markdown -->\n# Conversations\n\n"
_STAMP = "<!-- memctl: "
_STAMP_END = " -->\n"
_STAMP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stamp:
    """The last line of a file: which memory it is, and what of it the file shows."""

    key: MemoryKey
    layout: int
    digest: str
    messages: int
    first: str
    last: str
    size: int
    """Bytes of the file before this line."""

    def line(self) -> str:
        """The comment."""
        fields = {
            **{"user": self.key.user, "session": self.key.session, "path": self.key.part},
            **{"layout": self.layout, "digest": self.digest, "messages": self.messages},
            **{"first": self.first, "last": self.last, "size": self.size},
        }
        # Two hyphens could end the comment.
        return _STAMP + json.dumps(fields).replace("--", "-\\u002d") + _STAMP_END


def _read_stamp(path: Path) -> Stamp | None:
    """The stamp of a file; None where it has none, or is not what the stamp says."""
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


class MarkdownFolder:
    """One such folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fresh = not (path / INDEX).exists()
        """Whether there is nothing in it yet."""

    def refuse_foreign(self) -> None:
        """Objects to a folder that holds something else.

        Raises:
            UsageError: it does.
        """
        if self.fresh and self.path.is_dir():
            others = [name for name in os.listdir(self.path) if not name.startswith(".")]
            taken = bool(others)
        else:
            with system_errors(self.path / INDEX, "read"):
                taken = not self.fresh and not self._has_head()
        if taken:
            raise UsageError(
                f"{str(self.path)!r} holds something else than an export --as markdown",
                "name a new folder; --force writes into this one",
            )

    def _has_head(self) -> bool:
        with (self.path / INDEX).open("rb") as file:
            return file.read(len(_INDEX_HEAD)) == _INDEX_HEAD.encode()

    def create(self) -> None:
        """Makes the folder, with an index that is empty.

        Raises:
            MemctlError: the system refuses.
        """
        with system_errors(self.path, "write"):
            self.path.mkdir(mode=0o700, exist_ok=True)
        if self.fresh:
            self.write_index()

    def holds(self, key: MemoryKey, fingerprint: Fingerprint) -> bool:
        """Whether the file of a memory shows it as it is."""
        path = self.path / file_name(key)
        stamp = _read_stamp(path) if path.is_file() else None
        return stamp is not None and (stamp.key, stamp.layout, stamp.digest) == (
            *(key, LAYOUT),
            _digest(fingerprint),
        )

    def file(self, memory: Memory) -> MemoryFile:
        """A new file for a memory.

        Raises:
            MemctlError: the system refuses.
        """
        path = self.path / file_name(memory.key)
        with system_errors(path, "write"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        return MemoryFile(path, memory)

    def files(self) -> Iterator[tuple[Path, Stamp]]:
        """The files of memories, in the order of their names.

        Raises:
            MemctlError: the system refuses.
        """
        for name in self._names(self.path):
            folder = self.path / name
            if folder.is_symlink() or not folder.is_dir():
                continue
            for inner in self._names(folder):
                path = folder / inner
                stamp = _read_stamp(path) if inner.endswith(ENDING) and path.is_file() else None
                if stamp is not None:
                    yield path, stamp

    def _names(self, folder: Path) -> list[str]:
        with system_errors(folder, "read"):
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))

    def remove(self, path: Path) -> None:
        """Removes a file, and its folder if it was the last one in it.

        Raises:
            MemctlError: the system refuses.
        """
        with system_errors(path, "remove"):
            path.unlink(missing_ok=True)
            if not os.listdir(path.parent):
                path.parent.rmdir()

    def write_index(self) -> None:
        """Writes the table of what is in the folder, where it changed.

        Raises:
            MemctlError: the system refuses.
        """
        path = self.path / INDEX
        digest = hashlib.sha256()
        with AtomicFile(path) as file:
            for piece in self._index():
                data = piece.encode()
                digest.update(data)
                file.write(data)
            if not path.exists() or _file_digest(path) != digest.digest():
                file.commit()

    def _index(self) -> Iterator[str]:
        yield _INDEX_HEAD
        yield "| user | session | messages | from | to |\n|---|---|--:|---|---|\n"
        memories = 0
        for path, stamp in self.files():
            memories += 1
            key = stamp.key
            link = quote(str(path.relative_to(self.path)))
            session = f"{key.session} ({key.part})" if key.part else key.session
            yield (
                f"| {markdown.inline(key.user)} | [{markdown.inline(session or '—')}]({link}) "
                f"| {stamp.messages} | {markdown.inline(stamp.first)} "
                f"| {markdown.inline(stamp.last)} |\n"
            )
        yield f"\n{count(memories, 'memory')}\n"


def _file_digest(path: Path) -> bytes:
    with system_errors(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class MemoryFile:
    """The file of one memory in the making; see ``AtomicFile``."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self._path = path
        self._memory = memory
        self._file = AtomicFile(path)
        self._hasher = Hasher(FORM, mark_order=True)
        self._first = self._last = ""
        self._size = 0
        for piece in markdown.heading(memory):
            self._write(piece)

    def add(self, page: Page) -> None:
        """Writes the next messages; with the last ones the file appears.

        Raises:
            MemctlError: the system refuses.
        """
        for entry in page.messages:
            for piece in markdown.message(entry):
                self._write(piece)
        if page.messages:
            self._first = self._first or _time(page.messages[0])
            self._last = _time(page.messages[-1])
        self._hasher.add(page.messages)
        if page.last:
            self._finish()

    def discard(self) -> None:
        """Lets go of what is not whole."""
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
            *(self._memory.key, LAYOUT, _digest(fingerprint), fingerprint.messages),
            *(self._first, self._last, self._size),
        )
        self._file.write(stamp.line().encode())
        self._file.sync()
        self._file.replace()
        sync_folder(self._path.parent)


def _time(entry: StoredMessage) -> str:
    return codec.field(entry.message, "timestamp") or ""
