"""What the global options make of one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from memctl.location import Location
from memctl.output.terminal import Format, Output

if TYPE_CHECKING:
    from memctl.config import Config


@dataclass(slots=True)
class Run:
    """One run of memctl: its configuration and where it writes."""

    config_file: Path | None = None
    output: Output = field(default_factory=Output)

    def locate(self, text: str) -> Location:
        """What a STORE argument names.

        Raises:
            UsageError, NotFound: see ``memctl.config``.
        """
        from memctl import config  # not needed to show the help

        return self.configuration().locate(text, config.environment())

    def configuration(self) -> Config:
        """What the configuration file says.

        Raises:
            UsageError, NotFound: see ``memctl.config``.
        """
        from memctl import config  # not needed to show the help

        return config.load(self.config_file, config.environment())


def this_run(context: typer.Context) -> Run:
    """The run that the global options made."""
    run = context.obj
    assert isinstance(run, Run)
    return run


def choose_format(output: Output, chosen: Format, *, json: bool) -> None:
    """Takes ``--format`` and its short form ``--json`` together."""
    output.format = Format.JSON if json else chosen
