"""Names in Redis: conversions between bytes, texts and glob patterns."""

from __future__ import annotations

_SPECIAL = b"*?[]\\"


def encode(text: str) -> bytes:
    """Return a name as the bytes that Redis stores; the inverse of ``decode``.

    Raises:
        UnicodeEncodeError: the name holds a surrogate that stands for no byte.
    """
    return text.encode("utf-8", "surrogateescape")


def encode_or_none(text: str) -> bytes | None:
    """Return a name as the bytes that Redis stores; None if no bytes decode to the name."""
    try:
        return encode(text)
    except UnicodeEncodeError:
        return None


def decode(name: bytes) -> str:
    """Return a name from Redis as text; bytes that are not UTF-8 become lone surrogates."""
    return name.decode("utf-8", "surrogateescape")


def escape(text: bytes) -> bytes:
    """Return a glob pattern that matches exactly ``text``."""
    return b"".join(b"\\" + bytes((byte,)) if byte in _SPECIAL else bytes((byte,)) for byte in text)
