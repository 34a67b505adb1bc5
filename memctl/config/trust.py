"""The refusal of a configuration file that starts programs and that other users can change."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memctl.errors import UsageError

_STARTING = ("password_command", "api_key_command", "identity_command", "command", "factory")
"""The keys whose values memctl runs as programs, or loads as Python code."""


def refuse_changeable(path: Path, content: dict[str, Any]) -> None:
    """Refuse a configuration file that starts programs if another user could change it.

    ``content`` are the tables of the file.  Root is trusted.  A user could change
    the file as its owner, by its mode, or by the mode of its folder.

    Raises:
        UsageError: another user could change the file; the error names a key that starts a program.
    """
    starting = (
        f"{place}.{key}" for place, table in tables_of(content) for key in _STARTING if key in table
    )
    key = next(starting, None)
    if key is None:
        return
    files = dict.fromkeys((path.absolute(), Path(os.path.realpath(path))))
    target = [*files][-1]
    for place in dict.fromkeys((target, *(file.parent for file in files))):
        status = place.stat()
        is_folder = place != target
        if is_folder and status.st_mode & stat.S_ISVTX:
            continue  # only the owner of a file may replace it
        if not is_folder and not _is_trusted(status.st_uid):
            why, hint = f"belongs to {_name(status.st_uid)}", "chown it, or copy the file"
        elif status.st_mode & stat.S_IWOTH:
            why, hint = "may be changed by every user", f"chmod go-w {shlex.quote(str(place))}"
        elif status.st_mode & stat.S_IWGRP and _has_others(status.st_gid):
            why, hint = "may be changed by its group", f"chmod g-w {shlex.quote(str(place))}"
        else:
            continue
        what = f"its folder {place}" if is_folder else "it"
        raise UsageError(f"{path} starts programs ({key}), and {what} {why}", hint)


def tables_of(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables that may name secrets and programs, each after its name.

    ``content`` are the tables of the file.
    """
    yield "encryption", content.get("encryption", {})
    for family in ("stores", "summarizers", "embedders"):
        for name, table in content.get(family, {}).items():
            if isinstance(table, dict):
                yield f"{family}.{name}", table


def _is_trusted(owner: int) -> bool:
    """Return whether a user id is root, this user, or none of this system.

    In a container, the files of the host may have an owner whom the container does not know.
    """
    return owner in (0, os.geteuid()) or _name(owner) == str(owner)


def _has_others(group: int) -> bool:
    """Return whether a group has a known member other than root and this user.

    Many systems give each user a group of his own, which may write his files.
    """
    import grp
    import pwd

    own = {"root", _name(os.geteuid())}
    try:
        members = {*grp.getgrgid(group).gr_mem}
    except KeyError:
        members = set()
    members |= {user.pw_name for user in pwd.getpwall() if user.pw_gid == group}
    return bool(members - own)


def _name(user: int) -> str:
    """Return the name of a user, or the id if the system knows no name."""
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
