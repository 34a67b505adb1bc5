"""A copy from the command line: the run and its report."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memctl.commands._change import confirm_deletion, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import wait_for, writable
from memctl.errors import Loss, Lost, MemctlError, Partial, Unavailable
from memctl.location import Location, visible
from memctl.ops.change.apply import ChangeCounts, ChangeReport
from memctl.ops.change.change import RunOptions
from memctl.ops.observer import Unobserved
from memctl.ops.report import CopyReport
from memctl.ops.retry import Transfer
from memctl.ops.stop import Stop
from memctl.registry import refuse_unknown_extension
from memctl.text.numbers import count

if TYPE_CHECKING:
    from memctl.api import Copied


def carry_out(
    run: Run,
    outcome: CopyOutcome,
    destination: Location,
    transfer: Transfer,
    work: Callable[..., Coroutine[Any, Any, Copied]],
    options: RunOptions,
    *,
    asks: bool,
) -> None:
    """Copy memories to the store ``destination``, and write the report ``outcome``.

    ``work`` is ``api.copy`` with its source, and ``options`` are for its ``run``.  ``transfer`` has
    the number of retries, the timeout and the rate limit.  With ``asks``, the user must confirm if
    the copy would remove messages of the target.

    Raises:
        UsageError: messages would be removed, and nobody can confirm that.
        MemctlError: as ``api.copy``; ``Conflict`` or ``Partial`` if memories were left unchanged,
            or if a store refused to go on after memories were written.
    """
    refuse_unknown_extension(destination)
    output, stop = run.output, Stop()
    if destination.kind != "stdio":  # stdout is the archive and must not get a report
        output.printout = outcome.printout()
    with writable(destination) as place:
        if asks and not outcome.dry_run:
            _ask(run, outcome, partial(work, target=place, transfer=transfer), options)
        copying = work(
            target=place, transfer=transfer, run=options, report=outcome.copied, stop=stop
        )
        try:
            wait_for(copying, stop)
        except Unavailable as end:
            raise _cut_short(outcome, end) from end
    outcome.ended = True
    if error := outcome.error():
        raise error
    output.emit()


def _cut_short(outcome: CopyOutcome, error: Unavailable) -> MemctlError:
    """Return Partial if memories were written, else ``error``."""
    written = outcome.copied.memories.written
    if not written or isinstance(error, Lost):
        return error
    return Partial(
        f"{error.message}; done: {count(written, 'memory')}",
        "permit the rest and run again; what was done is complete",
    )


def _ask(
    run: Run,
    outcome: CopyOutcome,
    work: Callable[..., Coroutine[Any, Any, Copied]],
    options: RunOptions,
) -> None:
    """Ask for confirmation if a dry run shows that the copy would remove messages of the target.

    Raises:
        UsageError: there are such messages, and no terminal.
        MemctlError: as ``api.copy`` and ``confirm``.
    """
    found = CopyReport()
    try:
        with run.output.progress("counting") as progress:
            counting = replace(options, dry_run=True, observer=Unobserved(progress))
            wait_for(work(run=counting, verify=False, follow=None, report=found))
    except Loss:
        outcome.copied.losses = found.losses
        raise
    if not found.removed:
        return
    refuse_unasked(False)
    counts = ChangeCounts(len(found.removed), sum(found.removed.values()))
    plan = ChangeReport(found.noun, counts, found.removed)
    confirm_deletion(run.output, plan, "replace", visible(outcome.target))
