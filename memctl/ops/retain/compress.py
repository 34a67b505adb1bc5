"""The action ``compress``: the selected messages of a memory are replaced by their summary."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from memctl.holds import HELD
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import Page, StoredMessage
from memctl.ops.compress.plan import CompressionPlan, CompressMode, CompressOptions
from memctl.ops.compress.run import CompressReport, CompressRun, plan_compression
from memctl.ops.compress.spool import Spool
from memctl.ops.retain.actions import Acted, Found, MessageAction
from memctl.ops.retain.guard import Guard
from memctl.store import Store
from memctl.storekit.batching import paginate
from memctl.storekit.files import temporary_folder
from memctl.summarizer import Summarizer


class CompressionAction(MessageAction):
    """The action of a policy that summarizes, as ``memctl compress --mode replace`` does."""

    @property
    def _summarizer(self) -> Summarizer:
        assert self.around.summarizer is not None
        return self.around.summarizer

    @property
    def _options(self) -> CompressOptions:
        policy = self.policy
        return CompressOptions(
            CompressMode.REPLACE,
            policy.keep_recent,
            policy.trigger_tokens,
            policy.trigger_messages,
            jobs=self._summarizer.concurrency,
        )

    async def pages(self, store: Store, found: Found) -> AsyncGenerator[Page]:
        report, held = CompressReport(), self.around.options.holds.read(store).failure
        with (
            temporary_folder() as folder,
            Spool(folder) as spool,
            self.around.options.observer.progress("reading") as progress,
        ):
            await plan_compression(
                *(store, self.policy.where, self._options, self._summarizer.count, spool),
                *(report, lambda _: None, progress, held),
            )
            found.held |= {
                key: failure for key, failure in report.changes.failures if failure.code == HELD
            }
            while (case := spool.take()) is not None:
                pages = paginate(case.memory, _messages(spool, case), empty=False)
                while (page := await in_thread(lambda: next(pages, None))) is not None:  # noqa: B023
                    yield page
                    del page

    async def carry_out(self, archive: Location, acted: Acted) -> None:
        with Guard() as guard:
            await guard.read(archive, self.around.options.observer)
            run = CompressRun(
                *(self.record(archive), self.policy.where, self._options, self._summarizer),
                guard.holds,
                options=self.options(),
            )
            await self.execute(run, acted)


def _messages(spool: Spool, case: CompressionPlan) -> Iterator[StoredMessage]:
    """Yield the messages of a memory that its summary will replace."""
    for line in spool.lines(case):
        if case.goes(line):
            yield StoredMessage(line.id, line.message, line.marks, line.place)
