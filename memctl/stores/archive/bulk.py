"""Many lines of messages of an archive at once.

At the speed of C where they are as memctl writes them; one by one (see ``format``) where not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

import orjson

from memctl.model import StoredMessage
from memctl.stores.archive.format import (
    MARKS,
    MESSAGE,
    Kind,
    Line,
    check_message,
    entry,
    kind_of,
    split,
)
from memctl.stores.archive.format import (
    outline as outline_of,
)
from memctl.stores.batching import are_objects, messages_from_columns

_FIELDS = {"marks", "id", "index"}


def pieces(lines: list[Line]) -> Iterator[tuple[Kind, list[Line]]]:
    """The lines in order: those of messages together, others one by one.

    Raises:
        ValueError: a line is none of a Kind; those before it have been handed out.
    """
    start = 0
    others = [number for number, line in enumerate(lines) if not line.startswith(MESSAGE)]
    for number in others:
        if start < number:
            yield Kind.MESSAGE, lines[start:number]
        yield kind_of(lines[number]), lines[number : number + 1]
        start = number + 1
    if start < len(lines):
        yield Kind.MESSAGE, lines[start:]


class _Rests(NamedTuple):
    """What is behind the messages of some lines."""

    starts: list[int]
    """Where it begins."""
    marks: list[tuple[str, ...]]
    ids: list[str | None]
    """None where it is the message's own."""
    indexes: list[Any]


def check_messages(lines: list[Line]) -> Iterator[int]:
    """Counts lines of messages, which are not looked into, some at a time.

    Raises:
        ValueError: a line is none; those before it have been counted.
    """
    if _rests(lines) is not None:
        yield len(lines)
        return
    for line in lines:
        check_message(line)
        yield 1


def entries(lines: list[Line]) -> list[StoredMessage]:
    """The messages of some lines, which are taken off the list.

    Raises:
        ValueError: one is not a JSON object with an id.
    """
    rests = _rests(lines)
    if rests is not None:
        size = len(MESSAGE)
        texts = [bytes(line[size:end]) for line, end in zip(lines, rests.starts, strict=True)]
        ids = _ids(rests.ids, texts)
        if ids is not None:
            lines.clear()
            return messages_from_columns(ids, texts, rests.marks, rests.indexes)
    lines.reverse()
    found = []
    while lines:  # a large line goes before its message is looked into
        message, fields = split(lines.pop())
        found.append(entry(message, fields))
        del message
    return found


def outlines(lines: list[Line]) -> list[StoredMessage]:
    """``entries`` whose messages are empty; they are not looked into unless they have to be."""
    rests = _rests(lines)
    if rests is not None:
        ids = [id for id in rests.ids if id is not None]
        if len(ids) == len(lines):
            return messages_from_columns(ids, repeat(b""), rests.marks, rests.indexes)
    return [outline_of(line) for line in lines]


def _ids(given: list[str | None], texts: list[bytes]) -> list[str] | None:
    """The ids of messages; None where one is no JSON object with an id, or that is not sure."""
    ids = [id for id in given if id is not None]
    if len(ids) == len(given):
        return ids if are_objects(texts) else None
    try:
        own = [value["id"] for value in map(orjson.loads, texts)]
    except (KeyError, TypeError, IndexError, orjson.JSONDecodeError):
        return None
    if set(map(type, own)) != {str}:
        return None
    return [mine if id is None else id for id, mine in zip(given, own, strict=True)]


def _rests(lines: list[Line]) -> _Rests | None:
    """None where a line is not in memctl's own order."""
    if isinstance(lines[0], bytearray):
        return None  # a long line: it comes alone
    try:
        # A line is JSON only if nothing but the line itself is open before its marks.
        starts = [line.rindex(MARKS) for line in lines]
        rests = [line[start + 1 :] for line, start in zip(lines, starts, strict=True)]
        fields = orjson.loads(b"[{%b]" % b",{".join(rests))
    except ValueError:
        return None
    # With no other fields, and of these types, no rest can hold another: each is one of them.
    if len(fields) != len(lines) or set(map(type, fields)) != {dict}:
        return None
    names = set().union(*fields)
    marks = [one["marks"] for one in fields]
    if not names <= _FIELDS or set(map(type, marks)) != {list}:
        return None
    if not set(map(type, chain.from_iterable(marks))) <= {str}:
        return None
    if not set(map(type, [one.get("id", "") for one in fields])) <= {str}:
        return None
    indexes = [one.get("index") for one in fields] if "index" in names else [None] * len(lines)
    if not set(map(type, indexes)) <= {int, type(None)}:
        return None
    return _Rests(starts, list(map(tuple, marks)), [one.get("id") for one in fields], indexes)
