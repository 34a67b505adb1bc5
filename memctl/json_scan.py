"""A search for the end of JSON values in a buffer that may hold only the beginning."""

from __future__ import annotations

import re

SPACE = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++")
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}"]?)', re.DOTALL)
"""Up to the next bracket, strings passed over; stops before a string that is not closed."""
TEXT = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
"""The inside of a string, as far as it is right."""


class Scan:
    """A search for the end of one value in a growing buffer; it goes on where it stopped."""

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
