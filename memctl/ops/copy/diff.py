"""Show the differences between messages as short line diffs.

A message is written as a tree of its fields, with a line for each value and each line of a text.
Of a message above ``LARGEST_BYTES``, only the text around the first difference is shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from difflib import SequenceMatcher
from itertools import islice, takewhile, zip_longest
from typing import IO, Any, NamedTuple

from memctl.errors import Unavailable
from memctl.json import jsonio
from memctl.machine.temporary import temporary_file
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.ops.copy.compare import Difference
from memctl.selection import Selection
from memctl.store import Store
from memctl.wrappers.converted import comparable

LARGEST_BYTES = 1 << 20
"""The size of the largest message that is compared line by line."""
LINES = 60
"""The largest number of lines of a diff."""
WIDEST_LINE = 500
"""The largest number of characters of a line."""
_CONTEXT = 2
_WINDOW = 200
"""The number of lines to compare from the first difference on, in each of the two texts."""
_BEFORE = 60
_PIECE = 1 << 16


def diff_messages(before: bytes | None, after: bytes | None) -> list[str]:
    """Return a diff of the JSON texts of two messages, as lines.

    Lines of ``before`` begin with ``-``, lines of ``after`` with ``+``, lines of both with a blank.
    None stands for a missing message.
    """
    sides = [text for text in (before, after) if text is not None]
    if any(len(text) > LARGEST_BYTES for text in sides):
        return _surroundings(before or b"", after or b"")
    try:
        return diff_lines(
            *([] if text is None else list(_fields(text)) for text in (before, after))
        )
    except RecursionError:  # nested too deep for Python
        return _surroundings(before or b"", after or b"")


def diff_texts(before: str, after: str) -> list[str]:
    """Return a diff of two texts, in the form of ``diff_messages``; an empty text has no lines."""
    return diff_lines(*(text.split("\n") if text else [] for text in (before, after)))


def diff_lines(before: list[str], after: list[str]) -> list[str]:
    """Return a diff of two lists of lines, in the form of ``diff_messages``."""
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
    # If a long line replaces a long line, show both where they differ.
    starts = [_differ(*pair) for pair in zip(ours, theirs, strict=False)]
    for sign, lines in (("-", ours), ("+", theirs)):
        for place, line in enumerate(lines):
            yield sign + _cut(line, starts[place] if place < len(starts) else 0)


def _cut(line: str, place: int) -> str:
    """Return a line, cut to ``WIDEST_LINE`` characters around ``place``."""
    if len(line) <= WIDEST_LINE:
        return line
    start = max(0, min(place - _BEFORE, len(line) - WIDEST_LINE))
    end = start + WIDEST_LINE
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


def _differ(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the first index at which two texts differ.

    If one text begins with the other, return the length of the shorter text.
    """
    start = 0
    while start < min(len(one), len(other)):
        ours, theirs = one[start : start + _PIECE], other[start : start + _PIECE]
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            return start + next((n for n, (a, b) in enumerate(pairs) if a != b), len(ours))
        start += _PIECE
    return min(len(one), len(other))


def _surroundings(before: bytes, after: bytes) -> list[str]:
    """Return lines that show two JSON texts around their first difference."""
    place = _differ(before, after)
    size = f"{len(before):,} and {len(after):,} bytes"
    found = [f" too large to be compared by lines: {size}; they differ from byte {place:,} on"]
    for sign, text in (("-", before), ("+", after)):
        if text:
            start = max(0, place - _BEFORE)
            piece = text[start : start + WIDEST_LINE].decode("utf-8", "replace")
            more = start + WIDEST_LINE < len(text)
            found.append(sign + ("…" if start else "") + piece + ("…" if more else ""))
    return found


def _fields(text: bytes) -> Iterator[str]:
    message = jsonio.loads(text)
    for name in sorted(message) if isinstance(message, dict) else ():
        yield from _tree(name, message[name], "")


def _tree(name: str, value: Any, margin: str) -> Iterator[str]:
    """Yield the lines that show a JSON value with its name, each behind the indent ``margin``.

    ``name`` is the key of the value in an object, or ``-`` in a list.
    """
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


TOGETHER = 500
"""The number of differences to look up in one pass over each store."""

_OF_MEMORY = ("summary", "expiry", "path")


class _Kept(NamedTuple):
    """The marks of a message, and where its text is in a temporary file."""

    marks: tuple[str, ...]
    start: int
    size: int


