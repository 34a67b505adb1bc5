"""Summing up what is old."""

from __future__ import annotations

import asyncio

from memctl.library.keeping import kept, run_id
from memctl.library.places import lock
from memctl.library.reading import EVERYTHING
from memctl.library.results import Compressed
from memctl.ops.apply import ChangeReport
from memctl.ops.compress.commit import SummarizedMemory, SummaryCommitter
from memctl.ops.compress.plan import CompressMode, CompressOptions
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.run import CompressionRun, plan_compression
from memctl.ops.compress.spool import Spool
from memctl.ops.report import SilentProgress, SilentSummaryProgress
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store
from memctl.summarizer import Summarizer
from memctl.summarizers.registry import EXTRACTIVE, make_summarizer


async def compress(
    store: Store,
    where: Selection = EVERYTHING,
    *,
    options: CompressOptions | None = None,
    summarizer: Summarizer | None = None,
    backup: bool = True,
) -> Compressed:
    """Sums up what is old in the selected memories; without a summarizer, by ``extractive``.

    ``make_summarizer`` makes one for a model or a program.  Each memory is committed as soon as its
    summary is there.

    Raises:
        Unavailable: the model or the store went away; what was committed is whole.
        MemctlError: as ``delete``.
    """
    options = options or CompressOptions(CompressMode.MARK)
    summarizer = summarizer or make_summarizer(EXTRACTIVE)
    report = CompressReport(ChangeReport(), summarizer.counted_by)
    await lock(store)
    with kept("compress", store, report.changes, backup=backup) as journal:
        with Spool(journal.folder) as spool:
            work = CompressionRun(spool, options, summarizer, report, Stop(), store.dialect)

            async def find() -> None:
                await plan_compression(
                    *(store, where, options, summarizer.count, spool, report),
                    *(lambda _: work.found(), SilentProgress()),
                )

            async def commit(ready: asyncio.Queue[SummarizedMemory | None]) -> None:
                with journal.writer(growing=True) as writer:
                    commits = SummaryCommitter(
                        store, spool, summarizer, writer, report, SilentSummaryProgress()
                    )
                    try:
                        await commits.run(ready)
                    finally:
                        if commits.begun:
                            writer.finish()

            await work.run(find, commit)
        done = report.changes.done
        journal.run.counts = {
            "summarised": done.memories,
            "deleted": done.deleted,
            "marked": done.marked,
        }
    return Compressed(
        *(report.changes.done.memories, report.messages, report.before, report.after),
        cost=report.cost,
        failures=report.changes.failures,
        run=run_id(journal, backup=backup),
    )
