"""The record of what a copy changes in its target, for undo."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, suppress

from memctl.errors import MemctlError
from memctl.journal.changes import ChangesWriter
from memctl.journal.runs import REPLACED, Journal, Retention, Run, Runs
from memctl.location import Location
from memctl.model import Change, Edit, Memory, Page
from memctl.ops.report import CopyReport
from memctl.registry import make_store
from memctl.store import OpenMode


class Recording:
    """The record of one copy: messages as they are put in, memories before they are replaced."""

    def __init__(self, run: Run, keep: Retention | None) -> None:
        """``keep`` says how long older runs are kept; None leaves them alone."""
        self.run = run
        self._keep = keep
        self._journal: Journal | None = None
        self._writer: ChangesWriter | None = None
        self._stack = ExitStack()
        self._count = 0
        self._open = False

    @property
    def begun(self) -> bool:
        """True where changes are recorded."""
        return self._journal is not None

    def begin(self) -> None:
        """Make the folder of the run, once.

        Raises:
            Unavailable: the system refuses.
        """
        if self._journal is None:
            kept = Runs()
            if self._keep is not None:
                kept.prune(self._keep, self.run.undoes)
            self._journal = kept.begin(self.run)
            self._writer = self._stack.enter_context(self._journal.writer(growing=True))

    def adds(self, page: Page, *, summary: bool) -> None:
        """See ``Recorder``."""
        assert self._writer is not None
        key = page.memory.key
        begins = not self._open
        if begins:
            self._count = 0
        changes = [
            Change(entry.id, None, entry.marks, b"", None, entry.position)
            for entry in page.messages
        ]
        new = page.memory.summary if summary else None
        edit = Edit(Memory(key, new or None), changes, self._count, page.last, "")
        self._writer.add(edit)
        self._writer.flush()
        self._count += len(changes)
        self._open = not page.last

    async def replaces(self, pages: AsyncGenerator[Page]) -> None:
        """See ``Recorder``."""
        assert self._journal is not None
        path = self._journal.folder / REPLACED
        store = make_store(Location("archive", str(path), path=path), OpenMode.CREATE)
        async with store, aclosing(store.write(pages)) as tallies:
            async for _ in tallies:
                continue

    def end(self, report: CopyReport) -> None:
        """Complete the record; of a run that changed nothing, none is kept.

        Raises:
            Unavailable: the system refuses.
        """
        if self._journal is None or self._writer is None:
            return
        written = self._writer.memories
        if not written:
            self._stack.close()
            self._journal.discard()
            self.run.id = ""
            return
        self._writer.finish()
        self._stack.close()
        self.run.memories = report.memories.written
        self.run.counts = {"added": report.messages.written, "replaced": report.messages.deleted}
        self._journal.end("partial" if report.failures else "done")

    def end_after_error(self, report: CopyReport) -> None:
        """Complete the record of a run that fails: why it fails counts more."""
        with suppress(MemctlError):
            self.end(report)
