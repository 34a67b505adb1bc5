"""The screens of ``offload`` and ``rehydrate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.ops.offload.run import OffloadRun, RewriteReport, RewriteRun, Sizes
from memctl.output.tables import Column, Grid, append_failures, key_columns
from memctl.text.numbers import count, size

_SHOWN_BLOBS = 20


def outcome(run: RewriteRun, target: str, undo: str | None, *, dry_run: bool) -> RenderableType:
    """Draw what a run has changed, or would change in a dry run; ``undo`` is its id for undo."""
    report = run.report
    done = run.sizes(dry_run=dry_run)
    text = Text(visible(target), "bold")
    text.append(f"\n{_said(run, done, dry_run=dry_run)}", "not bold")
    if done.messages:
        text.append(f"\n{_saved(done)}", "not bold")
    if left := sum(run.rewritten.left.values()):
        text.append(
            f"\n{count(left, 'large content')} left: not in a known form", "not bold yellow"
        )
    if report.failures:
        text.append(f"\n{count(len(report.failures), 'memory')} not changed as planned", "not bold")
    append_failures(text, report.failures)
    if undo is not None and report.done.memories:
        text.append(f"\nundo it with: memctl undo {undo}", "not bold dim")
    return Stack(text, Text(), plan(run.rewritten)) if dry_run and done.messages else text


def _said(run: RewriteRun, done: Sizes, *, dry_run: bool) -> str:
    if not done.messages:
        return "nothing was changed" if run.report.planned.memories else run.nothing
    verb = "offloaded from" if isinstance(run, OffloadRun) else "put back into"
    would = "would be " if dry_run else ""
    memories = run.report.planned.memories if dry_run else run.report.done.memories
    places = f"{count(done.messages, 'message')} in {count(memories, 'memory')}"
    more = ""
    if isinstance(run, OffloadRun) and not dry_run:
        more = f" to {visible(run.blobs.label)} ({count(run.written, 'new file')})"
    return f"contents {would}{verb} {places}{more}"


def _saved(done: Sizes) -> str:
    stored = f"{size(done.before)} to {size(done.after)} stored"
    if done.tokens_before == done.tokens_after:
        return stored
    return f"{stored}, about {done.tokens_before:,} to {done.tokens_after:,} tokens of text"


def plan(found: RewriteReport) -> RenderableType:
    """Draw the first memories of a plan: messages to change, and their size before and after."""
    keys = list(found.sizes)[:SHOWN_MEMORIES]
    sizes = [found.sizes[key] for key in keys]
    columns = key_columns(keys)
    columns += [
        Column("messages", [Text(f"{one.messages:,}") for one in sizes], right=True),
        Column("before", [Text(size(one.before)) for one in sizes], right=True),
        Column("after", [Text(size(one.after)) for one in sizes], right=True),
    ]
    hidden = len(found.sizes) - len(keys)
    if not hidden:
        return Grid(columns)
    return Stack(
        Grid(columns), Text(f"and {count(hidden, 'memory')} more: --json lists all", "dim")
    )


def pruned(
    found: Mapping[str, int], place: str, asked: Sequence[str], *, dry_run: bool
) -> RenderableType:
    """Draw removed blobs with their sizes in bytes; with ``dry_run``, blobs that would go.

    ``asked`` are the labels of the stores that were asked whether they need them.
    """
    text = Text(visible(place), "bold")
    text.append(f"\nasked: {', '.join(map(visible, asked))}", "not bold dim")
    if not found:
        return text.append(
            "\nno file to remove: messages or undo runs need all of them", "not bold"
        )
    done = "would be removed" if dry_run else "removed"
    total = size(sum(found.values()))
    text.append(f"\n{count(len(found), 'file')} {done}, {total}", "not bold")
    for name, number in list(found.items())[:_SHOWN_BLOBS]:
        text.append(f"\n  {name}  {size(number)}", "not bold")
    if (hidden := len(found) - _SHOWN_BLOBS) > 0:
        text.append(f"\nand {hidden:,} more: --json lists all", "not bold dim")
    return text
