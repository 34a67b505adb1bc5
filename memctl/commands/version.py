"""``memctl version``: shows the version; with ``--verbose``, the installation."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from msgspec.structs import asdict
from rich.text import Text

from memctl import config as configuration
from memctl.commands._context import Run
from memctl.commands._help import table
from memctl.commands._options import takes_options
from memctl.journal.runs import Runs
from memctl.machine import installation
from memctl.output.printout import Printout
from memctl.reports.version import PackageRow, Paths, VersionReport
from memctl.version import __version__


@takes_options
def version(run: Run) -> None:
    """Show the version; with --verbose, drivers, extras and paths.

    With --verbose, it also warns of another package whose files have the same names.

    Examples:
      memctl version
      memctl version --verbose
    """
    report = VersionReport(__version__)
    if run.output.verbose:
        report = VersionReport(
            __version__,
            platform.python_version(),
            platform.platform(),
            [PackageRow(one.name, one.version, one.extra) for one in installation.packages()],
            _paths(run),
            installation.conflicts(),
        )
        for warning in installation.conflict_warnings():
            run.output.warn(warning)
    run.output.printout = Printout(lambda: report, lambda: Text(_described(report)))
    run.output.emit()


def _paths(run: Run) -> Paths:
    config = configuration.place(run.config_file, configuration.environment())
    package = Path(__file__).parents[1]
    return Paths(str(config), str(Runs().folder), str(package), sys.executable)


def _described(report: VersionReport) -> str:
    lines = [f"memctl {report.version}"]
    if isinstance(report.packages, list) and isinstance(report.paths, Paths):
        lines += [f"Python {report.python}, {report.platform}", "", "Packages:"]
        lines += table([(one.name, _state(one)) for one in report.packages], _UNCUT)
        lines += ["", "Paths:", *table(asdict(report.paths).items(), _UNCUT)]
    return "\n".join(lines)


_UNCUT = 10_000
"""The width of tables with paths, which are never cut."""


def _state(package: PackageRow) -> str:
    extra = f" (extra {package.extra})" if package.extra else ""
    return f"{package.version or 'not installed'}{extra}"
