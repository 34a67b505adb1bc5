"""Names as Redis has them: bytes, as texts and as glob patterns."""

from __future__ import annotations

_SPECIAL = b"*?[]\\"


def encode(text: str) -> bytes:
    """Return the bytes of a name; the inverse of ``decode``.

    Raises:
        UnicodeEncodeError: it holds a surrogate that no bytes stand for.
    """
    return text.encode("utf-8", "surrogateescape")


def encode_or_none(text: str) -> bytes | None:
    """Return the bytes of a name, None where there are none."""
    try:
        return encode(text)
    except UnicodeEncodeError:
        return None


def decode(name: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become surrogates, to lose nothing."""
    return name.decode("utf-8", "surrogateescape")


def escape(text: bytes) -> bytes:
    """Return a glob pattern that matches the text alone."""
    return b"".join(b"\\" + bytes((byte,)) if byte in _SPECIAL else bytes((byte,)) for byte in text)
