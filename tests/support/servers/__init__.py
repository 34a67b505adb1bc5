"""Real servers for the tests: started on first use, shared by all processes of a run.

A keeper process owns each server.  Every test process that uses the server holds a shared lock on a
file.  The kernel releases the lock even if the process is killed.  When no process holds the lock,
the keeper stops the server and removes its folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from zlib import crc32

KEEPER = Path(__file__).with_name("keeper.py")
START_SECONDS = 60
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 1024**3
"""The free bytes of ``MEMORY`` from which servers and tests keep their files in memory.

To create and drop databases, with hundreds of files each, then takes a fourth of the time.
"""

_in_use: list[IO[str]] = []
_keepers: dict[Path, subprocess.Popen[bytes]] = {}


class Missing(Exception):
    """The server is not installed; the message says where to get it."""


def run_as() -> str | None:
    """Return the user for servers that refuse to run as root; None for the present user."""
    return "nobody" if os.geteuid() == 0 else None


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def shared(run: Path, name: str, start: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of ``start`` for the server, made by this or another process of the run.

    ``run`` is a folder that the processes of the run share.  ``start`` gets a new folder with a
    path short enough for a socket, and returns a JSON object.
    """
    note = run / f"{name}.json"
    with open(run / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if note.exists():
            info: dict[str, Any] = json.loads(note.read_text())
            if _hold(Path(info["folder"])):
                return info
        folder = Path(tempfile.mkdtemp(prefix=f"memctl-{name}-", dir=folder_in_memory()))
        (folder / "users").touch()
        _hold(folder)
        try:
            info = {"folder": str(folder), **start(folder)}
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        note.write_text(json.dumps(info))
    return info


def folder_in_memory() -> Path | None:
    """Return a folder for files in memory; None if it has too little room."""
    in_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return MEMORY if in_memory and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES else None


def variant(name: str, settings: tuple[str, ...]) -> str:
    """Return the name of a server with these settings, different for other settings."""
    return f"{name}-{crc32(repr(settings).encode()):08x}" if settings else name


def _hold(folder: Path) -> bool:
    """Keep the server of the folder alive until this process ends; return False if it is gone."""
    try:
        users = open(folder / "users")  # noqa: SIM115 - closed by the end of the process
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    _in_use.append(users)
    return True


def give(folder: Path, user: str | None) -> None:
    """Give the folder to the user of its server."""
    if user:
        owner = pwd.getpwnam(user)
        os.chown(folder, owner.pw_uid, owner.pw_gid)


def keep(
    folder: Path,
    command: list[str],
    ready: Callable[[], bool],
    *,
    user: str | None = None,
    stop: str = "SIGTERM",
) -> None:
    """Start the server under a keeper and wait until ``ready``.

    Raises:
        RuntimeError: the server did not start; the message has the end of its log.
    """
    arguments = [sys.executable, str(KEEPER), str(folder), user or "", stop, *command]
    (folder / "keeper.json").write_text(json.dumps(arguments))
    _start(folder, ready)


def kill(folder: Path) -> None:
    """Kill a server and its children, as a power cut would, except that the disk keeps all writes.

    No other test may use the server; see ``start_again``.
    """
    server = int((folder / "server").read_text())
    for number in (server, *_children(server)):
        os.kill(number, signal.SIGKILL)
    _keepers[folder].wait()


def start_again(folder: Path, ready: Callable[[], bool]) -> None:
    """Start a killed server with the same settings, and wait until ``ready``.

    Raises:
        RuntimeError: the server did not start; the message has the end of its log.
    """
    _start(folder, ready)


def _children(number: int) -> list[int]:
    found = Path(f"/proc/{number}/task/{number}/children").read_text()
    return [int(child) for child in found.split()]


def _start(folder: Path, ready: Callable[[], bool]) -> None:
    command = json.loads((folder / "keeper.json").read_text())
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    _keepers[folder] = keeper
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if keeper.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(errors="replace")
            raise RuntimeError(f"{folder.name} did not start:\n{log[-3000:]}")
        time.sleep(0.02)
