"""The reports as people see them at 60, 80 and 120 columns: files to read, in ``screens/``.

Each file has the command lines with what they print.  ``make screens`` writes them anew; read what
has changed before you commit it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.terminal.test_help import SCREENS

ROOT = Path(__file__).parents[2]
STYLE = re.compile(r"\x1b\[[0-9;]*m")

LINES = {
    "inspect": ["inspect agents", "inspect agents --by name"],
    "inspect-messages": ["inspect agents --user ada --messages --ids --last 3"],
    "delete-dry-run": ["delete agents --mark hint --dry-run", "delete agents --user ada -n"],
    "history": [
        "delete agents --mark hint --yes",
        "mark add agents --user bob seen",
        "undo --store agents --yes",
        "history",
        "history --limit 1",
    ],
    "doctor": ["doctor agents", "doctor agents --repair --dry-run"],
    "migrate": [
        "migrate agents archive.ndjson.zst --dry-run",
        "migrate agents archive.ndjson.zst",
        "migrate agents archive.ndjson.zst",
        "migrate agents bare.db",
        "migrate agents bare.db --lossy",
    ],
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store of ``tools/demo.py`` and an alias of it."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import demo as made  # a module of tools/

        folder = tmp_path_factory.mktemp("demo")
        made.make(folder)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    (folder / "memctl.toml").write_text(f'[stores.agents]\nurl = "{made.STORE}"\n', "utf-8")
    return folder


@pytest.fixture
def world(demo: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(demo, tmp_path / "world"))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that runs a command on a terminal, and records what it shows."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import record as found  # a module of tools/

    return found


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", LINES)
def test_report_screens(world: Path, record: Any, name: str, columns: int) -> None:
    environment = {
        **{"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
        **{"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PAGER": "cat", "TZ": "UTC"},
        **{"MEMCTL_CONFIG": "memctl.toml", "XDG_STATE_HOME": str(world / "state")},
    }
    parts = []
    for minute, line in enumerate(LINES[name], 15):
        environment["FROZEN_AT"] = f"2026-01-12T03:{minute}:00"
        words = [sys.executable, "-m", "tests.terminal.frozen", *line.split()]
        printed = STYLE.sub("", record.on_terminal(words, world, environment, columns))
        parts.append(f"$ memctl {line}\n{printed}")
    text = "\n".join(parts)
    file = SCREENS / f"{name}-{columns}.txt"
    if os.environ.get("MEMCTL_SCREENS") == "write":
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")
