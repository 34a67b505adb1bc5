"""A pager for output longer than the terminal, as in git."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from memctl.errors import Interrupted
from memctl.machine import signals, system
from memctl.output.terminal import Format, Output

_DEFAULT = "less"
_SETTINGS = {"LESS": "FRX"}
"""The settings of a pager that the user has not set up: print short text, show colours."""


@contextmanager
def paged(output: Output, *, wanted: bool) -> Iterator[None]:
    """Send tables that are drawn in the block through the pager of the user.

    Without ``wanted``, outside a terminal, and in other formats, no pager is used.  The default
    pager exits at once if the text fits on the screen.  If the user leaves the pager or presses
    Ctrl-C, the block ends without an error.
    """
    words = _command()
    if not (wanted and words and output.format is Format.TABLE and sys.stdout.isatty()):
        yield
        return
    screen = _PagedStream(words)
    before = sys.stdout, sys.stderr
    sys.stdout = screen
    if sys.stderr.isatty():  # warnings must not be drawn across the text
        sys.stderr = screen
    try:
        with suppress(BrokenPipeError):
            yield
            screen.flush()
    except (KeyboardInterrupt, Interrupted) as end:
        if not screen.used or not _by_ctrl_c(end):
            raise
    finally:
        sys.stdout, sys.stderr = before
        screen.end()


def _command() -> list[str]:
    """Return the command line of the pager; empty if none can be used."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return []
    given = os.environ.get("PAGER")
    try:
        words = shlex.split(_DEFAULT if given is None else given)
    except ValueError:  # an unclosed quote
        return []
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return []
    return words


def _by_ctrl_c(end: KeyboardInterrupt | Interrupted) -> bool:
    if isinstance(end, Interrupted):
        return end.exit_code == 128 + signal.SIGINT
    return signals.stopped_by(end) == signal.SIGINT


class _PagedStream(io.TextIOBase):
    """A stream to the terminal through a pager, which starts when the first text is written."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._encoding = sys.stdout.encoding
        self._pager: subprocess.Popen[str] | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the terminal."""
        return self._encoding

    @property
    def used(self) -> bool:
        """True once the pager was started."""
        return self._pager is not None

    def isatty(self) -> bool:
        """Return True, because the pager shows the text on the terminal."""
        return True

    def write(self, text: str) -> int:
        """Write text to the pager; return the number of characters.

        Raises:
            BrokenPipeError: the user has left the pager.
        """
        if self._pager is None:
            self._pager = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                env={**_SETTINGS, **system.child_environment()},
                encoding=self._encoding,
                errors="backslashreplace",
            )
        assert self._pager.stdin is not None
        return self._pager.stdin.write(text)

    def flush(self) -> None:
        """Send buffered text to the pager.

        Raises:
            BrokenPipeError: the user has left the pager.
        """
        if self._pager is not None and self._pager.stdin is not None:
            self._pager.stdin.flush()

    def end(self) -> None:
        """Wait until the user leaves the pager; Ctrl-C goes to the pager, not to memctl."""
        if self._pager is None:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(BrokenPipeError):
                self._pager.communicate()
        finally:
            signal.signal(signal.SIGINT, before)
