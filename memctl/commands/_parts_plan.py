"""A run in parts as a whole: planned first, approved once, and within its limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memctl.commands._change import confirm, confirm_deletion, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._parts_report import planned_changes, repairs
from memctl.commands._values import rate
from memctl.errors import UsageError
from memctl.location import redact, visible
from memctl.ops.change.change import refuse_many
from memctl.ops.compress.plan import CompressMode
from memctl.output import diagnosis
from memctl.parts.limits import CostLimit, DeletionLimit, Limits
from memctl.parts.part import PartResult
from memctl.reports.doctor import DoctorReport
from memctl.reports.report import Divisible
from memctl.shard import Shard
from memctl.summarizer import Summarizer
from memctl.text.numbers import count
from memctl.text.values import deletion_limit

LIMITS = frozenset(("max_cost", "rate_limit", "max_delete", "job"))
"""The parameters that are divided among the parts."""
PLANNED = frozenset({0, 5, 6, 7})
"""The exit codes with which a part has a plan, perhaps not for all memories."""


class Whole:
    """A command that runs in parts, with its options by name."""

    def __init__(self, run: Run, command: str, given: Mapping[str, Any]) -> None:
        """Refuse what cannot be confirmed, and limits that cannot be shared out.

        Raises:
            UsageError: always in such a case.
        """
        self._run = run
        self._command = command
        self._given = given
        limit = deletion_limit(given.get("max_delete"))
        self._most = int(limit[0]) if limit is not None and not limit[1] else None
        """The number of ``--max-delete``; None for a percentage."""
        self._percentage = given["max_delete"] if limit is not None and limit[1] else None
        self._asks = self._is_asked and not given["dry_run"] and not given["yes"]
        if given.get("max_memories") is not None:
            raise UsageError(
                "--max-memories cannot be combined with --shards", "leave one of them out"
            )
        if command == "doctor" and self._most is not None:
            raise UsageError(
                "with --shards, doctor takes a percentage as --max-delete", "write 10%"
            )
        if self._asks:
            refuse_unasked(given["yes"])

    @property
    def _is_asked(self) -> bool:
        """True if the undivided command asks for a confirmation."""
        match self._command:
            case "delete":
                return True
            case "doctor":
                return bool(self._given["repair"])
            case "compress":
                return self._given["mode"] is CompressMode.REPLACE
        return False

    @property
    def plans_first(self) -> bool:
        """True if all parts must plan before the first changes something."""
        return not self._given.get("dry_run") and (self._asks or self._most is not None)

    def approve(self, report: Divisible, label: str) -> bool:
        """Refuse the merged plan ``report``, or ask for a confirmation; False if it is empty.

        Raises:
            Loss: the plan deletes more than ``--max-delete``.
            Interrupted: the user does not confirm.
        """
        self.refuse_many(report)
        if not self._asks:
            return True
        output, target = self._run.output, visible(label)
        expected = redact(self._given["store"]) if self._given.get("all_") else None
        if isinstance(report, DoctorReport):
            found = repairs(report)
            if number := sum(finding.count for finding in found):
                output.show(diagnosis.repair_plan(found))
                confirm(f"repair {count(number, 'problem')} of {target}?")
            return bool(number)
        plan = planned_changes(report)
        if not plan.planned.deleted:
            return False
        verb = "delete"
        if self._command == "compress":
            verb, target = "replace", f"{target} by {count(plan.planned.memories, 'summary')}"
        confirm_deletion(output, plan, verb, target, expected=expected)
        return True

    def refuse_many(self, report: Any) -> None:
        """Refuse a merged plan that deletes more than the number of ``--max-delete``.

        Raises:
            Loss: the plan deletes more messages.
        """
        if self._most is not None and hasattr(report, "messages"):
            deleted = report.messages.deleted
            limit = f"--max-delete {self._given['max_delete']}"
            refuse_many(deleted, "message", self._most, limit)

    def limits(
        self, planned: Mapping[Shard, PartResult], workers: int, shards: Iterable[Shard]
    ) -> Limits:
        """Return the limits of the parts ``shards``; ``workers`` run at the same time.

        ``planned`` has the plan of each part, if the parts have planned.
        """
        cost = self._given.get("max_cost")
        deletions = None
        if self._most is not None and planned:
            numbers = {shard: _deleted(one) for shard, one in planned.items()}
            deletions = DeletionLimit(self._most, numbers)
        return Limits(
            self._fixed(workers),
            None if cost is None else CostLimit(cost, shards),
            deletions,
        )

    def _fixed(self, workers: int) -> Iterator[str]:
        if self._percentage is not None:
            yield f"--max-delete={self._percentage}"
        if limit := rate(self._given.get("rate_limit")):
            unit = "" if limit.size is None else "B"
            yield f"--rate-limit={(limit.size or limit.messages or 0) / workers:.6f}{unit}"
        if self._command == "compress":
            yield f"--jobs={max(1, self._jobs // workers)}"

    @property
    def _jobs(self) -> int:
        """The number of memories that all parts together summarize at the same time."""
        if jobs := self._given["jobs"]:
            return int(jobs)
        settings = self._run.configuration().summarizer(self._given["summarizer"]).settings
        return int(settings.options.get("concurrency", Summarizer.concurrency))


def _deleted(planned: PartResult) -> int:
    return int((planned.report or {}).get("messages", {}).get("deleted", 0))
