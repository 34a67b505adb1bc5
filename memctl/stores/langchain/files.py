"""The files of LangChain's ``FileChatMessageHistory``: a JSON array of messages for each session.

For each new message LangChain writes the whole file again and drops unknown fields, such as the
notes of memctl.

Source: ``chat_message_histories/file.py`` of langchain-community 0.4.2.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from memctl.dialects.langchain import LANGCHAIN
from memctl.dialects.rows import METADATA, TIME
from memctl.dialects.view import NOTES
from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.layouts import foreign
from memctl.location import Location, visible
from memctl.machine import system
from memctl.machine.concurrency import in_thread
from memctl.model import Memory, MemoryKey, StoredMessage, WriteResult
from memctl.store import Features, OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.files import AtomicFile, move_file, require_place, sync_folder, system_errors
from memctl.storekit.simple import Rejected, SimpleStore, VersionChanged, not_owned
from memctl.storekit.text_files import files_below

_SUFFIX = ".json"
_LONGEST_NAME = 255
"""The maximum length of a file name, in bytes."""
_ODD = frozenset("/\\\0")
"""The characters that no file name has on every platform."""


class LangChainFilesStore(SimpleStore):
    """A folder with a ``.json`` file for each session, or a single ``.json`` file.

    The name of the file without ``.json`` is the name of the session.  For a single file, the
    option ``?session=`` can give another name.  ``?owner=`` names the user of all sessions.
    """

    kind = "langchain-files"
    features = Features(
        marks=frozenset(),
        empty=True,
        duplicate_ids=True,
        session_owners=True,
        renames=frozenset({"session"}),
    )
    dialect = LANGCHAIN

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._path = location.path
        self._is_file = False
        self._owner = location.options.get("owner", "")

    async def connect(self, mode: OpenMode) -> None:
        path = self._path
        with system_errors(path, "read"):
            self._is_file = path.is_file() or (not path.is_dir() and path.suffix == _SUFFIX)
        require_place(path, self.label, create=mode.creates)
        if not self._is_file and mode.creates:
            with system_errors(path, "write"):
                path.mkdir(mode=0o700, exist_ok=True)

    async def disconnect(self) -> None:
        """Do nothing: the store keeps no file open."""

    # Names

    @property
    def _session(self) -> str:
        """The name of the session if the store is a single file: ``?session=``, or the file's name.

        A store that is a folder does not use this name.
        """
        return self.location.options.get("session", self._path.name.removesuffix(_SUFFIX))

    def _file(self, key: MemoryKey) -> Path | None:
        """Return the path of the file for a memory; None if none can hold it."""
        if key.user != self._owner or key.part:
            return None
        if self._is_file:
            return self._path if key.session == self._session else None
        name = key.session + _SUFFIX
        try:
            is_name = len(name.encode()) <= _LONGEST_NAME
        except UnicodeEncodeError:
            return None
        # A name with a leading dot would name a hidden file or a parent folder.
        if not is_name or key.session.startswith(".") or not _ODD.isdisjoint(key.session):
            return None
        return self._path / name if key.session else None

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return Failure("bad-name", self._why_not(key)) if self._file(key) is None else None

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        if self._is_file:
            yield MemoryKey(self._owner, self._session)
            return
        with system_errors(self._path, "read"):
            names = sorted(
                one.name for one in self._path.iterdir() if one.suffix == _SUFFIX and one.is_file()
            )
        for name in names:
            key = MemoryKey(self._owner, name.removesuffix(_SUFFIX))
            if self._file(key) is not None:
                yield key

    # Memories

    async def load(self, key: MemoryKey) -> Snapshot | None:
        path = self._file(key)
        text = None if path is None else await in_thread(lambda: _read(path))
        if path is None or text is None:
            return None
        odd = jsonio.may_have_nan(text)
        messages = [_entry(path, at, one, odd=odd) for at, one in enumerate(_array(path, text))]
        return Snapshot(Memory(key, version=_version(text)), messages)

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        values = [_stored(entry) for entry in snapshot.messages]
        await in_thread(lambda: self._save(key, json.dumps(values).encode(), expect))

    def _save(self, key: MemoryKey, text: bytes, expect: str | None) -> None:
        path = self._file(key)
        if path is None:
            raise Rejected("bad-name", self._why_not(key))
        with AtomicFile(path) as file:
            file.write(text)
            _expect(path, expect)
            file.commit()

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        path = self._file(key)
        if path is not None:
            _expect(path, expect)
            with system_errors(path, "write"):
                path.unlink(missing_ok=True)
                sync_folder(path.parent)

    def text_files(self) -> Iterable[Path]:
        if self._is_file:
            return [self._path]
        return (path for path in files_below(self._path) if path.suffix == _SUFFIX)

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        for old, new in moves.items():
            path, target = self._file(old), self._file(new)
            failure = None
            if path is not None and target is not None:
                with system_errors(target, "write"):
                    if not await in_thread(partial(move_file, path, target)):
                        failure = Failure("conflict", f"{visible(str(target))} exists")
            yield WriteResult(old, failure=failure)

    def _why_not(self, key: MemoryKey) -> str:
        if key.user != self._owner:
            return not_owned("the files", self._owner, key.user)
        if self._is_file and not key.part:
            return f"{self.label} holds one session, {self._session!r}: name a folder for several"
        if key.part or not key.session:
            return f"no file can have the name of {key}"
        text, odd = f"the file of {key} cannot be named: its name ", _ODD & set(key.session)
        if key.session.startswith("."):
            text += "begins with '.'"
        elif odd:
            text += f"has {visible(min(odd))!r}"
        else:
            text += f"has more than {_LONGEST_NAME} bytes, or half of a surrogate pair"
        session = quote(key.session, safe="")
        return f"{text}; a single file takes it: langchain:FILE.json?session={session}"


def _read(path: Path) -> bytes | None:
    with system_errors(path, "read"):
        try:
            return system.read_file(path)
        except FileNotFoundError:
            return None


def _version(text: bytes) -> str:
    return blake2b(text, digest_size=16).hexdigest()


def _expect(path: Path, version: str | None) -> None:
    """Check that a file still has the version ``version``; None means that no file exists.

    Raises:
        VersionChanged: the content of the file has changed, or the file was created or deleted.
    """
    text = _read(path)
    if (None if text is None else _version(text)) != version:
        raise VersionChanged


def _array(path: Path, text: bytes) -> list[Any]:
    name = visible(str(path))
    try:
        found = jsonio.loads(text)
    except ValueError as error:
        if named := foreign.of_text(text[: foreign.BEGINNING]):
            raise named.refusal(name) from error
        raise BadData(f"{name} holds no JSON: {error}") from error
    if not isinstance(found, list):
        if named := foreign.of_document(found):
            raise named.refusal(name)
        raise BadData(f"{name} holds no list of messages", "LangChain's files begin with [")
    return found


def _entry(path: Path, at: int, content: Any, *, odd: bool) -> StoredMessage:
    if why := LANGCHAIN.foreign(content):
        raise BadData(f"what {visible(str(path))} holds at index {at} {why}")
    value = LANGCHAIN.unpack(content)
    try:
        message = jsonio.compact(value, odd=odd)
        return StoredMessage(LANGCHAIN.message_id(value), message)
    except (ValueError, RecursionError) as error:
        raise BadData(
            f"the message of {visible(str(path))} at index {at} is nested too deep"
        ) from error


def _stored(entry: StoredMessage) -> Any:
    """Return a message as the JSON value that LangChain writes to a file.

    Raises:
        Rejected: the message has marks, or a field that LangChain's format lacks.
    """
    value = jsonio.loads(entry.message)
    lost = [name for name in value if name not in ("content", METADATA, TIME)]
    lost += [name for name in value.get(METADATA) or () if name != NOTES]
    if entry.marks or lost:
        what = "marks" if entry.marks else repr(lost[0])
        text = f"the file has no place for {what}, which the message {entry.id!r} has"
        raise Rejected("refused", text)
    return LANGCHAIN.pack(value)
