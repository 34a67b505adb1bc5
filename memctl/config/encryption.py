"""The keys for encrypted archives and exports, from ``[encryption]`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from memctl.config import Config, secrets
from memctl.encryption import Encryption
from memctl.errors import Unavailable, UsageError
from memctl.text.toml import Table, Text, Texts, means, read_table


class EncryptionTable(Table, kw_only=True, frozen=True):
    """``[encryption]`` as the file has it."""

    recipients: Annotated[Texts, means("a list of public keys", 'KEY = ["age1..."]')] = ()
    identity_env: Text = ""
    identity_file: Text = ""
    identity_command: Text = ""
    identity_keyring: Text = ""


def read_encryption(
    config: Config, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
) -> Encryption:
    """Return the recipients, and what fetches the identity when an encrypted file is read.

    The identity is fetched at most once.  ``environment`` has variables that may contain it.  A
    command that prints it may take ``timeout`` seconds.

    Raises:
        UsageError: the table is not valid; recipients are checked when a file is encrypted.
    """
    table = read_table(config.path, "encryption", config.encryption, EncryptionTable)
    what, hidden = "the identity of [encryption]", config.secret_variables
    source = secrets.source(config.path, "encryption", table, "identity", what, hidden)
    if source is None:
        return Encryption(table.recipients)

    @cache
    def fetch() -> str:
        """Return the text of the identity file; raise Unavailable if it cannot be fetched."""
        try:
            return source.fetch(environment, timeout)
        except UsageError as error:
            raise Unavailable(error.message, error.hint) from error

    return Encryption(table.recipients, fetch)
