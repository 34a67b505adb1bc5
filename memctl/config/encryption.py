"""The keys for encrypted archives and exports, from ``[encryption]`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from memctl.config import Config, refuse_unknown, secrets
from memctl.encryption import Encryption
from memctl.errors import Unavailable, UsageError
from memctl.location import redact
from memctl.machine import system

_PLACE = "encryption"
_WHAT = "the identity of [encryption]"


def read_encryption(
    config: Config, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
) -> Encryption:
    """Return the recipients, and what fetches the identity when an encrypted file is read.

    The identity is fetched at most once.  ``environment`` has variables that may contain the
    identity.  A command that prints the identity may take ``timeout`` seconds.

    Raises:
        UsageError: the table is not valid; recipients are checked when a file is encrypted.
    """
    path, table = config.path, config.encryption
    keys = secrets.keys("identity")
    refuse_unknown(path, f"{_PLACE}.", table, ("recipients", *keys))
    recipients = table.get("recipients", [])
    if not isinstance(recipients, list) or any(not isinstance(one, str) for one in recipients):
        raise UsageError(
            f"{path}: {_PLACE}.recipients is not a list of public keys",
            'write recipients = ["age1..."]',
        )
    for key in keys:
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{path}: {_PLACE}.{key} is not a text", f'write {key} = "..."')
    source = identity_source(config)
    fetch = None
    if source is not None:
        fetch = cache(partial(_fetch, source, environment, timeout, config.secret_variables))
    return Encryption(tuple(recipients), fetch)


def exposed(config: Config) -> list[Path]:
    """Return the files with secrets that other users of the machine can read.

    These are the files with the identity and with passwords, and the configuration file if a URL
    has a password.
    """
    sources = [identity_source(config), *(alias.password for alias in config.stores.values())]
    files = [Path(one.where).expanduser() for one in sources if one and one.key.endswith("_file")]
    if any("***" in redact(alias.url) for alias in config.stores.values()):
        files.append(config.path)
    return [file for file in files if system.readable_by_others(file)]


def identity_source(config: Config) -> secrets.Source | None:
    """Return the source of the identity; None if none is configured.

    Raises:
        UsageError: several sources are configured.
    """
    return secrets.source(config.path, _PLACE, config.encryption, "identity")


def _fetch(
    source: secrets.Source,
    environment: Mapping[str, str],
    timeout: float,
    variables: frozenset[str],
) -> str:
    """Return the text of the identity file.

    Raises:
        Unavailable: the identity cannot be fetched.
    """
    try:
        return secrets.fetch(_WHAT, source, environment, timeout, variables)
    except UsageError as error:
        raise Unavailable(error.message, error.hint) from error
