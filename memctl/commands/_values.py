"""The values of options for rates."""

from __future__ import annotations

import re

from memctl.encryption import check_recipients
from memctl.errors import UsageError
from memctl.text.values import unit_bytes
from memctl.wrappers.rate_limit import Rate

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]i?)?(B)?(?:/s)?", re.IGNORECASE)


def rate(text: str | None) -> Rate | None:
    """Parse ``--rate-limit``; if ``text`` is None, the result is None.

    Raises:
        UsageError: the text is not a valid rate.
    """
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    number = float(found[1]) if found else 0.0
    if not found or not number:
        raise UsageError(
            f"--rate-limit {text!r} is not a valid rate",
            "write 500 for messages a second, or 500kB, 2MB, 1.5MiB for bytes a second",
        )
    number *= unit_bytes(found[2])
    return Rate(size=number) if found[3] else Rate(messages=number)


def recipients(texts: list[str] | None) -> tuple[str, ...]:
    """Return the values of ``--encrypt-to``.

    Raises:
        UsageError: a value is not a public key, or the library for age is not installed.
    """
    check_recipients(texts or (), "--encrypt-to")
    return tuple(texts or ())
