"""JSON documents held as bytes, and checked value by value.

Python objects take many times the memory of their JSON text. So a ``Cursor`` parses one value at a
time, and walks through the members of a large value. The check accepts what AgentScope writes:
``NaN``, huge integers, and lone surrogates in raw bytes (``json.dumps(..., ensure_ascii=False)``
with ``errors="surrogatepass"``).
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from memctl.errors import BadData
from memctl.json import jsonio
from memctl.json.scan import (
    TEXT,
    Walk,
    before_last_character,
    match_end,
    value_end,
)

LARGE = 4 * 1024 * 1024
"""The size in bytes above which a value is checked in parts."""
DEPTH = 100
"""The greatest depth of nesting of large values, and of objects that may hold memories."""

_PIECE = 1024 * 1024
_LEAP = 64 * 1024
_LONGEST_ESCAPE = len(r"\u0000")
_HINT = "restore it from a backup, or move it away; nothing was written"


class TrailingData(BadData):
    """The error that a JSON document is followed by further bytes, which begin at ``end``.

    ``paths`` are the paths of the memories in the document.
    """

    def __init__(self, name: str, end: int, size: int, paths: frozenset[str] = frozenset()) -> None:
        more = size - end
        super().__init__(
            f"{name} is a whole document of {end:,} bytes, followed by {more:,} "
            f"byte{'s' * (more != 1)} more",
            "memctl doctor --repair moves what follows into a quarantine file",
        )
        self.end = end
        self.paths = paths


TAIL = "trailing-data"
"""The code of the finding that more bytes follow a complete document."""


def parse(text: bytes) -> Any:
    """Parse a JSON text and return its value.  Integers past 64 bits may become floats.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return jsonio.loads(text)


class Cursor(Walk):
    """A position in a JSON document that moves over values and checks them.

    ::

        cursor = Cursor(data, "alice_s1.json")
        for key in cursor.members():
            cursor.check()

    The second argument is the name of the document for errors.

    Raises (all methods):
        BadData: the document is not JSON, or is cut off. The message gives the position in bytes.
    """

    def __init__(self, text: bytes, name: str, at: int = 0) -> None:
        super().__init__(text, at)
        self._name = name
        self._leap_from = 0

    def value(self) -> Any:
        """Pass over the next value, check it, and return it as a Python object."""
        return self.parsed(self.skip())

    def small(self) -> bytes | None:
        """Pass over the next value and return its text.

        If the value is larger than ``LARGE`` bytes, return None and do not move.
        """
        limit = self.start() + LARGE
        end = value_end(self.text, self.at, limit)
        return None if end is None and limit < len(self.text) else self.skip_to(end)

    def parsed(self, text: bytes) -> Any:
        """Parse ``text``, the value that the cursor passed last."""
        try:
            return parse(text)
        except ValueError as error:
            if text[:1] not in b'"{[' and self.at == len(self.text):
                raise self._cut_off() from error  # such as "tru"
            why, offset = _fault(error, text)
            raise self.bad(why, self.at - len(text) + offset) from error

    def check(self, depth: int = 0) -> None:
        """Pass over the next value, of any size, and check that it is JSON.

        ``depth`` is the number of objects and arrays around the value.
        """
        text = self.small()
        if text is not None:
            self.parsed(text)
        elif self.begins(b'"'):
            self._check_text()
        elif depth > DEPTH:
            raise self.bad("nested too deep", self.at)
        elif self.begins(b"{"):
            for _ in self.members():
                self.check(depth + 1)
                self.leap(b"{", b"}")
        else:
            for _ in self.items():
                self.check(depth + 1)
                self.leap(b"[", b"]")

    def ends_before(self, limit: int) -> bool:
        """Return whether the next value ends before the byte ``limit`` of the document."""
        return value_end(self.text, self.start(), limit) is not None

    def leap(self, begin: bytes, end: bytes, stop: re.Pattern[bytes] | None = None) -> None:
        """Pass over many small members of an object, or items of an array, at once.

        ``begin`` and ``end`` are the brackets of the object or array.  The cursor moves only if the
        text up to a comma parses between these brackets, and ``stop`` does not match in the text.
        If the cursor does not move, calls within the next ``_LEAP`` bytes do nothing.
        """
        text = self.text
        while text.startswith(b",", self.at) and self.at >= self._leap_from:
            last = text.rfind(b",", self.at + 1, self.at + _LEAP)
            try:
                stopped = last < 0 or (stop and stop.search(text, self.at, last))
                passed = not stopped and parse(begin + text[self.at + 1 : last] + end)
            except ValueError:
                passed = False
            if not passed:
                self._leap_from = self.at + _LEAP
                return
            self.at = last

    def fault(self, why: str) -> BadData:
        """Return the error that the document is cut off, or not JSON at the current position.

        ``why`` says what is wrong at the position.
        """
        return self.bad(why, self.at) if self.start() < len(self.text) else self._cut_off()

    def bad(self, why: str, at: int) -> BadData:
        """Return the error that the document is wrong at the byte ``at``.

        ``why`` says what is wrong.
        """
        return BadData(f"{self._name} is not JSON that AgentScope writes: {why} (byte {at})", _HINT)

    def _cut_off(self) -> BadData:
        size = len(self.text)
        what = f"is cut off at byte {size}" if size else "is empty (cut off at byte 0)"
        return BadData(f"{self._name} {what}", _HINT)

    def _check_text(self) -> None:
        """Pass over a large string and check it in pieces."""
        self.at += 1
        while True:
            piece = self.text[self.at : self.at + _PIECE]
            stop = match_end(TEXT, piece, 0)
            if stop == len(piece):
                stop = before_last_character(piece, 0)
            try:
                piece[:stop].decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise self.bad("a string is not UTF-8", self.at + error.start) from error
            self.at += stop
            if self.text[self.at : self.at + 1] == b'"':
                self.at += 1
                return
            left = self.text[self.at : self.at + _LONGEST_ESCAPE]
            if stop == 0 and len(left) < _LONGEST_ESCAPE and not (left and left[0] < 0x20):
                raise self._cut_off()
            if stop == 0:
                raise self.bad("a string has an invalid escape or a control character", self.at)


def _fault(error: ValueError, text: bytes) -> tuple[str, int]:
    """Return why a text does not parse, and the position in bytes."""
    if isinstance(error, json.JSONDecodeError):
        before = text.decode("utf-8", "surrogatepass")[: error.pos]
        return error.msg, len(before.encode("utf-8", "surrogatepass"))
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8", error.start
    return str(error), 0
