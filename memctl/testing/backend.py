"""The description of a store for the conformance suite."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from memctl.dialects.registry import DIALECTS
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import Deletion, OpenMode, Store
from memctl.testing import samples
from memctl.testing.samples import Style
from memctl.wrappers.converted import shown_as

LARGE = 1500
"""The usual ``Backend.large``."""


class SharedTable(Struct, frozen=True):
    """The table of a SQL store that has its messages; an application may use the table meanwhile.

    Some tests change its rows with ``execute``, as an application would.
    """

    engine: Literal["postgresql", "mysql", "sqlite"]
    name: str
    """The name, quoted for a statement."""
    key: tuple[str, ...]
    """The names of the columns of the primary key, quoted."""
    execute: Callable[[str, str], Sequence[Any]]
    """Runs a statement in the database of a location, and returns the rows of its result."""
    deletion: Deletion = Deletion.MESSAGES
    """The least that deletes rows of the table: memories if a row holds several messages."""


class Backend(Struct, frozen=True):
    """Describes a store to the conformance suite: how to make one, and what ``features`` omits.

    A store in files needs two fields::

        Backend("notes", lambda folder: f"{folder}/m.notes")

    A store on a server needs more fields, because the suite cannot look at files::

        Backend("kv", new_database, alias=by_socket, dump=all_keys, exists=True)
    """

    name: str
    make: Callable[[Path], str]
    """Makes an empty store for a new folder; returns its location, as for the command line."""
    alias: Callable[[str], str] | None = None
    """Returns a different spelling of a location; the default uses a symbolic link."""
    dump: Callable[[str], Any] | None = None
    """Returns the contents of a location, read without memctl; the default reads all files."""
    refuses: frozenset[str] = frozenset()
    """The names in ``samples.MESSAGES`` of messages that the store refuses."""
    alters: frozenset[str] = frozenset()
    """The names in ``samples.MESSAGES`` of messages with values that the database changes.

    JSONB, for example, turns some floats into integers.
    """
    refuses_names: bool = False
    """True if the store refuses some names of users or sessions."""
    users: bool = True
    """True if memories belong to users."""
    only: MemoryKey | None = None
    """The key of the only memory, if the store holds one memory; None for many memories."""
    keys: Callable[[int], MemoryKey] = samples.key
    """Returns the key of the memory with a number, counted from 0."""
    exists: bool = False
    """True if an empty location already is a store without memories, which needs no creation."""
    many: int = 300
    """The number of memories in the test of many writes; use more if writes share transactions."""
    large: int = LARGE
    """The number of messages in a memory of several pages; all large memories are in proportion.

    Use 300 if each message is a file, or if the store holds one memory in RAM, as ``SimpleStore``.
    """
    style: Style = field(default_factory=Style)
    """The dialect and the possible marks of the messages."""
    largest: int = 0
    """The maximum size of a memory in bytes of messages; 0 without a limit."""
    lease: float = 0.0
    """The seconds until a lock ends if its owner does not renew the lock; 0 if locks do not end."""
    make_searchable: Callable[[str], None] | None = None
    """Prepares written messages for the search service, if the application must do this."""
    shown_as: str = ""
    """The dialect for the tests, if the store derives ids from the texts of messages."""
    shared: SharedTable | None = None
    """The table of the messages, if the store is in a SQL database that an application shares."""
    lock_holder: str = "memctl.testing.lock_holder"
    """The module to run as a second process that holds the lock of the store."""


@dataclass(frozen=True)
class Place:
    """The location of a store, for one test."""

    backend: Backend
    text: str
    """The location, spelled as on the command line."""
    folder: Path
    """A folder that no other location uses."""

    @cached_property
    def location(self) -> Location:
        """The location, parsed from ``text``."""
        return parse(self.text)

    def store(self, *, create: bool = True, change: bool = False) -> Store:
        """Return an unopened store at this location.

        By default, the store is opened to write, and created if missing.  ``change=True`` opens an
        existing store to change it, and ``create=False`` opens a store to read.
        """
        mode = OpenMode.CHANGE if change else OpenMode.CREATE if create else OpenMode.READ
        store = make_store(self.location, mode)
        dialect = self.backend.shown_as
        return shown_as(store, DIALECTS[dialect]) if dialect else store

    def alias(self) -> Location:
        """Return the same location in a different spelling."""
        if self.backend.alias is not None:
            return parse(self.backend.alias(self.text))
        link = self.folder.with_name(f"{self.folder.name}-link")
        link.symlink_to(self.folder, target_is_directory=True)
        return parse(self.text.replace(str(self.folder), str(link), 1))

    def dump(self) -> Any:
        """Return the contents of the store, read without memctl, to compare before and after."""
        return self.backend.dump(self.text) if self.backend.dump is not None else self._files()

    def _files(self) -> dict[str, Any]:
        return {
            str(file): (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime_ns)
            for file in self.folder.rglob("*")
            if file.is_file()
        }

    def size(self, count: int) -> int:
        """Return the number of messages to write where the tests of other stores write ``count``.

        Large memories are in proportion to ``Backend.large``; small memories stay as they are.
        """
        return count if count < 100 else count * self.backend.large // LARGE

    def keys(self, count: int) -> list[MemoryKey]:
        """Return ``count`` different memory keys, or a single key if the store holds one memory."""
        only = self.backend.only
        return [only] if only else list(map(self.backend.keys, range(count)))


def new_place(backend: Backend, folder: Path) -> Place:
    """Return the location of a new, empty store, with a new subfolder of ``folder``."""
    own = folder / str(len(os.listdir(folder)))
    own.mkdir()
    return Place(backend, backend.make(own), own)
