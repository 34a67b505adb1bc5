"""The browser at a terminal: how long a person waits for it.

    python -m benchmarks.browse --messages 1000000

The targets: the list within 1 s of the start, a memory within 1 s (2 s while memories are counted),
a page within 100 ms, the end within 0.5 s, and a peak of 170 MiB.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import pexpect

from benchmarks import dataset
from benchmarks.measure import machine
from benchmarks.places import Places

QUIET = 0.15
"""The seconds without output after which a screen is complete."""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Screen:
    """The browser of a store at a terminal of 120 columns and 40 lines."""

    def __init__(self, store: str) -> None:
        words = ["-m", "memctl", "browse", store]
        self._began = time.perf_counter()
        self._process = pexpect.spawn(
            sys.executable, words, dimensions=(40, 120), encoding="utf-8", timeout=60
        )

    def until(self, pattern: str) -> float:
        """Return the seconds since the start, or since the last key, until a text is shown."""
        shown = ""
        while not re.search(pattern, _ESCAPE.sub("", shown)):
            shown += self._process.read_nonblocking(100_000, 60)
        return time.perf_counter() - self._began

    def press(self, key: str) -> None:
        """Press a key."""
        self._began = time.perf_counter()
        self._process.send(key)

    def settled(self) -> float:
        """Return the seconds since the last key until the screen did not change any more."""
        last = time.perf_counter()
        try:
            while True:
                self._process.read_nonblocking(100_000, QUIET)
                last = time.perf_counter()
        except pexpect.TIMEOUT:
            return last - self._began

    def peak(self) -> float:
        """Return the largest resident set so far, in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text("utf-8")
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024

    def end(self) -> float:
        """Quit; return the seconds until the process has ended."""
        self.press("q")
        self._process.expect(pexpect.EOF)
        self._process.wait()
        return time.perf_counter() - self._began


def measure(what: str, store: str, *, folded: bool = True) -> None:
    """Open the first memory of a store, page through it, and print a line.

    ``folded`` tells that the store has so many memories that the list shows users alone.
    """
    screen = Screen(store)
    listed = screen.until("[▸▾] user_")
    for key in "\rj" if folded else "j":
        screen.press(key)
        screen.settled()
    screen.press("\r")
    opened = screen.until(r"of [\d,]+ message")
    screen.settled()
    screen.press("b")
    paged = screen.settled()
    shown = f"{listed:.2f} | {opened:.2f} | {paged:.2f} | {screen.peak():.0f} | {screen.end():.2f}"
    print(f"| {what} | {shown} |", flush=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    messages = parser.parse_args().messages
    print(f"{machine('textual', 'sqlalchemy')}; one run of each.\n")
    print("| store | list, s | memory, s | page, s | peak, MiB | end, s |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as folder:
        for kind, store in Places(Path(folder), messages).sources.items():
            measure(f"{kind}, {messages:,} messages", store)
        one = Path(folder, "one.db")
        dataset.make(one, messages, per_memory=messages)
        measure(f"SQLite, one memory of {messages:,}", str(one), folded=False)


if __name__ == "__main__":
    main()
