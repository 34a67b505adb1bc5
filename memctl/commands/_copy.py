"""A copy from the command line: the run, the report."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from memctl.commands._context import Run
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import wait_for, writable
from memctl.location import Location
from memctl.ops.retry import Transfer
from memctl.ops.stop import Stop
from memctl.registry import refuse_unknown_extension

if TYPE_CHECKING:
    from memctl.api import Copied


def carry_out(
    run: Run,
    outcome: CopyOutcome,
    destination: Location,
    transfer: Transfer,
    work: Callable[..., Coroutine[Any, Any, Copied]],
) -> None:
    """Have ``api.copy`` write to the destination, and report it; ``work`` is it with its options.

    Raises:
        MemctlError: as ``api.copy``; Conflict or Partial where memories were left alone.
    """
    refuse_unknown_extension(destination)
    output, stop = run.output, Stop()
    if destination.kind != "stdio":  # there stdout is the archive, which a report would spoil
        output.report = outcome.report()
    with writable(destination) as place:
        copying = work(
            target=place,
            must_exist=True,
            transfer=transfer,
            keep=run.configuration().undo,
            observer=output,
            report=outcome.copied,
            stop=stop,
        )
        outcome.run = wait_for(copying, stop).run or ""
    outcome.ended = True
    if error := outcome.error():
        raise error
    output.emit()
