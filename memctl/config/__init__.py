"""The configuration file: named stores and summarizers, defaults, and what is kept for undo."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memctl import plugins
from memctl.config.keys import refuse_unknown
from memctl.config.stores import Alias, read_alias
from memctl.errors import NotFound, UsageError
from memctl.journal.runs import Retention
from memctl.location import Location
from memctl.registry import SUFFIXES, parse

if TYPE_CHECKING:
    from memctl.config.summarizers import Configured

_TABLES = {
    "stores": "[stores.NAME]",
    "summarizers": "[summarizers.NAME]",
    "defaults": "[defaults.COMMAND]",
}
_BARE_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Config:
    """What the configuration file says; empty where there is none."""

    path: Path = Path()
    stores: dict[str, Alias] = field(default_factory=dict)
    undo: Retention = field(default_factory=Retention)
    """How long what runs have changed is kept."""
    undo_keys: frozenset[str] = frozenset()
    """What of it the file says."""
    summarizers: dict[str, Any] = field(default_factory=dict)
    """The tables of ``[summarizers]``: looked into when one is asked for."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """``[defaults]``: what its keys mean, the command line knows."""
    found: bool = False
    """Whether there is a file."""

    def locate(self, text: str, environment: Mapping[str, str]) -> Location:
        """What a STORE argument names: an alias if there is one of that name, else a URL or path.

        Raises:
            UsageError: neither; or the password of the alias cannot be had.
        """
        alias = self.stores.get(text)
        if alias is not None:
            return alias.locate(environment)
        if _BARE_NAME.fullmatch(text) and text != "-" and not _is_file_name(text):
            near = difflib.get_close_matches(text, self.stores, n=1)
            known = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"there is no store named {text!r} in the configuration",
                f"{known}a folder or file is written ./{text}",
            )
        return parse(text)

    def summarizer(self, name: str) -> Configured:
        """A summarizer by its name; ``extractive`` is there without being configured.

        Raises:
            UsageError: there is none of that name, or what is said of it is wrong.
        """
        from memctl.config import summarizers  # only compress needs them
        from memctl.summarizers.make import EXTRACTIVE

        if name in self.summarizers:
            return summarizers.read_summarizer(self.path, name, self.summarizers[name])
        if name == EXTRACTIVE.name:
            return summarizers.Configured(EXTRACTIVE)
        near = difflib.get_close_matches(name, [*self.summarizers, EXTRACTIVE.name], n=1)
        raise UsageError(
            f"there is no summarizer named {name!r} in the configuration",
            f"did you mean {near[0]!r}?" if near else "[summarizers.NAME] configures one",
        )


def _is_file_name(text: str) -> bool:
    if text.lower().endswith(SUFFIXES) or Path(text).exists():
        return True
    return Path(text).suffix[1:].lower() in plugins.names(plugins.STORES)


def load(explicit: Path | None, environment: Mapping[str, str]) -> Config:
    """The configuration: ``--config``, else ``MEMCTL_CONFIG``, else the platform's place.

    Raises:
        NotFound: a file that was named does not exist.
        UsageError: the file is not TOML, or says something that memctl does not know.
    """
    path = place(explicit, environment)
    named = explicit is not None or bool(environment.get("MEMCTL_CONFIG"))
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        if not named:
            return Config(path)
        raise NotFound(
            f"the configuration {path} does not exist",
            "check --config and MEMCTL_CONFIG; 'memctl config init' writes one",
        ) from None
    except OSError as error:
        raise UsageError(f"the configuration {path} cannot be read: {error.strerror}") from error
    try:
        content = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", 'texts are written "..."') from error
    return _read(path, content)


def place(explicit: Path | None, environment: Mapping[str, str]) -> Path:
    """Where the configuration is looked for, and ``config init`` writes it."""
    if explicit is not None:
        return explicit
    named = environment.get("MEMCTL_CONFIG")
    return Path(named) if named else default_path()


def default_path() -> Path:
    """Where the configuration lives on this platform."""
    from platformdirs import user_config_path  # not needed when a file is named

    return user_config_path("memctl") / "config.toml"


def environment() -> Mapping[str, str]:
    """The environment of the process: asked for once, by the command line."""
    return os.environ


def _read(path: Path, content: dict[str, Any]) -> Config:
    refuse_unknown(path, "", content, ("stores", "summarizers", "defaults", "undo"))
    for name, heading in _TABLES.items():
        if not isinstance(content.get(name, {}), dict):
            raise UsageError(f"{path}: {name} is not a table", f"write {heading}")
    stores = content.get("stores", {})
    aliases = {name: read_alias(path, name, entry) for name, entry in stores.items()}
    undo = _keep(path, content.get("undo", {}))
    return Config(
        path,
        aliases,
        undo,
        frozenset(content.get("undo", {})),
        content.get("summarizers", {}),
        content.get("defaults", {}),
        found=True,
    )


def _keep(path: Path, entry: Any) -> Retention:
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: undo is not a table", "write [undo] with days = 30")
    refuse_unknown(path, "undo.", entry, ("days", "bytes"))
    for key, value in entry.items():
        if type(value) is not int or value < 0:
            raise UsageError(f"{path}: undo.{key} is no whole number", f"write {key} = 30")
    return Retention(**entry)
