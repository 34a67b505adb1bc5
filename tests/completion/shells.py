"""Shells at a pseudo-terminal, in which ``memctl`` notes the words that it is run with."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "completions"
STARTS = {
    "bash": (["--norc", "--noprofile", "-i"], ""),
    "zsh": (["-f", "-i"], "autoload -Uz compinit; compinit -u -D; "),
    "fish": (["--no-config", "-i"], ""),
}
PATIENCE = 20
"""Seconds that a store may take here, on a machine that is busy with other tests."""
PATIENT = f"""
from memctl import __main__, completion
completion.PATIENCE = {PATIENCE}
__main__.main()
"""
# What is completed is memctl; what is run is only noted, word for word.
WRAPPER = """#!/bin/sh
if [ -n "$_MEMCTL_COMPLETE" ]; then exec {python} -c '{patient}' "$@"; fi
printf '%s\\0' "$@" >"$NOTED.new" && mv "$NOTED.new" "$NOTED"
echo NO''TED
"""


def need(shell: str) -> str:
    """The program of the shell; without it the test is left out, and fails where CI=true."""
    program = shutil.which(shell)
    if program is not None:
        return program
    why = f"{shell} is not installed: scripts/get-servers installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


class Shell:
    """One shell, in the folder of the stores."""

    def __init__(self, name: str, folder: Path, **more: str) -> None:
        arguments, before = STARTS[name]
        self.name = name
        self.noted = folder / f"noted-{name}"
        binaries = folder / f"bin-{name}"
        binaries.mkdir(exist_ok=True)  # the tests of a shell may come in two runs
        (binaries / "memctl").write_text(WRAPPER.format(python=sys.executable, patient=PATIENT))
        (binaries / "memctl").chmod(0o755)
        self.environment = {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "NOTED": str(self.noted),
            "TERM": "xterm" if name == "fish" else "dumb",
            "LC_ALL": "C.UTF-8",
            **more,
        }
        self.terminal = pexpect.spawn(
            need(name),
            arguments,
            cwd=folder,
            env=self.environment,
            encoding="utf-8",
            timeout=20,
            dimensions=(50, 250),
        )
        self.terminal.send(f"{before}. {SCRIPTS}/memctl.{name}; echo RE''ADY\r")
        self.terminal.expect("READY\r")

    def run(self, typed: str) -> list[str]:
        """The words that memctl is run with when this is typed, TAB included, and Enter."""
        self.noted.unlink(missing_ok=True)
        self.terminal.send(f"{typed}\r")
        self.terminal.expect("NOTED\r")
        return self.noted.read_text().split("\0")[:-1]

    def close(self) -> None:
        """End the shell."""
        self.terminal.close(force=True)
