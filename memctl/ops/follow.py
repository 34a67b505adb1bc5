"""Follow a source: repeat the copy until a stop is asked for.

Each copy remembers the state of the target.  Therefore a memory with deleted messages or changed
marks in the source is replaced.  A memory with changes by another program in the target is a
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
    """The lag of the target: the last copy's memories, messages and duration in seconds."""

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
    """Copy new messages every ``interval`` seconds; after a stop, copy once more and end.

    The last copy covers what the source held when the stop was asked for.  ``mirror`` has the
    digests that earlier copies left in the target (see ``copy``), and is updated.

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
    """Refuse options that do not fit a repeated copy.

    Raises:
        UsageError: the copy is a dry run, selects messages, or replaces memories with a backup.
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
