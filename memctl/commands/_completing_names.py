"""What is completed from the configuration, and from the store that is named on the line."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memctl import config as configuration
from memctl.config import Config
from memctl.errors import MemctlError
from memctl.location import Location
from memctl.selection import Selection

if TYPE_CHECKING:
    from memctl.commands._completing import Line
    from memctl.store import Store

PATIENCE = 0.4
"""Seconds that a store may take; what was found by then is what there is."""
GRACE = 0.1
"""Seconds more for it to be closed."""
ENOUGH = 500
"""Names; more, nobody reads."""

_LOCAL = frozenset({"sqlite", "state", "sessions", "archive"})
# What these start may ask somebody for a password.
_MAY_ASK = ("password_command", "password_keyring")


@dataclass(slots=True)
class _Found:
    names: dict[str, None] = field(default_factory=dict)

    def add(self, name: str) -> bool:
        """Adds a name, and tells whether there are enough."""
        self.names[name] = None
        return len(self.names) >= ENOUGH


def aliases(line: Line) -> dict[str, str]:
    """The stores of the configuration, with their URLs redacted."""
    return {name: _redacted(alias.url) for name, alias in _config(line).stores.items()}


def _redacted(url: str) -> str:
    from memctl.config.shown import redacted  # only aliases show a URL

    return redacted(url)


def summarizers(line: Line) -> dict[str, str]:
    """The summarizers of the configuration, and the one that is always there."""
    from memctl.summarizers.make import EXTRACTIVE  # only compress and context take them

    return dict.fromkeys([*_config(line).summarizers, EXTRACTIVE.name], "")


def in_store(line: Line, what: str) -> list[str]:
    """The users, sessions or marks (``what``, in the singular) of the store that is named.

    Of a store of the configuration or a local file, within half a second; of the users and
    sessions that are named, if any.
    """
    location = _location(line)
    if location is None:
        return []
    where = Selection() if what == "user" else _selection(line)
    try:
        from memctl.commands._stores import narrowed
        from memctl.registry import make_store  # loads drivers

        store = make_store(narrowed(location, where, line.given.get("--path", [None])[-1]))
    except MemctlError:
        return []  # the command itself tells why
    found = _Found()
    looking = threading.Thread(target=_look, args=(store, where, what, found), daemon=True)
    looking.start()
    # A driver, or a file system, may not let itself be interrupted.
    looking.join(PATIENCE + GRACE)
    return sorted(found.names.copy())  # it may still grow


def _selection(line: Line) -> Selection:
    users, sessions = (line.given.get(name, ()) for name in ("--user", "--session"))
    return Selection(users=frozenset(users), sessions=frozenset(sessions))


def _look(store: Store, where: Selection, what: str, found: _Found) -> None:
    with suppress(MemctlError, TimeoutError):  # the command itself tells what is wrong
        asyncio.run(_collect(store, where, what, found))


async def _collect(store: Store, where: Selection, what: str, found: _Found) -> None:
    async with asyncio.timeout(PATIENCE), store:
        if what == "mark":
            async with aclosing(store.list_memories(where)) as infos:
                async for info in infos:
                    for mark in info.marks:
                        if found.add(mark):
                            return
            return
        async with aclosing(store.headers(where)) as memories:
            async for memory in memories:
                key = memory.key
                if found.add(key.user if what == "user" else key.session):
                    return


def _config(line: Line) -> Config:
    named = line.given.get("--config", [""])[-1]
    try:
        path = Path(named).expanduser() if named else None
        return configuration.load(path, configuration.environment())
    except MemctlError:
        return Config()  # the command itself tells what is wrong with it


def _location(line: Line) -> Location | None:
    """The store, where looking into it asks nobody and was meant by whoever named it."""
    if line.store is None:
        return None
    config = _config(line)
    alias = config.stores.get(line.store)
    if alias is not None and alias.password is not None and alias.password.key in _MAY_ASK:
        return None
    try:
        location = config.locate(line.store, configuration.environment())
    except MemctlError:
        return None
    if location.kind in _LOCAL:
        return location if _is_there(location.path) else None
    return location if alias is not None else None


def _is_there(path: Path) -> bool:
    """Whether it is a file or a folder: reading a pipe would take from who waits for it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
