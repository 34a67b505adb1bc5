"""The description of a store for the suite: how to make new places, and what it does not take."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from memctl.dialects.registry import DIALECTS
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode, Store
from memctl.testing import samples
from memctl.testing.samples import Style
from memctl.wrappers.converted import shown_as


@dataclass(frozen=True)
class Backend:
    """A store under test, and what sets it apart besides its features.

    A store that keeps a file needs two fields::

        Backend("notes", lambda folder: f"{folder}/m.notes")

    A store on a server has no files to look at, and names them all::

        Backend("kv", new_database, alias=by_socket, dump=all_keys, exists=True)
    """

    name: str
    make: Callable[[Path], str]
    """A function that returns a new and empty place, as a user of memctl writes it."""
    alias: Callable[[str], str] | None = None
    """A function that returns another spelling of a place; by default through a symbolic link."""
    dump: Callable[[str], Any] | None = None
    """A function that returns the contents of a place, past memctl; by default all its files."""
    refuses: frozenset[str] = frozenset()
    """The messages of ``samples.MESSAGES`` that it does not take."""
    alters: frozenset[str] = frozenset()
    """The hard messages of which its database changes values, such as a float that JSONB makes an
    integer."""
    refuses_names: bool = False
    """Some names cannot be written; it refuses them."""
    users: bool = True
    """Its memories belong to users."""
    only: MemoryKey | None = None
    """The one memory that it holds, where it does not hold many."""
    keys: Callable[[int], MemoryKey] = samples.key
    """A function that returns the name of a memory, by its number."""
    exists: bool = False
    """There is nothing to create: an empty place is a store without memories."""
    many: int = 300
    """The number of memories in the test of many writes; more where they share transactions."""
    large: int = 1500
    """The number of messages of a memory that comes in several pages; fewer where each is a file.
    """
    style: Style = field(default_factory=Style)
    """The dialect of its messages, and the marks that they can have."""
    largest: int = 0
    """The bytes of messages that a memory can have; 0 where there is no such limit."""
    lease: float = 0.0
    """Seconds after which a lock ends that its owner does not renew; 0 where locks do not."""
    make_searchable: Callable[[str], None] | None = None
    """A function that has the service search the texts of a place that was filled, where that is
    for the application to do."""
    shown_as: str = ""
    """The dialect to show messages in, if its own messages have ids that it makes of their text."""
    lock_holder: str = "memctl.testing.lock_holder"
    """The module that holds a lock in another process."""


@dataclass(frozen=True)
class Place:
    """A place of a store, for one test."""

    backend: Backend
    text: str
    """As a user writes it."""
    folder: Path
    """Its own."""

    @cached_property
    def location(self) -> Location:
        """Return the location that memctl reads from the text."""
        return parse(self.text)

    def store(self, *, create: bool = True, change: bool = False) -> Store:
        """Return a store of the place, not yet opened: to create, to read, or to change."""
        mode = OpenMode.CHANGE if change else OpenMode.CREATE if create else OpenMode.READ
        store = make_store(self.location, mode)
        dialect = self.backend.shown_as
        return shown_as(store, DIALECTS[dialect]) if dialect else store

    def alias(self) -> Location:
        """Return the same place, spelled differently."""
        if self.backend.alias is not None:
            return parse(self.backend.alias(self.text))
        link = self.folder.with_name(f"{self.folder.name}-link")
        link.symlink_to(self.folder, target_is_directory=True)
        return parse(self.text.replace(str(self.folder), str(link), 1))

    def dump(self) -> Any:
        """Return all that the place holds, past memctl, to compare."""
        return self.backend.dump(self.text) if self.backend.dump is not None else self._files()

    def _files(self) -> dict[str, Any]:
        return {
            str(file): (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime_ns)
            for file in self.folder.rglob("*")
            if file.is_file()
        }

    def keys(self, count: int) -> list[MemoryKey]:
        """Return names for so many memories, fewer where the place holds only one."""
        only = self.backend.only
        return [only] if only else list(map(self.backend.keys, range(count)))


def new_place(backend: Backend, folder: Path) -> Place:
    """Return a new and empty place of a store, in a folder of its own within ``folder``."""
    own = folder / str(len(os.listdir(folder)))
    own.mkdir()
    return Place(backend, backend.make(own), own)
