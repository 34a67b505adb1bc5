"""The changes of a run that changes memories again and again: which of them count for undo."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memctl.journal.changes import ChangesWriter, read_changes, repeats
from memctl.journal.erase import RunEraser
from memctl.journal.runs import Run, Runs
from memctl.model import Change, Edit, Memory, MemoryKey

ONE, TWO = MemoryKey("ada", "one"), MemoryKey("bob", "two")

Steps = list[tuple[str, MemoryKey, str]]
"""A record (``add``, ``whole`` or ``void``), its memory, and ids of messages, a letter each."""


def record(path: Path, steps: Steps) -> None:
    with ChangesWriter(path, growing=True, repeats=True) as writer:
        for what, key, ids in steps:
            if what == "void":
                writer.void(key)
            else:
                edit = Edit(Memory(key), [Change(id, None, ()) for id in ids])
                writer.add(edit, whole=what == "whole")
        writer.finish()


def counting(path: Path) -> dict[MemoryKey, str]:
    found: dict[MemoryKey, str] = {}
    for edit in read_changes(path):
        ids = "".join(change.id for change in edit.changes)
        found[edit.memory.key] = found.get(edit.memory.key, "") + ids
    return found


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("add", ONE, "ab"), ("add", TWO, "x"), ("add", ONE, "c")], {ONE: "abc", TWO: "x"}),
        ([("add", ONE, "ab"), ("whole", ONE, "b"), ("add", ONE, "c")], {ONE: "bc"}),
        ([("add", ONE, "ab"), ("add", ONE, "c"), ("void", ONE, "")], {ONE: "ab"}),
        (
            [("add", ONE, "ab"), ("add", ONE, "c"), ("whole", ONE, "b"), ("void", ONE, "")],
            {ONE: "abc"},
        ),
        (
            [("add", ONE, "a"), ("whole", ONE, "b"), ("void", ONE, ""), ("whole", ONE, "c")],
            {ONE: "c"},
        ),
        ([("add", ONE, "a"), ("void", ONE, ""), ("add", ONE, "a")], {ONE: "a"}),
        ([("add", ONE, "a"), ("void", ONE, ""), ("void", ONE, "")], {}),
    ],
)
def test_changes_that_count(tmp_path: Path, steps: Steps, expected: dict[MemoryKey, str]) -> None:
    path = tmp_path / "changes-1.ndjson.zst"
    record(path, steps)
    assert counting(path) == expected


def test_erase_keeps_what_counts_of_others(tmp_path: Path) -> None:
    kept = Runs(tmp_path)
    journal = kept.begin(Run("", "migrate", "a.db", "a.db"))
    path = journal.folder / "changes-1.ndjson.zst"
    record(path, [("add", ONE, "a"), ("add", TWO, "xy"), ("whole", TWO, "y"), ("add", TWO, "z")])
    journal.end("done")
    erased = asyncio.run(RunEraser(kept, lambda key: key.user == "ada").erase(kept.all()))
    assert (erased.memories, erased.failures) == (1, {})
    assert counting(path) == {TWO: "yz"}
    assert repeats(path)
