"""Putting back the rows of an archive of checkpoints: missing rows come back, none is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from memctl.errors import Failure, UsageError
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.ops.lock import lock
from memctl.ops.observer import Observer, opened
from memctl.ops.recording import note_unrecorded
from memctl.ops.report import CopyReport
from memctl.ops.stop import Stop
from memctl.registry import make_store, read_checkpoints
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.checkpoints import Checkpoints, PutBack
from memctl.text.numbers import count

_BATCH_BYTES = 16 * 1024 * 1024


@dataclass
class PutBackRun:
    """A run that puts the rows of an archive back into the database from which they came.

    ``report`` calls a thread a memory.  ``messages`` counts checkpoints.
    """

    archive: Location
    where: Selection
    """Selects by users and sessions."""
    record: Run
    _: KW_ONLY
    dry_run: bool
    stop: Stop

    report: CopyReport = field(default_factory=lambda: CopyReport(noun="checkpoint"))

    async def execute(self, target: Location, observer: Observer) -> None:
        """Check the whole archive, and then put back the rows of one thread after the other.

        Raises:
            UsageError: the rows are those of another database, or the store has no checkpoints.
            BadData: the archive is damaged.
            Interrupted: a stop was asked for; the archive can be imported again.
            MemctlError: as ``Checkpoints.put_back``.
        """
        mode = OpenMode.READ if self.dry_run else OpenMode.CHANGE
        with await in_thread(partial(read_checkpoints, self.archive)) as reader:
            contents = await in_thread(reader.check)
            async with opened(make_store(target, mode), observer) as store:
                checkpoints = store.checkpoints()
                if contents.engine != checkpoints.engine:
                    raise UsageError(
                        f"{reader.label} has rows of {contents.engine}, which do not fit into "
                        f"{store.label}",
                        f"name a database of LangGraph on {contents.engine}",
                    )
                if not self.dry_run:
                    await lock(store)
                with observer.progress("writing") as progress, closing(reader.rows()) as rows:
                    for thread, batches in _by_thread(rows):
                        if self.where.has_key(MemoryKey("", thread)):
                            await self._thread(checkpoints, thread, batches)
                            progress.advance(memories=1)
        if self.report.messages.written and not self.dry_run:
            note_unrecorded(self.record, observer.warn)

    async def _thread(
        self, checkpoints: Checkpoints, thread: str, batches: Iterator[list[bytes]]
    ) -> None:
        total = PutBack()
        while (lines := await in_thread(partial(next, batches, None))) is not None:
            self.stop.end_if_asked("import the archive again: it goes on")
            done = await checkpoints.put_back(thread, lines, dry_run=self.dry_run)
            total = total + done
        memories, messages = self.report.memories, self.report.messages
        memories.selected += 1
        messages.selected += total.checkpoints + total.there
        messages.written += total.checkpoints
        messages.skipped += total.there
        memories.written += bool(total.rows)
        memories.unchanged += not total.rows and not total.others
        if total.others:
            memories.failed += 1
            text = f"{count(total.others, 'row')} of the archive differ from the store: left as is"
            self.report.failures.append((MemoryKey("", thread), Failure("changed", text)))


def _by_thread(
    rows: Iterator[tuple[str, bytes]],
) -> Iterator[tuple[str, Iterator[list[bytes]]]]:
    """Yield each thread with the lines of its rows in batches; take all batches of a thread."""
    following = next(rows, None)

    def batches(thread: str) -> Iterator[list[bytes]]:
        nonlocal following
        lines: list[bytes] = []
        size = 0
        while following is not None and following[0] == thread:
            lines.append(following[1])
            size += len(following[1])
            following = next(rows, None)
            if size > _BATCH_BYTES:
                yield lines
                lines, size = [], 0
        if lines:
            yield lines

    while following is not None:
        thread = following[0]
        yield thread, batches(thread)
        while following is not None and following[0] == thread:
            following = next(rows, None)
