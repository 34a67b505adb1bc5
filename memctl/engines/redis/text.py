"""Names in Redis: conversions between bytes, texts and glob patterns."""

from __future__ import annotations

_SPECIAL = b"*?[]\\"


def encode(text: str) -> bytes:
    """Return the bytes of a name; the inverse of ``decode``.

    Raises:
        UnicodeEncodeError: the name holds a surrogate that stands for no byte.
    """
    return text.encode("utf-8", "surrogateescape")


def encode_or_none(text: str) -> bytes | None:
    """Return the bytes of a name; None if ``encode`` fails."""
    try:
        return encode(text)
    except UnicodeEncodeError:
        return None


def decode(name: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become surrogates, without loss."""
    return name.decode("utf-8", "surrogateescape")


def escape(text: bytes) -> bytes:
    """Return a glob pattern that matches only the text."""
    return b"".join(b"\\" + bytes((byte,)) if byte in _SPECIAL else bytes((byte,)) for byte in text)
