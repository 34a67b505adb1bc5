"""Finding what is to be summarised: one pass over the store, which waits for no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from memctl.errors import Failure
from memctl.model import Page
from memctl.ops.chosen import chosen, scope
from memctl.ops.compress.history import History
from memctl.ops.compress.plan import Case, Mode, Wanted
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.known_marks import COMPRESSED
from memctl.ops.report import Progress
from memctl.selection import Selection
from memctl.store import Store

_NO_STATE = Failure(
    "no-state",
    "its session has no saved state from which its agent could read a summary; --mode message "
    "does without",
)


async def scan(
    store: Store,
    where: Selection,
    wanted: Wanted,
    count: Callable[[str], int],
    spool: Spool | None,
    report: CompressReport,
    seen: Callable[[Case], None],
    progress: Progress,
) -> None:
    """Puts what is to be compressed into the spool and the report; ``seen`` hears of each memory.

    Memories whose agent would not find the summary are left, and are failures of the report.

    ``count`` counts the tokens of a text.  Memory stays bound: of a message that has passed, some
    bytes are kept until its memory ends.

    Raises:
        BadData: a message is not JSON.
        MemctlError: as ``Store.prove`` and ``Store.read``.
    """
    await store.check_integrity(scope(where))
    found = 0
    behind: str | None = None
    history: History | None = None
    async with aclosing(_pages(store, where, wanted.mode)) as pages:
        async for page in pages:
            if page.offset == 0 or history is None:
                history = History(page.memory, where, wanted, count)
                behind = None
            for place, entry in enumerate(page.messages):
                line = history.take(entry)
                if page.anchors is not None and page.anchors[place] != behind:
                    behind = page.anchors[place]
                    line = line._replace(behind=behind)
                if spool is not None:
                    spool.add(line)
            size = sum([len(entry.message) for entry in page.messages])
            progress.advance(memories=int(page.last), messages=len(page.messages), size=size)
            if not page.last:
                continue
            case = history.case()
            history = None
            key = page.memory.key
            if case and wanted.mode is Mode.MARK and not await store.keeps_summary(key):
                case = None
                report.changes.failures.append((key, _NO_STATE))
            if spool is not None:
                spool.keep(case) if case is not None else spool.drop()
            if case is not None:
                found += 1
                report.plan(case, deleted=wanted.mode is Mode.REPLACE)
                seen(case)
            if found == wanted.max_memories:
                return
            await asyncio.sleep(0)  # pages come many at a time, and the model is asked meanwhile


def _pages(store: Store, where: Selection, mode: Mode) -> AsyncGenerator[Page]:
    """The memories, without what was summed up before and stays."""
    whole = scope(where)
    if mode is Mode.REPLACE:
        return store.read(whole)
    rest = replace(whole, exclude_marks=frozenset({COMPRESSED}))
    # An earlier summary that goes must find its way back: between the messages that it stands for.
    return chosen(store, rest) if mode is Mode.MESSAGE else store.read(rest)
