"""What is kept of a run, so that its store is found again."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

from memctl.journal.runs import Run
from memctl.location import SECRET_QUERY, Location


def record(command: str, argument: str, location: Location, aliases: Container[str] = ()) -> Run:
    """A run that is about to begin; ``argument`` is how its store was named."""
    address = argument if argument in aliases else _address(argument, location)
    label = location.label if location.path == Path() else address
    options = {name: location.options[name] for name in _KEPT if name in location.options}
    secret = address != argument and "***" in label
    return Run("", command, label, address, options, secret)


_KEPT = ("path", "user", "session")
"""Options that commands give a location; see ``commands._stores.narrowed``."""


def _address(argument: str, location: Location) -> str:
    """How to find the store again, from any folder: without the password, if it has one."""
    if location.path != Path():
        path = os.path.abspath(location.path)
        if "://" not in argument:
            return path
        query = urlencode(_absolute(location.options), safe="/:")
        return f"sqlite:///{path}" + (f"?{query}" if query else "")
    parts = urlsplit(argument)
    login, at, host = parts.netloc.rpartition("@")
    query = "&".join(
        _kept(pair)
        for pair in parts.query.split("&")
        if not SECRET_QUERY.search(pair.partition("=")[0])
    )
    netloc = f"{login.partition(':')[0]}{at}{host}"
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def _kept(pair: str) -> str:
    """An option of a URL as it is kept: of a folder, the whole path."""
    name, _, value = pair.partition("=")
    if name != "state":
        return pair
    [state] = _absolute({"state": unquote_plus(value)}).values()
    return urlencode({"state": state}, safe="/:", quote_via=quote)


def _absolute(options: dict[str, str]) -> dict[str, str]:
    """memctl's own options, a folder of states found from anywhere."""
    state = options.get("state")
    if state is None or state == "redis":
        return options
    if "://" in state:
        return options | {"state": _without_password(state)}
    return options | {"state": os.path.abspath(os.path.expanduser(state))}


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login.partition(':')[0]}{at}{host}").geturl()
