"""Looking into stores."""

from __future__ import annotations

from memctl.ops import compare as comparing
from memctl.ops import inspect as inspecting
from memctl.ops.compare import CompareReport
from memctl.ops.inspect import Catalogue, Sort
from memctl.selection import Selection
from memctl.store import Store

EVERYTHING = Selection()


async def inspect(
    store: Store, where: Selection = EVERYTHING, *, sort: Sort = Sort.MESSAGES
) -> Catalogue:
    """The catalogue of the selected memories, with totals; all of it is held.

    Raises:
        MemctlError: as ``Store.memories``.
    """
    return await inspecting.inspect(store, where, sort)


async def compare(left: Store, right: Store, where: Selection = EVERYTHING) -> CompareReport:
    """Compares the selected memories of two stores: ids, order, marks, content, summaries, expiry.

    Raises:
        MemctlError: as ``Store.read``.
    """
    await left.check_integrity(where)
    await right.check_integrity(where)
    return await comparing.compare(left, right, where)
