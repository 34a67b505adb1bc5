"""The sessions of AgentScope Java in a folder: ``USER/SESSION/KEY.json``, lists ``KEY.jsonl``.

A user or a session with other characters than letters, digits, ``_``, ``-`` and ``.`` is base64url
in the names of folders.

Source in agentscope-java of 22 August 2026: ``state/JsonFileAgentStateStore.java`` of
agentscope-core.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from memctl.dialects.agentscope_java import AGENTSCOPE_JAVA
from memctl.errors import Failure
from memctl.layouts.files import JAVA_FILES
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import Memory, MemoryKey, WriteResult
from memctl.store import OpenMode
from memctl.storekit.edits import Snapshot
from memctl.storekit.files import sync_folder, system_errors
from memctl.storekit.folder import Folder
from memctl.storekit.simple import Rejected, SimpleStore, VersionChanged
from memctl.storekit.text_files import files_below
from memctl.stores.agentscope_java.session import (
    FEATURES,
    STATE,
    Kept,
    Naming,
    changed,
    idle_seconds,
    read,
    refuse_at_work,
    with_new_names,
)

_PLAIN = re.compile(r"[a-zA-Z0-9_.-]+")
_VALUE, _LIST = ".json", ".jsonl"
_DEPTH = 2
"""The folders above a file: the user and the session."""


def _quoted(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


_NAMING = Naming("/", _quoted)


class AgentScopeJavaFilesStore(SimpleStore):
    """A folder of sessions of AgentScope Java."""

    kind = "java-files"
    dialect = AGENTSCOPE_JAVA
    features = FEATURES

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        idle_seconds(location)  # an error at once
        self._folder = Folder(location.path)

    async def connect(self, mode: OpenMode) -> None:
        self._folder.open(create=mode.creates)

    async def disconnect(self) -> None:
        """Do nothing; the store holds no files open."""

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        for key in await in_thread(self._keys):
            yield key

    def _keys(self) -> list[MemoryKey]:
        names = map(self._folder.name_of, self._folder.files(""))
        parts = [name.rpartition("/") for name in names if name.count("/") == _DEPTH]
        found = {folder for folder, _, file in parts if file in JAVA_FILES}
        return sorted(_NAMING.key(name, self._state(name)) for name in found)

    def _state(self, name: str) -> bytes:
        found = self._folder.read(f"{name}/{STATE}{_VALUE}")
        return found.data if found else b""

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return _NAMING.refusal(key)

    def text_files(self) -> Iterable[Path]:
        return files_below(self._folder.path)

    # Memories

    def _files(self, key: MemoryKey) -> list[str]:
        """Return the names of the files of a session."""
        path = self._folder.path_of(_NAMING.name(key), folder=True)
        with system_errors(path, "read"):
            return sorted(os.listdir(path)) if path.is_dir() else []

    def _kept(self, key: MemoryKey) -> Kept:
        found: Kept = {}
        for name in self._files(key):
            file = self._folder.read(f"{_NAMING.name(key)}/{name}")
            if file is not None and name.endswith(_VALUE):
                found[name.removesuffix(_VALUE)] = file.data
            elif file is not None and name.endswith(_LIST):
                lines = file.data.splitlines()
                found[name.removesuffix(_LIST)] = [line for line in lines if line.strip()]
        return found

    async def load(self, key: MemoryKey) -> Snapshot | None:
        return await in_thread(partial(self._load, key))

    def _load(self, key: MemoryKey) -> Snapshot | None:
        name = _NAMING.name(key)
        if self.name_refusal(key) or _NAMING.key(name, self._state(name)) != key:
            return None
        return read(key, self._kept(key))

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        await in_thread(partial(self._save, key, snapshot, expect))

    def _save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        there = self._expected(key, expect)
        refuse_at_work(self, there, snapshot)
        # The state is last: the session exists as soon as it does.
        for name, value in changed(self._kept(key), there, snapshot).items():
            end = _VALUE if isinstance(value, bytes) else _LIST
            text = value if isinstance(value, bytes) else b"".join(line + b"\n" for line in value)
            self._folder.write(f"{_NAMING.name(key)}/{name}{end}", text)
        self._folder.sync()

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        for old, new in moves.items():
            failure = None
            if old.session:  # nothing is kept of users besides sessions
                failure = await in_thread(partial(self._rename, old, new))
            yield WriteResult(old, failure=failure)

    def _rename(self, old: MemoryKey, new: MemoryKey) -> Failure | None:
        paths = [self._folder.path_of(_NAMING.name(key), folder=True) for key in (old, new)]
        path, target = paths
        if (state := self._state(_NAMING.name(old))) and path.is_dir():
            try:
                state = with_new_names(state, old, new)
            except Rejected as rejected:
                return rejected.failure
            self._folder.write(f"{_NAMING.name(old)}/{STATE}{_VALUE}", state)
            self._folder.sync()
        with system_errors(target, "write"):
            if os.path.lexists(target):
                return Failure("conflict", f"{visible(str(target))} exists")
            target.parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(path, target)
            for folder in {path.parent, target.parent}:
                sync_folder(folder)
        with suppress(OSError):  # the user has other sessions
            path.parent.rmdir()
        return None

    def _expected(self, key: MemoryKey, expect: str | None) -> Snapshot:
        there = self._load(key) or Snapshot(Memory(key), exists=False)
        if there.memory.version != expect:
            raise VersionChanged
        return there

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        await in_thread(partial(self._remove, key, expect))

    def _remove(self, key: MemoryKey, expect: str | None) -> None:
        self._expected(key, expect)
        for name in self._files(key):
            self._folder.remove(f"{_NAMING.name(key)}/{name}")
        with suppress(OSError):  # the user has other sessions
            self._folder.path_of(_NAMING.name(key), folder=True).parent.rmdir()
        self._folder.sync()
