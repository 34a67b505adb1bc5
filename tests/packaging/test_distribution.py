"""The content of what is built; ``make dist-test`` installs it and tries it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.bounds import ROOT, oldest
from tests.packaging.contents import wrong_with


@pytest.mark.slow
def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    wheel, sdist = sorted(tmp_path.iterdir(), key=lambda path: path.suffix != ".whl")
    assert wrong_with(wheel) == []
    assert wrong_with(sdist) == []


def test_oldest_versions_are_those_of_pyproject() -> None:
    """``python -m tests.packaging.bounds > requirements/oldest.txt`` writes them."""
    assert (ROOT / "requirements" / "oldest.txt").read_text("utf-8") == oldest()
