"""Behaviour on systems other than Linux, as far as Linux can show it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from memctl.errors import Busy, UsageError
from memctl.inference.settings import Settings
from memctl.machine import system
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.storekit.files import AtomicFile
from memctl.storekit.locks import FileLock
from memctl.summarizers.registry import make_summarizer
from memctl.testing import samples
from memctl.testing.drive import read, write_all
from memctl.testing.samples import sample
from tests.support.cli import Run

IMPORT_ALL = """
import sys
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
import asyncio, importlib, os, pkgutil, signal
for name in ("fchmod", "fchown", "getuid", "killpg", "pread", "preadv", "sync"):
    delattr(os, name)
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1"):
    delattr(signal, name)
import memctl
for module in pkgutil.walk_packages(memctl.__path__, "memctl."):
    if module.name != "memctl.__main__":
        importlib.import_module(module.name)
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that is not POSIX."""
    monkeypatch.setattr(system, "POSIX", False)
    monkeypatch.setattr(system, "UNIX_SOCKETS", False)


@pytest.mark.slow
def test_modules_are_importable_without_posix() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        capture_output=True,
        text=True,
        env=os.environ | {"USERNAME": "ada"},  # which Windows sets, and getpass relies on there
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("elsewhere")
def test_file_is_replaced_without_posix(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    for content in (b"old", b"new"):
        with AtomicFile(path) as file:
            file.write(content)
            file.commit()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("elsewhere")
def test_lock_is_taken_and_released_without_posix(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for _ in range(2):
        with FileLock(path, "a.db").held("one"), pytest.raises(Busy, match="one"):
            FileLock(path, "a.db").take("two")
        assert list(tmp_path.iterdir()) == []
    (tmp_path / ".a.db.memctl-lock").write_text("left by a run that was killed", "utf-8")
    with FileLock(path, "a.db").held("three") as warnings:
        assert warnings == []
    assert list(tmp_path.iterdir()) == []


async def test_archives_are_read_without_pread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pread")
    monkeypatch.delattr(os, "preadv")
    for name in ("a.ndjson", "a.ndjson.gz", "a.json"):
        place = parse(str(tmp_path / name))
        one = sample(samples.key(0), samples.entries(3000))
        if name == "a.json":
            one = sample(type(one.key)("", "a"), one.entries)
        async with make_store(place, OpenMode.CREATE) as store:
            await write_all(store, [one])
        async with make_store(place) as store:
            assert len((await read(store))[one.key].entries) == 3000


def test_lock_uses_msvcrt_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    taken = False

    def locking(handle: int, mode: int, size: int) -> None:
        assert (mode, size) == (2, 1)
        places.append(os.lseek(handle, 0, os.SEEK_CUR))
        if taken:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))  # type: ignore[arg-type]
    path = tmp_path / "a"
    with path.open("w+b") as file:
        monkeypatch.setattr(sys, "platform", "win32")
        try:
            assert system.lock(file.fileno())
            taken = True
            assert not system.lock(file.fileno())
        finally:
            monkeypatch.undo()
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
    assert places == [0x7FFF_0000] * 2


@pytest.mark.usefixtures("elsewhere")
def test_missing_features_are_named_without_posix(run: Run) -> None:
    found = run("inspect", "unix:///run/redis.sock")
    assert found.exit_code == 2
    assert "redis://HOST" in found.stderr
    with pytest.raises(UsageError, match="a list of strings"):
        make_summarizer(Settings("mine", "command", {"command": "llm -m x"}))
    assert system.user_name()
