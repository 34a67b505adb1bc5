"""Opening stores, locking them, and naming them so that they are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode
from weakref import WeakSet

from memctl.errors import UsageError
from memctl.location import Location
from memctl.registry import URL_OPTIONS, make_store, parse
from memctl.store import OpenMode, Store
from memctl.stores.locks import lock_owner

_OF_URLS = URL_OPTIONS - {"path"}

_locked: WeakSet[Store] = WeakSet()
"""Stores whose lock is held: it is taken once, and ends when they are closed."""


def open_store(
    where: str | Location,
    *,
    create: bool = False,
    change: bool = False,
    user: str | None = None,
    session: str | None = None,
    path: str | None = None,
) -> Store:
    """The store that a URL or a path names, to be entered by ``async with``, once.

    It is read, unless ``create`` makes what is missing (the target of a copy), or ``change`` lets
    what exists be changed.  ``user`` and ``session`` say whose memory a state_dict is, ``path``
    which memory of a session state is meant.  Aliases are the configuration's, which programs do
    not read.

    Raises:
        UsageError: memctl knows no store that is written so, or its driver is not installed.
    """
    location = parse(where) if isinstance(where, str) else where
    if location.kind == "stdio":
        raise UsageError("- is for the command line", "name a file or a URL")
    given = {"user": user, "session": session, "path": path}
    options = {name: value for name, value in given.items() if value is not None}
    located = replace(location, options=location.options | options)
    mode = OpenMode.CREATE if create else OpenMode.CHANGE if change else OpenMode.READ
    return make_store(located, mode)


async def lock(store: Store) -> None:
    """Keeps other runs from writing to the store until it is closed.

    Raises:
        Busy: another run holds it.
        Unavailable: the place does not let it be locked.
    """
    if store not in _locked:
        await store.lock(lock_owner())
        _locked.add(store)


def written(store: Store) -> str:
    """How the store is written, for ``undo`` to find it again."""
    location = store.location
    options = {name: text for name, text in location.options.items() if name in _OF_URLS}
    if location.path != Path():
        return f"sqlite:///{location.path}" if options else str(location.path)
    mark = "&" if "?" in location.url else "?"
    return location.url + (mark + urlencode(options) if options else "")
