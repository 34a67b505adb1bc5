"""The report of ``offload`` and ``rehydrate``, and the stores that may need blobs."""

from __future__ import annotations

from rich.console import RenderableType

from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._reports import ChangeOutcome
from memctl.ops.offload.prune import Referrers
from memctl.ops.offload.run import OffloadRun, RewriteRun
from memctl.ops.retain.ledger import Ledger
from memctl.output import offloading
from memctl.reports.change import (
    BeforeAfter,
    BlobsRow,
    OffloadReport,
    RehydrateReport,
    RewrittenMessages,
    RewrittenRow,
)
from memctl.reports.report import Report, named


class RewriteOutcome(ChangeOutcome[RewriteRun]):
    """The report of a command that gives messages another text."""

    def report(self) -> Report:
        """Return the report as it is now."""
        fields = self.fields()
        planned, done = self.changes.planned, self.changes.done
        seen = planned if self.dry_run else done
        failed = planned.deleted - done.deleted if self.change.begun and not self.dry_run else 0
        total = self.change.sizes(dry_run=self.dry_run)
        fields |= {
            "messages": RewrittenMessages(planned.deleted, seen.deleted, max(0, failed)),
            "bytes": BeforeAfter(total.before, total.after),
            "tokens": BeforeAfter(total.tokens_before, total.tokens_after),
            "left": sum(self.change.rewritten.left.values()),
        }
        if self.dry_run:
            fields["plan"] = [
                RewrittenRow(
                    **named(key),
                    messages=sizes.messages,
                    bytes=BeforeAfter(sizes.before, sizes.after),
                )
                for key, sizes in self.change.rewritten.sizes.items()
            ]
        if not isinstance(self.change, OffloadRun):
            return RehydrateReport(**fields)
        if not self.dry_run:
            fields["blobs"] = BlobsRow(self.change.blobs.label, self.change.written)
        return OffloadReport(**fields)

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.change.begun):
            return None
        return offloading.outcome(self.change, self.target, self.change.id, dry_run=self.dry_run)


def referrers(run: Run) -> Referrers:
    """Return the stores that may need blobs: configured ones, and the archives of retention."""

    def names() -> list[str]:
        return [*run.configuration().stores, *Ledger().archives()]

    return Referrers(run_options(run, dry_run=False), names, run.locate)
