"""Contents in pieces of a megabyte, so that a huge content takes little RAM."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from io import BytesIO

PIECE = 1 << 20
"""The size of a piece, in bytes or characters."""


def parts(data: memoryview) -> Iterator[bytes]:
    """Yield bytes in pieces."""
    for start in range(0, len(data), PIECE):
        yield bytes(data[start : start + PIECE])


def joined(pieces: Iterable[bytes]) -> bytes:
    """Return the bytes of the pieces; needs RAM for these bytes once."""
    whole = BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()  # not a copy


def texts(text: str) -> Iterator[str]:
    """Yield a text in pieces."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def in_utf8(text: str) -> Iterator[bytes]:
    """Yield a text as UTF-8, which may have lone surrogates."""
    for piece in texts(text):
        yield piece.encode("utf-8", "surrogatepass")


def in_json(pieces: Iterable[str]) -> Iterator[bytes]:
    """Yield a text as a JSON string in UTF-8, with only the escapes that JSON needs."""
    yield b'"'
    for piece in pieces:
        yield json.dumps(piece, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")
    yield b'"'


def from_base64(data: memoryview) -> Iterator[bytes]:
    """Yield decoded base64.

    Raises:
        ValueError: ``data`` is not the standard form of its content.
    """
    for piece in parts(data):
        content = base64.b64decode(piece, validate=True)
        if base64.b64encode(content) != piece:
            raise ValueError("base64 in another form")
        yield content


def in_base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bytes as base64."""
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) // 3 * 3
        yield base64.b64encode(data[:whole])
        rest = data[whole:]
    yield base64.b64encode(rest)


def end_of(pieces: Iterable[bytes], text: bytes, start: int) -> int | None:
    """Return the end of the pieces, which stand in ``text`` from ``start`` on; None if not."""
    at = start
    for piece in pieces:
        if not text.startswith(piece, at):
            return None
        at += len(piece)
    return at
