"""Draws docs/tour.svg: a terminal in which memctl is run, for real, on the store of ``demo``.

``python tools/record.py`` draws it again.  What differs from run to run (ids of runs, the folder)
is replaced, and no font is fetched from anywhere, so that the picture changes only with memctl.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterable
from pathlib import Path

import demo
from rich.console import Console
from rich.text import Text

DRAWING = Path(__file__).resolve().parent.parent / "docs" / "tour.svg"
COLUMNS = 96
LINES = 60
TOUR = (
    "memctl inspect agents",
    "memctl inspect agents --user ada --session kyoto --messages --last 4",
    "memctl doctor agents",
    "memctl delete agents --mark hint --yes",
    "memctl undo --yes",
    "memctl verify agents backup.ndjson.zst",
)
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{5}")
_runs: dict[str, int] = {}
"""The ids of runs, in the order in which they were shown."""
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def main() -> None:
    """Draw it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = _world(folder)
        drawing = draw((line, _shown(line, folder, environment)) for line in TOUR)
    DRAWING.write_text(drawing, "utf-8")


def _world(folder: Path) -> dict[str, str]:
    """The store, a backup of it and an alias; gives the environment of the commands."""
    demo.make(folder)
    settings = folder / "memctl.toml"
    settings.write_text(f'[stores.agents]\nurl = "{demo.STORE}"\n', "utf-8")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_")
    }
    environment |= {
        "MEMCTL_CONFIG": str(settings),
        "XDG_STATE_HOME": str(folder / "state"),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "PAGER": "cat",
        "LC_ALL": "C.UTF-8",
    }
    environment.pop("NO_COLOR", None)
    _shown("memctl export agents -o backup.ndjson.zst", folder, environment)
    return environment


def _shown(line: str, folder: Path, environment: dict[str, str]) -> str:
    """The output of a command of the tour."""
    words = [sys.executable, "-m", *line.split()]
    shown = on_terminal(words, folder, environment, COLUMNS)
    return _RUN.sub(_stand_in, shown.replace(str(folder), "."))


def _stand_in(found: re.Match[str]) -> str:
    """An id that is the same in each drawing, and another for each run."""
    number = _runs.setdefault(found[0], len(_runs))
    return f"20260112-0315{7 * number:02}-{0x5E1EC + 0x1D3A7 * number:05x}"


def on_terminal(words: list[str], folder: Path, environment: dict[str, str], columns: int) -> str:
    """The output of a program on a terminal; messages follow what it reports.

    stderr is a pipe: on a terminal it would show the progress, and take it away again.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        report = _read(ours)
        _, messages = process.communicate()
    return f"{report}{messages.decode()}".replace("\r\n", "\n")


def _read(terminal: int) -> str:
    """All that is written to a terminal until nobody has it open."""
    parts = []
    with open(terminal, "rb", buffering=0) as file:
        while True:
            try:
                part = file.read(65536)
            except OSError:  # EIO: this is how Linux says that it is over
                break
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode()


def draw(shown: Iterable[tuple[str, str]]) -> str:
    """The SVG of commands and of what they printed, with their colours."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    for line, text in shown:
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
        console.print()
    drawing = console.export_svg(title="memctl", unique_id="tour")
    return "\n".join(line.rstrip() for line in _FONT_FACE.sub("", drawing).splitlines()) + "\n"


if __name__ == "__main__":
    main()
