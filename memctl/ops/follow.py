"""Following a source: one copy after the other, until a stop is asked for.

What the target holds is what the copies left there, so a memory whose source changed other than
by growing (messages deleted, marks changed) is written anew; one that somebody else wrote to is a
conflict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from memctl.errors import UsageError
from memctl.model import MemoryKey, OnConflict
from memctl.ops.copy import CopyOptions, copy
from memctl.ops.report import CopyReport
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of the target: the messages of the last copy, and the seconds that it took."""

    memories: int
    messages: int
    seconds: float


async def follow(
    source: Store,
    target: Store,
    where: Selection,
    options: CopyOptions,
    report: CopyReport,
    stop: Stop,
    interval: float,
    tell: Callable[[Lag], None],
    mirror: dict[MemoryKey, bytes],
) -> None:
    """Copy what is new every ``interval`` seconds; a stop has it copy once more, and end.

    So what the source held when the stop was asked for is in the target when this ends.  ``mirror``
    is what earlier copies have left in the target (see ``copy``), and is kept up to date.

    Raises:
        MemctlError: as ``copy``.
    """
    with stop.cooperative_while():
        while True:
            last = stop.asked
            began = time.monotonic()
            memories, messages = report.memories.written, report.messages.written
            report.try_again()
            await copy(source, target, where, options, report, mirror=mirror)
            tell(
                Lag(
                    report.memories.written - memories,
                    report.messages.written - messages,
                    time.monotonic() - began,
                )
            )
            if last:
                return
            await stop.pause(interval)


def refuse_to_follow(
    where: Selection, on_conflict: OnConflict, *, backup: bool, dry_run: bool
) -> None:
    """Refuse what has no end to wait for, or could not be undone as asked.

    Raises:
        UsageError: see there.
    """
    if dry_run:
        raise UsageError("--follow and --dry-run cannot be combined", "leave one of them out")
    if not where.whole:
        raise UsageError(
            "--follow copies whole memories", "select by --user and --session, or not at all"
        )
    if backup and on_conflict is OnConflict.REPLACE:
        raise UsageError(
            "--follow cannot be undone, so --on-conflict replace needs --no-backup",
            "add --no-backup, or migrate with --on-conflict replace first, then with --follow",
        )
