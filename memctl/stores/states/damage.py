"""Damaged documents: what ``doctor`` finds in them."""

from __future__ import annotations

from memctl.errors import BadData
from memctl.json import jsonio
from memctl.json.document import LARGE, TAIL, TrailingData
from memctl.model import Finding, MemoryKey
from memctl.storekit import quarantine
from memctl.storekit.paths import join, split
from memctl.storekit.quarantine import ItemScan
from memctl.stores.states.document import Document
from memctl.stores.states.memories import CONTENT, scan_damage


def damaged_contents(document: Document, chosen: str | None) -> dict[str, ItemScan]:
    """Find the damaged messages in a document, grouped by the path of their memory.

    ``chosen`` is the path of the only memory to search; None searches all memories.  If the whole
    document is a memory, that memory is searched in both cases.

    Raises:
        BadData: the document is damaged outside of messages.
    """
    found = scan_damage(document)
    return {path: scan for path, scan in found.items() if chosen is None or path in (chosen, "")}


def tail_of(document: Document, chosen: str | None) -> int | None:
    """Return the position at which the complete JSON ends, if bytes after it may be cut off.

    Returns None if no bytes follow, if ``may_be_cut`` is False, or if the JSON itself is damaged.
    ``chosen`` is the path at which the JSON must have a memory; None accepts a memory at any path.
    """
    try:
        scan_damage(document)
    except TrailingData as tail:
        return tail.end if may_be_cut(document, tail, chosen) else None
    except BadData:
        return None
    return None


def may_be_cut(document: Document, tail: TrailingData, chosen: str | None) -> bool:
    """Return whether the bytes ``tail`` after the complete JSON of a document may be cut off.

    True if the JSON contains a memory and ``tail`` is not JSON.  If ``tail`` is JSON, too, nobody
    can tell which of the two is right.  ``chosen`` is the path at which the JSON must have a
    memory; None accepts a memory at any path.
    """
    held = tail.paths if chosen is None else tail.paths & {chosen, ""}
    if not held or len(document.data) - tail.end > LARGE:
        return False
    try:
        jsonio.loads(document.data[tail.end :])
    except ValueError:
        return True
    return False


def finding_of(
    owner: tuple[str, str], document: Document, error: BadData, chosen: str | None
) -> Finding:
    """Return the finding for a damaged document, of which reading raised ``error``.

    If only messages are damaged, the finding names their places.  ``owner`` is the user and session
    of the document.  ``chosen`` is the path of the only memory to examine; None examines all
    memories.
    """
    key = MemoryKey(*owner)
    try:
        found = damaged_contents(document, chosen)
    except TrailingData as tail:
        code = TAIL if may_be_cut(document, tail, chosen) else "damaged-state"
        return Finding(code, key, detail=tail.message)
    except BadData:
        found = {}
    if not found:
        return Finding("damaged-state", key, detail=error.message)
    count = sum(scan.items for scan in found.values())
    places = [
        f"{join((*split(path), CONTENT))}[{cut.index}]"
        for path, scan in found.items()
        for cut in scan.cuts
    ]
    return quarantine.finding(key, count, places, error.message)
