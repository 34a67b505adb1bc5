"""What is kept of a run, so that its store is found again."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from memctl.commands._context import Run as ThisRun
from memctl.journal.runs import Run
from memctl.location import SECRET_QUERY, Location


def record(run: ThisRun, command: str, argument: str, location: Location) -> Run:
    """A run that is about to begin; ``argument`` is how its store was named."""
    address = _address(run, argument, location)
    label = location.label if location.path == Path() else address
    options = {name: location.options[name] for name in _KEPT if name in location.options}
    secret = address != argument and "***" in label
    return Run("", command, label, address, options, secret)


_KEPT = ("path", "user", "session")
"""Options that commands give a location; see ``commands._stores.narrowed``."""


def _address(run: ThisRun, argument: str, location: Location) -> str:
    """How to find the store again, from any folder: without the password, if it has one."""
    if argument in run.configuration().stores:
        return argument
    if location.path != Path():
        path = os.path.abspath(location.path)
        if "://" not in argument:
            return path
        query = urlencode(_absolute(location.options), safe="/:")
        return f"sqlite:///{path}" + (f"?{query}" if query else "")
    parts = urlsplit(argument)
    login, at, host = parts.netloc.rpartition("@")
    query = "&".join(
        pair for pair in parts.query.split("&") if not SECRET_QUERY.search(pair.partition("=")[0])
    )
    netloc = f"{login.partition(':')[0]}{at}{host}"
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def _absolute(options: dict[str, str]) -> dict[str, str]:
    """memctl's own options, a folder of states found from anywhere."""
    state = options.get("state")
    if state is None or "://" in state or state == "redis":
        return options
    return options | {"state": os.path.abspath(state)}
