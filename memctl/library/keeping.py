"""What is kept of the runs of a program, as of those of the command line.

Older runs are not thrown away here: how long they are kept is said in the configuration.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from memctl.journal.runs import Journal, Runs, describe_run
from memctl.library.places import written
from memctl.ops.apply import ChangeReport
from memctl.store import Store


@contextmanager
def kept(command: str, store: Store, report: ChangeReport, *, backup: bool) -> Iterator[Journal]:
    """What is kept of the run; nothing where nothing was changed."""
    with ExitStack() as stack:
        folder = None
        if not backup:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memctl-")))
        run = describe_run(command, written(store), store.location)
        journal = Runs(folder).begin(run)
        try:
            yield journal
        finally:
            if any(journal.folder.glob("changes-*")):
                run.memories = report.done.memories
                journal.end("partial" if report.failures or report.left else "done")
            else:
                journal.discard()
                run.id = ""


def run_id(journal: Journal, *, backup: bool) -> str | None:
    """What ``memctl undo`` calls the run, if it can be taken back."""
    return journal.run.id or None if backup else None
