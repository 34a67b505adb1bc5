"""The configuration for display: the sources of secrets, never the secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict

from memctl import location
from memctl.config import Config
from memctl.config.encryption import read_encryption
from memctl.config.holds import read_holds
from memctl.config.offload import read_offload
from memctl.config.retention import read_policies
from memctl.encryption import is_secret
from memctl.errors import NotFound
from memctl.location import redact
from memctl.machine import system
from memctl.text.words import errors_at

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
        with errors_at(f"{config.path}: {place}.url"):
            try:
                label = alias.location().label
            except NotFound:  # NAME@latest, without a file
                label = redacted(alias.url)
        if alias.factory is None:
            yield Shown(f"{place}.url", label)
        else:
            yield Shown(f"{place}.factory", alias.factory)
        if alias.password is not None:
            yield from _shown(place, {alias.password.key: alias.password.where})
    for name, fleet in config.fleets.items():
        yield Shown(f"fleets.{name}.stores", [*fleet.stores])
    models = {"summarizers": config.summarizer, "embedders": config.embedder}
    for family, check in models.items():
        for name, table in getattr(config, family).items():
            check(name)
            yield from _shown(f"{family}.{name}", table)
    read_holds(config)
    for number, table in enumerate(config.holds, 1):
        yield from _shown(f"hold {number}", table)
    for policy, table in zip(read_policies(config), config.retention, strict=True):
        about = {key: value for key, value in table.items() if key != "name"}
        yield from _shown(f"retention {policy.name}", about)
    if config.encryption:
        read_encryption(config, {})  # raises if the table is not valid
        yield from _shown("encryption", config.encryption)
    read_offload(config)
    yield from _shown("offload", config.offload)
    for key, value in asdict(config.undo).items():
        yield Shown(f"undo.{key}", value, key in config.undo_keys)


def _shown(place: str, table: dict[str, Any]) -> Iterator[Shown]:
    for key, value in table.items():
        yield Shown(f"{place}.{key}", _redacted(key, value))


def _redacted(key: str, value: Any) -> Any:
    """Return a setting with ``***`` for each command, and each text that looks like a secret."""
    if key == "command" or key.endswith("_command"):
        return HIDDEN  # an argument may be a key
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if isinstance(one, str) and location.SECRET_QUERY.search(name)
            else _redacted(name, one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_redacted(key, one) for one in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if key == "recipients" and is_secret(value) else redacted(value)


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
    sources = [alias.password for alias in config.stores.values()]
    names = [one.where for one in sources if one and one.key == "password_file"]
    names += filter(None, [config.encryption.get("identity_file")])
    files = [Path(name).expanduser() for name in names]
    if any("***" in redact(alias.url) for alias in config.stores.values()):
        files.append(config.path)
    return [file for file in files if system.readable_by_others(file)]
