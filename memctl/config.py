"""The configuration file: named stores, and where their passwords come from."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from memctl import location as locations
from memctl.errors import NotFound, UsageError
from memctl.journal.runs import Keep
from memctl.location import Location

_BARE_NAME = re.compile(r"[\w.-]+")
_PASSWORD_KEYS = ("password_env", "password_file", "password_command")
_STORE_KEYS = ("url", *_PASSWORD_KEYS)
COMMAND_TIMEOUT = 30
"""Seconds that a password_command may take."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A ``[stores.NAME]`` of the configuration."""

    name: str
    url: str
    password_from: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """What the configuration file says; empty where there is none."""

    path: Path | None = None
    stores: dict[str, Alias] = field(default_factory=dict)
    undo: Keep = field(default_factory=Keep)
    """How long what runs have changed is kept."""

    def locate(self, text: str, environment: Mapping[str, str]) -> Location:
        """What a STORE argument names: an alias if there is one of that name, else a URL or path.

        Raises:
            UsageError: neither; or the password of the alias cannot be had.
        """
        alias = self.stores.get(text)
        if alias is not None:
            return _with_password(locations.parse(alias.url), alias, environment)
        if _BARE_NAME.fullmatch(text) and text != "-" and not _is_file_name(text):
            near = difflib.get_close_matches(text, self.stores, n=1)
            known = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"there is no store named {text!r} in the configuration",
                f"{known}a folder or file is written ./{text}",
            )
        return locations.parse(text)


def _is_file_name(text: str) -> bool:
    endings = (*locations.ARCHIVE_SUFFIXES, *locations.SQLITE_SUFFIXES, ".json")
    return text.lower().endswith(endings) or Path(text).exists()


def load(explicit: Path | None, environment: Mapping[str, str]) -> Config:
    """The configuration: ``--config``, else ``MEMCTL_CONFIG``, else the platform's place.

    Raises:
        NotFound: a file that was named does not exist.
        UsageError: the file is not TOML, or says something that memctl does not know.
    """
    named = explicit or (
        Path(environment["MEMCTL_CONFIG"]) if environment.get("MEMCTL_CONFIG") else None
    )
    path = named or default_path()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        if named is None:
            return Config()
        raise NotFound(f"the configuration {path} does not exist", "check --config") from None
    except OSError as error:
        raise UsageError(f"the configuration {path} cannot be read: {error.strerror}") from error
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "see 'memctl stores --help'") from error
    return _read(path, content)


def default_path() -> Path:
    """Where the configuration lives on this platform."""
    from platformdirs import user_config_path  # not needed when a file is named

    return user_config_path("memctl") / "config.toml"


def _read(path: Path, content: dict[str, Any]) -> Config:
    _known(path, "", content, ("stores", "undo"))
    stores = content.get("stores", {})
    if not isinstance(stores, dict):
        raise UsageError(f"{path}: stores is not a table", "write [stores.NAME]")
    aliases = {name: _alias(path, name, entry) for name, entry in stores.items()}
    return Config(path, aliases, _keep(path, content.get("undo", {})))


def _keep(path: Path, entry: Any) -> Keep:
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: undo is not a table", "write [undo] with days = 30")
    _known(path, "undo.", entry, ("days", "bytes"))
    for key, value in entry.items():
        if type(value) is not int or value < 0:
            raise UsageError(f"{path}: undo.{key} is no whole number", f"write {key} = 30")
    return Keep(**entry)


def _alias(path: Path, name: str, entry: Any) -> Alias:
    place = f"stores.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {place} is not a table", "write [stores.NAME] with url = ...")
    _known(path, place + ".", entry, _STORE_KEYS)
    if any(not isinstance(value, str) for value in entry.values()) or "url" not in entry:
        raise UsageError(f'{path}: {place} needs url = "..."; every value is a text')
    sources = [(key, entry[key]) for key in _PASSWORD_KEYS if key in entry]
    if len(sources) > 1:
        raise UsageError(f"{path}: {place} has several passwords", "keep one of the password_ keys")
    return Alias(name, entry["url"], sources[0] if sources else None)


def _known(path: Path, place: str, entry: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in entry:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(keys)}"
            raise UsageError(f"{path}: unknown key {place}{key}", hint)


def _with_password(location: Location, alias: Alias, environment: Mapping[str, str]) -> Location:
    if alias.password_from is None:
        return location
    password = _password(alias, *alias.password_from, environment)
    parts = urlsplit(location.url)
    login, _, host = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    netloc = f"{user}:{quote(password, safe='')}@{host}"
    return replace(location, url=parts._replace(netloc=netloc).geturl())


def _password(alias: Alias, source: str, value: str, environment: Mapping[str, str]) -> str:
    place = f"the password of {alias.name!r}"
    match source:
        case "password_env":
            if value not in environment:
                raise UsageError(f"{place}: the variable {value} is not set", f"export {value}")
            return environment[value]
        case "password_file":
            try:
                return Path(value).expanduser().read_text("utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{place} cannot be read from {value}", str(error)) from error
        case _:
            return _run(place, value)


def _run(place: str, command: str) -> str:
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
        raise UsageError(f"{place}: its password_command failed", why) from error
    return done.stdout.rstrip("\r\n")


def environment() -> Mapping[str, str]:
    """The environment of the process: asked for once, by the command line."""
    return os.environ
