"""memctl as processes that begin where its imports end: a fork costs a tenth of a start.

A server imports memctl and its drivers once, and forks for each process.  What a fork runs is what
``python -m memctl`` runs; only how Python starts is left out, so tests of that start Python.  The
server ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from importlib import import_module
from typing import Any

_PRELOADED = [
    "aiomysql",
    "asyncpg",
    "memctl.api",
    "memctl.cli",
    "memctl.commands._defaults",
    "memctl.commands._run",
    "memctl.commands.migrate",
    "memctl.stores.archive.store",
    "memctl.stores.agentscope1.redis.store",
    "memctl.stores.agentscope2.sql",
    "memctl.engines.sql.sqlite",
    "memctl.stores.agentscope1.sql.store",
    "memctl.stores.states.store",
    "pydantic",
    "redis.asyncio",
    "rich.progress",
    "rich.table",
    "sqlalchemy.dialects.mysql.aiomysql",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.ext.asyncio",
    "typer._adapters",
]
_REQUEST_BYTES = 200_000
_STATUS_BYTES = 100
_CAPABILITY_VERSION = 0x20080522
"""The third version of the calls, in which the header names two sets of 32 capabilities."""


class ForkedProcess(subprocess.Popen[Any]):
    """A ``subprocess.Popen`` of memctl, given its arguments alone, that the server forks.

    It replaces what Popen does to begin a child and to wait for it, for the child is the server's.
    """

    as_root = True
    """Whether memctl keeps the rights of root, if the tests have them."""

    def _execute_child(self, arguments: list[str], *settings: Any) -> None:
        folder, environment = settings[4], settings[5]
        stdin, _, _, stdout, _, stderr = pipes = settings[9:15]
        given = enumerate([stdin, stdout, stderr])
        files = [standard if file == -1 else file for standard, file in given]
        request = {
            "arguments": arguments,
            "folder": os.fspath(folder or os.getcwd()),
            "environment": dict(os.environ if environment is None else environment),
            "as_root": self.as_root,
        }
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*files, theirs.fileno()])
        self.pid = int(self._status.recv(_STATUS_BYTES))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags == os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status:
            return self.pid, int(self._status.recv(_STATUS_BYTES))


class PlainProcess(ForkedProcess):
    """The same without the rights of root: what a file's mode forbids is forbidden."""

    as_root = False


@cache
def _server() -> socket.socket:
    """Start the server of this process; it ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return ours


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; return it in the fork, with its files in place."""
    for name in _PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()  # so that the forks share it
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, wake], [], [])
        if wake in ready:
            wake.recv(1000)
            _report(running)
        if requests not in ready:
            continue
        text, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not text:
            sys.exit()
        status = socket.socket(fileno=files.pop())
        if pid := os.fork():
            status.send(str(pid).encode())
            running[pid] = status
            for file in files:
                os.close(file)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for standard, file in enumerate(files):
            os.dup2(file, standard)
        for file in (requests, wake, waker, status, *running.values()):
            file.close()
        for number in files:
            os.close(number)
        return json.loads(text)


def _report(running: dict[int, socket.socket]) -> None:
    """Send the status of each process that has ended to who started it."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as asker:
            try:
                asker.send(str(status).encode())
            except BrokenPipeError:  # nobody waits for it any more
                continue


def _drop_capabilities() -> None:
    """Give up what root may do; the user stays."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)  # of this process
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset failed")


def main() -> None:
    """Be the server, then, in a fork, memctl."""
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = serve(requests)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    if not request["as_root"]:
        _drop_capabilities()
    sys.stdin = open(0)  # noqa: SIM115 - as Python opens them when it starts
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.argv = ["memctl", *request["arguments"]]
    runpy.run_module("memctl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
