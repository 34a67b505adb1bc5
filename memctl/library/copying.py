"""Copying from one store to another."""

from __future__ import annotations

from memctl.journal.runs import describe_run
from memctl.library.places import lock, written
from memctl.library.reading import EVERYTHING
from memctl.library.results import Copied
from memctl.model import OnConflict
from memctl.ops import copy as copying
from memctl.ops.copy import refuse_losses
from memctl.ops.report import CopyReport, Progress
from memctl.recording import Recording
from memctl.selection import Selection
from memctl.store import Store


async def copy(
    source: Store,
    target: Store,
    where: Selection = EVERYTHING,
    *,
    on_conflict: OnConflict = OnConflict.FAIL,
    lossy: bool = False,
    checksum: bool = False,
    jobs: int = 1,
    backup: bool = True,
    progress: Progress | None = None,
) -> Copied:
    """Copies the selected memories, as ``memctl migrate`` does; again, only what is new.

    The target is opened with ``create``, and stays locked against other runs until it is closed.

    Raises:
        UsageError: source and target are the same.
        Loss: the target has no place for something, and ``lossy`` is not set; nothing was written.
        Busy: another run writes to the target.
        MemctlError: as ``Store.read`` and ``Store.write``.
    """
    await source.check_integrity(where)
    warnings = await refuse_losses(source, target, where, lossy=lossy)
    await lock(target)
    report = CopyReport()
    options = copying.CopyOptions(on_conflict, lossy, jobs, checksum)
    recording = None
    if backup and not await target.is_empty():
        recording = Recording(describe_run("migrate", written(target), target.location), None)
        recording.begin()
    try:
        await copying.copy(*(source, target, where, options, report, progress), recorder=recording)
    except BaseException:
        if recording is not None:
            recording.end_after_error(report)
        raise
    if recording is not None:
        recording.end(report)
    return Copied(
        report.memories.written,
        report.messages.written,
        report.memories.unchanged,
        report.failures,
        [*warnings, *report.warnings],
        recording.run.id or None if recording is not None else None,
    )
