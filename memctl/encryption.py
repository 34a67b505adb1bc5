"""Encryption of archives and exports by age: the file names, the recipients and the identities.

The format is version 1 of age (https://age-encryption.org/v1), so the program ``age`` reads what
memctl writes, and the reverse.  The streams are in ``memctl.storekit.encrypted``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from memctl.errors import Unavailable, UsageError

EXTENSION = ".age"
"""The extension after the name of an encrypted file, as in ``chats.ndjson.zst.age``."""
MAGIC = b"age-encryption.org/v1\n"
"""The first bytes of an encrypted file."""
ARMOR = b"-----BEGIN AGE ENCRYPTED FILE-----"
"""The first bytes of an encrypted file in Base64, which ``age --armor`` writes."""
SNIFFED = len(ARMOR)
"""The number of bytes at the beginning of a file that show whether the file is encrypted."""

_SECRET = ("age-secret-key-", "age-plugin-", "private key")


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


def is_ciphertext(start: bytes) -> bool:
    """Return whether a file with the first bytes ``start`` is encrypted by age."""
    return start.startswith((MAGIC, ARMOR))


def is_secret(text: str) -> bool:
    """Return whether a text looks like a secret key, which must not be shown."""
    return any(word in text.lower() for word in _SECRET)


def check_recipients(texts: Iterable[str], where: str) -> None:
    """Refuse texts that are not public keys of age or SSH.

    ``where`` names the option or setting with the texts.

    Raises:
        UsageError: a text is not a public key, or the library is not installed.
    """
    for text in texts:
        _recipient(text, where)


def read_recipients(encryption: Encryption, name: str) -> list[Any]:
    """Return the recipients of the new encrypted file ``name``, for the library.

    Raises:
        UsageError: there is no recipient, or a recipient is not valid.
    """
    if not encryption.recipients:
        raise UsageError(
            f"there is no recipient to encrypt {name} for",
            "set recipients in [encryption] of the configuration, or add --encrypt-to RECIPIENT",
        )
    return [_recipient(text, "encryption.recipients") for text in encryption.recipients]


def read_identities(encryption: Encryption, name: str) -> list[Any]:
    """Return the identities for the encrypted file ``name``, for the library.

    Raises:
        Unavailable: there is no identity, or its source or its text is not valid.
    """
    library = _library(name)
    if encryption.identities is None:
        raise Unavailable(
            f"{name} is encrypted, and there is no identity to read it",
            "set identity_file or identity_command in [encryption] of the configuration",
        )
    return parse_identities(encryption.identities(), library)


def parse_identities(text: str, library: Any = None) -> list[Any]:
    """Return the secret keys in the text of an identity file: keys of age, or one SSH key.

    Raises:
        Unavailable: the text has no key, or a key that memctl cannot use.
    """
    library = library or _library("an identity")
    if "PRIVATE KEY-----" in text:
        return [_ssh_identity(text, library)]
    if is_ciphertext(text.encode()):
        raise Unavailable(
            "the identity is encrypted by a passphrase",
            'decrypt it when it is needed: identity_command = "age --decrypt FILE"',
        )
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        try:
            found.append(library.x25519.Identity.from_str(key))
        except library.IdentityError as error:
            raise Unavailable(
                f"line {number} of the identity is not a secret key of age that memctl can use",
                "a line is AGE-SECRET-KEY-1..., as age-keygen writes it; or name an SSH key",
            ) from error
    if not found:
        raise Unavailable("the identity has no secret key", "create one with: age-keygen -o FILE")
    return found


def _ssh_identity(text: str, library: Any) -> Any:
    try:
        return library.ssh.Identity.from_buffer(text.encode())
    except library.IdentityError as error:
        if "must be decrypted" in str(error):
            raise Unavailable(
                "the identity is an SSH key with a passphrase",
                "use a key of age, or an SSH key without a passphrase",
            ) from error
        raise Unavailable(
            f"the identity is not an SSH key that age can use: {error}",
            "age uses keys of the types ssh-ed25519 and ssh-rsa",
        ) from error


def _recipient(text: str, where: str) -> Any:
    library = _library(where)
    if is_secret(text):
        raise UsageError(
            f"{where} is a secret key, not a public key", "age-keygen -y FILE shows the public key"
        )
    family = library.ssh if text.startswith("ssh-") else library.x25519
    try:
        return family.Recipient.from_str(text)
    except library.RecipientError as error:
        small = ": an RSA key needs 2048 bits" if "TooSmall" in str(error) else ""
        raise UsageError(
            f"{where} {text!r:.60} is not a public key of age or SSH{small}",
            "name a public key: age1..., ssh-ed25519 ... or ssh-rsa ...",
        ) from error


def _library(what: str) -> Any:
    """Return the library for age.

    Raises:
        UsageError: the library is not installed; ``what`` needs it.
    """
    try:
        import pyrage  # only needed for encrypted files
    except ModuleNotFoundError as error:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"{what}: encryption needs the library 'pyrage', which is not installed",
            install_command("age"),
        ) from error
    return pyrage
