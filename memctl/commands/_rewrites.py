"""The report of ``offload`` and ``rehydrate``."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from memctl.commands._reports import ChangeOutcome, flat_row
from memctl.model import MemoryKey
from memctl.ops.offload.run import OffloadRun, RewriteRun
from memctl.output import offloading


class RewriteOutcome(ChangeOutcome):
    """The report of a command that gives messages another text."""

    def __init__(self, change: RewriteRun, target: str) -> None:
        super().__init__(change, target)
        self.rewrite = change

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        planned, done = self.changes.planned, self.changes.done
        seen = planned if self.dry_run else done
        failed = planned.deleted - done.deleted if self.begun and not self.dry_run else 0
        data["messages"] = {
            "selected": planned.deleted,
            "changed": seen.deleted,
            "failed": max(0, failed),
        }
        total = self.rewrite.sizes(dry_run=self.dry_run)
        data["bytes"] = {"before": total.before, "after": total.after}
        data["tokens"] = {"before": total.tokens_before, "after": total.tokens_after}
        data["left"] = sum(self.rewrite.rewritten.left.values())
        if isinstance(self.rewrite, OffloadRun) and not self.dry_run:
            data["blobs"] = {"place": self.rewrite.blobs.label, "written": self.rewrite.written}
        if self.dry_run:
            data["plan"] = [
                _planned(key, sizes) for key, sizes in self.rewrite.rewritten.sizes.items()
            ]
        return data

    def _rows(self) -> list[dict[str, Any]]:
        data = self._data()
        flat = flat_row(data, "dry_run", "target")
        for what in ("bytes", "tokens"):
            flat |= {f"{what}_{name}": number for name, number in data[what].items()}
        return [flat | {"run": self.run}]

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.begun):
            return None
        return offloading.outcome(self.rewrite, self.target, self.run, dry_run=self.dry_run)


def _planned(key: MemoryKey, sizes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"user": key.user, "session": key.session}
    if key.part:
        row["path"] = key.part
    return row | {
        "messages": sizes.messages,
        "bytes": {"before": sizes.before, "after": sizes.after},
    }
