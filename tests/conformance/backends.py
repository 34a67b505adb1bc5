"""The stores that the suite runs against: one line each in ``BACKENDS``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memctl.location import Location
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode, Store
from tests.conformance import samples
from tests.conftest import Servers

Make = Callable[[Path, Servers], str]
"""A new and empty place, as a user of memctl writes it.  The folder is empty at each call."""


@dataclass(frozen=True)
class Backend:
    """A store, and what sets it apart besides its features."""

    name: str
    make: Make
    alias: Callable[[str, Path, Servers], str]
    """Another way to write a place."""
    dump: Callable[[str, Servers], Any]
    """All that the place holds, past memctl, to see that nothing changed."""
    refuses: frozenset[str] = frozenset()
    """The messages of ``samples.MESSAGES`` that it does not take."""
    picky: bool = False
    """Some names cannot be written: it says so."""
    only: MemoryKey | None = None
    """The one memory that it holds, where it does not hold many."""
    exists: bool = False
    """There is nothing to create: an empty place is a store without memories."""


@dataclass(frozen=True)
class Place:
    """A place of a backend, for one test."""

    backend: Backend
    text: str
    servers: Servers
    folder: Path
    location: Location = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", parse(self.text))

    def store(self, *, create: bool = True) -> Store:
        """A store of the place, not yet opened; created unless told otherwise."""
        return make_store(self.location, OpenMode.CREATE if create else OpenMode.READ)

    def alias(self) -> Location:
        """The same place, written otherwise."""
        return parse(self.backend.alias(self.text, self.folder, self.servers))

    def dump(self) -> Any:
        """All that the place holds, past memctl."""
        return self.backend.dump(self.text, self.servers)

    def keys(self, count: int) -> list[MemoryKey]:
        """Names for so many memories, fewer where the place holds only one."""
        only = self.backend.only
        return [only] if only else [samples.key(number) for number in range(count)]


def _file(name: str) -> Make:
    return lambda folder, _: str(folder / name)


def _linked(text: str, folder: Path, _: Servers) -> str:
    """The path through a symbolic link to its folder."""
    parent = Path(text.removeprefix("sqlite:///")).parent
    link = folder / "link"
    link.symlink_to(parent, target_is_directory=True)
    return text.replace(str(parent), str(link), 1)


def _files(text: str, _: Servers) -> dict[str, Any]:
    """Every file of the place: content, mode and time of change."""
    path = Path(text.removeprefix("sqlite:///"))
    return {
        str(file): (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime_ns)
        for file in path.parent.rglob("*")
        if file.is_file() and "link" not in file.parts
    }


def _redis(option: str) -> Make:
    def make(_: Path, servers: Servers) -> str:
        return f"{servers.redis.fresh()}?{option}"

    return make


def _redis_socket(text: str, _: Path, servers: Servers) -> str:
    url, _, option = text.partition("?")
    return f"{servers.redis.socket_url(url)}&{option}"


def _redis_dump(text: str, servers: Servers) -> Any:
    return servers.redis.dump(text.partition("?")[0])


BACKENDS = [
    Backend("sqlite", lambda folder, _: f"sqlite:///{folder}/m.db", _linked, _files),
    Backend(
        "postgresql",
        lambda _, servers: servers.postgresql.fresh(),
        lambda text, _, servers: servers.postgresql.socket_url(text),
        lambda text, servers: servers.postgresql.dump(text),
        refuses=frozenset({"not a number", "infinity"}),
        picky=True,  # row ids of more than 255 characters
    ),
    Backend(
        "mysql",
        lambda _, servers: servers.mariadb.fresh(),
        lambda text, _, servers: servers.mariadb.socket_url(text),
        lambda text, servers: servers.mariadb.dump(text),
        # MariaDB checks the JSON: at most 31 levels, and both halves of a surrogate pair
        refuses=frozenset({"not a number", "infinity", "deep", "lone surrogate"}),
        picky=True,  # as PostgreSQL
    ),
    Backend("redis", _redis("prefix=app:"), _redis_socket, _redis_dump, exists=True),
    Backend("redis-session", _redis("layout=session"), _redis_socket, _redis_dump, exists=True),
    Backend("archive", _file("a.ndjson"), _linked, _files),
    Backend("archive-gz", _file("a.ndjson.gz"), _linked, _files),
    Backend("archive-zst", _file("a.ndjson.zst"), _linked, _files),
    Backend("sessions", _file("sessions"), _linked, _files, picky=True),  # names of files
    Backend("state", _file("state.json"), _linked, _files, only=MemoryKey("", "state")),
]


def new_place(backend: Backend, folder: Path, servers: Servers) -> Place:
    """A new and empty place."""
    number = len(os.listdir(folder))
    own = folder / str(number)
    own.mkdir()
    return Place(backend, backend.make(own, servers), servers, folder)
