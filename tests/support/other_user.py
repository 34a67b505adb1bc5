"""Files of another user, and memctl as a user without the rights of root."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.processes import start

ROOT = os.geteuid() == 0
OTHER = 65534
"""The number of the user nobody, whom every system has."""
_PLAIN = ["setpriv", "--bounding-set=-all"] if ROOT else []
"""The command that runs Python without the rights of root.

Other users may have no access to the Python of root.  Therefore root runs Python without rights.
"""


@cache
def can_be_plain() -> bool:
    """Return whether memctl can run without the rights of root."""
    try:
        return subprocess.run([*_PLAIN, sys.executable, "-c", ""], check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_plain(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run memctl as a user for whom the modes of files count."""
    with start_plain(*arguments, stdin=subprocess.DEVNULL, **settings) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def start_plain(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    """Start memctl as ``run_plain`` does."""
    return start(*arguments, without_rights=_PLAIN, **settings)


def give_away(path: Path, rights: int) -> None:
    """Give a file or a tree to another user; ``rights`` (such as 0o4) are the remaining rights.

    A right to read a folder includes the right to search it.
    """
    for one in [*path.rglob("*"), path]:
        ours = rights | (1 if one.is_dir() and rights & 4 else 0)
        if ROOT:
            os.chown(one, OTHER, OTHER)
            one.chmod(0o700 | ours)
        else:
            one.chmod(ours << 6)


def take_back(path: Path) -> None:
    """Make the tree accessible again, to read and remove it."""
    if ROOT:
        return
    path.chmod(0o700)
    for one in path.iterdir():
        if one.is_dir():
            take_back(one)
        else:
            one.chmod(0o600)
