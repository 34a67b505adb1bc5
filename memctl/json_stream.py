"""JSON documents larger than memory, read through a moving window.

Values are found, checked or skipped one after another.  What fits the window is checked by
``memctl.jsonio`` in one go; what does not is taken apart, so that no value is ever held because of
its size.  Takes what AgentScope writes: ``NaN``, huge integers, surrogates written raw
(``json.dumps(..., ensure_ascii=False)`` with ``errors="surrogatepass"``).
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import orjson

from memctl import jsonio
from memctl.errors import BadData
from memctl.json_scan import SPACE, TEXT, Scan, before_last_character, match_end

WINDOW = 1024 * 1024
LARGE = 4 * 1024 * 1024
"""Values above this size (bytes) are not held to be checked, but taken apart."""
DEPTH = 100
"""The greatest depth of nesting of large values, and of objects that are looked into."""

_LEAP = 64 * 1024
_LONGEST_ESCAPE = len(r"\u0000")


class TrailingData(BadData):
    """A whole document is followed by more bytes, which start at ``end``.

    ``paths`` are those of the memories in the document.
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
"""The finding of bytes after a whole document."""


class Source(Protocol):
    """Bytes that can be read at any place.  ``name`` is what people call them."""

    name: str
    size: int

    async def read_at(self, start: int, size: int) -> bytes:
        """The bytes from ``start``; fewer than ``size`` at the end alone."""


