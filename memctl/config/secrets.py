"""Where passwords and keys come from: the environment, a file, or a command.  Never the file."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memctl.errors import UsageError

COMMAND_TIMEOUT = 30
"""Seconds that a command may take."""


class Source(NamedTuple):
    """Where a secret is: ``key`` is that of the configuration, such as ``password_command``."""

    key: str
    where: str


def keys(name: str) -> tuple[str, ...]:
    """The keys that say where a secret comes from, such as ``password_env``."""
    return tuple(f"{name}_{how}" for how in ("env", "file", "command"))


def source(path: Path, place: str, entry: Mapping[str, Any], name: str) -> Source | None:
    """Where the secret of a table comes from; None where nothing is said.

    Raises:
        UsageError: several places are named.
    """
    found = [key for key in keys(name) if key in entry]
    if len(found) > 1:
        raise UsageError(f"{path}: {place} has several of {', '.join(found)}", "keep one of them")
    return Source(found[0], entry[found[0]]) if found else None


def fetch(what: str, source: Source, environment: Mapping[str, str]) -> str:
    """The secret; ``what`` is how errors call it, such as ``the password of 'prod'``.

    Raises:
        UsageError: it cannot be had.
    """
    match source.key.rpartition("_")[2]:
        case "env":
            if source.where not in environment:
                raise UsageError(
                    f"{what}: the variable {source.where} is not set", f"export {source.where}"
                )
            return environment[source.where]
        case "file":
            try:
                return Path(source.where).expanduser().read_text("utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"{what} cannot be read from {source.where}", str(error)
                ) from error
        case _:
            return _run(f"{what}: its {source.key}", source.where)


def _run(what: str, command: str) -> str:
    try:
        done = subprocess.run(
            command,
            shell=True,
            check=True,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except (subprocess.SubprocessError, UnicodeDecodeError) as error:
        status = getattr(error, "returncode", None)
        why = "it took too long" if status is None else f"it ended with exit code {status}"
        raise UsageError(f"{what} failed", why) from error
    return done.stdout.rstrip("\r\n")
