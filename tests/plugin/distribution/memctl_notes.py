"""An example of a plugin for facts: a folder with a file for each of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

import memctl
from memctl import (
    AtomicFile,
    Embedding,
    FactEntry,
    LoadedFact,
    MemoryKey,
    OpenMode,
    StoredMessage,
    StoreSpec,
    system_errors,
)

DIMENSIONS = 8


class NotesStore(memctl.FactStore):
    """A folder with a JSON file for each fact, its scope and the fact itself."""

    kind = "notes"
    embedding = Embedding("notes-8", DIMENSIONS)

    async def connect(self, mode: OpenMode) -> None:
        if self.location.url:  # notes:///absolute/path.notes
            path = Path(unquote(urlsplit(self.location.url).path))
            self.location = replace(self.location, path=path)
        with system_errors(self.location.path, "write"):
            if mode.creates:
                self.location.path.mkdir(exist_ok=True)
        if not self.location.path.is_dir():
            raise memctl.NotFound(f"{self.label} does not exist", "check the path")

    async def disconnect(self) -> None:
        """Nothing is held between two calls."""

    async def entries(self, where: memctl.Selection) -> AsyncGenerator[FactEntry]:
        for file in self.location.path.glob("*.fact"):
            key, fact, _ = self._loaded(file)
            time = self.dialect.role_and_time(fact.message)[1] if fact.message else None
            if where.has_key(key):
                yield FactEntry(key, fact.id, time or "")

    async def load(
        self,
        key: MemoryKey,  # noqa: ARG002 - ids are those of the whole store
        ids: Sequence[str],
    ) -> list[LoadedFact]:
        files = [self._file(id) for id in ids]
        return [self._loaded(file) for file in files if file.exists()]

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        for fact in facts:
            with AtomicFile(self._file(fact.id)) as new:
                new.write(json.dumps([*key, fact.id, fact.message.decode()]).encode())
                new.commit()

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:  # noqa: ARG002
        for id in ids:
            with system_errors(self._file(id), "write"):
                self._file(id).unlink(missing_ok=True)

    def _file(self, id: str) -> Path:
        return self.location.path / f"{sha256(id.encode()).hexdigest()[:32]}.fact"

    def _loaded(self, file: Path) -> LoadedFact:
        with system_errors(file, "read"):
            text = file.read_bytes()
        try:
            user, session, part, id, fact = json.loads(text)
        except ValueError as error:
            return LoadedFact(MemoryKey("", ""), StoredMessage(file.name, b""), str(error))
        return LoadedFact(MemoryKey(user, session, part), StoredMessage(id, fact.encode()))


SPEC = StoreSpec(
    kind="notes",
    syntax="notes://PATH, PATH.notes",
    summary="facts as files of JSON",
    factory=NotesStore,
)
