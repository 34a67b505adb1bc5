"""The identity of stores: two locations may be one store, written in different ways.

A store on a server is known by its engine, its server and its database.  The login, the driver and
options such as ``?sslmode=``, ``?ttl=`` and ``?state=`` do not count.  An object is known by its
server, its bucket and its key.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from memctl.errors import MemctlError
from memctl.journal.runs import Run, Runs
from memctl.location import Location, is_one_file
from memctl.registry import as_recorded, file_of, parse, spec_of, state_of

Locate = Callable[[str], Location]
"""A function that returns the location of a store from its name, URL or path."""

_PORTS = {"postgresql": "5432", "mysql": "3306", "redis": "6379", "tablestore": "443"}
"""The default ports of the servers."""
_SOCKETS = ("/run/postgresql", "/var/run/postgresql", "/var/pgsql_socket", "/tmp")
"""The folders of sockets in which PostgreSQL is looked for if the URL names no host."""


def is_on(kept: Run, location: Location, locate: Locate = parse) -> bool:
    """Return whether the recorded run ``kept`` changed the store at ``location``.

    A run on the session states that ``?state=`` adds to the store counts, too.  The result is False
    if the run named the store by an alias of a file that no longer exists.
    """
    try:
        own = as_recorded(recorded_location(kept, locate), kept.options)
        return is_at(own, location)
    except MemctlError:  # the alias no longer exists, or its plugin
        return False


def runs_at(location: Location, locate: Locate = parse) -> list[Run]:
    """Return the kept runs that changed the store at ``location``, newest first."""
    return [kept for kept in Runs().all() if is_on(kept, location, locate)]


def is_at(own: Location, location: Location) -> bool:
    """Return whether ``own`` is the store at ``location``, or the states that ``?state=`` adds.

    Raises:
        UsageError: the option ``?state=`` of ``location`` does not fit the store.
    """
    places = [location, *filter(None, [state_of(location)])]
    return any(_is_one_place(own, place) for place in places)


def recorded_location(kept: Run, locate: Locate = parse) -> Location:
    """Return the location of the store of a run, without a password and what the run detected.

    Raises:
        MemctlError: as ``locate``.
    """
    if "/" not in kept.argument and "://" in kept.store:  # an alias, which may mean another by now
        return parse(kept.store)
    return locate(kept.argument)


def _is_one_place(one: Location, other: Location) -> bool:
    if one.path.name and other.path.name:
        return is_one_file(one.path, other.path)
    if one.kind == other.kind == "archive":
        return file_of(one).identity == file_of(other).identity
    servers = _server(one), _server(other)
    if None in servers or one.path.name or other.path.name:
        return one.label == other.label
    first, second = servers
    assert first is not None
    assert second is not None
    if first.engine != second.engine or first.database != second.database:
        return False
    return bool(first.hosts & second.hosts) and not _differ(one, other)


def _differ(one: Location, other: Location) -> bool:
    """Return whether two locations in a database are different stores for sure."""
    if one.options.get("prefix", "") != other.options.get("prefix", ""):
        return True
    both = one.options.keys() & other.options.keys()
    if "layout" in both and one.kind != other.kind:
        return True
    return "table" in both and one.options["table"] != other.options["table"]


class _Server(NamedTuple):
    """A database on a server, which may have several hosts."""

    engine: str
    hosts: frozenset[str]
    """``HOST:PORT``; the host may be the path of a Unix socket."""
    database: str


def _server(location: Location) -> _Server | None:
    """Return the database on a server that a location names; None for other locations."""
    engine = spec_of(location.kind).engine
    if engine not in _PORTS or not location.url:
        return None
    parts = urlsplit(location.url)
    login, _, address = parts.netloc.rpartition("@")
    query = dict(parse_qsl(parts.query))
    path = unquote(parts.path).strip("/")
    named = [*address.split(","), *query.get("host", "").split(","), query.get("unix_socket", "")]
    ports = query.get("port", "").split(",")
    match engine:
        case "postgresql":
            user = unquote(login.partition(":")[0]) or query.get("user") or _setting("PGUSER")
            database = path or query.get("database") or query.get("dbname")
            database = database or _setting("PGDATABASE") or user or getpass.getuser()
            ports = list(filter(None, ports)) or _setting("PGPORT").split(",")
            if not any(named):
                named = _setting("PGHOST").split(",")
            if not any(named):
                named = ["localhost", *_SOCKETS]
        case "mysql":
            database = query.get("dbname") or path
        case "redis" if "unix" in parts.scheme.lower():
            named, database = [parts.path], query.get("db", "")
        case "redis":
            database = query.get("db") or path
        case _:
            database = location.options.get("instance", "")
    if engine == "redis":
        database = database.lstrip("0") or "0"
    hosts = list(filter(None, named)) or ["localhost"]
    ports = list(filter(None, ports)) or [_PORTS[engine]]
    return _Server(engine, frozenset(_host(one, port) for one in hosts for port in ports), database)


def _host(text: str, port: str) -> str:
    """Return ``HOST:PORT`` in one form; ``port`` is for a host that names none."""
    text = unquote(text)
    if text.startswith("/"):
        return f"{os.path.realpath(text)}:{port}"
    host, colon, own = text.rpartition(":")
    if not colon or text.endswith("]"):  # an address of IPv6 has colons
        host, own = text, ""
    host = host.strip("[]").lower()
    if host in ("localhost", "127.0.0.1", "::1"):
        host = "localhost"
    return f"{host}:{own or port}"


def _setting(name: str) -> str:
    return os.environ.get(name, "")
