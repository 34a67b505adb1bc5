"""The tables of ``compress``: memories, tokens and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.text.numbers import count

if TYPE_CHECKING:  # a command imports the operations that it runs
    from memctl.ops.compress.run import CompressReport
    from memctl.summarizer import Summarizer

from memctl.output.changes import with_plan
from memctl.output.tables import append_failures_by_text


def compress_outcome(
    report: CompressReport,
    summarizer: Summarizer,
    target: str,
    run: str | None,
    *,
    dry_run: bool,
) -> RenderableType:
    """Draw the result and the cost of ``compress``, and each memory that it left unchanged.

    With ``dry_run``, draw the planned result.  ``run`` is the id for ``undo``, None without undo
    data.
    """
    text = Text(visible(target), "bold")
    text.append("\n" + _compress_facts(report, summarizer, dry_run=dry_run), "not bold")
    if report.summarised:
        text.append(f"\n{_tokens(report, dry_run=dry_run)}", "not bold")
    if report.calls and summarizer.kind != "extractive":
        text.append(f"\n{_spent(report, dry_run=dry_run)}", "not bold")
    append_failures_by_text(text, report.changes.failures)
    if run is not None and report.messages:
        text.append(f"\nundo it with: memctl undo {run}", "not bold dim")
    return with_plan(text, report.changes) if dry_run else text


def _compress_facts(report: CompressReport, summarizer: Summarizer, *, dry_run: bool) -> str:
    changes = report.changes
    if not changes.planned.memories:
        return f"nothing to compress{_largest(report)}"
    shown = changes.planned if dry_run else changes.done
    messages = report.selected if dry_run else report.messages
    would = "would be compressed" if dry_run else "compressed"
    by = visible(summarizer.name)
    if summarizer.kind != by:
        by += f" ({summarizer.kind})"
    parts = [f"{count(shown.memories, 'memory')} {would} by {by}, {count(messages, 'message')}"]
    if changes.failures:
        parts.append(f"{count(len(changes.failures), 'memory')} left unchanged")
    left = changes.left + report.over_budget
    if left:
        parts.append(f"{left:,} beyond --max-cost" if dry_run else f"{left:,} not reached")
    return "; ".join(parts)


def _largest(report: CompressReport) -> str:
    found = report.largest
    if found is None:
        return ""
    how = _counted(report)
    size = f"{count(found.messages, 'message')}, {count(found.tokens, 'token')} ({how})"
    key = visible(str(found.key))
    return f"; the largest memory, {key}, has {size}, including what --keep-recent keeps"


def _counted(report: CompressReport) -> str:
    return "estimated" if report.counted_by == "estimate" else f"by {visible(report.counted_by)}"


def _tokens(report: CompressReport, *, dry_run: bool) -> str:
    how = _counted(report)
    if dry_run:
        return (
            f"context: {count(report.before, 'token')}, of which {report.summarised:,} "
            f"would be summarized ({how})"
        )
    share = ((report.ratio or 0.0) - 1) * 100
    larger = f"; {count(report.not_smaller, 'memory')} not smaller" if report.not_smaller else ""
    return f"context: {report.before:,} to {report.after:,} tokens, {share:+.0f} % ({how}){larger}"


def _spent(report: CompressReport, *, dry_run: bool) -> str:
    about = "about " if dry_run else ""
    paid = "" if report.cost is None else f", cost {about}{report.cost:.4f}"
    return (
        f"{about}{count(report.calls, 'request')}, {report.usage.tokens_in:,} tokens in, "
        f"{report.usage.tokens_out:,} out{paid}"
    )
