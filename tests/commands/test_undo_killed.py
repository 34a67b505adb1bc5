"""``memctl undo`` of runs that were killed while they wrote down what they changed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from memctl.testing import samples
from memctl.testing.samples import entry
from tests.support.cli import Run, fails, report
from tests.support.cli import fill as fill_text

CUTS = 12


def kill(run: str, end: int | None = None) -> None:
    """Leaves of a run what a kill would have left, its file of changes cut off at a byte."""
    folder = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / run
    whole = folder / "changes-1.ndjson.zst"
    left = whole.with_name(whole.name + ".part")
    if whole.exists():
        whole.rename(left)
    os.truncate(left, left.stat().st_size if end is None else end)
    record = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps(record | {"ended": "", "outcome": ""}))


def size(run: str) -> int:
    """Bytes of the file of changes of a run."""
    folder = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / run
    return (folder / "changes-1.ndjson.zst").stat().st_size


def counts(run: Run, store: str) -> dict[tuple[str, str], int]:
    """How many messages each memory holds."""
    found = report(run("inspect", store, "--json"))["memories"]
    return {(memory["user"], memory["session"]): memory["messages"] for memory in found}


def test_undo_import_that_was_killed(run: Run, filled: str, tmp_path: Path) -> None:
    file = str(tmp_path / "more.ndjson")
    keys = [samples.key(number) for number in range(2, 30)]
    asyncio.run(fill_text(file, {key: [entry(f"new-{n}", n) for n in range(60)] for key in keys}))
    before = counts(run, filled)
    done = report(run("import", file, filled, "--on-conflict", "append", "--json"))["run"]
    assert counts(run, filled) != before
    kill(done)
    assert report(run("undo", done, "--json"))["memories"]["written"] == len(keys)
    assert {key: number for key, number in counts(run, filled).items() if number} == before


def test_undo_what_was_not_written_down_was_not_done(run: Run, filled: str, tmp_path: Path) -> None:
    """Wherever the file ends, what can be read of it goes back, and the rest is left alone."""
    path = filled.removeprefix("sqlite:///")
    before = counts(run, filled)
    done = report(run("compress", filled, "--mode", "replace", "--json"))["run"]
    after = counts(run, filled)
    shutil.copyfile(path, tmp_path / "after.db")
    length = size(done)
    seen = set()
    for end in sorted({*random.Random(3).sample(range(length), CUTS), length - 1}, reverse=True):
        kill(done, end)
        shutil.copyfile(tmp_path / "after.db", path)
        found = run("undo", done, "--json")
        assert found.exit_code in (0, 5, 8), found.stderr
        now = counts(run, filled)
        # A memory of which a part was written down would not have been changed: it is refused.
        assert all(now[key] in (before[key], after[key]) for key in now), end
        seen.add(sum(now[key] == before[key] for key in now))
        undone = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / done / "run.json"
        record = json.loads(undone.read_bytes())
        undone.write_text(json.dumps(record | {"undone_by": "", "settled": False}))
    assert len(before) in seen


def test_undo_plan_that_was_not_finished_is_no_record(run: Run, filled: str) -> None:
    done = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    left = counts(run, filled)
    kill(done)
    fails(run("undo", done), 8, "was not written down to its end")
    assert counts(run, filled) == left


@pytest.mark.parametrize("mode", ["mark", "message"])
def test_undo_killed_between_the_summary_and_the_messages(
    run: Run, database: str, tmp_path: Path, mode: str
) -> None:
    """The summary lies in the state of the session, the messages in the database."""
    path = database.removeprefix("sqlite:///")
    store = f"{database}?state={tmp_path}/states"
    (tmp_path / "states").mkdir()
    memories = {samples.key(n): samples.entries(10 * n + 10) for n in range(4)}
    asyncio.run(fill_text(store, memories, summary="What was said before."))
    shutil.copyfile(path, tmp_path / "before.db")
    assert run("export", store, "--as", "archive", "-o", f"{tmp_path}/a.ndjson").exit_code == 0
    done = report(run("compress", store, "--mode", mode, "--keep-recent", "1", "--json"))["run"]
    shutil.copyfile(tmp_path / "before.db", path)
    kill(done)
    assert run("verify", store, f"{tmp_path}/a.ndjson").exit_code == 6
    assert report(run("undo", done, "--json"))["memories"]["written"]
    assert run("verify", store, f"{tmp_path}/a.ndjson").exit_code == 0
