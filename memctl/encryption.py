"""Encryption of archives and exports by age: the file names, the recipients and the identities.

The format is version 1 of age (https://age-encryption.org/v1), so the program ``age`` reads what
memctl writes, and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

EXTENSION = ".age"
"""The extension after the name of an encrypted file, as in ``chats.ndjson.zst.age``."""
MAGIC = b"age-encryption.org/v1\n"
"""The first bytes of an encrypted file."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """The keys for encrypted files: the recipients of new files, and the source of identities.

    ``recipients`` are public keys of age or SSH, as texts.  ``identities`` returns the text of an
    identity file, with one secret key or more; None if no identity is configured.  The function is
    called when an encrypted file is read.
    """

    recipients: tuple[str, ...] = ()
    identities: Callable[[], str] | None = field(default=None, repr=False)


def is_encrypted(name: str) -> bool:
    """Return whether the name of a file says that the file is encrypted."""
    return name.lower().endswith(EXTENSION)


def plain_name(name: str) -> str:
    """Return the name of a file without the extension for encryption."""
    return name[: -len(EXTENSION)] if is_encrypted(name) else name
