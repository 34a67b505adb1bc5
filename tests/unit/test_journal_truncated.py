"""A file of changes that is cut off is refused, or read as far as it goes where it may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl.errors import BadData
from memctl.journal.changes import UNFINISHED, ChangesWriter, is_growing, read_changes
from memctl.model import Change, Edit, Memory, MemoryKey

EDITS = [
    Edit(
        Memory(MemoryKey("u", f"s{number}")),
        [Change(f"m{n}", ("hint",), None, b'{"id":"m%d"}' % n, None, n) for n in range(50)],
    )
    for number in range(6)
]


def test_whole_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [edit.changes for edit in read_changes(path)] == [edit.changes for edit in EDITS]


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(BadData, match="cut off or damaged"):
            list(read_changes(path))


def test_unfinished_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "changes-1.ndjson.zst"
    with ChangesWriter(path, growing=True) as writer:
        for number, edit in enumerate(EDITS, 1):
            writer.add(edit)
            writer.sync()
            part = path.with_name(path.name + UNFINISHED)
            assert is_growing(part)
            # The last memory may go on: it ends where the file does.
            found = [change for edit in read_changes(part) for change in edit.changes]
            assert found == [change for edit in EDITS[:number] for change in edit.changes]


def written(folder: Path) -> Path:
    path = folder / "changes-1.ndjson.zst"
    with ChangesWriter(path) as writer:
        for edit in EDITS:
            writer.add(edit)
        writer.finish()
    return path
