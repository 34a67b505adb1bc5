"""What is kept of a run, so that its store is found again."""

from __future__ import annotations

from memctl.commands._context import Run as ThisRun
from memctl.journal import record as records
from memctl.journal.runs import Run
from memctl.location import Location


def record(run: ThisRun, command: str, argument: str, location: Location) -> Run:
    """A run that is about to begin; ``argument`` is how its store was named, perhaps an alias."""
    return records.record(command, argument, location, run.configuration().stores)