class _Side:
    """The messages of one store that differ; their texts are in a temporary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._messages: dict[tuple[MemoryKey, str], list[_Kept]] = {}
        self.headers: dict[MemoryKey, Memory] = {}

    async def look_up(self, store: Store, found: list[Difference]) -> None:
        """Read the messages, and the summaries and expiries of memories, that the differences name.

        Raises:
            MemctlError: as ``Store.read``.
        """
        wanted = {(one.key, one.id) for one in found if one.id}
        if wanted:
            keys, ids = zip(*wanted, strict=True)
            where = Selection(keys=frozenset(keys), ids=frozenset(ids))
            async with aclosing(store.read(where)) as pages:
                async for page in pages:
                    for entry in page.messages:
                        if (page.memory.key, entry.id) in wanted:
                            self._keep(page.memory.key, entry)
        beside = frozenset(one.key for one in found if one.code in _OF_MEMORY)
        if beside:
            async with aclosing(store.headers(Selection(keys=beside))) as memories:
                async for memory in memories:
                    self.headers[memory.key] = memory

    def _keep(self, key: MemoryKey, entry: StoredMessage) -> None:
        text = entry.message
        if len(text) > LARGEST_BYTES:
            text = jsonio.canonical(text)  # by value, as in the comparison
        try:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(text)
        except OSError as error:
            raise Unavailable(
                f"no space left for the comparison: {error.strerror}",
                "set TMPDIR to a folder with more space",
            ) from error
        kept = _Kept(entry.marks, start, len(text))
        self._messages.setdefault((key, entry.id), []).append(kept)

    def messages(self, one: Difference) -> list[_Kept]:
        """Return all messages with the id that the difference names, in the order of the store."""
        return self._messages.get((one.key, one.id), [])

    def text(self, kept: _Kept | None) -> bytes | None:
        """Return the JSON text of a message; None for a missing message."""
        if kept is None:
            return None
        self._file.seek(kept.start)
        return self._file.read(kept.size)


async def with_lines(
    left: Store, right: Store, found: Iterable[Difference]
) -> AsyncGenerator[tuple[Difference, list[str]]]:
    """Yield each difference between two stores with a diff, as ``diff_messages`` returns.

    Raises:
        MemctlError: as ``Store.read``.
    """
    left, right = comparable(left, right)
    for some in _groups(found):
        with temporary_file() as one, temporary_file() as other:
            ours, theirs = _Side(one), _Side(other)
            await ours.look_up(left, some)
            await theirs.look_up(right, some)
            for difference in some:
                yield difference, list(_lines(difference, ours, theirs))


def _groups(found: Iterable[Difference]) -> Iterator[list[Difference]]:
    rest = iter(found)
    while some := list(islice(rest, TOGETHER)):
        yield some


def _lines(one: Difference, ours: _Side, theirs: _Side) -> Iterator[str]:
    match one.code:
        case "summary":
            sides = [_summary(side.headers.get(one.key)) for side in (ours, theirs)]
            yield from diff_texts(*sides)
        case "expiry":
            yield f"-{_expiry(ours.headers.get(one.key))}"
            yield f"+{_expiry(theirs.headers.get(one.key))}"
        case "path":
            for sign, side in (("-", ours), ("+", theirs)):
                memory = side.headers.get(one.key)
                yield f"{sign}{(memory and memory.place) or 'no path'}"
        case "memory-missing":
            yield f"-{one.message}"
        case "memory-extra":
            yield f"+{one.message}"
        case "order" | "settings":
            yield f" {one.message}"
        case "marks":
            for before, after in zip_longest(ours.messages(one), theirs.messages(one)):
                if before and after and before.marks != after.marks:
                    yield f"-marks: {_marks(before)}"
                    yield f"+marks: {_marks(after)}"
        case _:
            for before, after in zip_longest(ours.messages(one), theirs.messages(one)):
                yield from _message(one, ours, theirs, before, after)


def _message(
    one: Difference, ours: _Side, theirs: _Side, before: _Kept | None, after: _Kept | None
) -> Iterator[str]:
    """Yield a diff of a message that differs or that only one store has.

    ``before`` is the message in the left store ``ours``, ``after`` that in the right store
    ``theirs``; None if there is none.  Nothing is yielded if ``one`` is not about these messages.
    """
    alone = (before is None) != (after is None)
    if alone != (one.code != "content"):
        return
    kept = before or after
    if alone and kept is not None and kept.marks:
        yield f"{'-' if before else '+'}marks: {_marks(kept)}"
    yield from diff_messages(ours.text(before), theirs.text(after))


def _summary(memory: Memory | None) -> str:
    return (memory.summary if memory else None) or ""


def _expiry(memory: Memory | None) -> str:
    if memory is None or memory.ttl is None:
        return "never expires"
    return f"expires in {memory.ttl:.0f} seconds"


def _marks(kept: _Kept) -> str:
    return ", ".join(kept.marks) or "none"
