"""Bytes that are given to a rewriter: a text, a value of MessagePack, or neither.

LangGraph's checkpoints are values of MessagePack.  A value is walked through byte by byte, so that
every other byte of it stays.  The content of an extension may be a value, too.

Source: the specification of MessagePack, https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from memctl.storekit.texts import Rewriter, Rewritten

_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},
}
"""The bytes behind the first byte of numbers, truths and nil."""
_SIZED = {
    **{0xD9: (">B", "str"), 0xDA: (">H", "str"), 0xDB: (">I", "str")},
    **{0xC4: (">B", "bin"), 0xC5: (">H", "bin"), 0xC6: (">I", "bin")},
    **{0xDC: (">H", "array"), 0xDD: (">I", "array"), 0xDE: (">H", "map"), 0xDF: (">I", "map")},
    **{0xC7: (">B", "ext"), 0xC8: (">H", "ext"), 0xC9: (">I", "ext")},
}
"""The form of the size behind the first byte, and the kind of value."""
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


IS_BINARY = "it is in binary data, which memctl does not rewrite"


class _NotMessagePack(ValueError):
    """The bytes are not one value of MessagePack."""


class _Head(NamedTuple):
    kind: str
    size: int
    at: int
    """The first byte behind the head."""


def rewrite_bytes(data: bytes, rewriter: Rewriter, key: str = "") -> Rewritten:
    """Return bytes with other texts; ``key`` is as for ``Rewriter.rewrite``.

    Of bytes that are neither text nor MessagePack, all values stay.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        try:
            return _rewritten(data, rewriter)
        except _NotMessagePack:
            return Rewritten(data, [], rewriter.stays(data.decode("latin-1"), IS_BINARY))
    return rewriter.rewrite(data, key)


def _rewritten(data: bytes, rewriter: Rewriter) -> Rewritten:
    walk = _Walk(data, rewriter)
    try:
        end = walk.value(0, "")
    except (IndexError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise _NotMessagePack(str(error)) from error
    if end != len(data):
        raise _NotMessagePack("bytes follow the value")
    return Rewritten(b"".join(walk.pieces), walk.found.hits, walk.found.left, walk.found.signed)


class _Walk:
    """A walk through a value, which collects the pieces of the new value."""

    def __init__(self, data: bytes, rewriter: Rewriter) -> None:
        self.pieces: list[bytes] = []
        self.found = Rewritten(b"", [], [])
        self._data = data
        self._rewriter = rewriter

    def value(self, at: int, key: str) -> int:
        """Pass over the value at ``at``, a value of a map under ``key``; return its end."""
        head = self._head(at)
        if head.kind == "str":
            end = head.at + head.size
            self._text(at, head, key)
            return end
        if head.kind == "ext":
            return self._extension(at, head)
        if head.kind in ("array", "map"):
            self.pieces.append(self._data[at : head.at])
            at, pairs = head.at, head.kind == "map"
            for _ in range(head.size):
                name = key
                if pairs:
                    start, at = at, self._skip(at)
                    self.pieces.append(self._data[start:at])
                    of_key = self._head(start)
                    name = self._data[of_key.at : at].decode() if of_key.kind == "str" else ""
                at = self.value(at, name)
            return at
        end = head.at + head.size
        if end > len(self._data):
            raise _NotMessagePack("the value is cut off")
        self.pieces.append(self._data[at:end])
        return end

    def _head(self, at: int) -> _Head:
        first = self._data[at]
        if first <= 0x7F or first >= 0xE0:
            return _Head("number", 0, at + 1)
        if first <= 0x8F:
            return _Head("map", first & 0x0F, at + 1)
        if first <= 0x9F:
            return _Head("array", first & 0x0F, at + 1)
        if first <= 0xBF:
            return _Head("str", first & 0x1F, at + 1)
        if first in _FIXED:
            return _Head("number", _FIXED[first], at + 1)
        if first in _FIXED_EXTENSIONS:
            return _Head("ext", _FIXED_EXTENSIONS[first], at + 2)
        if first not in _SIZED:
            raise _NotMessagePack(f"the byte {first:#x} begins no value")
        form, kind = _SIZED[first]
        [size] = struct.unpack_from(form, self._data, at + 1)
        return _Head(kind, size, at + 1 + struct.calcsize(form) + (kind == "ext"))

    def _skip(self, at: int) -> int:
        """Return the end of the key of a map."""
        head = self._head(at)
        if head.kind in ("array", "map", "ext"):
            raise _NotMessagePack("a key of a map is not plain")
        return head.at + head.size

    def _extension(self, at: int, head: _Head) -> int:
        end = head.at + head.size
        content = self._data[head.at : end]
        if len(content) < head.size:
            raise _NotMessagePack("the value is cut off")
        code = self._data[head.at - 1 : head.at]
        try:
            new = _rewritten(content, self._rewriter)
        except _NotMessagePack:
            self.pieces.append(self._data[at:end])
            return end
        self._add(new)
        if new.hits:
            size = len(new.text)
            self.pieces.append(b"\xc9" + struct.pack(">I", size) + code + new.text)
        else:
            self.pieces.append(self._data[at:end])
        return end

    def _text(self, at: int, head: _Head, key: str) -> None:
        end = head.at + head.size
        text = self._data[head.at : end]
        if len(text) < head.size:
            raise _NotMessagePack("the value is cut off")
        text.decode()
        if not self._rewriter.is_suspect(text):
            self.pieces.append(self._data[at:end])
            return
        new = self._rewriter.rewrite(text, key)
        self._add(new)
        if new.hits:
            self.pieces.append(b"\xdb" + struct.pack(">I", len(new.text)) + new.text)
        else:
            self.pieces.append(self._data[at:end])

    def _add(self, new: Rewritten) -> None:
        found = self.found
        self.found = Rewritten(
            *(b"", found.hits + new.hits, found.left + new.left, found.signed + new.signed)
        )
