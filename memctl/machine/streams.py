"""The standard streams: any text can be written, and a failing stderr stops nothing."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def prepare() -> None:
    """Replace closed streams and stderr, and let all streams take any text."""
    _replace_closed()
    raw = io.BufferedWriter(_Stderr(sys.stderr))
    sys.stderr = io.TextIOWrapper(raw, encoding=sys.stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        # A terminal with a limited encoding gets escapes, not an error.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


class _Stderr(io.FileIO):
    """A stderr that ignores write errors: a full disk or a closed pipe does not stop memctl."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream  # a reference, because a collected stream would close the file

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _replace_closed() -> None:
    """Open a substitute for each closed standard stream.

    Without a substitute, the next opened file, such as a store, would get the number of the stream.
    Messages to a closed stderr are dropped.  Writing to a closed stdout is an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
        if handle != number:
            os.dup2(handle, number)
            os.close(handle)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115 - to the end


def flush() -> None:
    """Flush stdout; ignore errors, which were reported already."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
