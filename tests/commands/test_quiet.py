"""``--quiet``: nothing is said of what succeeded, in cron jobs above all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import FRIDAY, Run


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "{store}", "--mark", "hint", "--yes"),
        ("delete", "{store}", "--mark", "nothing", "--yes"),
        ("mark", "add", "--all", "{store}", "seen"),
        ("compress", "{store}", "--keep-recent", "2"),
        ("compress", "{store}", "--trigger-tokens", "1000000"),
        ("doctor", "{store}", "no-session-index", "--repair", "--yes"),
        ("import", str(FRIDAY), "{folder}/new.ndjson", "--user", "u", "--session", "s"),
        ("migrate", "{store}", "{folder}/new.ndjson"),
        ("verify", "{store}", "{store}"),
        ("export", "{store}", "-o", "{folder}/new.ndjson.gz"),
    ],
    ids=" ".join,
)
def test_quiet_run_that_succeeds_says_nothing(
    run: Run, filled: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run("--quiet", *(word.format(store=filled, folder=tmp_path) for word in words))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_quiet_undo_says_nothing(run: Run, filled: str) -> None:
    assert run("delete", filled, "--mark", "hint", "--yes").exit_code == 0
    done = run("--quiet", "undo", "--yes")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_quiet_shows_what_was_asked_for_and_what_failed(
    run: Run, filled: str, tmp_path: Path
) -> None:
    assert "would be deleted" in run("-q", "delete", filled, "--mark", "hint", "--dry-run").stdout
    assert "user0" in run("-q", "inspect", filled).stdout
    other = str(tmp_path / "other.ndjson")
    assert run("import", FRIDAY, other, "--user", "user0", "--session", "session0").exit_code == 0
    different = run("-q", "verify", filled, other)
    assert different.exit_code == 6
    assert "different" in different.stdout
    assert "memctl: error: " in different.stderr
