"""A copy from the command line: the run and its report."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from memctl.commands._context import Run
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import wait_for, writable
from memctl.errors import Lost, MemctlError, Partial, Unavailable
from memctl.location import Location
from memctl.numbers import count
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
    """Copy memories to the store ``destination``, and write the report ``outcome``.

    ``work`` is ``api.copy`` with its source and options.  ``transfer`` has the retries, timeout and
    rate limit.

    Raises:
        MemctlError: as ``api.copy``; ``Conflict`` or ``Partial`` if memories were left unchanged,
            or if a store refused to go on after memories were written.
    """
    refuse_unknown_extension(destination)
    output, stop = run.output, Stop()
    if destination.kind != "stdio":  # stdout is the archive and must not get a report
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
        try:
            outcome.run = wait_for(copying, stop).run or ""
        except Unavailable as end:
            raise _cut_short(outcome, end) from end
    outcome.ended = True
    if error := outcome.error():
        raise error
    output.emit()


def _cut_short(outcome: CopyOutcome, error: Unavailable) -> MemctlError:
    """Return Partial if a store refused to go on after memories were written, else ``error``."""
    written = outcome.copied.memories.written
    if not written or isinstance(error, Lost):
        return error
    return Partial(
        f"{error.message}; done: {count(written, 'memory')}",
        "permit the rest and run again; what was done is complete",
    )
