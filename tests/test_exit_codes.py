"""Every exit code of the table, reached from a shell."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from memctl.errors import exit_codes
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from tests.support.cli import FRIDAY, fill
from tests.support.processes import start

MEMCTL = shlex.join([sys.executable, "-m", "memctl"])
ROOT = Path(__file__).parent.parent
ONE = MemoryKey("ada", "one")

SCRIPTS: dict[str, tuple[int, str]] = {
    "done": (0, "memctl inspect one.ndjson"),
    "a bug": (1, "PYTHONPATH=bug:$PYTHONPATH memctl inspect one.ndjson"),
    "an unknown option": (2, "memctl inspect --unknown"),
    "a file that is there": (2, "memctl export one.ndjson -o other.ndjson"),
    "nobody answers": (3, "memctl inspect redis://127.0.0.1:1"),
    "no such store": (4, "memctl inspect none.db"),
    "no such memory": (4, "memctl inspect one.ndjson --user nobody"),
    "another memory in its place": (5, "memctl migrate one.ndjson other.ndjson"),
    "differences": (6, "memctl verify one.ndjson other.ndjson"),
    "not healthy": (6, "memctl doctor state.json"),
    "a name that no file can have": (7, "memctl migrate names.ndjson sessions/"),
    "an archive that is cut off": (8, "head -n 3 one.ndjson | memctl import - new.db"),
    "a summary without a place": (9, "memctl import state.json new.db --user u --session s"),
    "enough": (141, "memctl inspect long.ndjson --messages | head -n 1; exit ${PIPESTATUS[0]}"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files to work with."""
    path = tmp_path_factory.mktemp("codes")
    for name, memories in {
        "one": {ONE: samples.entries(3)},
        "other": {ONE: samples.entries(3, 7)},
        "names": {ONE: samples.entries(1), MemoryKey("u" * 300, "s"): samples.entries(1)},
        "long": {ONE: samples.entries(5000)},
    }.items():
        asyncio.run(fill(str(path / f"{name}.ndjson"), memories))
    (path / "state.json").write_text(FRIDAY.read_text())
    (path / "bug").mkdir()
    (path / "bug" / "sitecustomize.py").write_text(
        "import memctl.ops.inspect\n"
        "async def inspect(*_):\n"
        "    raise RuntimeError('nobody thought of it')\n"
        "memctl.ops.inspect.inspect = inspect\n"
    )
    return path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}


def shell(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in which ``memctl`` is memctl."""
    return subprocess.run(
        ["bash", "-c", f'memctl() {{ {MEMCTL} "$@"; }}\n{script}'],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_exit_code_from_a_shell(folder: Path, name: str) -> None:
    code, script = SCRIPTS[name]
    done = shell(folder, script)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == (code not in (0, 141)), done.stderr


@pytest.mark.slow
def test_exit_code_store_that_is_locked(folder: Path) -> None:
    target = str(folder / "locked.db")

    async def try_it() -> subprocess.CompletedProcess[str]:
        async with make_store(parse(target), OpenMode.CREATE) as store:
            await store.lock("somebody")
            return await asyncio.to_thread(shell, folder, "memctl migrate one.ndjson locked.db")

    done = asyncio.run(try_it())
    assert done.returncode == 75, done.stderr
    assert "somebody" in done.stderr


@contextmanager
def running(folder: Path, *arguments: str, opened: int = 2) -> Iterator[subprocess.Popen[str]]:
    """memctl at work, so many of its stores opened."""
    with start("--verbose", *arguments, cwd=folder, env=environment(folder)) as process:
        assert process.stderr
        while opened:  # stores tell the zone of their times, too
            line = process.stderr.readline()
            assert line, "memctl has ended"
            opened -= "memctl: opened" in line
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_exit_code_signals(folder: Path, number: signal.Signals, code: int) -> None:
    arguments = ("migrate", "long.ndjson", f"{number.name}.db", "--rate-limit", "10", "--json")
    with running(folder, *arguments) as process:
        process.send_signal(number)
        output, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert json.loads(output)["error"]["code"] == "interrupted"
    assert f"stopped by {number.name}" in said


STARTING = """
import os, signal, sys

class Killer:
    def find_spec(name, *_):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), int(os.environ["NUMBER"]))

signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.meta_path.insert(0, Killer)
from memctl.__main__ import main
main()
"""
"""memctl, with a signal that comes when a module is about to be loaded."""


@pytest.mark.parametrize(
    ("module", "number", "code"),
    [
        ("memctl.cli", signal.SIGINT, 130),
        ("typer", signal.SIGTERM, 143),
        ("memctl.commands.inspect", signal.SIGHUP, 129),
        ("memctl.registry", signal.SIGINT, 130),
    ],
)
def test_exit_code_signal_while_memctl_starts(
    folder: Path, module: str, number: signal.Signals, code: int
) -> None:
    variables = {"AT": module, "NUMBER": str(int(number))}
    command = [sys.executable, "-c", STARTING, "inspect", "one.ndjson"]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder) | variables, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.slow
def test_exit_code_signal_while_sqlite_waits_for_a_lock(folder: Path) -> None:
    shell(folder, "memctl migrate one.ndjson held.db")
    with closing(sqlite3.connect(folder / "held.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with running(folder, "migrate", "one.ndjson", "held.db", opened=1) as process:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=15)  # the lock is waited for twice as long
    assert process.returncode == 143
    assert "memctl: error: stopped by SIGTERM" in said.splitlines()


@pytest.mark.slow
def test_exit_code_table_names_all_that_are_reached(folder: Path) -> None:
    reached = {code for code, _ in SCRIPTS.values()} | {75, 129, 130, 143}
    assert {code for code, _, _ in exit_codes()} == reached
    told = shell(folder, "memctl help exit-codes").stdout
    rows = [line.split()[:2] for line in told.splitlines()[1:]]
    assert rows == [[str(code), name] for code, name, _ in exit_codes()]
