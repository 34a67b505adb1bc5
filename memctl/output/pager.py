"""A pager for what is longer than the terminal, as git has one."""

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

from memctl import signals, system
from memctl.errors import Interrupted
from memctl.output.terminal import Format, Output

_DEFAULT = "less"
_SETTINGS = {"LESS": "FRX"}
"""For a pager that is not set up: text that fits is printed, colours are shown."""


@contextmanager
def paged(output: Output, *, wanted: bool) -> Iterator[None]:
    """Send what is drawn on a terminal in the block through ``PAGER``, if ``wanted``.

    The pager shows what fits on the screen as if it were not there.  When the person has enough,
    or presses Ctrl-C, the block ends, and that is no error.
    """
    words = _command()
    if not (wanted and words and output.format is Format.TABLE and sys.stdout.isatty()):
        yield
        return
    screen = _PagedStream(words)
    before = sys.stdout, sys.stderr
    sys.stdout = screen
    if sys.stderr.isatty():  # a warning would be drawn across the text
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
    """The words of the pager, none where there is none to use."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return []
    given = os.environ.get("PAGER")
    try:
        words = shlex.split(_DEFAULT if given is None else given)
    except ValueError:  # quotes without an end
        return []
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return []
    return words


def _by_ctrl_c(end: KeyboardInterrupt | Interrupted) -> bool:
    if isinstance(end, Interrupted):
        return end.exit_code == 128 + signal.SIGINT
    return signals.stopped_by(end) == signal.SIGINT


class _PagedStream(io.TextIOBase):
    """The terminal, by way of a pager that is started with the first text."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._encoding = sys.stdout.encoding
        self._pager: subprocess.Popen[str] | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the terminal."""
        return self._encoding

    @property
    def used(self) -> bool:
        """True when the pager was started."""
        return self._pager is not None

    def isatty(self) -> bool:
        """True: what is written ends up on the terminal."""
        return True

    def write(self, text: str) -> int:
        """Hand text to the pager.

        Raises:
            BrokenPipeError: the person has left it.
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
        """Hand over what waits in a buffer.

        Raises:
            BrokenPipeError: as ``write``.
        """
        if self._pager is not None and self._pager.stdin is not None:
            self._pager.stdin.flush()

    def end(self) -> None:
        """Wait until the person leaves the pager, to which Ctrl-C belongs."""
        if self._pager is None:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(BrokenPipeError):
                self._pager.communicate()
        finally:
            signal.signal(signal.SIGINT, before)
