"""An example of a plugin: a store that keeps memories as lines of JSON, and a command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

import memctl
from memctl import (
    AtomicFile,
    Features,
    Memory,
    MemoryKey,
    OpenMode,
    Snapshot,
    StoredMessage,
    StoreSpec,
    system_errors,
)


class LinesStore(memctl.SimpleStore):
    """A folder with a file for each memory: a line about it, then a line for each message."""

    kind = "lines"
    features = Features(summaries=True, empty=True, mark_order=True)

    async def connect(self, mode: OpenMode) -> None:
        if self.location.url:  # lines:///absolute/path.lines
            path = Path(unquote(urlsplit(self.location.url).path))
            self.location = replace(self.location, path=path)
        with system_errors(self.location.path, "write"):
            if mode.creates:
                self.location.path.mkdir(exist_ok=True)
        if not self.location.path.is_dir():
            raise memctl.NotFound(f"{self.label} does not exist", "check the path")

    async def disconnect(self) -> None:
        """Nothing is held between two calls."""

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        for file in sorted(self.location.path.glob("*.lines")):
            with system_errors(file, "read"), file.open("rb") as lines:
                about = lines.readline()
            yield self._parsed(about, file).key

    async def load(self, key: MemoryKey) -> Snapshot | None:
        file = self._file(key)
        with system_errors(file, "read"):
            data = file.read_bytes() if file.exists() else None
        if data is None:
            return None
        about, *lines = data.splitlines()
        memory = replace(self._parsed(about, file), version=sha256(data).hexdigest())
        try:
            found = [json.loads(line) for line in lines]
            messages = [StoredMessage(id, text.encode(), tuple(marks)) for id, marks, text in found]
        except (ValueError, TypeError, AttributeError) as error:
            raise memctl.BadData(f"{file} is damaged: {error}", "restore it") from error
        return Snapshot(memory, messages)

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        memory = snapshot.memory
        lines = [{"user": key.user, "session": key.session, "summary": memory.summary or ""}]
        lines += [[one.id, one.marks, one.message.decode()] for one in snapshot.messages]
        with AtomicFile(self._file(key)) as new:
            new.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
            new.sync()
            there = await self.load(key)
            if (there.memory.version if there else None) != expect:
                raise memctl.VersionChanged
            new.commit()

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        there = await self.load(key)
        if (there.memory.version if there else None) != expect:
            raise memctl.VersionChanged
        with system_errors(self._file(key), "write"):
            self._file(key).unlink(missing_ok=True)

    def _file(self, key: MemoryKey) -> Path:
        name = sha256(json.dumps(key).encode()).hexdigest()
        return self.location.path / f"{name[:32]}.lines"

    def _parsed(self, about: bytes, file: Path) -> Memory:
        try:
            found = json.loads(about)
            return Memory(MemoryKey(found["user"], found["session"]), found["summary"])
        except (ValueError, KeyError, TypeError) as error:
            raise memctl.BadData(f"{file} is damaged: {error}", "restore it") from error


SPEC = StoreSpec(
    kind="lines",
    syntax="lines://PATH, PATH.lines",
    summary="memories as lines of JSON",
    factory=LinesStore,
)


def users(
    context: typer.Context,
    store: Annotated[str, typer.Argument(metavar="STORE", help="URL, path or alias of a store.")],
) -> None:
    """List who has memories in a store.

    A name on each line, in the order of names.
    """
    for name in asyncio.run(_users(memctl.open_store(context.obj.locate(store)))):
        typer.echo(name)


async def _users(store: memctl.Store) -> list[str]:
    async with store:
        catalogue = await memctl.inspect(store)
    return sorted({info.key.user for info in catalogue.memories})
