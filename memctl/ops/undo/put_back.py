"""Putting back the rows of an archive of a prune: missing rows come back, none is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from functools import partial

from memctl.errors import Failure, UsageError
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.ops.lock import lock
from memctl.ops.observer import Observer, opened
from memctl.ops.recording import note_unrecorded
from memctl.ops.report import CopyReport
from memctl.ops.stop import Stop
from memctl.registry import make_store, read_pruned
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.prunable import JAVA, Prunable, PutBack, noun_of
from memctl.text.numbers import count

_BATCH_BYTES = 16 * 1024 * 1024


@dataclass
class PutBackRun:
    """A run that puts the rows of an archive back into the database from which they came.

    ``report`` calls a group a memory.  ``messages`` counts items, such as checkpoints.
    """

    archive: Location
    where: Selection
    """Selects by users and sessions."""
    record: Run
    _: KW_ONLY
    dry_run: bool
    stop: Stop
    report: CopyReport

    async def execute(self, target: Location, observer: Observer) -> None:
        """Check the whole archive, and then put back the rows of one group after the other.

        Raises:
            UsageError: the rows are those of another database, or the store has nothing to prune.
            BadData: the archive is damaged.
            Interrupted: a stop was asked for; the archive can be imported again.
            MemctlError: as ``Prunable.put_back``.
        """
        mode = OpenMode.READ if self.dry_run else OpenMode.CHANGE
        with await in_thread(partial(read_pruned, self.archive)) as reader:
            contents = await in_thread(reader.check)
            async with opened(make_store(target, mode), observer) as store:
                prunable = store.prunable()
                if (engine := contents.engine) != prunable.engine:
                    fits = "AgentScope Java" if engine == JAVA else f"LangGraph on {engine}"
                    raise UsageError(
                        f"{reader.label} has rows of {engine}, which do not fit into {store.label}",
                        f"name a database of {fits}",
                    )
                self.report.noun = noun_of(engine)
                if not self.dry_run:
                    await lock(store)
                with observer.progress("writing") as progress, closing(reader.rows()) as rows:
                    for group, batches in _by_group(rows):
                        if self.where.has_key(prunable.key_of(group)):
                            await self._group(prunable, group, batches)
                            progress.advance(memories=1)
        if self.report.messages.written and not self.dry_run:
            note_unrecorded(self.record, observer.warn)

    async def _group(self, prunable: Prunable, group: str, batches: Iterator[list[bytes]]) -> None:
        total = PutBack()
        while (lines := await in_thread(partial(next, batches, None))) is not None:
            self.stop.end_if_asked("import the archive again: it goes on")
            done = await prunable.put_back(group, lines, dry_run=self.dry_run)
            total = total + done
        memories, messages = self.report.memories, self.report.messages
        memories.selected += 1
        messages.selected += total.items + total.there
        messages.written += total.items
        messages.skipped += total.there
        memories.written += bool(total.rows)
        memories.unchanged += not total.rows and not total.others
        if total.others:
            memories.failed += 1
            text = f"{count(total.others, 'row')} of the archive differ from the store: left as is"
            self.report.failures.append((prunable.key_of(group), Failure("changed", text)))


def _by_group(
    rows: Iterator[tuple[str, bytes]],
) -> Iterator[tuple[str, Iterator[list[bytes]]]]:
    """Yield each group with the lines of its rows in batches; take all batches of a group."""
    following = next(rows, None)

    def batches(group: str) -> Iterator[list[bytes]]:
        nonlocal following
        lines: list[bytes] = []
        size = 0
        while following is not None and following[0] == group:
            lines.append(following[1])
            size += len(following[1])
            following = next(rows, None)
            if size > _BATCH_BYTES:
                yield lines
                lines, size = [], 0
        if lines:
            yield lines

    while following is not None:
        group = following[0]
        yield group, batches(group)
        while following is not None and following[0] == group:
            following = next(rows, None)
