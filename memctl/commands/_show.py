"""Differences printed as git prints them: what one side has in red, the other in green."""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncIterator, Iterable

from rich.text import Text

from memctl import codec
from memctl.location import visible
from memctl.model import Entry, MemoryKey
from memctl.ops.differences import Difference
from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing

_STYLES = {"-": "red", "+": "green", "@": "cyan"}


async def differences(
    left: Store, right: Store, found: Iterable[Difference]
) -> AsyncIterator[Text]:
    """One text for each message or memory that differs."""
    ids: dict[MemoryKey, list[str]] = {}
    for difference in found:
        ids.setdefault(difference.key, [])
        if difference.id and difference.id not in ids[difference.key]:
            ids[difference.key].append(difference.id)
        if not difference.id:
            yield _heading(difference.key, f"{difference.code}: {difference.message}")
    for key, names in ids.items():
        for name in names:
            where = Selection(keys=frozenset({key}), ids=frozenset({name}))
            before, after = await _lines(left, where), await _lines(right, where)
            yield _diff(key, name, before, after)


async def _lines(store: Store, where: Selection) -> list[str]:
    lines: list[str] = []
    async with closing(store.read(where)) as pages:
        async for page in pages:
            for entry in page.entries:
                lines += _readable(entry)
    return lines


def _readable(entry: Entry) -> list[str]:
    text = json.dumps(codec.loads(entry.message), ensure_ascii=False, indent=2, sort_keys=True)
    marks = ", ".join(sorted(entry.marks))
    return [f"marks: {marks}", *text.splitlines()]


def _diff(key: MemoryKey, name: str, before: list[str], after: list[str]) -> Text:
    text = _heading(key, f"message {name!r}")
    changed = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
    for line in changed or ["@@ the same message, at another place"]:
        text.append("\n" + visible(line), _STYLES.get(line[0], ""))
    return text


def _heading(key: MemoryKey, text: str) -> Text:
    return Text(f"{visible(str(key))}  {visible(text)}", "bold")
