"""The search for values in the bytes of a JSON text, which are not checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8. Some programs begin a text with it."""
SPACE = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]*+")
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}"]?)', re.DOTALL)
"""The bytes up to the next bracket outside strings. Stops before a string without an end."""
TEXT = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
"""The inside of a string, up to the first invalid byte."""
PLAIN = re.compile(rb"[ !#-\[\]-~]*+")
"""The inside of a string of ASCII without escapes."""
HUGE = 1 << 20
"""The size in bytes of a huge string of plain ASCII, such as base64."""


def value_end(text: bytes, start: int, limit: int | None = None) -> int | None:
    """Return the end of the JSON value at ``start``, or ``start`` if no value begins there.

    None if a string, object or array does not end before ``limit``, by default the end of the text.
    """
    limit = len(text) if limit is None else limit
    first = text[start : start + 1]
    if first == b'"':
        end = text.find(b'"', start + 1, limit)
        if end < 0 or text.find(b"\\", start + 1, end) < 0:
            return end + 1 or None
        found = STRING.match(text, start, limit)
        return found.end() if found else None
    if first not in (b"{", b"["):
        return match_end(_SCALAR, text, start)
    depth = 0
    for found in _BRACKET.finditer(text, start, limit):
        bracket = found[1]
        if bracket in (b"{", b"["):
            depth += 1
        elif bracket in (b"}", b"]"):
            depth -= 1
            if not depth:
                return found.end()
        else:
            break
    return None


class Walk:
    """A position in a JSON text that moves from value to value; ``at`` is the position.

    ``key_at`` is the position of the key that ``members`` has yielded.

    Raises (all methods):
        ValueError: the text is not JSON.
    """

    def __init__(self, text: bytes, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.key_at = at

    def start(self) -> int:
        """Skip white space; return the position of the next value or delimiter."""
        self.at = match_end(SPACE, self.text, self.at)
        return self.at

    def begins(self, bracket: bytes) -> bool:
        """Return whether the next value begins with ``bracket``, a bracket or a quote."""
        return self.text.startswith(bracket, self.start())

    def skip(self) -> bytes:
        """Pass over the next value, and return its text."""
        return self.skip_to(value_end(self.text, self.start()))

    def skip_to(self, end: int | None) -> bytes:
        """Pass over the next value, which ends at ``end``, and return its text.

        None for ``end`` means that the value does not end, which is an error.
        """
        start = self.at
        self.at = len(self.text) if end is None else end
        if self.at == start or end is None:
            raise self.fault("a value was expected")
        return self.text[start:end]

    def members(self) -> Iterator[str]:
        """Yield the key of each member of the next object.

        The caller must pass over the value of each key.
        """
        self.next(b"{")
        if self._ends(b"}"):
            return
        while True:
            if not self.begins(b'"'):
                raise self.fault("a key was expected")
            self.key_at = self.at
            key: str = self.value()
            self.next(b":")
            yield key
            if self.next(b",}") == b"}":
                return

    def items(self) -> Iterator[int]:
        """Yield the index of each item of the next array.

        The caller must pass over each item.
        """
        self.next(b"[")
        if self._ends(b"]"):
            return
        index = 0
        while True:
            yield index
            index += 1
            if self.next(b",]") == b"]":
                return

    def value(self) -> Any:
        """Pass over the next value, and return it as a Python object."""
        return json.loads(self.skip().decode("utf-8", "surrogatepass"))

    def next(self, allowed: bytes) -> bytes:
        """Pass over white space and one byte, which must be in ``allowed``; return the byte."""
        start = self.start()
        byte = self.text[start : start + 1]
        if not byte or byte not in allowed:
            wanted = " or ".join(repr(chr(each)) for each in allowed)
            raise self.fault(f"{wanted} was expected")
        self.at += 1
        return byte

    def fault(self, why: str) -> Exception:
        """Return the error ``why``, with the current position in the text."""
        return ValueError(f"{why} (byte {self.at})")

    def _ends(self, bracket: bytes) -> bool:
        ended = self.begins(bracket)
        self.at += ended
        return ended


def match_end(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    """Return the end of the match that begins at ``start``, or ``start`` if there is no match."""
    found = pattern.match(text, start)
    return found.end() if found else start


def before_last_character(text: bytes, start: int) -> int:
    """Return the end of the last complete UTF-8 character of a text that may be cut off anywhere.

    The text is examined from ``start`` on.
    """
    end = len(text)
    for at in range(end - 1, max(start, end - 4) - 1, -1):
        if text[at] < 0x80:
            return end
        if text[at] >= 0xC0:
            return at
    return end
