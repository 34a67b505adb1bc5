"""Lines of NDJSON with a digest each: damage is found even if the JSON is still valid."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from memctl.json import jsonio

_HEAD, _MIDDLE, _TAIL = b'{"record":', b',"digest":"', b'"}'
_DIGEST_BYTES = 8
_AROUND = len(_MIDDLE) + 2 * _DIGEST_BYTES + len(_TAIL)


def sealed(record: Any) -> bytes:
    """Return a record as a line of NDJSON with a digest and a line feed."""
    text = jsonio.dumps(record)
    return b"".join([_HEAD, text, _MIDDLE, _digest(text), _TAIL, b"\n"])


def unsealed(line: bytes) -> Any:
    """Return the record in a line of ``sealed``.

    Raises:
        ValueError: the line is not JSON, or the digest does not match.
    """
    line = line.removesuffix(b"\n")
    text, end = line[len(_HEAD) : -_AROUND], line[-_AROUND:]
    if not line.startswith(_HEAD) or end != b"".join([_MIDDLE, _digest(text), _TAIL]):
        raise ValueError("the digest of a line is wrong")
    return jsonio.loads(text)


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest().encode()
