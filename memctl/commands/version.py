"""``memctl version``: shows the version; with ``--verbose``, the installation."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from rich.text import Text

from memctl import config as configuration
from memctl.commands._context import Run
from memctl.commands._help import table
from memctl.commands._options import takes_options
from memctl.journal.runs import Runs
from memctl.machine import installation
from memctl.output.report import Report
from memctl.version import __version__


@takes_options
def version(run: Run) -> None:
    """Show the version; with --verbose, drivers, extras and paths.

    With --verbose, it also warns of another package whose files have the same names.

    Examples:
      memctl version
      memctl version --verbose
    """
    data: dict[str, Any] = {"version": __version__}
    packages: list[dict[str, Any]] = []
    if run.output.verbose:
        data |= {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": packages,
            "paths": _paths(run),
            "conflicts": installation.conflicts(),
        }
        packages += [
            {"name": one.name, "version": one.version, "extra": one.extra}
            for one in installation.packages()
        ]
        for warning in installation.conflict_warnings():
            run.output.warn(warning)
    own = {"name": "memctl", "version": __version__, "extra": None}
    run.output.report = Report(
        "version", lambda: data, lambda: [own, *packages], lambda: Text(_described(data))
    )
    run.output.emit()


def _paths(run: Run) -> dict[str, str]:
    config = configuration.place(run.config_file, configuration.environment())
    return {
        "configuration": str(config),
        "undo": str(Runs().folder),
        "package": str(Path(__file__).parents[1]),
        "python": sys.executable,
    }


def _described(data: dict[str, Any]) -> str:
    lines = [f"memctl {data['version']}"]
    if "python" in data:
        lines += [f"Python {data['python']}, {data['platform']}", "", "Packages:"]
        lines += table([(one["name"], _state(one)) for one in data["packages"]], _UNCUT)
        lines += ["", "Paths:", *table(data["paths"].items(), _UNCUT)]
    return "\n".join(lines)


_UNCUT = 10_000
"""The width of tables with paths, which are never cut."""


def _state(package: dict[str, Any]) -> str:
    extra = f" (extra {package['extra']})" if package["extra"] else ""
    return f"{package['version'] or 'not installed'}{extra}"
