"""The lines in which two messages differ, as a person reads them: few, however large the messages.

A message is written as a tree of its fields, a line a value and texts line by line.  Of what is too
large for that, the surroundings of the first difference are shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any

from memctl import codec

LARGEST = 1 << 20
"""Bytes of a message that is looked at line by line."""
LINES = 60
"""Lines that are shown of a difference."""
WIDEST = 500
"""Characters that are shown of a line."""
_CONTEXT = 2
_WINDOW = 200
"""Lines of each side, behind the beginning that they share, that are compared."""
_BEFORE = 60
_PIECE = 1 << 16


def of_messages(before: bytes | None, after: bytes | None) -> list[str]:
    """What changed between two messages (None is no message): lines that begin with ``-`` or ``+``.

    A line with a blank is on both sides.
    """
    sides = [text for text in (before, after) if text is not None]
    if any(len(text) > LARGEST for text in sides):
        return _surroundings(before or b"", after or b"")
    try:
        return of_lines(*([] if text is None else list(_fields(text)) for text in (before, after)))
    except RecursionError:  # nested deeper than Python goes
        return _surroundings(before or b"", after or b"")


def of_texts(before: str, after: str) -> list[str]:
    """What changed between two texts, in the same way; an empty text has no lines."""
    return of_lines(*(text.split("\n") if text else [] for text in (before, after)))


def of_lines(before: list[str], after: list[str]) -> list[str]:
    """What changed between two lists of lines, in the same way."""
    pairs = zip(before, after, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(same - _CONTEXT, 0)
    ours, theirs = before[start : start + _WINDOW], after[start : start + _WINDOW]
    found: list[str] = []
    groups = SequenceMatcher(None, ours, theirs, autojunk=False).get_grouped_opcodes(_CONTEXT)
    for number, group in enumerate(groups):
        if number:
            found.append(" …")
        for kind, *places in group:
            found += _step(kind, ours[places[0] : places[1]], theirs[places[2] : places[3]])
    hidden = max(len(found) - LINES, 0)
    unseen = max(len(before), len(after)) - start - _WINDOW
    if hidden or unseen > 0:
        found = [*found[:LINES], f" … {hidden + max(unseen, 0):,} more lines"]
    return found


def _step(kind: str, ours: Sequence[str], theirs: Sequence[str]) -> Iterator[str]:
    if kind == "equal":
        yield from (f" {_cut(line, 0)}" for line in ours)
        return
    # Long lines that take each other's place are shown where they differ.
    starts = [_differ(*pair) for pair in zip(ours, theirs, strict=False)]
    for sign, lines in (("-", ours), ("+", theirs)):
        for place, line in enumerate(lines):
            yield sign + _cut(line, starts[place] if place < len(starts) else 0)


def _cut(line: str, place: int) -> str:
    """The line, or what stands around a place of it."""
    if len(line) <= WIDEST:
        return line
    start = max(0, min(place - _BEFORE, len(line) - WIDEST))
    end = start + WIDEST
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


def _differ(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The first place where two texts differ."""
    start = 0
    while start < min(len(one), len(other)):
        ours, theirs = one[start : start + _PIECE], other[start : start + _PIECE]
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            return start + next((n for n, (a, b) in enumerate(pairs) if a != b), len(ours))
        start += _PIECE
    return min(len(one), len(other))


def _surroundings(before: bytes, after: bytes) -> list[str]:
    """Where two texts of JSON differ first."""
    place = _differ(before, after)
    size = f"{len(before):,} and {len(after):,} bytes"
    found = [f" too large to be compared by lines: {size}; they differ from byte {place:,} on"]
    for sign, text in (("-", before), ("+", after)):
        if text:
            start = max(0, place - _BEFORE)
            piece = text[start : start + WIDEST].decode("utf-8", "replace")
            more = start + WIDEST < len(text)
            found.append(sign + ("…" if start else "") + piece + ("…" if more else ""))
    return found


def _fields(text: bytes) -> Iterator[str]:
    message = codec.loads(text)
    for name in sorted(message) if isinstance(message, dict) else ():
        yield from _tree(name, message[name], "")


def _tree(name: str, value: Any, margin: str) -> Iterator[str]:
    """A value with its name; ``- `` stands for the name of what is in a list."""
    label = f"{margin}{name}" if name == "-" else f"{margin}{name}:"
    if isinstance(value, dict) and value:
        yield label
        for key in sorted(value):
            yield from _tree(key, value[key], f"{margin}  ")
    elif isinstance(value, list) and value:
        yield label
        for one in value:
            yield from _tree("-", one, f"{margin}  ")
    elif isinstance(value, str) and "\n" in value:
        yield f"{label} |"
        yield from (f"{margin}  {line}" for line in value.split("\n"))
    else:
        yield f"{label} {json.dumps(value, ensure_ascii=False)}"
