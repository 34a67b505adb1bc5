"""Follow a source: repeat the copy to a target until a stop is asked for.

Each copy remembers the state in which it left the target.  Therefore the next copy can replace a
memory of which marks changed in the source.  A memory that lost messages in the source is a
conflict, and so is a memory that another program changed in the target.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from memctl.errors import UsageError
from memctl.model import MemoryKey, OnConflict
from memctl.ops.copy.copy import CopyOptions, copy
from memctl.ops.report import CopyReport
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the target was behind: what the last copy wrote, and its duration in seconds.

    ``memories`` and ``messages`` are the numbers of written memories and messages.
    """

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
    """Copy new messages from source to target every ``interval`` seconds, until ``stop``.

    A last copy begins after the stop was asked for.  ``tell`` is called after each copy.
    ``mirror`` maps each memory to its digest after the last copy to the target (see ``copy``); each
    copy updates the digests.

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
    where: Selection, on_conflict: OnConflict, *, backup: bool, dry_run: bool, limited: bool
) -> None:
    """Refuse options of a copy that do not make sense with ``--follow``.

    ``backup`` is True if the copy is recorded for undo, ``limited`` if ``--max-delete`` is given.

    Raises:
        UsageError: the copy is a dry run, selects only some messages of a memory, would replace
            memories and record them for undo, or is limited.
    """
    if limited:
        raise UsageError(
            "--follow and --max-delete cannot be combined",
            "migrate with --max-delete first, then with --follow",
        )
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
