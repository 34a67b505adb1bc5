"""What was compressed, for people."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.ops.compress.report import CompressReport
from memctl.output.numbers import count
from memctl.summarizer import Summarizer


def outcome(
    report: CompressReport,
    summarizer: Summarizer,
    target: str,
    run: str | None,
    *,
    dry_run: bool,
) -> RenderableType:
    """What a run compressed, or would compress, what it took, and what it left alone."""
    text = Text(visible(target), "bold")
    text.append("\n" + _facts(report, summarizer, dry_run=dry_run), "not bold")
    if report.summarised:
        text.append(f"\n{_tokens(report, dry_run=dry_run)}", "not bold")
    if report.calls and summarizer.kind != "extractive":
        text.append(f"\n{_spent(report, dry_run=dry_run)}", "not bold")
    for key, failure in report.changes.failures:
        text.append(
            f"\n{visible(str(key))}  {failure.code}: {visible(failure.message)}", "not bold red"
        )
    if run is not None and report.messages:
        text.append(f"\nmemctl undo {run} takes it back", "not bold dim")
    return text


def _facts(report: CompressReport, summarizer: Summarizer, *, dry_run: bool) -> str:
    changes = report.changes
    if not changes.planned.memories:
        return "nothing to compress"
    shown = changes.planned if dry_run else changes.done
    messages = report.selected if dry_run else report.messages
    would = "would be compressed" if dry_run else "compressed"
    by = visible(summarizer.name)
    if summarizer.kind != by:
        by += f" ({summarizer.kind})"
    parts = [f"{count(shown.memories, 'memory')} {would} by {by}, {count(messages, 'message')}"]
    if changes.failures:
        parts.append(f"{count(len(changes.failures), 'memory')} left as they were")
    left = changes.left + report.over_budget
    if left and not dry_run:
        parts.append(f"{left:,} not come to")
    return "; ".join(parts)


def _tokens(report: CompressReport, *, dry_run: bool) -> str:
    how = "estimated" if report.counted_by == "estimate" else f"by {visible(report.counted_by)}"
    if dry_run:
        return (
            f"agents read {count(report.before, 'token')} of them, of which {report.summarised:,} "
            f"would be summed up ({how})"
        )
    share = (report.ratio or 0.0) * 100
    return (
        f"agents read {report.after:,} tokens of them instead of {report.before:,}: "
        f"{share:.0f} % ({how})"
    )


def _spent(report: CompressReport, *, dry_run: bool) -> str:
    about = "about " if dry_run else ""
    paid = "" if report.cost is None else f", cost {about}{report.cost:.4f}"
    return (
        f"{about}{count(report.calls, 'request')}, {report.usage.tokens_in:,} tokens in, "
        f"{report.usage.tokens_out:,} out{paid}"
    )
