"""A change from the command line: the confirmation, the run, the report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from msgspec import structs

from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import wait_for
from memctl.errors import BadData, Interrupted, Unavailable, UsageError
from memctl.machine import signals
from memctl.machine.system import at_terminal
from memctl.ops.change.apply import SHOWN_MEMORIES, ChangeReport
from memctl.ops.change.change import ChangeRun, RunOptions
from memctl.ops.stop import Stop
from memctl.output.terminal import Output
from memctl.selection import Selection
from memctl.text.numbers import count


def change(
    output: Output,
    outcome: ChangeOutcome[Any],
    work: Callable[..., Coroutine[Any, Any, object]],
    options: RunOptions,
    ask: Callable[[], object] | None = None,
) -> None:
    """Change a store, and report the change as ``outcome``.

    ``work`` is the operation of ``api``, and ``options`` are for its ``run``.  ``ask`` asks the
    user to confirm the plan, and raises an error if the user does not; the store is closed
    meanwhile.  A dry run does not ask.

    Raises:
        MemctlError: as ``work``; ``Conflict`` or ``Partial`` if memories were left unchanged.
    """
    asks = ask is not None and not options.dry_run

    async def approve(_: object) -> None:
        nonlocal asks
        assert ask is not None
        await asyncio.sleep(0)  # a signal that came before ends the run without a question
        with signals.caught(signals.interrupt):
            ask()
        asks = False

    def watch(run: ChangeRun) -> None:
        outcome.watch(run).report_to(output)

    stop = Stop()
    options = structs.replace(options, watch=watch, approve=approve if asks else None, stop=stop)
    perform(outcome, lambda: wait_for(work(run=options), stop, lambda: not asks))
    output.emit()


def perform(outcome: ChangeOutcome[Any], wait: Callable[[], object]) -> None:
    """Do as ``change``, without a report; ``wait`` carries out the operation.

    Raises:
        MemctlError: as ``change``.
    """
    try:
        wait()
    except (Unavailable, BadData) as error:
        raise outcome.cut_short(error) from error
    outcome.ended = True
    if (failed := outcome.error()) is not None:
        raise failed


def confirm(question: str, *, expected: str | None = None) -> None:
    """Ask for confirmation at the terminal; return only if the user confirms.

    The user confirms by typing ``expected``; if ``expected`` is None, by y or yes.

    Raises:
        Interrupted: any other answer, no answer, or a signal to stop.
    """
    hint = f"type {expected} to continue: " if expected else "[y/N] "
    stopped = Interrupted("not confirmed", "nothing was changed")
    try:
        sys.stderr.write(f"{question} {hint}")
        sys.stderr.flush()
        answer = sys.stdin.buffer.readline().decode(errors="replace")
    except KeyboardInterrupt as end:
        sys.stderr.write("\n")
        stopped.exit_code = 128 + signals.stopped_by(end)
        raise stopped from None
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    said = answer.strip()
    if not (said == expected.strip() if expected else said.lower() in ("y", "yes")):
        raise stopped


def refuse_unasked(yes: bool, hint: str = "--dry-run shows what would be done") -> None:
    """Refuse a change that nobody can confirm; ``yes`` is the option ``--yes``.

    ``hint`` says how to see what would be done.

    Raises:
        UsageError: there is neither a terminal nor ``--yes``.
    """
    if not yes and not at_terminal():
        raise UsageError(
            "refusing without confirmation: not a terminal",
            f"use --yes; {hint}",
        )


def refuse_unclear(where: Selection, *, all_: bool, chosen: bool) -> None:
    """Refuse a change of all messages without ``--all``, and ``--all`` with a selection.

    ``chosen`` is True if options besides those of ``where`` limit the change.

    Raises:
        UsageError: both or neither of ``--all`` and a selection are given.
    """
    nothing = replace(where, shard=None) == Selection()
    if all_ and not nothing:
        raise UsageError("--all cannot be combined with a selection", "leave one of them out")
    if nothing and not (all_ or chosen):
        raise UsageError(
            "nothing is selected",
            "select with --mark, --user or --older-than 90d, or use --all for everything",
        )


def confirm_deletion(
    output: Output, plan: ChangeReport, verb: str, place: str, *, expected: str | None = None
) -> None:
    """Show a plan that deletes messages, and ask: ``delete 36 messages in 12 memories of PLACE?``.

    ``expected`` is as for ``confirm``.

    Raises:
        Interrupted: as ``confirm``.
    """
    from memctl.output.changes import change_plan  # only needed to draw

    output.show(change_plan(plan))
    planned = plan.planned
    shown = f" ({SHOWN_MEMORIES} shown)" if planned.memories > SHOWN_MEMORIES else ""
    said = f"{count(planned.deleted, plan.noun)} in {count(planned.memories, 'memory')}{shown}"
    confirm(f"{verb} {said} of {place}?", expected=expected)
