"""Damaged documents: what ``doctor`` finds in them."""

from __future__ import annotations

from memctl import jsonio
from memctl.errors import BadData
from memctl.json_document import LARGE, TAIL, TrailingData
from memctl.model import Finding, MemoryKey
from memctl.storekit import quarantine
from memctl.storekit.paths import join, split
from memctl.storekit.quarantine import ItemScan
from memctl.stores.states.document import Document
from memctl.stores.states.memories import CONTENT, scan_damage


def damaged_contents(document: Document, chosen: str | None) -> dict[str, ItemScan]:
    """Find the damaged messages in a document, by the path of their memory.

    ``chosen`` limits the result to the memory at this path; None finds the damaged messages of all
    memories.  If the whole document is a memory, its damaged messages are always included.

    Raises:
        BadData: the document is damaged outside of messages.
    """
    found = scan_damage(document)
    return {path: scan for path, scan in found.items() if chosen is None or path in (chosen, "")}


def tail_of(document: Document, chosen: str | None) -> int | None:
    """Return where the complete JSON ends, if further bytes follow that may be cut off.

    None if no bytes follow, if they may not be cut off, or if the JSON itself is damaged.
    ``chosen`` is as in ``may_be_cut``.
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

    The JSON must contain a memory; if ``chosen`` is given, at this path.  The bytes must not be
    JSON, too: then nobody could tell which of the two is right.
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
    """Return the finding for a damaged document; reading the document raised ``error``.

    If only messages are damaged, the finding names their places.  ``owner`` is the user and
    session; ``chosen`` is the path of the only memory to examine, or None.
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
