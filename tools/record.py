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
        "LC_ALL": "C.UTF-8",
    }
    environment.pop("NO_COLOR", None)
    _shown("memctl export agents -o backup.ndjson.zst", folder, environment)
    return environment


def _shown(line: str, folder: Path, environment: dict[str, str]) -> str:
    """The output of a command on a terminal; messages follow what it reports.

    stderr is a pipe: on a terminal it would show the progress, and take it away again.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    words = [sys.executable, "-m", *line.split()]
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        report = _read(ours)
        _, messages = process.communicate()
    shown = f"{report}{messages.decode()}".replace("\r\n", "\n")
    return _RUN.sub("20260112-031500-5e1ec", shown.replace(str(folder), "."))


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