def parse(text: bytes) -> Any:
    """The value of a JSON text to look at: integers past 64 bits may come as floats.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return jsonio.loads(text)


class Cursor:
    """A place in a document, before a value or a delimiter.

    ``buffer`` holds the bytes around it, ``at`` is the place within the buffer.  Callers may look
    at the buffer and move ``at`` forward; everything else is done by the methods.

    Raises (all methods):
        BadData: the document is not JSON, or is cut off; the message gives the position.
    """

    def __init__(self, source: Source, start: int = 0) -> None:
        self.source = source
        self.buffer = b""
        self.at = 0
        self._base = start
        self._leap_from = 0

    @property
    def position(self) -> int:
        """The place in the document, in bytes."""
        return self._base + self.at

    async def grow(self) -> bool:
        """Read on, drop what was read, and return whether there was more.

        What is left is read again at most twice over, because the window grows with it.
        """
        rest = self.buffer[self.at :]
        size = max(WINDOW, min(len(rest), LARGE))
        chunk = await self.source.read_at(self._base + len(self.buffer), size)
        if not chunk:
            return False
        self._base += self.at
        self.at = 0
        self.buffer = rest + chunk
        return True

    async def peek(self) -> bytes:
        """Return the next byte after white space, which is skipped; empty at the end."""
        while True:
            byte = self.buffer[self.at : self.at + 1]
            if byte > b" ":  # as it nearly always is
                return byte
            self.at = match_end(SPACE, self.buffer, self.at)
            if self.at < len(self.buffer):
                return self.buffer[self.at : self.at + 1]
            if not await self.grow():
                return b""

    async def next(self, allowed: bytes) -> bytes:
        """Take the next byte, which must be one of these."""
        byte = await self.peek()
        if not byte:
            raise self.cut_off()
        if byte not in allowed:
            wanted = " or ".join(repr(chr(one)) for one in allowed)
            raise self.bad(f"{wanted} was expected")
        self.at += 1
        return byte

    async def take(self) -> bytes | None:
        """The text of the next value, passed over but not checked; None where it is large.

        Nothing is passed over then.
        """
        end = await self._value_end()
        if end is None:
            return None
        text = self.buffer[self.at : end]
        self.at = end
        return text

    async def value(self) -> Any:
        """The next value; None, and nothing passed over, where it is large."""
        text = await self.take()
        return None if text is None else self.parsed(text)

    async def skip(self, depth: int = 0) -> None:
        """Skip the next value, whatever its size, and check it."""
        text = await self.take()
        if text is not None:
            self.parsed(text)
        elif self.buffer[self.at : self.at + 1] == b'"':
            await self._skip_text()
        elif self.buffer[self.at : self.at + 1] == b"{":
            async for _ in self.members(depth):
                await self.skip(depth + 1)
                self.leap(b"{", b"}")
        else:
            async for _ in self.items(depth):
                await self.skip(depth + 1)
                self.leap(b"[", b"]")

    def leap(self, begin: bytes, end: bytes, stop: re.Pattern[bytes] | None = None) -> None:
        """Skip many more members or items at once, up to a comma; checked as one container.

        That they make one proves the comma to stand between two of them.  Where that fails, as with
        what is nested, or with what ``stop`` finds, they are skipped one by one for a while.
        """
        while self.buffer.startswith(b",", self.at) and self.position >= self._leap_from:
            last = self.buffer.rfind(b",", self.at + 1, self.at + _LEAP)
            if last < 0 and len(self.buffer) - self.at < _LEAP:
                return  # at the end of the window, which the next value moves
            try:
                stopped = last < 0 or (stop and stop.search(self.buffer, self.at, last))
                passed = not stopped and parse(begin + self.buffer[self.at + 1 : last] + end)
            except ValueError:
                passed = False
            if not passed:
                self._leap_from = self.position + _LEAP
                return
            self.at = last

    async def members(self, depth: int = 0) -> AsyncGenerator[str]:
        """The keys of the object that comes next; at each, its value must be taken or skipped."""
        self._check_depth(depth)
        await self.next(b"{")
        if await self.peek() == b"}":
            self.at += 1
            return
        while True:
            if await self.peek() not in (b'"', b""):
                raise self.bad("a key was expected")
            key = await self.value()
            if key is None:
                raise self.bad("a key is too long")
            await self.next(b":")
            yield key
            if await self.next(b",}") == b"}":
                return

    async def items(self, depth: int = 0) -> AsyncGenerator[int]:
        """Count the items of the array that comes next; each must be taken or skipped."""
        self._check_depth(depth)
        await self.next(b"[")
        if await self.peek() == b"]":
            self.at += 1
            return
        number = 0
        while True:
            yield number
            number += 1
            if await self.next(b",]") == b"]":
                return

    def ends_before(self, limit: int) -> bool:
        """Return whether the next value ends in the buffer before its byte ``limit``."""
        return Scan(self.at).end(self.buffer, limit) is not None

    def seek(self, position: int) -> None:
        """Go to another place in the document."""
        self.buffer = b""
        self.at = 0
        self._base = position

    def parsed(self, text: bytes) -> Any:
        """The value of a text that was just taken."""
        try:
            return parse(text)
        except ValueError as error:
            if text[:1] not in b'"{[' and self.position == self.source.size:
                raise self.cut_off() from error  # such as "tru"
            raise self.bad(*_fault(error, text), back=len(text)) from error

    def bad(self, why: str, offset: int = 0, *, back: int = 0) -> BadData:
        """The error that the document is not what it should be, at this place."""
        at = self.position - back + offset
        return BadData(
            f"{self.source.name} is not JSON that AgentScope writes: {why} (byte {at})",
            "restore it from a backup, or move it away; nothing was written",
        )

    def cut_off(self) -> BadData:
        """The error that the document ends too early."""
        size = self.source.size
        what = f"is cut off at byte {size}" if size else "is empty (cut off at byte 0)"
        return BadData(
            f"{self.source.name} {what}",
            "restore it from a backup, or move it away; nothing was written",
        )

    async def _value_end(self) -> int | None:
        if not await self.peek():
            raise self.cut_off()
        scan = Scan(self.at)
        while True:
            end = scan.end(self.buffer, len(self.buffer))
            if end is not None:
                if end == self.at:
                    raise self.bad("a value was expected")
                return end
            if len(self.buffer) - self.at > LARGE:
                if scan.kind == "scalar":
                    raise self.bad("a number is too long")
                return None
            behind = self.at
            if not await self.grow():
                if scan.kind == "scalar":
                    return len(self.buffer)
                raise self.cut_off()
            scan.at -= behind

    async def _skip_text(self) -> None:
        self.at += 1
        while True:
            stop = match_end(TEXT, self.buffer, self.at)
            if stop == len(self.buffer):
                stop = before_last_character(self.buffer, self.at)
            try:
                self.buffer[self.at : stop].decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise self.bad("a string is not UTF-8", error.start) from error
            self.at = stop
            if self.buffer[stop : stop + 1] == b'"':
                self.at += 1
                return
            left = len(self.buffer) - stop
            if left >= _LONGEST_ESCAPE or (left and self.buffer[stop] < 0x20):
                raise self.bad("a string has an invalid escape or a control character")
            if not await self.grow():
                raise self.cut_off()

    def _check_depth(self, depth: int) -> None:
        if depth > DEPTH:
            raise self.bad("nested too deep")


def _fault(error: ValueError, text: bytes) -> tuple[str, int]:
    """Return what is wrong with a text, and at which byte of it."""
    if isinstance(error, json.JSONDecodeError):
        before = text.decode("utf-8", "surrogatepass")[: error.pos]
        return error.msg, len(before.encode("utf-8", "surrogatepass"))
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8", error.start
    return str(error), 0
