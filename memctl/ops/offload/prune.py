"""Blobs that nothing refers to: neither a message of the given stores, nor an undo of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path

from memctl.errors import BadData
from memctl.journal.changes import read_changes
from memctl.model import Page
from memctl.ops.offload.references import names_in
from memctl.ops.report import DOCTOR
from memctl.selection import Selection
from memctl.store import Store


async def referred(store: Store, where: Selection | None = None) -> set[str]:
    """Return the names of all blobs to which the selected messages of a store may refer.

    ``where`` is the selection; None selects all messages.

    Raises:
        BadData: a memory is damaged, so it may refer to blobs that nobody sees.
        MemctlError: as ``Store.read``.
    """
    found: set[str] = set()
    async with aclosing(store.read(where or Selection())) as pages:
        async for page in pages:
            found |= await asyncio.to_thread(_names, page)
            del page  # free a large page before the next read
    if store.left_out.failures:
        key, failure = next(iter(store.left_out.failures.items()))
        raise BadData(f"{store.label}: {key} is damaged: {failure.message}", DOCTOR)
    return found


def _names(page: Page) -> set[str]:
    texts = [one.message for one in page.messages]
    others = [page.memory.extra, page.memory.summary or "", *(one.shape for one in page.messages)]
    return names_in(*texts, *map(_encoded, others))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def kept_by_undo(parts: Iterable[Path]) -> set[str]:
    """Return the names of all blobs to which messages refer after an undo of a run.

    ``parts`` are the files with the changes of the run.

    Raises:
        BadData: a file is damaged.
    """
    return {
        name
        for part in parts
        for edit in read_changes(part)
        for change in edit.changes
        if change.new is None
        for name in names_in(change.message, _encoded(change.was))
    }
