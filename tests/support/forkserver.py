"""Processes of memctl, forked after its imports: a fork takes a tenth of the time of a start.

A server imports memctl and its drivers once, and forks for each process.  A fork runs the same code
as ``python -m memctl``.  Only the start of Python is skipped; tests of the start use a new Python.
When the process that started the server ends, the server ends, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from functools import cache
from importlib import import_module
from typing import Any

_PRELOADED = [
    "aiomysql",
    "asyncpg",
    "memctl.api",
    "memctl.browser.app",
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
    "memctl.engines.sql.connection",
    "typer._adapters",
]
_REQUEST_BYTES = 200_000
_STATUS_BYTES = 100
_CAPABILITY_VERSION = 0x20080522
"""The third version of the calls, in which a header names two sets of 32 capabilities."""


class ForkedProcess(subprocess.Popen[Any]):
    """A ``subprocess.Popen`` of memctl that the server forks, given only memctl's arguments.

    The class replaces the methods of Popen that start and await a child, since the process is a
    child of the server.
    """

    as_root = True
    """True if memctl keeps the rights of root, if the tests have them."""
    at_terminal = False
    """True if stdin is a terminal, which becomes the controlling terminal of a new session."""
    library = ""
    """A library that is loaded before all others, with a function ``fault_arm``."""
    preloaded: tuple[str, ...] = ()
    """Modules to import before the fork, besides those of every fork."""
    plan = ""
    """The argument of ``fault_arm``, which is called in the process if there is a plan."""

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
            "at_terminal": self.at_terminal,
            "plan": self.plan,
        }
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = _server(self.library, self.preloaded)
            socket.send_fds(server, [json.dumps(request).encode()], [*files, theirs.fileno()])
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
    """A forked process without the rights of root, for which the modes of files count."""

    as_root = False


class TerminalProcess(ForkedProcess):
    """A forked process at a terminal: Ctrl-C there is its signal, and its end another."""

    at_terminal = True


@cache
def _server(library: str, preloaded: tuple[str, ...]) -> socket.socket:
    """Start a server of this process; the server ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *preloaded]
        subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | ({"LD_PRELOAD": library} if library else {}),
        )
    return ours


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; in the fork, return the request with its files in place."""
    for name in [*_PRELOADED, *sys.argv[2:]]:
        import_module(name)
    gc.collect()
    gc.freeze()  # keep this memory shared with the forks
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
    """Send the status of each ended process to the parent's socket."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as asker:
            try:
                asker.send(str(status).encode())
            except BrokenPipeError:  # the other side has ended
                continue


def _drop_capabilities() -> None:
    """Drop the rights of root; the user stays the same."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)  # of this process
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset failed")


def main() -> None:
    """Run the server; in a fork, run memctl."""
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = serve(requests)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    if request["at_terminal"]:
        # Those who run the tests in the background have SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if not request["as_root"]:
        _drop_capabilities()
    # As Python opens them when it starts: they are closed when the process ends, not before.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["memctl", *request["arguments"]]
    if request["plan"]:
        assert ctypes.CDLL(None).fault_arm(request["plan"].encode()) == 0
    runpy.run_module("memctl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
