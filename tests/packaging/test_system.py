"""Behaviour on systems other than Linux, as far as Linux can show it."""

from __future__ import annotations

import subprocess
import sys

START = "import os; os.name = 'nt'; from memctl.__main__ import main; main()"


def test_start_on_windows_ends_with_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line == "memctl: error: memctl needs Linux or macOS; on Windows, run it in WSL"
