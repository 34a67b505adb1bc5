"""The keys for encrypted archives and exports, from ``[encryption]`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from memctl.config import secrets
from memctl.config.checks import refuse_unknown
from memctl.encryption import Encryption
from memctl.errors import Unavailable, UsageError

_PLACE = "encryption"
_WHAT = "the identity of [encryption]"


def read_encryption(
    path: Path,
    table: Mapping[str, Any],
    environment: Mapping[str, str],
    timeout: float,
    secret_variables: frozenset[str],
) -> Encryption:
    """Return the recipients, and what fetches the identity when an encrypted file is read.

    ``table`` is ``[encryption]`` of the file at ``path``.  The identity is fetched at most once.
    ``environment`` has variables that may contain the identity.  A command that prints the identity
    may take ``timeout`` seconds, and does not get the ``secret_variables``.

    Raises:
        UsageError: the table is not valid; recipients are checked when a file is encrypted.
    """
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
    source = identity_source(path, table)
    fetch = None
    if source is not None:
        fetch = cache(partial(_fetch, source, environment, timeout, secret_variables))
    return Encryption(tuple(recipients), fetch)


def identity_source(path: Path, table: Mapping[str, Any]) -> secrets.Source | None:
    """Return the source of the identity; None if none is configured.

    Raises:
        UsageError: several sources are configured.
    """
    return secrets.source(path, _PLACE, table, "identity")


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
