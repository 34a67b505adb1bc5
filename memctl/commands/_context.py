"""The context of one run, as the global options set it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from memctl.errors import MemctlError
from memctl.location import Location
from memctl.output.terminal import Output

if TYPE_CHECKING:
    from memctl.config import Config
    from memctl.output.monitoring import Monitoring


@dataclass(slots=True)
class Run:
    """One run of memctl: its configuration and where it writes."""

    config_file: Path | None = None
    output: Output = field(default_factory=Output)
    config: Config | None = None
    """The configuration, where it was read before."""
    refusal: MemctlError | None = None
    """Why nothing can be done with what the configuration or the environment says."""
    monitoring: Monitoring | None = None
    store: str = ""
    """The label of the last store that was named: of two, the one that is written."""

    def locate(self, text: str) -> Location:
        """Resolve a STORE argument to its location.

        Raises:
            UsageError, NotFound: see ``memctl.config``.
        """
        from memctl import config  # not needed to show the help

        found = self.configuration().locate(text, config.environment())
        self.store = found.label
        return found

    def configuration(self) -> Config:
        """Return the configuration of the file.

        Raises:
            UsageError, NotFound: see ``memctl.config``.
        """
        if self.config is None:
            from memctl import config  # not needed to show the help

            self.config = config.load(self.config_file, config.environment())
        return self.config


def this_run(context: typer.Context) -> Run:
    """The run that the global options made.

    Raises:
        UsageError, NotFound: the configuration or the environment is wrong.
    """
    run = run_as_it_is(context)
    if run.refusal is not None:
        raise run.refusal
    return run


def run_as_it_is(context: typer.Context) -> Run:
    """The same for a command that does not need a configuration that is right."""
    run = context.obj
    assert isinstance(run, Run)
    return run
