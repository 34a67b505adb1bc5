"""JSON without loss: parsed by orjson if the result is exact, else by the standard library.

AgentScope writes with the standard library's ``json``.  So stored messages may hold ``NaN``,
integers past 64 bits and lone surrogates.  orjson rejects ``NaN`` and lone surrogates, and turns
such integers into floats.  The functions here give the result of ``json.loads``.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

import orjson

from memctl.json.scan import (
    HUGE,
    PLAIN,
    SPACE,
    STRING,
    TEXT,
    Walk,
    match_end,
    value_end,
)

_AS_ZEROS = bytes.maketrans(b"0123456789", b"0000000000")
_LONG_NUMBER = b"0" * 19
_INT64 = range(-(2**63), 2**64)
_ORJSON_LEVELS = 300
"""A depth of nesting that orjson refuses to write; it reads deeper values."""
_PIECE = 1 << 20
_LONG_TEXT = 1000
_MOST_VALUES = 300_000
_MOST_MEMBERS = 50_000
_LEAP = 1 << 16
_LEVELS = 20
"""The depth of nesting down to which members of large objects and arrays are left out."""
_END = {b"{": b"}", b"[": b"]"}
_BEHIND_STRING = b" \t\r\n,:]}"
"""The bytes that may follow a string in JSON."""


def loads(text: bytes) -> Any:
    """Parse a JSON text and return its value, exactly as ``json.loads`` does.

    A huge string of plain ASCII is copied once: orjson would first copy the whole text.

    Raises:
        ValueError: the text is not JSON (``json.JSONDecodeError``), is nested too deep, or has a
            number with too many digits.
    """
    if strings := _huge_strings(text):
        with suppress(ValueError):  # an error names a position in the whole text
            return _loads_around(text, strings)
    if not _has_long_number(text):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # NaN, a lone surrogate, or an error: the standard library has better messages
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _has_long_number(text: bytes) -> bool:
    """Return whether the text has 19 consecutive digits."""
    if len(text) <= _PIECE:
        return _LONG_NUMBER in text.translate(_AS_ZEROS)
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE + len(_LONG_NUMBER) - 1]
        if _LONG_NUMBER in piece.translate(_AS_ZEROS):
            return True
    return False


def _huge_strings(text: bytes) -> list[tuple[int, int]]:
    """Return where the insides of huge strings of plain ASCII, apart from keys, start and end.

    In a text that is not JSON, such a place may also follow a string without a comma.
    """
    found: list[tuple[int, int]] = []
    half, end = HUGE // 2, 0
    for at in range(half, len(text) - half, half):  # a huge string has a whole half inside
        if at < end or text.find(b'"', at, at + half) >= 0:
            continue
        start, end = text.rfind(b'"', 0, at) + 1, text.find(b'"', at + half)
        if end < 0:
            break
        is_huge = start and end - start > HUGE and PLAIN.fullmatch(text, start, end)
        outside = text[start] in _BEHIND_STRING or text[start - 2 : start - 1] == b"\\"
        if is_huge and not (outside or text.startswith(b":", match_end(SPACE, text, end + 1))):
            found.append((start, end))
    return found


def _loads_around(text: bytes, strings: list[tuple[int, int]]) -> Any:
    """Parse a JSON text with names in the place of huge strings; return its value with these."""
    name = "huge"
    while name.encode() in text:
        name += "_"
    names = [f"{name}{number}" for number in range(len(strings))]
    value = [loads(_with_strings(text, strings, map(str.encode, names)))]
    wanted = dict(zip(names, strings, strict=True))
    nodes: list[Any] = [value]
    while wanted and nodes:
        node = nodes.pop()
        for key, one in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(one, dict | list):
                nodes.append(one)
            elif isinstance(one, str) and one in wanted:
                start, end = wanted.pop(one)
                node[key] = str(memoryview(text)[start:end], "ascii")
    return value[0]


def _with_strings(text: bytes, strings: list[tuple[int, int]], new: Iterable[bytes]) -> bytes:
    """Replace the insides of the strings at the positions ``strings`` by the texts ``new``."""
    pieces: list[bytes | memoryview] = []
    at, view = 0, memoryview(text)
    for (start, end), inside in zip(strings, new, strict=False):
        pieces += [view[at:start], inside]
        at = end
    return b"".join([*pieces, view[at:]])


def outline(text: bytes) -> Any:
    """Parse a JSON text in little time and memory; the value keeps only short fields whole.

    Integers past 64 bits may be floats.  In a text of at least ``_PIECE`` bytes, strings of more
    than 1,000 bytes are empty, and large objects and arrays lack members (see ``pruned``).

    Raises:
        ValueError: as ``loads``.
    """
    if strings := _huge_strings(text):
        text = _with_strings(text, strings, repeat(b""))
    short = text if len(text) < _PIECE else pruned(b"".join(_short_texts(text)))
    try:
        return orjson.loads(short)
    except orjson.JSONDecodeError:
        return loads(short)


def _short_texts(text: bytes) -> Iterator[bytes]:
    """Yield a JSON text in pieces, with strings over 1,000 bytes made empty.

    Raises:
        ValueError: such a string is not valid JSON.
    """
    at = 0
    for found in STRING.finditer(text):
        start, end = found.start() + 1, found.end() - 1
        if end - start > _LONG_TEXT:
            if not TEXT.fullmatch(text, start, end):
                raise ValueError(f"the text at {start} is not written as JSON has it")
            yield text[at:start]
            at = end
    yield text[at:]


def pruned(text: bytes) -> bytes:
    """Return a JSON text that leaves out members of large objects and arrays, to save memory.

    A text of up to 300,000 values is returned unchanged.  In a text with more values, an object or
    array keeps its first 50,000 members.  All other members are checked and left out.

    Raises:
        ValueError: as ``loads``.
    """
    if _values(text) <= _MOST_VALUES:
        return text
    return b"".join(_Pruner(text).pieces())


def _values(text: bytes) -> int:
    """Return an upper estimate of the number of values in a JSON text."""
    return sum(text.count(sign) for sign in (b",", b"[", b"{"))


class _Pruner:
    """Copies a JSON text without some members of large objects and arrays."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._walk = Walk(text)
        self._left = _MOST_VALUES
        """The number of values that may still be kept."""
        self._guess_from = 0
        """The position from which ``_leap`` guesses commas again."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the shortened text in pieces."""
        yield from self._value(0)
        if self._walk.start() != len(self._text):
            raise ValueError(f"more than one value, from {self._walk.at} on")

    def _value(self, depth: int) -> Iterator[bytes]:
        """Pass over the next value, and yield its shortened text in pieces.

        ``depth`` is the number of objects and arrays around the value.
        """
        start = self._walk.start()
        opening = self._text[start : start + 1]
        text = self._walk.skip()
        if opening not in (b"{", b"[") or (len(text) <= _LEAP or depth > _LEVELS):
            loads(text)
            self._left -= _values(text)
            yield text if self._left > 0 or opening not in (b"{", b"[") else opening + _END[opening]
            return
        del text
        self._walk.at = start
        yield opening
        comma = b""
        for kept in self._members(opening, depth):
            yield comma
            yield from kept
            comma = b","
        yield _END[opening]

    def _members(self, opening: bytes, depth: int) -> Iterator[Iterable[bytes]]:
        """Yield the pieces of each kept member of the next object or array.

        ``opening`` is the bracket with which it begins, ``depth`` the number of objects and arrays
        around it.  Many small members may come as one text.
        """
        count = 0
        walk = self._walk
        for key in walk.members() if opening == b"{" else walk.items():
            name = dumps(key) + b":" if isinstance(key, str) else b""
            pieces = chain([name], self._value(depth + 1))
            if count < _MOST_MEMBERS:
                yield pieces
            else:
                deque(pieces, 0)
            count += 1
            while (some := self._leap(opening)) is not None:
                text, number = some
                is_short = not depth and len(text) < _LONG_TEXT  # such as the time of a message
                if count < _MOST_MEMBERS and (self._left > 0 or is_short):
                    self._left -= _values(text)
                    yield [text]
                count += number

    def _leap(self, opening: bytes) -> tuple[bytes, int] | None:
        """Pass over many members after a comma; return their text and their number.

        Return None, and do not move, if this is not possible.  ``opening`` is the bracket with
        which the object or array of the members begins.
        """
        walk, text = self._walk, self._text
        start = walk.start()
        if not text.startswith(b",", start):
            return None
        if start >= self._guess_from:
            # The text between two commas parses as members: so both stand between members.
            end = text.rfind(b",", start + 1, start + _LEAP)
            with suppress(ValueError):
                if members := loads(opening + text[start + 1 : max(end, start)] + _END[opening]):
                    walk.at = end
                    return text[start + 1 : end], len(members)
            self._guess_from = start + _LEAP
        end = self._end_of_some(opening, start)
        if end == start:
            return None
        members = loads(opening + text[start + 1 : end] + _END[opening])
        walk.at = end
        return text[start + 1 : end], len(members)

    def _end_of_some(self, opening: bytes, start: int) -> int:
        """Skip small members of an object or array, from the comma at ``start``; return their end.

        ``opening`` is the first character of the object or array.  The result is ``start`` if the
        next member is not small.
        """
        walk, text = self._walk, self._text
        end = start
        while end < start + _LEAP and text.startswith(b",", end):
            walk.at = end + 1
            if opening == b"{":
                walk.skip()
                if not text.startswith(b":", walk.start()):
                    break
                walk.at += 1
            stop = value_end(text, walk.start(), min(walk.at + _LEAP, len(text)))
            if stop is None or stop == walk.at:
                break
            walk.at = stop
            end = walk.start()
        walk.at = start
        return end


