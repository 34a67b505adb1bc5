"""From a location to its store: the only place that knows which class serves which kind.

A store's module is imported when a store of its kind is opened, so that no driver is loaded for
another kind, nor for ``--help``.
"""

from __future__ import annotations

from importlib import import_module

from memctl.errors import UsageError
from memctl.location import Location
from memctl.store import Store

KINDS: dict[str, tuple[str, str]] = {
    "sqlite": ("memctl.stores.sqlite", "SqliteStore"),
    "postgresql": ("memctl.stores.postgresql", "PostgresqlStore"),
    "mysql": ("memctl.stores.mysql", "MysqlStore"),
    "redis": ("memctl.stores.redis_memory", "RedisMemoryStore"),
    "redis-session": ("memctl.stores.redis_session", "RedisSessionStore"),
    "state": ("memctl.stores.state_file", "StateFileStore"),
    "sessions": ("memctl.stores.session_folder", "SessionFolderStore"),
    "archive": ("memctl.stores.archive", "ArchiveStore"),
}

_EXTRAS = {"mysql": "mysql"}


def store_class(kind: str) -> type[Store]:
    """The class that serves a kind.

    Raises:
        UsageError: its driver is an extra that is not installed.
    """
    module, name = KINDS[kind]
    try:
        found: type[Store] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(kind)
        if extra is None or (error.name or "").startswith("memctl"):
            raise
        raise UsageError(
            f"{kind} needs the driver {error.name!r}, which is not installed",
            f"pip install 'agentscope-memctl[{extra}]'",
        ) from error
    return found


def make_store(location: Location, *, create: bool = False) -> Store:
    """A store for the location, not yet opened.

    Raises:
        UsageError: see ``store_class``.
    """
    return store_class(location.kind)(location, create=create)
