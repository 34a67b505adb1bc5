"""The configuration for display: the sources of secrets, never the secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from memctl import location
from memctl.config import Config, secrets
from memctl.config.encryption import identity_source
from memctl.config.holds import read_holds
from memctl.config.retention import read_policies
from memctl.encryption import is_secret
from memctl.errors import NotFound, UsageError
from memctl.location import redact
from memctl.machine import system

HIDDEN = "***"


class Shown(NamedTuple):
    """A setting with its key and value; ``written`` is False if the value is a default."""

    key: str
    value: Any
    written: bool = True


def shown(config: Config) -> Iterator[Shown]:
    """Yield every setting for display, without secrets and without ``[defaults]``.

    Raises:
        UsageError: a value is not valid; the tables of models are checked, too.
    """
    for name, alias in config.stores.items():
        place = f"stores.{name}"
        try:
            label = alias.location().label
        except NotFound:  # NAME@latest, before the first file
            label = redacted(alias.url)
        except UsageError as error:
            raise UsageError(f"{config.path}: {place}.url: {error.message}", error.hint) from error
        if alias.factory is None:
            yield Shown(f"{place}.url", label)
        else:
            yield Shown(f"{place}.factory", alias.factory)
        if alias.password is not None:
            yield Shown(f"{place}.{alias.password.key}", _source(alias.password))
    for name, fleet in config.fleets.items():
        yield Shown(f"fleets.{name}.stores", [*fleet.stores])
    for name, table in config.summarizers.items():
        config.summarizer(name)
        for key, value in table.items():
            yield Shown(f"summarizers.{name}.{key}", _of_model(key, value))
    for name, table in config.embedders.items():
        config.embedder(name)
        for key, value in table.items():
            yield Shown(f"embedders.{name}.{key}", _of_model(key, value))
    for number, (hold, table) in enumerate(zip(read_holds(config), config.holds, strict=True), 1):
        about = table if hold.until is None else {**table, "until": str(hold.until)}
        for key, value in about.items():
            yield Shown(f"hold {number}.{key}", redacted(value))
    for policy, table in zip(read_policies(config), config.retention, strict=True):
        for key, value in table.items():
            if key != "name":
                yield Shown(f"retention {policy.name}.{key}", _redacted(key, value))
    if config.encryption:
        config.keys({})  # raises if the table is not valid
        for key, value in config.encryption.items():
            yield Shown(f"encryption.{key}", _of_keys(config, key, value))
    for key, value in asdict(config.undo).items():
        yield Shown(f"undo.{key}", value, key in config.undo_keys)


def _source(source: secrets.Source) -> str:
    return HIDDEN if source.key.endswith("_command") else source.where


def _of_keys(config: Config, key: str, value: Any) -> Any:
    if key == "recipients":
        return [HIDDEN if is_secret(one) else one for one in value]
    source = identity_source(config.path, config.encryption)
    return value if source is None else _source(source)


def _of_model(key: str, value: Any) -> Any:
    if key == "command" or key.endswith("_command"):
        return HIDDEN  # an argument may be a key
    return _redacted(key, value)


def _redacted(key: str, value: Any) -> Any:
    """Return a setting with ``***`` for each text that looks like a secret, and times as texts."""
    if isinstance(value, date):  # a datetime is a date, too
        return value.isoformat()
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if isinstance(one, str) and location.SECRET_QUERY.search(name)
            else _redacted(name, one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_redacted(key, one) for one in value]
    return redacted(value) if isinstance(value, str) else value


def redacted(text: str) -> str:
    """Return a text; if it is a URL with a password, the password is hidden."""
    if "://" not in text and not text.startswith("unix:"):
        return text
    return location.redact_value(text)


def exposed(config: Config) -> list[Path]:
    """Return the files with secrets that other users of the machine can read.

    These are the files with the identity and with passwords, and the configuration file if a URL
    has a password.
    """
    identity = identity_source(config.path, config.encryption)
    sources = [identity, *(alias.password for alias in config.stores.values())]
    files = [Path(one.where).expanduser() for one in sources if one and one.key.endswith("_file")]
    if any("***" in redact(alias.url) for alias in config.stores.values()):
        files.append(config.path)
    return [file for file in files if system.readable_by_others(file)]
