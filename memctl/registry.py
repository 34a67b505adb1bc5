"""From a location to its store: the only place that knows which class serves which kind.

A store's module is imported when a store of its kind is opened, so that no driver is loaded for
another kind, nor for ``--help``.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from memctl import location as locations
from memctl import plugins
from memctl.errors import UsageError
from memctl.location import Location
from memctl.store import OpenMode, Store
from memctl.wrappers.summaries import SummaryOverlay

KINDS: dict[str, tuple[str, str]] = {
    "sqlite": ("memctl.stores.sql.sqlite", "SqliteStore"),
    "postgresql": ("memctl.stores.sql.postgresql", "PostgresqlStore"),
    "mysql": ("memctl.stores.sql.mysql", "MysqlStore"),
    "redis": ("memctl.stores.redis.memory", "RedisMemoryStore"),
    "redis-session": ("memctl.stores.state.redis", "RedisSessionStore"),
    "state": ("memctl.stores.state.file", "StateFileStore"),
    "sessions": ("memctl.stores.state.folder", "SessionFolderStore"),
    "archive": ("memctl.stores.archive.store", "ArchiveStore"),
}

_EXTRAS = {"mysql": "mysql"}


def store_class(kind: str) -> type[Store]:
    """The class that serves a kind.

    Raises:
        UsageError: its driver is an extra that is not installed, or it is a plugin's and cannot be
            loaded.
    """
    if kind not in KINDS:
        return _plugin(kind)
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


def _plugin(kind: str) -> type[Store]:
    found = plugins.load(plugins.STORES, kind)
    if not (isinstance(found, type) and issubclass(found, Store)):
        raise UsageError(f"the plugin {kind!r} is no store", "its class derives from memctl.Store")
    return found


def make_store(location: Location, mode: OpenMode = OpenMode.READ) -> Store:
    """Return a store for the location, not yet opened; with ``?state=`` its summaries come along.

    Raises:
        UsageError: see ``store_class``; or ``?state=`` does not fit the store.
    """
    store = store_class(location.kind)(location, mode)
    state = location.options.get("state")
    if state is None:
        return store
    place = _state(location, state)
    states = store_class(place.kind)(place, mode)
    return SummaryOverlay(store, states)


def _state(location: Location, state: str) -> Location:
    """Where the summaries live: the ``:state`` keys beside a Redis memory, or a folder."""
    path = location.options.get("state_path")
    options = {"path": path} if path else {}
    if state == "redis":
        if location.kind != "redis":
            raise UsageError(
                f"?state=redis needs a Redis store, and {location.label} is none",
                "name the folder that holds the session states: ?state=FOLDER",
            )
        kept = {
            name: location.options[name] for name in ("prefix", "ttl") if name in location.options
        }
        return replace(location, kind="redis-session", options=kept | options)
    if location.kind not in ("redis", "sqlite", "postgresql", "mysql"):
        raise UsageError(f"?state= means nothing for {location.label}", "it is for SQL and Redis")
    found = locations.parse(state)
    if found.kind not in ("sessions", "redis-session"):
        raise UsageError(f"?state={state} is no session folder", "name a folder, or 'redis'")
    return replace(found, options=found.options | options)
