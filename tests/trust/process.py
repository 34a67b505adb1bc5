"""memctl as a process that is watched, and stopped at a chosen moment of its life.

With ``--verbose`` memctl says on stderr which store it opens.  These lines divide its life into
parts, so that a moment can be chosen in the part that matters, however fast the machine is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.support.processes import start

TIMEOUT = 120
"""Seconds after which a run has stalled."""


@dataclass(frozen=True)
class Moment:
    """``delay`` seconds after line number ``line`` of stderr, 0 being the start."""

    line: int
    delay: float

    def __str__(self) -> str:
        after = f"line {self.line} of stderr" if self.line else "the start"
        return f"{self.delay * 1000:.1f} ms after {after}"


class Migration:
    """A running ``memctl migrate``."""

    def __init__(self, source: str, target: str, home: Path, *options: str) -> None:
        """``home`` takes whatever memctl keeps besides the stores."""
        home.mkdir(exist_ok=True)
        names = ("TMPDIR", "HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
        self.began = time.monotonic()
        self._process = start(
            *("--verbose", "migrate", "--lossy", *options, source, target),
            stdout=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(names, str(home)), "MEMCTL_DEBUG": "1"},
        )
        self.lines: list[tuple[float, str]] = []
        """The lines of output, with the seconds since the start."""
        self._news = threading.Condition()
        self._open = True
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stderr
        with self._process.stderr as stderr:
            for line in stderr:
                with self._news:
                    self.lines.append((time.monotonic() - self.began, line.rstrip()))
                    self._news.notify_all()
        with self._news:
            self._open = False
            self._news.notify_all()

    def reach(self, moment: Moment) -> None:
        """Wait for the moment, or for its end if that comes first."""
        with self._news:
            said = self._news.wait_for(
                lambda: len(self.lines) >= moment.line or not self._open, TIMEOUT
            )
            assert said, f"nothing happens in {TIMEOUT} s:\n{self.said}"
        begin = self.lines[moment.line - 1][0] if 0 < moment.line <= len(self.lines) else 0.0
        time.sleep(max(0.0, self.began + begin + moment.delay - time.monotonic()))

    def stop_at(self, moment: Moment, number: signal.Signals) -> int:
        """Send a signal at the moment; return the exit code."""
        self.reach(moment)
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        try:
            code = self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"no end in {TIMEOUT} s:\n{self.said}") from None
        self._reader.join()
        return code

    @property
    def said(self) -> str:
        """All that it said on stderr."""
        return "\n".join(line for _, line in self.lines)


class Timeline:
    """The durations of the parts of an undisturbed run."""

    def __init__(self, run: Migration, target: str) -> None:
        """``run`` has ended; ``target`` is what it calls its target."""
        ends = [0.0, *(at for at, _ in run.lines), time.monotonic() - run.began]
        self.lengths = [end - start for start, end in pairwise(ends)]
        opened = [number for number, (_, line) in enumerate(run.lines, 1) if target in line]
        assert opened, f"the run does not say that it opens {target}:\n{run.said}"
        self.copying = opened[0]
        """The line that says that the target is open."""

    def moment(self, draw: Random, aim: float = 1.0) -> Moment:
        """A random moment: mostly while it copies, and more at the end of that than before.

        ``aim`` stretches the time that copying is taken to last.
        """
        [part] = draw.choices(["opening", "copying", "publishing", "verifying"], [1, 8, 6, 1])
        copying = self.lengths[self.copying] * aim
        match part:
            case "opening":
                return Moment(0, draw.uniform(0, sum(self.lengths[: self.copying])))
            case "copying":
                return Moment(self.copying, draw.uniform(0, copying))
            case "publishing":
                return Moment(self.copying, draw.uniform(0.6, 1.1) * copying)
        return Moment(
            min(self.copying + 1, len(self.lengths) - 1),
            draw.uniform(0, sum(self.lengths[self.copying + 1 :])),
        )
