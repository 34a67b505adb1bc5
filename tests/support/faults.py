"""memctl as a process in which one call of the system fails: see ``faults.c``.

The library counts the calls that change a file (open, write, fsync, rename, unlink and others) or
ask a server (connect, send), of all threads, and of the C and Rust code of drivers, too.  It knows
no more of memctl than a disk does.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from enum import Enum
from pathlib import Path
from typing import Any

from tests.support.forkserver import ForkedProcess
from tests.support.servers import Missing

SOURCE = Path(__file__).with_suffix(".c")
_HEAD = struct.Struct("iii512s")
_CALLS = 8192
CALLS = {
    "c": "connect",
    "d": "mkdir",
    "f": "ftruncate",
    "l": "link",
    "m": "mmap",
    "n": "unlink",
    "o": "open",
    "r": "rename",
    "s": "fsync",
    "t": "send",
    "w": "write",
}


class Fault(Enum):
    """What happens at a call, and to which calls it can happen."""

    FAIL = "f", "cdflmnorstw"
    """It fails: EIO, or the connection ends."""
    FULL = "u", "wofmdl"
    """The disk is full, from this call on."""
    KILL = "k", "cdflmnorstw"
    """The process is killed before it."""
    SHORT = "s", "wt"
    """It writes half of the bytes."""
    AGAIN = "a", "wtosfc"
    """It fails with EINTR."""
    INTERRUPT = "i", "cdflmnorstw"
    """SIGINT comes before it."""

    @property
    def letter(self) -> str:
        return self.value[0]

    @property
    def calls(self) -> str:
        return self.value[1]


def library(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        Missing: there is no C compiler.
    """
    made = folder / "faults.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise Missing("no C compiler is installed: scripts/get-servers installs one")
    command: list[str | Path] = [
        compiler,
        "-Wall",
        "-Werror",
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        made,
        SOURCE,
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return made


class Plan:
    """A file that the library reads: which call is spoiled; and writes: which calls there were."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self, at: int = -1, fault: Fault = Fault.FAIL) -> None:
        """Spoil the call with a number, counted from 0; -1 spoils none."""
        head = _HEAD.pack(at, ord(fault.letter), 0, b"")
        self.path.write_bytes(head.ljust(_HEAD.size + _CALLS, b"\0"))

    @property
    def calls(self) -> str:
        """A letter of ``CALLS`` for each call."""
        content = self.path.read_bytes()
        count = _HEAD.unpack_from(content)[2]
        assert count <= _CALLS
        return content[_HEAD.size : _HEAD.size + count].decode()

    @property
    def met(self) -> str:
        """The file of the spoiled call."""
        return str(_HEAD.unpack_from(self.path.read_bytes())[3].rstrip(b"\0").decode())


class FaultyProcess(ForkedProcess):
    """A forked process of memctl with a plan, or without one."""

    def __init__(
        self,
        library: Path,
        plan: Plan | None,
        words: list[str],
        preloaded: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        self.library = str(library)
        self.plan = str(plan.path) if plan else ""
        self.preloaded = preloaded
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        super().__init__(words, **{**pipes, **settings})
