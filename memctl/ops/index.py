"""The index of a store, brought up to date from what is in the store."""

from __future__ import annotations

from memctl.embedder import Embedder
from memctl.ops.report import Progress
from memctl.ops.search import IndexUse, Target


async def update(
    target: Target,
    progress: Progress | None = None,
    embedder: Embedder | None = None,
    *,
    checksum: bool = False,
) -> IndexUse:
    """Bring the index of a store up to date; with ``checksum`` texts are compared, too.

    Raises:
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    raise NotImplementedError
