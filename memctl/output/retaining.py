"""The screen of a run of retention: a line for each policy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.holds import HELD
from memctl.location import visible
from memctl.ops.retain.run import FAILED, PENDING, STOPPED, PolicyTask
from memctl.retention import PolicyAction
from memctl.text.numbers import count, size


def outcome(tasks: Sequence[PolicyTask], *, dry_run: bool) -> RenderableType:
    """Draw what each policy has done, or would do in a dry run."""
    return Stack(*(_policy(task, dry_run=dry_run) for task in tasks))


def _policy(task: PolicyTask, *, dry_run: bool) -> Text:
    text = Text(f"{visible(task.policy.name)} ", "bold")
    text.append(f"({task.policy.action.value} {visible(task.location.label)}): ", "not bold")
    text.append(_did(task, dry_run=dry_run), "not bold")
    for line in _details(task, dry_run=dry_run):
        text.append(f"\n  {visible(line)}", "not bold dim")
    if task.error is not None:
        style = "not bold red" if task.state == FAILED else "not bold yellow"
        text.append(f"\n  {visible(task.error.message)}", style)
    return text


def _did(task: PolicyTask, *, dry_run: bool) -> str:
    found, acted = task.found, task.acted
    done = found if dry_run else acted
    amount = f"{count(done.messages, found.noun)} in {count(done.memories, 'memory')}"
    offloads = task.policy.action is PolicyAction.OFFLOAD
    remove, removed = ("offload", "offloaded") if offloads else ("remove", "removed")
    if task.state == PENDING:
        return "not reached"
    if task.state == STOPPED:
        return f"stopped; {removed} {amount}"
    if done.memories:
        return f"would {remove} {amount}" if dry_run else f"{removed} {amount}"
    if task.state == FAILED:
        return "failed"
    return "removed nothing" if task.archive is not None and not dry_run else f"nothing to {remove}"


def _details(task: PolicyTask, *, dry_run: bool) -> list[str]:
    found, acted = task.found, task.acted
    lines = []
    if found.memories:
        lines.append(f"{_period(found.oldest, found.newest)}{size(found.bytes)}")
        if task.archive is not None:
            lines.append(f"archive: {task.archive}")
        elif task.policy.blobs:
            lines.append(f"files: {task.policy.blobs}")
    goes = "would go on with" if dry_run else "went on with"
    lines += [f"{goes} the archive of a killed run: {one}" for one in task.resumed]
    if task.held:
        key, failure = next(one for one in task.failures if one[1].code == HELD)
        lines.append(f"{count(task.held, 'memory')} held, which stay; {key}: {failure.message}")
    if acted.left:
        lines.append(f"{count(acted.left, 'memory')} changed meanwhile: left for the next run")
    lines += [f"undo it with: memctl undo {run}" for run in acted.runs]
    if task.policy.action is PolicyAction.PRUNE and acted.memories and task.archive is not None:
        store = visible(task.location.label)
        lines.append(f"put them back with: memctl import {visible(task.archive)} {store}")
    if acted.receipts:
        lines.append(f"cannot be undone; {count(len(acted.receipts), 'receipt')} written")
    return lines


def _period(oldest: datetime | None, newest: datetime | None) -> str:
    if oldest is None or newest is None:
        return ""
    return f"{oldest:%Y-%m-%d} to {newest:%Y-%m-%d}, "
