"""Whether import and migrate write down what they change."""

from __future__ import annotations

from memctl.commands._context import Run
from memctl.commands._record import record
from memctl.location import Location
from memctl.recording import Recording


def recorded(run: Run, command: str, argument: str, location: Location) -> Recording | None:
    """The record of a copy into this store; None where the copy goes to stdout."""
    if location.kind == "stdio":
        return None
    return Recording(record(run, command, argument, location), run.configuration().undo)
