"""The screens of a redaction: what was found, and what stays."""

from __future__ import annotations

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.output.tables import Column, Grid, cell
from memctl.reports.redact import RedactedStore, RedactReport
from memctl.text.numbers import count


def screen(report: RedactReport) -> RenderableType:
    """Draw a redaction, or with ``dry_run``, the plan of one."""
    failed = {one.store: one.message for one in report.failures}
    parts: list[RenderableType] = []
    for store in report.stores:
        parts.append(_head(store, failed.get(store.store, ""), dry_run=report.dry_run))
        if report.dry_run and store.places:
            parts += [Text(), _places(store), Text()]
    for row in report.left[:SHOWN_MEMORIES]:
        named = f"{visible(row.place)}: {visible(row.value)} ({row.kind})"
        parts.append(Text(f"stays: {named}: {row.why}", "red"))
    if len(report.left) > SHOWN_MEMORIES:
        parts.append(Text(f"… and {len(report.left) - SHOWN_MEMORIES:,} more"))
    if made := report.embedded:
        parts.append(Text(f"{count(made.texts, 'text')} embedded by {visible(made.embedder)}"))
    if isinstance(report.receipt, str):
        parts.append(Text(f"receipt: {visible(report.receipt)}"))
    reached = [*report.not_reached, *(one for store in report.stores for one in store.not_reached)]
    parts += [Text(), Text("not reached:", "dim")]
    parts += [Text(f"  - {one}", "dim") for one in dict.fromkeys(reached)]
    return Stack(*parts)


def _head(store: RedactedStore, failure: str, *, dry_run: bool) -> Text:
    text = Text(f"{visible(store.store)}: ", "bold")
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in store.kinds.items())
    said = "not searched" if failure else "nothing found"
    if store.redacted:
        said = f"{'would redact' if dry_run else 'redacted'} {count(store.redacted, 'value')}"
        said += f" ({kinds})"
        if store.runs:
            said += f", {count(len(store.runs), 'undo run')} among the places"
    text.append(said, "not bold")
    if store.signatures:
        signed = count(store.signatures, "block")
        text.append(f"\n  {signed} of thinking removed: a signature covered the text", "not bold")
    if failure:
        text.append(f"\n  {visible(failure)}", "not bold red")
    return text


def _places(store: RedactedStore) -> RenderableType:
    rows = store.places[:SHOWN_MEMORIES]
    grid = Grid(
        [
            Column("place", [cell(one.place) for one in rows], shrinks=True),
            Column("kind", [cell(one.kind) for one in rows]),
            Column("value", [cell(one.value) for one in rows]),
        ]
    )
    more = store.redacted - len(rows)
    return Stack(grid, Text(f"… and {more:,} more")) if more > 0 else grid
