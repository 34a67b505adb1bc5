"""``--metrics-file``: how a run ended, for Prometheus, by node_exporter's textfile collector.

One file is of one job.  Every sample has the labels ``command``, ``store`` and ``file``: the last,
the file's own name, keeps two jobs on one store apart, which the collector refuses to mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memctl.stores.files import AtomicFile

_MODE = 0o644
"""node_exporter is another user; nothing of a message is in it."""

_HELP = {
    "last_run_timestamp_seconds": "When the last run ended, in seconds since the epoch.",
    "last_run_success": "Whether the last run ended with exit code 0.",
    "last_run_exit_code": "The exit code of the last run.",
    "last_run_duration_seconds": "How long the last run took.",
    "memories": "Memories in the report of the last run, by what became of them.",
    "messages": "Messages in the report of the last run, by what became of them.",
}

Sample = tuple[str, dict[str, str], float | int]
"""A metric without its prefix, labels of its own, and the value."""


def run_samples(ended: float, duration: float, exit_code: int) -> Iterator[Sample]:
    """What is known of every run; ``ended`` is the time of the clock, in seconds."""
    yield "last_run_timestamp_seconds", {}, ended
    yield "last_run_success", {}, int(exit_code == 0)
    yield "last_run_exit_code", {}, exit_code
    yield "last_run_duration_seconds", {}, duration


def report_samples(data: dict[str, Any]) -> Iterator[Sample]:
    """The numbers of a JSON report.

    ``memories`` and ``messages`` are by outcome; a list counts; ``tokens`` and ``model`` are before
    the names of their numbers (``model_cost``).  Other objects are left out: some have names that
    messages gave them, such as marks.
    """
    for name, value in data.items():
        if name == "totals":
            yield from report_samples(value)
        elif name in ("memories", "messages"):
            yield from _by_outcome(name, value)
        elif name in ("tokens", "model"):
            for inner, number in value.items():
                if isinstance(number, int | float):
                    yield f"{name}_{inner}", {}, number
        elif isinstance(value, list):
            yield name, {}, len(value)
        elif isinstance(value, int | float):
            yield name, {}, value


def _by_outcome(name: str, value: Any) -> Iterator[Sample]:
    if isinstance(value, dict):
        for outcome, number in value.items():
            if isinstance(number, int | float):
                yield name, {"outcome": outcome}, number
    elif isinstance(value, int):
        yield name, {"outcome": "selected"}, value


def exposition(samples: Iterator[Sample], labels: dict[str, str]) -> str:
    """The samples in Prometheus's text format, each with these labels too."""
    by_name: dict[str, list[str]] = {}
    for name, own, value in samples:
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in (labels | own).items())
        number = int(value) if isinstance(value, bool) else value
        by_name.setdefault(f"memctl_{name}", []).append(f"memctl_{name}{{{shown}}} {number!r}")
    lines = []
    for name, found in by_name.items():
        short = name.removeprefix("memctl_")
        said = _HELP.get(short, f"{short} in the JSON report of the last run.")
        lines += [f"# HELP {name} {said}", f"# TYPE {name} gauge", *found]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write(path: Path, text: str) -> None:
    """Makes the file, or replaces it at once.

    Raises:
        MemctlError: the system refuses.
    """
    with AtomicFile(path, _MODE) as file:
        file.write(text.encode())
        file.commit()
