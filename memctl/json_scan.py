"""A search for the end of JSON values, which are not checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, with which some programs begin a text."""
SPACE = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++")
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}"]?)', re.DOTALL)
"""Up to the next bracket, strings passed over; stops before a string that is not closed."""
TEXT = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
"""The inside of a string, as far as it is right."""


class Scan:
    """A search for the end of one value in a buffer that may hold only the beginning.

    It goes on where it stopped, once the buffer has grown.
    """

    def __init__(self, start: int) -> None:
        self.at = start
        self.kind = ""
        self._depth = 0

    def end(self, buffer: bytes, limit: int) -> int | None:
        """Return where the value ends; None where that is not before ``limit``."""
        if not self.kind:
            first = buffer[self.at : self.at + 1]
            self.kind = {b'"': "text", b"{": "container", b"[": "container"}.get(first, "scalar")
        if self.kind == "container":
            return self._end_of_container(buffer, limit)
        if self.kind == "text":
            found = STRING.match(buffer, self.at, limit)
            return found.end() if found else None
        found = _SCALAR.match(buffer, self.at, limit)
        end = found.end() if found else self.at
        return end if end < limit else None

    def _end_of_container(self, buffer: bytes, limit: int) -> int | None:
        depth = self._depth
        for found in _BRACKET.finditer(buffer, self.at, limit):
            bracket = found[1]
            if bracket in (b"{", b"["):
                depth += 1
            elif bracket in (b"}", b"]"):
                depth -= 1
                if not depth:
                    return found.end()
            else:
                self.at = found.start(1)
                break
        self._depth = depth
        return None


class Walk:
    """A walk through a JSON text, value after value.

    Raises (all methods):
        ValueError: the text is not JSON.
    """

    def __init__(self, text: bytes) -> None:
        self.at = 0
        self._text = text

    def start(self) -> int:
        """Return where the next value, or delimiter, begins."""
        self.at = match_end(SPACE, self._text, self.at)
        return self.at

    def begins(self, bracket: bytes) -> bool:
        """Return whether the next value begins so."""
        return self._text.startswith(bracket, self.start())

    def skip(self) -> bytes:
        """Pass over the next value; return its text."""
        start = self.start()
        end = Scan(start).end(self._text, len(self._text) + 1)
        if end is None or end == start:
            raise ValueError(f"no value at {start}")
        self.at = end
        return self._text[start:end]

    def members(self) -> Iterator[str]:
        """Yield the keys of the object that comes next; at each, its value must be passed."""
        if self._next(b"{") and self._ends(b"}"):
            return
        while True:
            key = json.loads(self.skip().decode("utf-8", "surrogatepass"))
            self._next(b":")
            yield key
            if self._next(b",}") == b"}":
                return

    def items(self) -> Iterator[int]:
        """Count the items of the array that comes next; each must be passed."""
        if self._next(b"[") and self._ends(b"]"):
            return
        number = 0
        while True:
            yield number
            number += 1
            if self._next(b",]") == b"]":
                return

    def _next(self, allowed: bytes) -> bytes:
        start = self.start()
        byte = self._text[start : start + 1]
        if not byte or byte not in allowed:
            raise ValueError(f"{byte!r} at {start}")
        self.at += 1
        return byte

    def _ends(self, bracket: bytes) -> bool:
        ended = self.begins(bracket)
        self.at += ended
        return ended


def match_end(pattern: re.Pattern[bytes], buffer: bytes, at: int) -> int:
    """Return where a match that begins at ``at`` ends; ``at`` where there is none."""
    found = pattern.match(buffer, at)
    return found.end() if found else at


def before_last_character(buffer: bytes, start: int) -> int:
    """The end of the buffer, less a character of several bytes that may not be whole."""
    end = len(buffer)
    for at in range(end - 1, max(start, end - 4) - 1, -1):
        if buffer[at] < 0x80:
            return end
        if buffer[at] >= 0xC0:
            return at
    return end
