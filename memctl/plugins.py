"""Stores and commands of other distributions, found by their entry points.

::

    memctl.stores     NAME = "package.module:SPEC", a ``StoreSpec``: NAME://... or PATH.NAME
    memctl.layouts    NAME = "package.module:LAYOUT", a ``Layout``: ?layout=NAME of SQL databases
    memctl.commands   NAME = "package.module:function", a function for Typer

memctl's own names take precedence.  Plugins are searched for unknown names and for lists only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memctl.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

STORES = "memctl.stores"
LAYOUTS = "memctl.layouts"
COMMANDS = "memctl.commands"


def names(group: str) -> list[str]:
    """Return the names that plugins offer in a group of entry points; load no plugin."""
    return sorted({entry.name for entry in _offered(group)})


def load(group: str, name: str) -> Any:
    """Load the object that a plugin offers under a name in a group of entry points.

    Raises:
        UsageError: not exactly one plugin offers the name, or the plugin cannot be loaded.
    """
    found = {(entry.value, _owner(entry)): entry for entry in _offered(group) if entry.name == name}
    if len(found) != 1:
        owners = " and ".join(sorted({owner for _, owner in found})) or "no distribution"
        raise UsageError(
            f"the plugin {name!r} is offered by {owners}", "one of them is needed: see 'pip list'"
        )
    [entry] = found.values()
    try:
        return entry.load()
    except Exception as error:  # a plugin's module may raise anything
        raise UsageError(
            f"the plugin {name!r} of {_owner(entry)} cannot be loaded: "
            f"{type(error).__name__}: {error}",
            "update or uninstall it; memctl itself does not need it",
        ) from error


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown distribution"


def _offered(group: str) -> list[EntryPoint]:
    if not any(_mention(folder or os.curdir, group) for folder in sys.path):
        return []
    metadata = import_module("importlib.metadata")  # loading takes as long as all of memctl --help
    return list(metadata.entry_points(group=group))


def _mention(folder: str, group: str) -> bool:
    """Return whether a distribution in the folder may have an entry point in the group."""
    section = f"[{group}]".encode()
    return any(section in content for content in _entry_points(folder))


def _entry_points(folder: str) -> Iterator[bytes]:
    # A folder that Python cannot read holds no plugin that Python can load.
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(f"{entry.path}/entry_points.txt", "rb") as file:
                    yield file.read()
