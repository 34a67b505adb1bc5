"""A refusal of deletions that would change data besides the memories."""

from __future__ import annotations

from memctl.errors import Loss
from memctl.selection import Selection
from memctl.store import Deletion, Store

HINT = "no undo restores such data: to accept the changes, add side_effects=allow to the URL"


async def refuse_side_effects(store: Store, where: Selection, deletion: Deletion) -> None:
    """Raise an error if a deletion from the selected memories would change other data.

    Raises:
        Loss: the deletion would change other data.
        MemctlError: as ``Store.read``.
    """
    if found := await store.side_effects(where, deletion):
        raise Loss(f"{store.label}: {'; '.join(found)}", HINT)
