"""JSON texts parsed with the place of each string and object, for changes that keep other bytes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from memctl.json.scan import (
    HUGE,
    PLAIN,
    TEXT,
    Walk,
    value_end,
)


class Span(NamedTuple):
    """The bytes of a JSON text from ``start`` up to but not including ``stop``."""

    start: int
    stop: int


Steps = tuple[str, ...]
"""The keys on the way to strings: ``EACH`` stands for each item, ``KEYS`` for the keys."""
EACH, KEYS = "*", "{}"


class LocatedText(str):
    """A string of a JSON text; ``span`` is the place of its literal, with the quotes.

    A huge string of plain ASCII, such as base64, is cut to save memory: only its beginning is here.
    ``cut`` is the number of characters behind the beginning.
    """

    __slots__ = ("cut", "span")
    cut: int
    span: Span


class LocatedObject(dict[str, Any]):
    """An object of a JSON text, and its place."""

    __slots__ = ("span",)
    span: Span


_BEGINNING = 1000
"""The number of characters that stay of a cut string."""


def located(text: bytes) -> Any:
    """Parse a JSON text; strings are ``LocatedText``, objects ``LocatedObject``.

    Keys are plain strings.  Of equal keys in one object, the last counts, as in ``json.loads``.

    Raises:
        ValueError: the text is not JSON, or is nested too deep.
    """
    walk = Walk(text)
    try:
        found = _value(walk)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if walk.start() != len(text):
        raise walk.fault("more than one value")
    return found


def _value(walk: Walk) -> Any:
    start = walk.start()
    match walk.text[start : start + 1]:
        case b'"':
            return _string(walk)
        case b"{":
            found = LocatedObject()
            for key in walk.members():
                found[key] = _value(walk)
            found.span = Span(start, walk.at)
            return found
        case b"[":
            return [_value(walk) for _ in walk.items()]
        case _:
            return walk.value()


def _string(walk: Walk) -> LocatedText:
    text, start = walk.text, walk.at
    stop = value_end(text, start)
    if stop is None:
        raise walk.fault("a string does not end")
    walk.at = stop
    cut = 0
    view = memoryview(text)  # its slices are no copies
    if stop - start > HUGE and PLAIN.fullmatch(text, start + 1, stop - 1):
        found = LocatedText(text[start + 1 : start + 1 + _BEGINNING], "ascii")
        cut = stop - start - 2 - _BEGINNING
    elif text.find(b"\\", start, stop) >= 0 or not TEXT.fullmatch(text, start + 1, stop - 1):
        found = LocatedText(json.loads(str(view[start:stop], "utf-8", "surrogatepass")))
    else:
        found = LocatedText(view[start + 1 : stop - 1], "utf-8", "surrogatepass")
    found.cut = cut
    found.span = Span(start, stop)
    return found


def strings(value: Any) -> Iterator[LocatedText]:
    """Yield all strings of a located value, but not the keys."""
    if isinstance(value, LocatedText):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def cut_from(value: Any) -> int:
    """Return the number of characters that are cut from the strings of a located value."""
    return sum(one.cut for one in strings(value))


def spliced(text: bytes, splices: Iterable[tuple[Span, bytes]]) -> bytes:
    """Return the text with the bytes of each span replaced; spans must not overlap."""
    pieces = []
    at = 0
    for span, new in sorted(splices):
        pieces += [text[at : span.start], new]
        at = span.stop
    pieces.append(text[at:])
    return b"".join(pieces)


def with_names(text: bytes, names: Iterable[tuple[tuple[str, ...], str, str]]) -> bytes:
    """Return a JSON text with other names; each is at a path of keys, and has the old name now.

    A value that is not the old name stays.

    Raises:
        ValueError: the text is not JSON, or is nested too deep.
    """
    whole, splices = located(text), []
    for path, old, new in names:
        found = whole
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, LocatedText) and found == old != new:
            literal = json.dumps(new, ensure_ascii=text.isascii())
            splices.append((found.span, literal.encode("utf-8", "surrogatepass")))
    return spliced(text, splices)


def literals(text: bytes, places: Collection[Steps]) -> Iterator[tuple[Span, str, bool]]:
    """Yield the strings at ``places`` of a JSON text, in order, and whether each is a key.

    Raises:
        ValueError: the text is not JSON.
    """
    return _literals(Walk(text), places)


def _literals(walk: Walk, places: Collection[Steps]) -> Iterator[tuple[Span, str, bool]]:
    """Yield the strings at ``places`` of the next value, in order, and whether each is a key."""
    if walk.begins(b"{") and any(places):
        takes_keys = (KEYS,) in places
        for key in walk.members():
            if takes_keys:
                yield Span(walk.key_at, value_end(walk.text, walk.key_at) or walk.at), key, True
            yield from _literals(walk, [one[1:] for one in places if one[:1] in ((key,), (EACH,))])
    elif walk.begins(b"[") and any(places):
        for _ in walk.items():
            yield from _literals(walk, [one[1:] for one in places if one[:1] == (EACH,)])
    elif walk.begins(b'"') and () in places:
        start = walk.at
        value = walk.value()
        yield Span(start, walk.at), value, False
    else:
        walk.skip()