def dumps(value: Any) -> bytes:
    """Return a value as compact JSON in ASCII, with ``NaN`` and infinity as Python writes them."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def compact(value: Any, *, odd: bool = False) -> bytes:
    """Return a value as compact JSON in UTF-8, or in ASCII if orjson refuses the value.

    orjson refuses lone surrogates and huge integers, and writes ``NaN`` and infinity as null.  With
    ``odd``, the value may hold ``NaN`` or infinity, and both are kept; see ``may_have_nan``.
    """
    if odd and _has_nan(value):
        return dumps(value)
    try:
        text = orjson.dumps(value)
    except TypeError:  # a lone surrogate, or an integer past 64 bits
        return dumps(value)
    # The copy frees orjson's buffer, which is larger than a small result.
    return text if len(text) > _PIECE else bytes(memoryview(text))


def may_have_nan(text: str | bytes) -> bool:
    """Return False if a JSON text has neither the number ``NaN`` nor infinity; True if it may.

    Strings count, too: arguments of tool calls and notes of memctl are JSON texts in strings.
    """
    if isinstance(text, str):
        return "NaN" in text or "Infinity" in text
    return b"NaN" in text or b"Infinity" in text


def _has_nan(value: Any) -> bool:
    nodes = [value]
    while nodes:
        match nodes.pop():
            case float() as number if not math.isfinite(number):
                return True
            case list() as items:
                nodes += items
            case dict() as members:
                nodes += members.values()
    return False


def canonical(text: bytes) -> bytes:
    """Return a text that is equal for equal JSON values, and different for different values.

    ``NaN`` equals ``NaN``.

    Raises:
        ValueError: the text is not JSON, or is nested too deep.
    """
    if not _has_long_number(text):
        with suppress(ValueError, TypeError):  # orjson accepts plain values only
            return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
    value = loads(text)
    try:
        if _is_plain(value, _ORJSON_LEVELS):
            with suppress(TypeError):  # the value has more levels than orjson writes
                return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return json.dumps(value, sort_keys=True).encode("ascii")
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _is_plain(value: Any, levels: int) -> bool:
    """Return whether orjson writes the value unchanged, within ``levels`` of nesting."""
    match value:
        case str():
            return value.isascii() or not has_surrogate(value)
        case bool() | None:
            return True
        case int():
            return value in _INT64
        case float():
            return math.isfinite(value)
        case list():
            return levels > 0 and all(_is_plain(item, levels - 1) for item in value)
        case dict():
            return levels > 0 and all(
                _is_plain(key, 0) and _is_plain(item, levels - 1) for key, item in value.items()
            )
        case _:
            return False


def in_one_line(text: bytes) -> bytes:
    """Return a JSON text without line feeds, with the same value; ``in_lines`` is the inverse.

    A line feed becomes a carriage return and a space; a carriage return becomes a carriage return
    and a tab.  The value stays the same: JSON ignores these characters between values, and strings
    cannot contain them.
    """
    if b"\n" in text or b"\r" in text:
        return text.replace(b"\r", b"\r\t").replace(b"\n", b"\r ")
    return text


def in_lines(text: bytes) -> bytes:
    """Return the JSON text from which ``in_one_line`` made ``text``."""
    if b"\r" in text:
        return text.replace(b"\r ", b"\n").replace(b"\r\t", b"\r")
    return text


def has_surrogate(text: str) -> bool:
    """Return whether a text has a lone surrogate, which UTF-8 cannot encode."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def utf8(text: bytes) -> bytes:
    """Return the same JSON in valid UTF-8.

    Lone surrogates in raw bytes, which JSONSession writes, become escapes.

    Raises:
        ValueError: the bytes are not UTF-8, apart from lone surrogates.
    """
    return text if is_utf8(text) else b"".join(_escaped(piece) for piece in _pieces(text))


def is_utf8(text: bytes) -> bool:
    """Return whether a text is valid UTF-8; a lone surrogate in raw bytes is not."""
    if text.isascii():
        return True
    try:
        for piece in _pieces(text):
            piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield a text in pieces that are cut between characters."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        while end < len(text) and text[end] & 0xC0 == 0x80 and end < start + _PIECE + 4:
            end += 1
        yield text[start:end]
        start = end


def _escaped(piece: bytes) -> bytes:
    # Raw surrogates occur only in JSON strings: there an escape means the same.
    decoded = piece.decode("utf-8", "surrogatepass")
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", decoded).encode()


_SURROGATE = re.compile(rb"(?<!\\)((?:\\\\)*)\\u(d[89a-f][0-9a-f]{2})")


def raw_surrogates(text: bytes) -> bytes:
    """Return the same JSON with lone surrogates as raw bytes, not as escapes; reverses ``utf8``."""
    return _SURROGATE.sub(
        lambda found: found[1] + chr(int(found[2], 16)).encode("utf-8", "surrogatepass"), text
    )


def field(message: bytes, name: str) -> str | None:
    """Return the value of a top-level field of a message, if it is a short string.

    None if the field is missing or is not a short string.

    Raises:
        ValueError: the message is not a JSON object.
    """
    value = outline(message)
    if not isinstance(value, dict):
        raise ValueError("a message is not a JSON object")
    found = value.get(name)
    return found if isinstance(found, str) else None


def encoded(text: str | bytes) -> bytes:
    """Return a JSON text as bytes that ``loads`` accepts, even with lone surrogates."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def is_object(text: bytes) -> bool:
    """Return whether a text is a JSON object in valid UTF-8."""
    try:
        return is_utf8(text) and isinstance(outline(text), dict)
    except ValueError:
        return False
